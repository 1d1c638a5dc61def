"""Many deliveries are settled by their receipts, in a process that did not receive them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fix_stores import Subject

from harness.group_oracle import judge
from streamkit import Record, Store
from streamkit.groups import Delivery, Group, Settlement
from streamkit.groups.values import receipt_of


def put(store: Store, count: int, segments: str = "a") -> None:
    for segment in segments:
        store.produce("orders", segment, [Record(b"%d" % number) for number in range(1, count + 1)])


def settlement(delivery: Delivery, action: Any, **more: Any) -> Settlement:
    return Settlement(receipt=delivery.receipt, action=action, **more)


def counted(group: Group) -> tuple[int, int, int, int, int]:
    status = group.status()
    return status.acked, status.pending, status.ready, status.delayed, status.dead


def test_all_kinds_are_settled_in_one_commit_of_a_process_that_received_none(subject: Subject) -> None:
    put(subject.store, 6)
    group = subject.store.group("orders", "billing", lanes=1)
    first, second, third, fourth, fifth, sixth = group.consumer().receive()
    other = subject.stranger().group("orders", "billing")
    before = other.core.lane(0).chain
    before.catch_up()
    sequence = before.sequence
    results = other.settle(
        [
            settlement(first, "ack"),
            settlement(second, "nack", delay=3600, error="ValueError: no"),
            settlement(third, "extend", seconds=3600.0),
            settlement(fourth, "reject", reason="unreadable"),
            settlement(fifth, "release"),
            settlement(first, "ack"),
            settlement(fourth, "ack"),
        ]
    )
    assert before.sequence == sequence + 1
    assert [result.lost for result in results] == [False, False, False, False, False, False, True]
    assert results[2].deadline == third.deadline + 3_570_000 or results[2].deadline > third.deadline
    assert counted(other) == (1, 2, 1, 1, 1)
    assert [letter.reason for letter in other.dead_letters()] == ["unreadable"]
    assert [each.entry.sequence for each in other.pending()] == [3, 6]
    assert [result.lost for result in other.settle([settlement(first, "nack"), settlement(sixth, "ack")])] == [
        True,
        False,
    ]


@pytest.mark.parametrize("action", ["nack", "release"])
def test_in_key_shared_what_is_settled_before_is_not_taken_back_with_what_is_before_it(
    subject: Subject, action: str
) -> None:
    put(subject.store, 4)
    group = subject.store.group("orders", "billing", mode="key_shared", lanes=1, retry_delay=0)
    first, second, third, _ = group.consumer().receive()
    results = group.settle([settlement(second, "ack"), settlement(first, action), settlement(third, "ack")])
    assert [result.lost for result in results] == [False, False, True]
    assert counted(group) == (1, 0, 3, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"action": "no"}, ValueError),
        ({"receipt": "1.2"}, ValueError),
        ({"receipt": "1.99.0.1"}, ValueError),
        ({"receipt": "1.0.1.1.000000000000"}, ValueError),
        ({"action": "extend"}, (TypeError, ValueError)),
        ({"delay": -1.0}, ValueError),
        ({"reason": 1}, TypeError),
    ],
)
def test_one_wrong_settlement_leaves_all_as_it_was(subject: Subject, wrong: dict[str, Any], error: Any) -> None:
    put(subject.store, 2)
    group = subject.store.group("orders", "billing")
    first, second = group.consumer().receive()
    with pytest.raises(error):
        group.settle([settlement(first, "ack"), Settlement(**{"receipt": second.receipt, **wrong})])
    assert counted(group) == (0, 2, 0, 0, 0)


def test_a_receipt_or_delivery_of_another_group_queue_or_store_is_refused_clearly(subject: Subject) -> None:
    put(subject.store, 1)
    group, other = subject.store.group("orders", "billing"), subject.store.group("orders", "audit")
    queue = subject.store.queue("jobs")
    queue.put(b"x")
    (delivery,) = group.consumer().receive()
    (theirs,) = other.consumer().receive()
    (job,) = queue.consumer().receive()
    assert delivery.receipt != theirs.receipt
    for foreign in (delivery.receipt, job.receipt, delivery.receipt.rpartition(".")[0]):
        with pytest.raises(ValueError, match=r"another group or queue|no receipt"):
            other.settle([Settlement(receipt=theirs.receipt), Settlement(receipt=foreign)])
        with pytest.raises(ValueError, match=r"another group or queue|no receipt"):
            other.delivery(foreign)
    with pytest.raises(ValueError, match="another group or queue"):
        other.consumer().ack(delivery)
    assert counted(other) == (0, 1, 0, 0, 0)
    assert group.settle([Settlement(receipt=delivery.receipt)])[0].lost is False


@pytest.mark.parametrize("mode", ["shared", "key_shared"])
def test_random_settlements_lose_and_double_nothing(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr("streamkit.groups.chain.Chain._trim", lambda chain, snapshot: None)
    put(subject.store, 10, "abcd")
    chance = random.Random(5)
    group = subject.store.group("orders", "billing", mode=mode, lanes=2, retry_delay=0, max_deliveries=3)
    other = subject.stranger().group("orders", "billing")
    consumer = group.consumer()
    actions = ["ack", "ack", "nack", "extend", "reject", "release"]
    for _ in range(500):
        deliveries = consumer.receive(chance.randrange(1, 9)) * 2
        chance.shuffle(deliveries)
        chance.choice([group, other]).settle(
            settlement(each, chance.choice(actions), seconds=60.0) for each in deliveries
        )
        if not deliveries and group.status().lag == 0:
            break
        for pending in group.pending():
            assert pending.attempt <= 3
        consumer = group.consumer() if not deliveries else consumer
        if not deliveries:
            for lane in group.core.lanes():
                epoch, tag = lane.chain.state.epoch, group.core.tag
                pending = lane.chain.state.pending.items()
                receipts = [receipt_of(epoch, lane.number, ticket, lot.number, tag) for ticket, lot in pending]
                group.settle([Settlement(receipt=receipt) for receipt in receipts])
    assert group.status().lag == 0
    assert judge(subject.store, "orders", "billing").errors == []
