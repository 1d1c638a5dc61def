"""One bad job among good ones: it dies of its own failures, and no other job dies with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from uuid import uuid4

import pytest
from fix_covered import sample

from harness.poison import DOORS, MODES, Poisoned, in_memory, work_off
from harness.timers import Timers
from streamkit import Client, Record, Store
from streamkit.groups import Consumer, Delivery, Group, Settlement
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver

ENDS = ("raises", "kills", "both")


@pytest.fixture(autouse=True)
def _whole_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.groups.chain.Chain._trim", lambda chain, snapshot: None)
    Timers(monkeypatch)  # a killed process writes nothing more


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("door", DOORS)
def test_of_a_hundred_jobs_with_one_poison_all_others_are_done(
    mode: str, door: str, covered: Callable[[str, int], None]
) -> None:
    plans = list(sample(product(ENDS, (1, 2, 3, 5), range(10)), 13))
    for ends, most, seed in plans:
        try:
            work_off(mode, door, ends, most, seed, in_memory())
        except BaseException as error:
            error.add_note(f"{mode}, {door}, {ends}, max_deliveries={most}, seed {seed}")
            raise
    covered("groups with a poison job", len(plans))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    driver = MemoryDriver(uuid4().hex, clock=clock, sleep=clock.sleep)
    with Client("memory://", driver, 30.0, None, 64 << 20, clock) as client:
        yield client.store(uuid4())


def put(store: Store, count: int, segment: str = "a") -> None:
    store.produce("orders", segment, [Record(b"%d" % number) for number in range(1, count + 1)])


def sequences(deliveries: list[Delivery]) -> list[tuple[int, int]]:
    return [(delivery.entry.sequence, delivery.attempt) for delivery in deliveries]


def fail(group: Group, count: int) -> None:
    """Receive deliveries, then raise before any is settled, as a failing handler does."""
    with suppress(Poisoned), group.consumer() as consumer:
        assert len(consumer.receive(count)) == count
        raise Poisoned("bad total")


def test_the_last_attempt_of_what_failed_together_is_made_alone(store: Store) -> None:
    put(store, 3)
    group = store.group("orders", "billing", max_deliveries=2, retry_delay=0, lanes=1)
    fail(group, 3)
    store.produce("orders", "a", [Record(b"4")])
    with group.consumer(linger=0) as consumer:
        for sequence in (1, 2, 3):
            (delivery,) = consumer.receive()
            assert sequences([delivery]) == [(sequence, 2)]
            assert consumer.receive() == []
            consumer.ack(delivery)
        assert sequences(consumer.receive()) == [(4, 1)]
    assert group.dead_letters() == []


@pytest.mark.parametrize("mode", ["shared", "key_shared"])
def test_a_consumer_that_has_something_does_not_get_what_is_to_be_alone(store: Store, mode: str) -> None:
    put(store, 1, "a")
    group = store.group("orders", "billing", mode=mode, max_deliveries=1, retry_delay=0, lanes=1)
    with group.consumer("busy", linger=0) as busy:
        (held,) = busy.receive()
        put(store, 2, "b")
        fail(group, 2)
        put(store, 1, "c")
        assert busy.receive() == []
        busy.ack(held)
        (alone,) = busy.receive()
        assert (alone.entry.segment, alone.entry.sequence) == ("b", 1)
    assert group.dead_letters() == []


def test_a_look_does_not_count_the_held_deliveries_one_by_one(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of Celery holds thousands of tasks past their first deadline, and looks twenty times a second."""
    put(store, 300)
    group = store.group("orders", "billing", ack_timeout=10.0)
    with group.consumer() as consumer:
        held = consumer.receive(300)
        for _ in range(2):
            clock.sleep(6.0)
            group.settle(Settlement(receipt=each.receipt, action="extend", seconds=10.0) for each in held)
        put(store, 1, "short")
        (short,) = consumer.receive()
        consumer.ack(short)
        looked: list[Delivery] = []
        rest = Consumer._rest
        monkeypatch.setattr(Consumer, "_rest", lambda self, each: looked.append(each) or rest(self, each))
        for _ in range(20):
            assert not consumer.receive()
        assert len(looked) <= 300
        for number in (1, 2):
            held[0] = consumer.extend(held[0], 10.0 * number)
            looked.clear()
            assert consumer._is_busy()
            clock.sleep(10.0 * number)
            assert not consumer._is_busy()
            assert len(looked) <= 300


def test_what_has_a_higher_priority_comes_before_what_is_to_be_alone(store: Store) -> None:
    queue = store.queue("jobs", max_deliveries=1, retry_delay=0, lanes=1)
    queue.put_many([b"1", b"2"])
    fail(queue.group, 2)
    queue.put_many([b"high", b"higher"], priority=5)
    queue.put(b"low", priority=-5)
    with queue.consumer(linger=0) as consumer:
        received = []
        while deliveries := consumer.receive():
            received.append([delivery.entry.payload for delivery in deliveries])
            for delivery in deliveries:
                consumer.ack(delivery)
    assert received == [[b"high", b"higher"], [b"1"], [b"2"], [b"low"]]


def test_an_acknowledgement_of_a_last_attempt_does_not_wait_for_the_next_one(store: Store) -> None:
    put(store, 2)
    group = store.group("orders", "billing", max_deliveries=1, retry_delay=0)
    fail(group, 2)
    consumer = group.consumer(linger=3600)
    consumer.ack(consumer.receive()[0])
    assert group.core.lane(0).acks == []
    assert sum(lane.chain.state.acked for lane in group.core.lanes()) == 1


