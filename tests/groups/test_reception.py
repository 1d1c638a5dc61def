"""Receiving without a consumer object: each call stands alone, and any process settles what it gave."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from fix_stores import Subject

from streamkit import Record, Store
from streamkit.groups import Delivery, Group, Settlement


def put(store: Store, count: int, segment: str = "a") -> None:
    store.produce("orders", segment, [Record(b"%d" % number) for number in range(1, count + 1)])


def acks(deliveries: list[Delivery]) -> list[Settlement]:
    return [Settlement(receipt=delivery.receipt) for delivery in deliveries]


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [delivery.entry.sequence for delivery in deliveries]


@pytest.mark.parametrize("mode", ["shared", "key_shared", "exclusive"])
def test_every_entry_is_received_once_by_calls_of_two_processes_and_settled_by_the_other(
    subject: Subject, mode: str
) -> None:
    put(subject.store, 40)
    one = subject.store.group("orders", "billing", mode=mode)
    two = subject.stranger().group("orders", "billing")
    found: list[int] = []
    for number in range(100):
        here, there = (one, two) if number % 2 else (two, one)
        got = here.receive(7, consumer="worker" if mode == "exclusive" else None)
        found += numbers(got)
        assert not any(result.lost for result in there.settle(acks(got)))
        if len(found) >= 40:
            break
    assert sorted(found) == list(range(1, 41))
    assert (one.status().acked, one.status().lag) == (40, 0)
    assert two.receive(consumer="worker") == []


def test_what_a_call_received_is_not_received_by_another_call_before_its_deadline(subject: Subject) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing", ack_timeout=0.001)
    first = group.receive(3)
    assert numbers(first) == [1, 2, 3]
    again = group.receive(3, wait=60)
    assert [each.attempt for each in again] == [2] * len(again)
    assert again
    assert all(result.lost for result in group.settle(acks(first[: len(again)])))


def test_a_named_receiver_has_at_most_max_pending_in_each_lane_in_all_processes(subject: Subject) -> None:
    put(subject.store, 9)
    one = subject.store.group("orders", "billing", max_pending=4, lanes=1)
    two = subject.stranger().group("orders", "billing")
    assert numbers(one.receive(3, consumer="worker")) == [1, 2, 3]
    assert numbers(two.receive(3, consumer="worker")) == [4]
    assert two.receive(3, consumer="worker") == []
    assert numbers(two.receive(3, consumer="other")) == [5, 6, 7]
    assert numbers(two.receive(9)) == [8, 9], "the limit is of named receivers"
    consumers = {consumer.name: consumer.pending for consumer in one.status().consumers}
    assert (consumers["worker"], consumers["other"]) == (4, 3)


def test_an_exclusive_group_is_received_by_one_named_receiver_in_any_process(subject: Subject) -> None:
    put(subject.store, 4)
    one = subject.store.group("orders", "billing", mode="exclusive")
    two = subject.stranger().group("orders", "billing")
    assert numbers(one.receive(1, consumer="a")) == [1]
    assert numbers(two.receive(1, consumer="a")) == [2]
    assert two.receive(1, consumer="b") == []
    with pytest.raises(ValueError, match="consumer"):
        one.receive()


def test_an_entry_on_its_last_attempt_after_unexplained_failures_comes_alone(subject: Subject) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing", lanes=1, max_deliveries=2, ack_timeout=0.001)
    assert len(group.receive(3)) == 3
    last = group.receive(3, wait=60, consumer="worker")
    assert len(last) == 1, "the three timed out together, so each has its last attempt alone"
    group.settle([Settlement(receipt=last[0].receipt, action="extend", seconds=600.0)])
    assert group.receive(3, consumer="worker") == [], "while it has this one it gets nothing else"
    assert len(group.receive(3, wait=60)) == 1


def test_a_call_that_waits_gets_what_is_written_meanwhile(subject: Subject) -> None:
    group = subject.store.group("orders", "billing")
    writer = threading.Timer(0.05, put, [subject.store, 1])
    writer.start()
    try:
        assert numbers(group.receive(wait=60)) == [1]
    finally:
        writer.join()


def test_many_threads_receive_and_settle_everything_once(subject: Subject) -> None:
    for segment in "abcdef":
        put(subject.store, 50, segment)
    groups = [subject.store.group("orders", "billing"), subject.stranger().group("orders", "billing")]
    done: list[tuple[str, int]] = []
    errors: list[BaseException] = []

    def work(group: Group) -> None:
        try:
            while found := group.receive(9) or group.receive(9, wait=0.2):
                assert not any(result.lost for result in group.settle(acks(found)))
                done.extend((each.entry.segment, each.entry.sequence) for each in found)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[groups[number % 2]]) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(done) == [(segment, number) for segment in "abcdef" for number in range(1, 51)]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"limit": 0}, ValueError),
        ({"wait": -1.0}, ValueError),
        ({"consumer": "\0"}, ValueError),
        ({"limit": "x"}, TypeError),
    ],
)
def test_a_wrong_argument_is_refused(subject: Subject, wrong: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        subject.store.group("orders", "billing").receive(**wrong)


def test_a_group_and_a_queue_are_found_only_if_they_exist(subject: Subject) -> None:
    store = subject.store
    put(store, 1)
    with subject.nothing_written():
        assert store.find_group("orders", "billing") is None
        assert store.find_queue("jobs") is None
        assert store.find_group("nothing", "billing") is None
    store.group("orders", "billing", ack_timeout=7.0)
    store.queue("jobs").put(b"1")
    there = subject.stranger()
    group, queue = there.find_group("orders", "billing"), there.find_queue("jobs")
    assert group is not None
    assert group.settings.ack_timeout == 7.0
    assert queue is not None
    assert [each.entry.payload for each in queue.receive()] == [b"1"]
    assert there.get_queues() == ["jobs"]
    assert there.find_queue("orders") is None
    group.delete()
    assert store.find_group("orders", "billing") is None


def test_what_is_still_held_is_known_after_another_process_settled_some(subject: Subject) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing")
    first, second, third = group.receive()
    subject.stranger().group("orders", "billing").settle(acks([second]))
    assert group.still_pending([first, second, third]) == [first, third]


def test_dead_letters_are_redriven_by_their_ids(subject: Subject) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing")
    group.settle([Settlement(receipt=each.receipt, action="reject") for each in group.receive()])
    first, *_ = group.dead_letters()
    there = subject.stranger().group("orders", "billing")
    assert there.redrive([first.id, "99.99"]) == 1
    assert numbers(there.receive()) == [first.entry.sequence]
    with pytest.raises(TypeError):
        there.redrive([7])  # type: ignore[list-item]
