"""Groups that are made, changed and deleted, and the rows that remain."""

from __future__ import annotations

from typing import Any

import pytest
from fix_stores import Subject

from streamkit import AccessDenied, Record, Store, Unavailable
from streamkit.errors import PermanentError
from streamkit.groups.core import Core, feed_chain
from streamkit.groups.events import Created, Deleted
from streamkit.testing import ManualClock


def put(store: Store, count: int) -> None:
    store.produce("orders", "a", [Record(b"%d" % number) for number in range(1, count + 1)])


def test_what_is_left_of_a_deleted_group_cannot_change_the_one_that_was_made_again(subject: Subject) -> None:
    put(subject.store, 2)
    before = subject.store.group("orders", "billing")
    before.delete()
    again = subject.store.group("orders", "billing", ack_timeout=50.0)
    with pytest.raises(PermanentError, match="was deleted"):
        before.configure(ack_timeout=60.0)
    before.delete()
    assert again.settings.ack_timeout == 50.0
    with again.consumer() as consumer:
        assert len(consumer.receive()) == 2


def test_a_deleted_group_forgets_what_it_was_told(subject: Subject) -> None:
    put(subject.store, 3)
    group = subject.store.group("orders", "billing")
    with group.consumer() as consumer:
        consumer.reject(consumer.receive(1)[0], "it names somebody")
    for _ in range(2):
        group.delete()
        kept = [entry.payload for entry in subject.stranger().consume_space(group.core.internal)]
        assert not any(b"it names somebody" in payload for payload in kept)
    assert len(subject.store.group("orders", "billing").consumer().receive()) == 3


def test_a_group_of_an_earlier_space_is_made_again_and_used(subject: Subject) -> None:
    """A process that knows the earlier space only may make the group once more after the deletion."""
    core = subject.store.group("orders", "billing").core
    feed = feed_chain(subject.stranger(), core.internal)
    feed.catch_up()
    at = feed.now()
    feed.commit(at, [Deleted(), Created(core.settings, [], at, b"the earlier one", "orders", "billing")])
    group = subject.stranger().group("orders", "billing")
    assert group.status().lag == 0
    put(subject.store, 2)
    with group.consumer() as consumer:
        assert len(consumer.receive()) == 2


def test_a_group_that_may_not_be_made_again_is_refused(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised, and the call is not tried for ever."""
    subject.store.group("orders", "billing").delete()

    def denied(*args: Any) -> None:
        raise AccessDenied("read only")

    monkeypatch.setattr("streamkit.groups.chain.append_expected", denied)
    with pytest.raises(AccessDenied):
        subject.store.group("orders", "billing")


@pytest.mark.parametrize("mode", ["shared", "key_shared"])
def test_a_group_is_moved_though_who_moved_it_did_not_come_to_the_end(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    for segment in "abcd":
        subject.store.produce("orders", segment, [Record(b"%d" % number) for number in range(4)])
    group = subject.store.group("orders", "billing", mode=mode, retry_delay=0)
    with group.consumer(linger=0) as consumer:
        for settle in (consumer.nack, consumer.reject, consumer.release, consumer.ack):
            settle(consumer.receive(1)[0])

    def fails(*args: Any) -> None:
        raise Unavailable("not now")

    monkeypatch.setattr(Core, "write", fails)
    with pytest.raises(Unavailable):
        group.seek("beginning")
    monkeypatch.undo()
    with subject.stranger().group("orders", "billing").consumer(linger=0) as consumer:
        got = []
        while deliveries := consumer.receive():
            for delivery in deliveries:
                got.append((delivery.entry.segment, delivery.entry.sequence, delivery.attempt))
                consumer.ack(delivery)
    assert sorted(got) == [(segment, sequence, 1) for segment in "abcd" for sequence in (1, 2, 3, 4)]
    assert subject.stranger().group("orders", "billing").status().dead == 0


def test_consumers_that_were_killed_are_forgotten(subject: Subject) -> None:
    clock = ManualClock()
    store = subject.stranger(clock=clock)
    group = store.group("orders", "billing", ack_timeout=5.0, retry_delay=0)
    for number in range(20):
        put(store, 1)
        consumer = group.consumer(f"killed {number}")
        while consumer.receive():
            clock.sleep(6.0)
        clock.sleep(60.0)
    assert len(group.core.feed.state.members) == 1


def test_a_pause_is_doubled_up_to_an_hour_and_never_shorter_than_it_was_set_to(subject: Subject) -> None:
    clock = ManualClock()
    store = subject.stranger(clock=clock)
    put(store, 1)
    group = store.group("orders", "billing", retry_delay=1800.0, ack_timeout=5.0)
    with group.consumer(linger=0) as consumer:
        for pauses in ((1800, 3600, 3600), (7200, 7200)):
            group.configure(retry_delay=float(pauses[0]), max_deliveries=100)
            (delivery,) = consumer.receive()
            for pause in pauses:
                consumer.nack(delivery)
                clock.sleep(pause - 1)
                assert consumer.receive() == []
                clock.sleep(1)
                (delivery,) = consumer.receive()
            consumer.release(delivery)
            consumer.reject(consumer.receive()[0])
            group.redrive()
