"""Queues: delay, priority, fairness, idempotency keys, trimming."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from fix_stores import Subject

from streamkit.client import Client
from streamkit.groups import Consumer
from streamkit.groups.events import Stream
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver


def take(consumer: Consumer, limit: int = 10, wait: float = 0.0) -> list[bytes]:
    deliveries = consumer.receive(limit, wait)
    for delivery in deliveries:
        consumer.ack(delivery)
    return [delivery.entry.payload for delivery in deliveries]


def test_jobs_come_in_the_order_in_which_they_were_put(subject: Subject) -> None:
    queue = subject.store.queue("emails")
    for number in range(5):
        queue.put(b"%d" % number, metadata={"to": "me"})
    with queue.consumer() as consumer:
        (first,) = consumer.receive(1)
        assert first.entry.metadata == {"to": "me"}
        assert take(consumer) == [b"1", b"2", b"3", b"4"]
        consumer.ack(first)
    assert queue.status().acked == 5


def test_jobs_of_one_key_come_in_order_when_jobs_of_another_lie_between_them(subject: Subject) -> None:
    """`f` is served before `a`, and its jobs end where the second part of those of `a` begins."""
    queue = subject.store.queue("emails", lanes=1)
    queue.put_many([b"%d" % number for number in range(8)], key="a")
    with queue.consumer() as consumer:
        found = take(consumer, 1)
        queue.put_many([b"other"] * 8, key="f")
        time.sleep(0.3)
        while some := take(consumer, 8):
            found += some
    assert [each for each in found if each != b"other"] == [b"%d" % number for number in range(8)]


def test_higher_priorities_come_first_behind_any_number_of_others(subject: Subject) -> None:
    queue = subject.store.queue("emails")
    queue.put_many([b"low"] * 3000)
    with queue.consumer() as consumer:
        assert take(consumer, 2) == [b"low"] * 2
        queue.put(b"high", priority=5)
        queue.put(b"higher", priority=100)
        queue.put(b"lowest", priority=-1)
        time.sleep(0.3)
        assert take(consumer, 3) == [b"higher", b"high", b"low"]


def test_a_delayed_job_comes_in_time_and_not_before(subject: Subject) -> None:
    queue = subject.store.queue("emails")
    put = queue.put(b"later", delay=0.4)
    queue.put(b"much later", delay=3600)
    queue.put(b"now")
    with queue.consumer() as consumer:
        assert take(consumer) == [b"now"]
        assert take(consumer, wait=10) == [b"later"]
        assert consumer.clock.now() >= put.last_timestamp + 400
        assert queue.status().delayed == 1


def test_keys_are_served_in_turn(subject: Subject) -> None:
    queue = subject.store.queue("emails")
    queue.put_many([b"a"] * 3000, key="a")
    queue.put_many([b"b"] * 4, key="b")
    queue.put_many([b"-"] * 4)
    with queue.consumer() as consumer:
        got = take(consumer, 6) + take(consumer, 6)
    assert got.count(b"b") == got.count(b"-") == 4


def test_the_same_idempotency_key_adds_nothing(subject: Subject) -> None:
    queue = subject.store.queue("emails")
    first = queue.put(b"1", idempotency_key="k")
    assert queue.put(b"1", idempotency_key="k").trx == first.trx
    assert take(queue.consumer()) == [b"1"]


def test_dead_jobs_are_kept_and_redriven(subject: Subject) -> None:
    queue = subject.store.queue("emails", max_deliveries=1)
    queue.put_many([b"1", b"2"])
    with queue.consumer(linger=0) as consumer:
        first, second = consumer.receive()
        consumer.nack(first)
        consumer.ack(second)
        assert [letter.entry.payload for letter in queue.dead_letters()] == [b"1"]
        assert queue.redrive() == 1
        assert take(consumer) == [b"1"]
    assert (queue.status().dead, queue.status().acked) == (0, 2)


def test_what_comes_again_is_behind_what_has_a_higher_priority(subject: Subject) -> None:
    queue = subject.store.queue("emails", lanes=1)
    queue.put(b"low")
    queue.put(b"high", priority=5)
    with queue.consumer(linger=0) as consumer:
        for delivery in consumer.receive():
            consumer.nack(delivery, delay=0)
        queue.put(b"higher", priority=7)
        queue.put(b"high as well", priority=5)
        queue.put(b"lower", priority=-1)
        assert take(consumer) == [b"higher", b"high", b"high as well", b"low", b"lower"]


def test_what_is_redriven_keeps_its_priority(subject: Subject) -> None:
    queue = subject.store.queue("emails", lanes=1)
    for number in (-5, 5):
        queue.put(b"%d" % number, priority=number)
    with queue.consumer(linger=0) as consumer:
        for delivery in consumer.receive():
            consumer.reject(delivery)
        queue.put(b"1", priority=1)
        queue.put(b"0")
        assert queue.redrive() == 2
        assert [take(consumer, 1) for _ in range(4)] == [[b"5"], [b"1"], [b"0"], [b"-5"]]


def test_what_a_seek_brings_back_is_not_trimmed_by_who_looks_what_is_done(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is moved by another process between that one's look at the feed and its look at the lanes."""
    monkeypatch.setattr("streamkit.groups.feeding._TRIM", 1)
    queue, other = subject.store.queue("jobs"), subject.stranger().queue("jobs")
    core = queue.group.core
    look, find = core.feed.catch_up, core.feeder.done

    def look_before_seek() -> bool:
        monkeypatch.setattr(core.feed, "catch_up", look)
        found = look()
        other.group.seek("beginning")
        return found

    def done() -> dict[Stream, int]:
        monkeypatch.setattr(core.feed, "catch_up", look_before_seek)
        return find()

    queue.put_many([b"%d" % number for number in range(10)])
    held = queue.consumer("held", linger=0)
    assert len(held.receive(10)) == 10
    monkeypatch.setattr(core.feeder, "done", done)
    queue.put(b"10")
    held.receive(1)
    assert core.feed.catch_up == look
    with other.consumer() as consumer:
        again = {delivery.entry.payload for delivery in consumer.receive(20)}
    assert {b"%d" % number for number in range(10)} <= again


