"""Consumers that claim ahead: a prefetched delivery behaves as if it were claimed when it is handed out."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from fix_stores import Subject

from streamkit import Client, DeliveryLost, Record, Store
from streamkit.groups import Delivery
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver


def put(store: Store, count: int, segment: str = "a") -> None:
    store.produce("orders", segment, [Record(b"%d" % number) for number in range(1, count + 1)])


def sequences(deliveries: list[Delivery]) -> list[int]:
    return [delivery.entry.sequence for delivery in deliveries]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timed(clock: ManualClock) -> Iterator[Store]:
    driver = MemoryDriver(uuid4().hex, clock=clock, sleep=clock.sleep)
    with Client("memory://", driver, 30.0, None, 64 << 20, clock) as client:
        yield client.store(uuid4())


def test_one_claim_is_for_many_calls(subject: Subject) -> None:
    put(subject.store, 20)
    group = subject.store.group("orders", "billing")
    with group.consumer("one", prefetch=10, linger=60) as consumer:
        assert sequences(consumer.receive(1)) == [1]
        assert group.status().pending == 10
        before = group.core.lane(0).chain.sequence, group.core.shared.numbers(group.core.internal)
        assert [sequences(consumer.receive(3)) for _ in range(3)] == [[2, 3, 4], [5, 6, 7], [8, 9, 10]]
        assert (group.core.lane(0).chain.sequence, group.core.shared.numbers(group.core.internal)) == before
        assert sequences(consumer.receive(20)) == list(range(11, 21))


def test_what_it_does_not_come_to_is_given_back_uncounted(subject: Subject) -> None:
    put(subject.store, 6)
    group = subject.store.group("orders", "billing", retry_delay=0.001)
    one = group.consumer("one", prefetch=6)
    assert sequences(one.receive(2)) == [1, 2]
    one.close(give_back=False)  # as at the end of a block that raises
    with group.consumer("two") as consumer:
        got = [*consumer.receive(wait=5)]
        while len(got) < 6:
            got += consumer.receive(wait=5)
    attempts = {each.entry.sequence: each.attempt for each in got}
    assert attempts == {1: 2, 2: 2, 3: 1, 4: 1, 5: 1, 6: 1}


def test_what_waited_for_half_of_its_time_is_claimed_again(timed: Store, clock: ManualClock) -> None:
    put(timed, 6)
    group = timed.group("orders", "billing", ack_timeout=30.0)
    with group.consumer("one", prefetch=6) as consumer:
        (first,) = consumer.receive(1)
        clock.sleep(14.0)
        (second,) = consumer.receive(1)
        assert second.deadline == first.deadline
        clock.sleep(2.0)
        (third,) = consumer.receive(1)
        assert (third.entry.sequence, third.attempt) == (3, 1)
        assert third.deadline == clock.now() + 30_000
        assert group.status().pending == 6
        consumer.ack(first)
        consumer.ack(third)
    assert group.status().acked == 2


def test_what_is_removed_or_forgotten_meanwhile_is_not_handed_out(subject: Subject) -> None:
    put(subject.store, 9)
    other = subject.stranger()
    group = subject.store.group("orders", "billing")
    consumer = group.consumer("one", prefetch=9)
    (first,) = consumer.receive(1)
    other.erase("orders", "a", first=3, last=4)
    group.core.source._looked = float("-inf")  # where a look is a request there is one a second
    assert sequences(consumer.receive(4)) == [2, 5]
    assert group.status().pending == 7
    group.seek("beginning")
    got = [*sequences(consumer.receive(9)), *sequences(consumer.receive(9)), *sequences(consumer.receive(9))]
    assert got == [1, 2, 5, 6, 7, 8, 9]
    with pytest.raises(DeliveryLost):
        consumer.nack(first)


def test_in_key_shared_what_is_behind_a_nacked_one_is_not_handed_out(subject: Subject) -> None:
    put(subject.store, 4)
    group = subject.store.group("orders", "billing", mode="key_shared", retry_delay=0.05)
    with group.consumer("one", prefetch=4) as consumer:
        (first,) = consumer.receive(1)
        consumer.nack(first)
        (again,) = consumer.receive(1, wait=5)
        assert (again.entry.sequence, again.attempt) == (1, 2)
        assert [(each.entry.sequence, each.attempt) for each in consumer.receive(9)] == [(2, 1), (3, 1), (4, 1)]


def test_at_most_once_is_acknowledged_first_also_of_what_was_at_hand(subject: Subject) -> None:
    put(subject.store, 6)
    group = subject.store.group("orders", "billing")
    with group.consumer("one", prefetch=4) as consumer:
        assert sequences(consumer.receive(1)) == [1]
        assert sequences(consumer.receive(2, auto_ack=True)) == [2, 3]
        assert group.status().acked == 2


def test_at_most_once_leaves_out_what_went_to_another_one_meanwhile(subject: Subject) -> None:
    """To one whose clock is ahead, say: this one does not know of it."""
    put(subject.store, 3)
    group = subject.store.group("orders", "billing", lanes=1)
    other = subject.stranger().group("orders", "billing")
    clock = other.core.clock

    class Ahead:
        def now(self) -> int:
            return clock.now() + 40_000

        def __getattr__(self, name: str) -> object:
            return getattr(clock, name)

    other.core.lane(0).chain._clock = Ahead()  # type: ignore[assignment]
    with group.consumer("one", prefetch=3) as one, other.consumer("two") as two:
        assert sequences(one.receive(1)) == [1]
        assert sequences(two.receive(9, auto_ack=True)) == [1, 2, 3]
        assert one.receive(9, auto_ack=True) == []
    assert group.status().acked == 3


def test_what_is_no_delivery_is_told_what_is_one(subject: Subject) -> None:
    put(subject.store, 1)
    with subject.store.group("orders", "billing").consumer() as consumer:
        for settle in (consumer.ack, consumer.nack, consumer.reject, consumer.release):
            with pytest.raises(TypeError, match=r"a Delivery of receive\(\), not str"):
                settle("x")  # type: ignore[operator]
        with pytest.raises(TypeError, match=r"a Delivery of receive\(\), not Entry"):
            consumer.ack(consumer.receive()[0].entry)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prefetch is 1 or more"):
        subject.store.group("orders", "billing").consumer(prefetch=0)
