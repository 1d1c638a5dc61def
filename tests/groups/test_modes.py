"""exclusive and key_shared."""

from __future__ import annotations

import random
import time

import pytest
from fix_stores import Subject

from streamkit import DeliveryLost, Record
from streamkit.groups import Delivery
from streamkit.testing import ManualClock


def put(subject: Subject, *names: str) -> None:
    for name in names:
        key, number = name[0], name[1:]
        subject.store.produce("orders", key, [Record(number.encode(), {"customer": key})])


def names(deliveries: list[Delivery]) -> list[str]:
    return [each.entry.segment + each.entry.payload.decode() for each in deliveries]


def test_one_receives_and_another_takes_over_when_it_ends(subject: Subject) -> None:
    put(subject, "a1", "a2", "a3", "a4")
    group = subject.store.group("orders", "billing", mode="exclusive", ack_timeout=30.0)
    other = subject.stranger().group("orders", "billing")
    one, two = group.consumer("one"), other.consumer("two")
    held = one.receive(2)
    assert names(held) == ["a1", "a2"]
    assert two.receive(2, wait=0.2) == []
    one.ack(held[0])
    one.close()
    assert names(two.receive(10, wait=5)) == ["a2", "a3", "a4"]
    assert group.consumer().receive() == []


def test_one_that_stops_is_succeeded_after_its_deadline(subject: Subject) -> None:
    clock = ManualClock(start=time.time())
    put(subject, "a1", "a2")
    group = subject.stranger(clock=clock).group("orders", "billing", mode="exclusive", ack_timeout=0.5)
    other = subject.stranger(clock=clock).group("orders", "billing")
    one, two = group.consumer("one", linger=0), other.consumer("two")
    (held,) = one.receive(1)
    start = clock.monotonic()
    assert names(two.receive(10, wait=30)) == ["a1", "a2"]
    assert 0.3 < clock.monotonic() - start < 2.5
    with pytest.raises(DeliveryLost):
        one.ack(held)
    assert one.receive() == []


def test_one_that_looks_goes_on_holding(subject: Subject) -> None:
    clock = ManualClock(start=time.time())
    put(subject, "a1")
    group = subject.stranger(clock=clock).group("orders", "billing", mode="exclusive", ack_timeout=0.4)
    other = subject.stranger(clock=clock).group("orders", "billing")
    one, two = group.consumer("one", linger=0), other.consumer("two")
    one.ack(one.receive()[0])
    end = clock.monotonic() + 1.0
    while clock.monotonic() < end:
        assert one.receive(wait=0.05) == two.receive() == []
    put(subject, "a2")
    assert two.receive() == []
    assert names(one.receive(wait=5)) == ["a2"]


def test_one_that_extended_a_delivery_goes_on_holding_until_that_is_over(subject: Subject) -> None:
    clock = ManualClock(start=time.time())
    put(subject, "a1", "a2", "a3")
    group = subject.stranger(clock=clock).group("orders", "billing", mode="exclusive", ack_timeout=30.0)
    one = group.consumer("one", linger=0)
    two = subject.stranger(clock=clock).group("orders", "billing").consumer("two")
    (long,) = one.receive(1)
    one.extend(long, 100.0)
    (short,) = one.receive(1)
    one.ack(short)
    clock.sleep(40.0)
    assert two.receive() == []
    clock.sleep(61.0)
    assert names(two.receive()) == ["a1", "a3"]


def test_entries_of_a_key_are_with_one_consumer_in_order(subject: Subject) -> None:
    put(subject, "a1", "b1", "a2", "b2", "a3")
    group = subject.store.group("orders", "billing", mode="key_shared", lanes=1)
    one, two = group.consumer("one", linger=0), group.consumer("two", linger=0)
    first = one.receive(1)
    assert names(first) == ["a1"]
    assert names(two.receive(10)) == ["b1", "b2"]
    assert one.receive(10) == two.receive(10) == []
    one.ack(first[0])
    assert names(two.receive(10)) == ["a2", "a3"]


def put_many(subject: Subject, key: str, count: int) -> None:
    subject.store.produce("orders", key, [Record(b"%d" % number) for number in range(1, count + 1)])


@pytest.mark.parametrize(("held", "limit"), [(20, 1), (3000, 10), (10_000, 10)])
def test_entries_behind_those_of_a_held_key_are_delivered(subject: Subject, held: int, limit: int) -> None:
    put_many(subject, "a", held)
    put(subject, "b1", "b2", "c1")
    group = subject.store.group("orders", "billing", mode="key_shared")
    other = subject.stranger().group("orders", "billing")
    one = group.consumer("one", linger=0)
    (first,) = one.receive(1)
    with other.consumer("two") as two:
        (found, *_) = two.receive(limit)
        assert found.entry.segment != "a"
    handled: list[Delivery] = []
    assert other.run(handled.append, drain=True, batch=limit).acked == 3
    assert sorted(names(handled)) == ["b1", "b2", "c1"]
    one.ack(first)
    with other.consumer("two") as two:
        assert names(two.receive(5)) == ["a2", "a3", "a4", "a5", "a6"]