def test_a_queue_is_moved_to_an_offset(subject: Subject) -> None:
    queue = subject.store.queue("jobs")
    for number in range(6):
        queue.put(b"%d" % number, priority=number % 2)
    offsets = [entry.space_offset for entry in subject.store.consume_space("jobs")]
    with queue.consumer() as consumer:
        assert len(take(consumer)) == 6
        queue.group.seek(offsets[2])
        queue.put(b"new", priority=7)
        assert take(consumer) == [b"new", b"3", b"5", b"4"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"priority": 101}, ValueError),
        ({"priority": 1.0}, TypeError),
        ({"delay": -1}, ValueError),
        ({"delay": 1e9}, ValueError),
        ({"key": 1}, TypeError),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(
    subject: Subject, wrong: dict[str, object], error: type[Exception]
) -> None:
    queue = subject.store.queue("emails")
    with pytest.raises(error):
        queue.put(b"1", **wrong)  # type: ignore[arg-type]
    assert list(subject.store.get_spaces()) == []


def test_a_delay_counts_from_now_if_a_clock_was_set_back() -> None:
    """A timestamp is never before an earlier one. So it is ahead of the clock, and so would the end of the delay be."""
    name, id = uuid4().hex, uuid4()
    for start, payload in (1_800_003_600.0, b"1"), (1_800_000_000.0, b"2"):
        clock = ManualClock(start)
        driver = MemoryDriver(name, clock=clock, sleep=clock.sleep)
        queue = Client(f"memory://{name}", driver, 30.0, None, 64 << 20, clock).store(id).queue("emails")
        queue.put(payload, delay=5.0)
    with queue.consumer() as consumer:
        assert take(consumer) == []
        clock.sleep(6.0)
        assert sorted(take(consumer)) == [b"1", b"2"]