def test_a_single_entry_that_kills_its_process_has_max_deliveries_attempts(store: Store, clock: ManualClock) -> None:
    for most in (1, 2, 3):
        space = f"space-{most}"
        store.produce(space, "a", [Record(b"1")])
        group = store.group(space, "billing", max_deliveries=most)
        for attempt in range(1, most + 1):
            assert sequences(group.consumer().receive()) == [(1, attempt)]
            clock.sleep(31.0)
        assert group.consumer().receive() == []
        (letter,) = group.dead_letters()
        assert letter.attempt == most
        assert letter.reason == f"max_deliveries: the deadline passed (attempt {most} of {most})"


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("mode", ["shared", "key_shared"])
def test_entries_that_were_received_one_by_one_and_ended_together_do_not_die(
    store: Store, clock: ManualClock, lanes: int, mode: str
) -> None:
    for segment in "abcdef":
        put(store, 1, segment)
    group = store.group("orders", "billing", mode=mode, max_deliveries=1, lanes=lanes)
    killed = group.consumer()
    for _ in range(6):
        assert len(killed.receive(1)) == 1
    clock.sleep(31.0)
    with group.consumer(linger=0) as consumer:
        for _ in range(6):
            (delivery,) = consumer.receive()
            consumer.ack(delivery)
    assert group.dead_letters() == []


def test_what_is_handed_back_unhandled_is_alone_the_next_time_too(store: Store, clock: ManualClock) -> None:
    put(store, 2)
    group = store.group("orders", "billing", max_deliveries=1, retry_delay=0)
    fail(group, 2)
    for _ in range(3):
        with group.consumer() as consumer:
            assert len(consumer.receive()) == 1
    assert sequences(group.consumer().receive()) == [(1, 1)]
    clock.sleep(31.0)
    assert len(group.consumer().receive()) == 1
    assert [letter.entry.sequence for letter in group.dead_letters()] == [1]


def test_a_handler_that_is_interrupted_uses_up_no_attempt_of_its_neighbours(store: Store) -> None:
    put(store, 5)
    group = store.group("orders", "billing", max_deliveries=1)

    def handle(delivery: Delivery) -> None:
        if delivery.entry.sequence == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        group.run(handle)
    assert [letter.entry.sequence for letter in group.dead_letters()] == [2]
    assert sequences(group.consumer().receive()) == [(3, 1), (4, 1), (5, 1)]


def test_what_failed_together_is_known_by_who_reads_the_snapshot(store: Store) -> None:
    put(store, 3)
    group = store.group("orders", "billing", max_deliveries=1, retry_delay=0, lanes=1)
    fail(group, 3)
    group.core.lane(0).chain.shorten()
    group.core.lane(0).chain.loaded = False
    with group.consumer() as consumer:
        assert sequences(consumer.receive()) == [(1, 1)]


def test_a_dead_letter_names_the_last_failures(store: Store, clock: ManualClock) -> None:
    put(store, 1)
    group = store.group("orders", "billing", max_deliveries=3, retry_delay=0)
    errors: list[Exception | None] = [None, ValueError("bad\ttotal"), None]

    def handle(delivery: Delivery) -> None:
        raise errors[delivery.attempt - 1] or KeyError("x" * 2000)

    report = group.run(handle, drain=True)
    assert (report.acked, report.failed, report.dead) == (0, 3, 1)
    (letter,) = group.dead_letters()
    assert letter.reason.startswith("max_deliveries: KeyError: 'xxxxx")
    assert letter.reason.endswith("… (attempt 3 of 3); before: ValueError: bad total (attempt 2 of 3)")
    assert len(letter.reason.encode()) < 1000
    group.redrive()
    for attempt in (1, 2, 3):
        (delivery,) = group.consumer().receive()
        if attempt == 2:
            group.consumer().nack(delivery, error="the disk is full")
        clock.sleep(31.0)
    assert group.consumer().receive() == []
    (letter,) = group.dead_letters()
    before = "before: the disk is full (attempt 2 of 3)"
    assert letter.reason == f"max_deliveries: the deadline passed (attempt 3 of 3); {before}"


def test_a_failing_handler_is_logged_with_its_traceback_and_without_content(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.produce("orders", "a", [Record(b"a secret", {"name": "another secret"})])
    group = store.group("orders", "billing", max_deliveries=1)

    def handle(delivery: Delivery) -> None:
        raise ValueError("bad total")

    group.run(handle, drain=True)
    text = caplog.text
    for part in ("billing", str(store.id), "orders", "'a'", "sequence 1", "attempt 1 of 1", "in handle", "bad total"):
        assert part in text
    assert "secret" not in text


def test_lag_counts_what_is_not_done_wherever_it_is(store: Store) -> None:
    put(store, 6)
    group = store.group("orders", "billing", max_deliveries=1)
    with group.consumer(linger=0) as consumer:
        first, second, third, fourth = consumer.receive(4)
        consumer.ack(first)
        consumer.nack(second)
        consumer.release(third)
        put(store, 1)
        status = group.status()
        assert (status.unread, status.pending, status.ready, status.delayed, status.dead) == (3, 1, 1, 0, 1)
        assert status.lag == 5
        consumer.extend(fourth, 1.0)
    queue = store.queue("jobs")
    queue.put(b"later", delay=3600)
    assert queue.consumer().receive() == []
    assert (queue.status().delayed, queue.status().lag) == (1, 1)
