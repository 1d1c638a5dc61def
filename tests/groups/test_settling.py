"""Deliveries with unwritten acknowledgements, as others report them: other processes, threads, out of order."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

from harness.timers import Timers
from streamkit import Client, DeliveryLost, Entry, Record, Store, Unavailable
from streamkit.groups import Consumer, Delivery
from streamkit.groups.core import Core
from streamkit.groups.lane import Location
from streamkit.groups.source import Source
from streamkit.store import append_expected
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver


def put(store: Store, count: int, segment: str = "a") -> None:
    store.produce("orders", segment, [Record(b"%d" % number) for number in range(1, count + 1)])


def sequences(deliveries: list[Delivery]) -> list[int]:
    return [delivery.entry.sequence for delivery in deliveries]


def counted(store: Store) -> tuple[int, int, int, int]:
    status = store.group("orders", "billing").status()
    return status.acked, status.pending, status.ready + status.delayed, status.unread


@pytest.mark.parametrize("settle", [Consumer.nack, Consumer.release])
def test_in_key_shared_what_was_acknowledged_is_not_taken_back_with_what_is_before_it(
    subject: Subject, settle: object
) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing", mode="key_shared", retry_delay=0)
    with group.consumer(linger=3600) as consumer:
        first, second, _ = consumer.receive()
        consumer.ack(second)
        settle(consumer, first)  # type: ignore[operator]
        assert counted(subject.stranger()) == (1, 0, 2, 0)
        again = consumer.receive()
        assert sequences(again) == [1, 3]
        for delivery in again:
            consumer.ack(delivery)
    assert counted(subject.stranger()) == (3, 0, 0, 0)


def test_what_one_consumer_acknowledged_another_one_of_the_process_cannot_settle(subject: Subject) -> None:
    put(subject.store, 2)
    group = subject.store.group("orders", "billing")
    one, two = group.consumer("one", linger=3600), group.consumer("two")
    for settle in (two.ack, two.nack, two.release, two.reject, lambda delivery: two.extend(delivery, 10)):
        put(subject.store, 1)
        (delivery,) = one.receive(1)
        one.ack(delivery)
        with pytest.raises(DeliveryLost):
            settle(delivery)
    assert counted(subject.stranger()) == (5, 0, 0, 2)


def test_threads_that_acknowledge_the_same_delivery_acknowledge_it_once(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(subject.store, 2)
    group = subject.store.group("orders", "billing")
    consumer, later = group.consumer(linger=3600), Core.acknowledge_later
    first, second = consumer.receive()

    def another(core: Core, delivery: Delivery, linger: float) -> None:
        monkeypatch.undo()
        thread = threading.Thread(target=consumer.ack, args=(delivery,))
        thread.start()
        thread.join()
        later(core, delivery, linger)

    monkeypatch.setattr(Core, "acknowledge_later", another)
    consumer.ack(first)
    consumer.flush()
    assert counted(subject.stranger()) == (1, 1, 0, 0)
    consumer.ack(second)
    consumer.close()
    assert counted(subject.stranger()) == (2, 0, 0, 0)


def test_threads_that_acknowledge_the_same_delivery_at_once_are_both_told_that_it_is_done(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(subject.store, 1)
    group = subject.store.group("orders", "billing")
    consumer, settle = group.consumer(linger=0), Core.settle
    (delivery,) = consumer.receive()
    with ThreadPoolExecutor() as pool:
        others: list[Future[None]] = []

        def another(core: Core, *args: Any) -> Any:
            monkeypatch.undo()
            others.append(pool.submit(consumer.ack, delivery))
            wait(others, timeout=0.1)
            return settle(core, *args)

        monkeypatch.setattr(Core, "settle", another)
        consumer.ack(delivery)
        assert others[0].result() is None
    assert counted(subject.stranger()) == (1, 0, 0, 0)


def test_who_extends_the_delivery_of_another_one_does_not_hand_it_back(subject: Subject) -> None:
    put(subject.store, 1)
    group = subject.store.group("orders", "billing")
    one = group.consumer("one")
    (delivery,) = one.receive()
    with subject.stranger().group("orders", "billing").consumer("helper") as helper:
        extended = helper.extend(delivery, 3600)
    (pending,) = group.pending()
    assert (pending.consumer, pending.deadline) == ("one", extended.deadline)
    one.ack(delivery)
    one.close()
    assert counted(subject.stranger()) == (1, 0, 0, 0)


def test_an_acknowledgement_is_refused_at_once_where_it_is_known_that_the_delivery_is_over(subject: Subject) -> None:
    put(subject.store, 2)
    group = subject.store.group("orders", "billing")
    consumer = group.consumer(linger=3600)
    (delivery,) = consumer.receive(1)
    group.seek("beginning")
    with pytest.raises(DeliveryLost):
        consumer.ack(delivery)
    assert counted(subject.stranger()) == (0, 0, 0, 2)


def test_what_could_not_be_written_is_written_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, clock = Timers(monkeypatch), ManualClock()
    driver = MemoryDriver(uuid4().hex, clock=clock, sleep=clock.sleep)
    with Client("memory://", driver, 30.0, None, 64 << 20, clock) as client:
        store = client.store(uuid4())
        put(store, 2)
        group = store.group("orders", "billing", lanes=1)
        consumer = group.consumer(linger=0.1)
        for delivery in consumer.receive():
            consumer.ack(delivery)
        append = append_expected

        def fails(*args: Any) -> None:
            monkeypatch.setattr("streamkit.groups.chain.append_expected", append)
            raise Unavailable("not now")

        monkeypatch.setattr("streamkit.groups.chain.append_expected", fails)
        timers.wait(clock, 0.1)
        state = group.core.lane(0).chain.state
        assert (state.acked, len(state.pending)) == (0, 2)
        timers.wait(clock, 1.0)
        assert (state.acked, len(state.pending)) == (2, 0)


@pytest.mark.parametrize("mode", ["shared", "key_shared"])
def test_a_group_is_looked_at_while_its_consumers_work(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Everything is settled while another process reads the pending entries."""
    for segment in "abc":
        put(subject.store, 4, segment)
    group = subject.store.group("orders", "billing", mode=mode, lanes=1)
    consumer, load = group.consumer(linger=0), Source.load

    def meanwhile(source: Source, locations: Iterable[Location]) -> list[Entry | None]:
        monkeypatch.undo()
        consumer.reject(deliveries.pop())
        while deliveries:
            consumer.ack(deliveries.pop())
        return load(source, locations)

    for look in (group.pending, group.status):
        deliveries = consumer.receive(5)
        monkeypatch.setattr(Source, "load", meanwhile)
        look()
        assert deliveries == []
    assert len(group.dead_letters()) == 2
    acked, pending, again, lag = counted(subject.stranger())
    assert (acked + lag, pending, again) == (10, 0, 0)