def test_the_search_behind_a_held_key_ends_after_forty_thousand_entries(subject: Subject) -> None:
    put_many(subject, "a", 40_500)
    put(subject, "b1")
    group = subject.store.group("orders", "billing", mode="key_shared")
    other = subject.stranger().group("orders", "billing")
    one, two = group.consumer("one"), other.consumer("two")
    assert names(one.receive(1)) == ["a1"]
    assert two.receive(10) == two.receive(10) == []
    assert other.core.feed.state.tickets == 40_001, "40,000 beside the one that is held"
    one.close()
    with group.consumer("one") as one:
        assert len(one.receive(1000, auto_ack=True)) == 1000
        assert names(one.receive(1)) == ["a1001"]
        assert names(two.receive(10)) == ["b1"]


def test_a_consumer_with_as_many_entries_as_it_may_have_does_not_search(subject: Subject) -> None:
    put_many(subject, "a", 10_000)
    group = subject.store.group("orders", "billing", mode="key_shared", lanes=1, max_pending=5)
    with group.consumer("one") as one:
        assert names(one.receive(10)) == ["a1", "a2", "a3", "a4", "a5"]
        assert one.receive(10) == []
        assert group.core.feed.state.tickets <= 2000


def test_the_key_may_be_a_metadata(subject: Subject) -> None:
    for number, customer in enumerate("xyx"):
        subject.store.produce("orders", str(number), [Record(customer.encode(), {"customer": customer})])
    group = subject.store.group("orders", "billing", mode="key_shared", key="customer", lanes=1)
    one, two = group.consumer("one"), group.consumer("two")
    assert [each.entry.payload for each in one.receive(1)] == [b"x"]
    assert [each.entry.payload for each in two.receive(10)] == [b"y"]


def test_a_nacked_entry_holds_back_those_behind_it(subject: Subject) -> None:
    put(subject, "a1", "b1", "a2", "a3", "b2")
    group = subject.store.group("orders", "billing", mode="key_shared", lanes=1)
    with group.consumer("one", linger=0) as one:
        held = {name: delivery for delivery in one.receive(10) for name in names([delivery])}
        one.nack(held["a1"], delay=0.3)
        for name in ("a2", "a3"):
            with pytest.raises(DeliveryLost):
                one.ack(held[name])
        one.ack(held["b1"])
        assert one.receive(10) == []
        again = one.receive(10, wait=10)
        assert names(again) == ["a1", "a2", "a3"]
        assert [each.attempt for each in again] == [2, 1, 1]
        assert one.is_held(held["b2"])


def test_a_dead_entry_lets_its_key_go_on(subject: Subject) -> None:
    put(subject, "a1", "a2")
    group = subject.store.group("orders", "billing", mode="key_shared", lanes=1, max_deliveries=1)
    with group.consumer("one", linger=0) as one:
        (first,) = one.receive(1)
        one.nack(first)
        (second,) = one.receive(10)
        assert names([second]) == ["a2"]
        # A returned entry is before the open ones of its key, and holds them back.
        put(subject, "a3")
        assert group.redrive() == 1
        assert one.receive(10) == []
        one.ack(second)
        assert names(one.receive(10)) == ["a1", "a3"]


def test_an_expired_key_goes_to_another_one_as_a_whole(subject: Subject) -> None:
    clock = ManualClock(start=time.time())
    put(subject, "a1", "a2", "a3")
    group = subject.stranger(clock=clock).group("orders", "billing", mode="key_shared", ack_timeout=0.2)
    one, two = group.consumer("one", linger=0), group.consumer("two", linger=0)
    held = one.receive(2)
    one.extend(held[1], 1.0)
    start = clock.monotonic()
    taken = two.receive(10, wait=10)
    assert clock.monotonic() - start > 0.7, "while a2 was extended, a1 did not go to another one"
    assert names(taken) == ["a1", "a2", "a3"]


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_every_key_is_in_order_over_many_consumers(subject: Subject, lanes: int) -> None:
    expected = {key: [str(number) for number in range(20)] for key in "abcdefghij"}
    for number in range(20):
        put(subject, *(f"{key}{number}" for key in expected))
    chance = random.Random(lanes)
    group = subject.store.group("orders", "billing", mode="key_shared", lanes=lanes, retry_delay=0, max_deliveries=1000)
    other = subject.stranger().group("orders", "billing")
    consumers = [each.consumer(f"{number}", linger=0) for number, each in enumerate((group, other, group))]
    seen: dict[str, list[str]] = {}
    for _ in range(5000):
        consumer = chance.choice(consumers)
        for delivery in consumer.receive(chance.randrange(1, 12)):
            if not consumer.is_held(delivery):
                continue
            if chance.random() < 0.1:
                consumer.nack(delivery, delay=0)
            else:
                seen.setdefault(delivery.entry.segment, []).append(delivery.entry.payload.decode())
                consumer.ack(delivery)
        if sum(map(len, seen.values())) == 200:
            break
    assert seen == expected