def test_removed_entries_take_no_place_among_those_that_are_listed(subject: Subject) -> None:
    put(subject.store, 6)
    group = subject.store.group("orders", "billing")
    consumer = group.consumer()
    for delivery in consumer.receive(3):
        consumer.reject(delivery)
    consumer.receive()
    for sequence in (1, 4):
        subject.store.erase("orders", "a", first=sequence, last=sequence)
    group.core.source._looked = float("-inf")  # where a look is a request there is one a second
    assert [letter.entry.sequence for letter in group.dead_letters(1)] == [2]
    assert [letter.entry.sequence for letter in group.dead_letters()] == [2, 3]
    assert [pending.entry.sequence for pending in group.pending(limit=1)] == [5]
    assert [len(group.pending(limit=0)), len(group.dead_letters(0))] == [2, 2], "0 is no cap"


class Sleeper(ManualClock):
    """The clocks of a machine that may sleep. Its monotonic clock stands still meanwhile."""

    asleep = 0.0

    def now(self) -> int:
        return super().now() + int(self.asleep * 1000)


def test_what_a_machine_had_that_slept_is_not_its_own_any_more(subject: Subject) -> None:
    put(subject.store, 3)
    sleeper, clock = Sleeper(), ManualClock()
    group = subject.stranger(clock=sleeper).group("orders", "billing", lanes=1, ack_timeout=30.0)
    one = group.consumer("one", prefetch=2, linger=10.0)
    (first,) = one.receive(1)
    sleeper.asleep = 100.0
    clock.sleep(100.0)
    two = subject.stranger(clock=clock).group("orders", "billing").consumer("two", linger=0)
    taken = two.receive()
    assert sequences(taken) == [1, 2, 3]
    assert one.receive(1) == []
    with pytest.raises(DeliveryLost):
        one.ack(first)
    for delivery in taken:
        two.ack(delivery)
    assert counted(subject.stranger()) == (3, 0, 0, 0)
