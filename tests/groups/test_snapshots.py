"""Snapshots of a group's state: their writers and their readers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from fix_stores import Subject

from streamkit import Client, CorruptData, Entry, Record, Store, Unavailable, UnsupportedVersion
from streamkit.groups import Consumer, Group
from streamkit.groups.events import Added, Claimed, EntryBlock, LaneBatch, StreamCursor
from streamkit.groups.lane import LaneState
from streamkit.places import entries_after
from streamkit.store import append_expected
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver


def put(store: Store, count: int) -> None:
    store.produce("orders", "a", [Record(b"%d" % number) for number in range(1, count + 1)])


def work(consumer: Consumer, count: int) -> None:
    for delivery in consumer.receive(count):
        consumer.ack(delivery)


def test_a_snapshot_that_was_held_up_does_not_follow_a_later_one(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was trimmed up to the later snapshot. A reader that began with the earlier one would find a gap."""
    put(subject.store, 40)
    slow, fast = (store.group("orders", "billing", lanes=1) for store in (subject.store, subject.stranger()))
    slow.core.lane(0).chain._records, fast.core.lane(0).chain._records = 5, 10
    one, two = slow.consumer(linger=0), fast.consumer(linger=0)
    produce = Store.produce

    def held_up(store: Store, space: str, segment: str, records: Any, **options: Any) -> Any:
        if segment.endswith("/snapshots"):
            monkeypatch.undo()
            work(two, 12)
        return produce(store, space, segment, records, **options)

    monkeypatch.setattr(Store, "produce", held_up)
    work(one, 5)
    assert Store.produce is produce
    assert subject.stranger().group("orders", "billing").status().acked == 17
    slow.core.lane(0).chain._records = 1
    work(one, 8)
    assert subject.stranger().group("orders", "billing").status().acked == 25
    chain = slow.core.lane(0).chain
    assert list(subject.store.consume_segment(chain.space, chain.segment)) == []  # all of it is in a snapshot


def behind(subject: Subject) -> Group:
    """A group, as a process has it that is to read its snapshot next."""
    put(subject.store, 3)
    group = subject.store.group("orders", "billing", ack_timeout=60.0)
    other = subject.stranger().group("orders", "billing")
    other.consumer(linger=0).receive(1)
    group.core.feed._records = 2
    for seconds in range(61, 67):
        group.configure(ack_timeout=float(seconds))
    return other


def test_while_one_thread_reads_a_snapshot_others_do_not_find_the_group_gone(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = behind(subject)
    seen: list[float] = []

    def look() -> None:
        other.core.check()
        seen.append(other.settings.ack_timeout)

    def slowly(store: Store, space: str, segment: str, sequence: int) -> Iterator[Entry]:
        if segment.endswith("/snapshots"):
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
        return entries_after(store, space, segment, sequence)

    monkeypatch.setattr("streamkit.groups.chain.entries_after", slowly)
    other.status()
    assert seen == [60.0]
    assert other.settings.ack_timeout == 66.0


def test_a_group_goes_on_after_a_snapshot_could_not_be_read(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    other = behind(subject)

    def fails(store: Store, space: str, segment: str, sequence: int) -> Iterator[Entry]:
        if segment.endswith("/snapshots"):
            raise Unavailable("not now")
        return entries_after(store, space, segment, sequence)

    monkeypatch.setattr("streamkit.groups.chain.entries_after", fails)
    with pytest.raises(Unavailable):
        other.status()
    monkeypatch.undo()
    with other.consumer() as consumer:
        assert len(consumer.receive()) == 2
    assert other.settings.ack_timeout == 66.0


def test_what_a_snapshot_says_was_heard_when_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that is ahead of a clock goes on from then, and not from when its process last heard of the group."""
    clock, name = ManualClock(), uuid4().hex
    clients = [
        Client("memory://", MemoryDriver(name, clock=clock, sleep=clock.sleep), 30.0, None, 64 << 20, clock)
        for _ in range(2)
    ]
    here, there = clients[0].store(UUID(int=1)), clients[1].store(UUID(int=1))
    put(here, 9)
    group = here.group("orders", "billing", ack_timeout=30.0, lanes=1)
    other = there.group("orders", "billing")
    two = other.consumer()
    two.release(two.receive(1)[0])
    clock.sleep(100.0)

    class Ahead:
        def now(self) -> int:
            return clock.now() + 3_600_000

        def __getattr__(self, name: str) -> Any:
            return getattr(clock, name)

    chain = group.core.lane(0).chain
    chain._clock = Ahead()  # type: ignore[assignment]
    chain._records = 1
    one = group.consumer(linger=0)
    held = one.receive(9)
    assert len(held) == 9
    assert two.receive(9) == []
    one.ack(held[0])
    for client in clients:
        client.close()


def written(subject: Subject, kind: str, payload: bytes) -> Group:
    """A group, as a process opens it after `payload` was written to its log, or as its snapshot."""
    put(subject.store, 1)
    chain = subject.store.group("orders", "billing", lanes=1).core.lane(0).chain
    chain.catch_up()
    segment = chain.segment if kind == "record" else chain.segment.removesuffix("log") + "snapshots"
    append_expected(subject.store, chain.space, segment, payload, 0)
    return subject.stranger().group("orders", "billing")


@pytest.mark.parametrize(
    ("kind", "value"),
    [("record", [1, b"", [[99, []]]]), ("snapshot", [99, 1, b""])],
)
def test_what_a_newer_release_wrote_is_refused(subject: Subject, kind: str, value: Any) -> None:
    group = written(subject, kind, msgspec.msgpack.encode(value))
    with pytest.raises(UnsupportedVersion, match=r"newer release.*upgrade"):
        group.status()


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("record", b"nonsense"),
        ("record", msgspec.msgpack.encode([1, b"", [[2, 3]]])),
        ("snapshot", b""),
        ("snapshot", msgspec.msgpack.encode([1, 1, b"nonsense"])),
    ],
)
def test_a_record_that_cannot_be_read_is_corrupt_data(subject: Subject, kind: str, payload: bytes) -> None:
    group = written(subject, kind, payload)
    with pytest.raises(CorruptData, match=r"sequence 1 of .*lane-0.*internal space"):
        group.status()


def test_a_snapshot_and_records_of_the_release_before_are_read() -> None:
    """A snapshot without the fields that later releases added."""
    state = LaneState()
    block = EntryBlock(0, 4, 0, StreamCursor(0, 1), 1)
    state.apply(LaneBatch(1, b"", [Added([block]), Claimed("a", 1, 10, [(0, 3)], [])]))
    old = msgspec.msgpack.encode(msgspec.msgpack.decode(state.save())[:15])
    read = LaneState()
    read.restore(old)
    assert (read.pending, read.doubted, read.alone, read.errors) == (state.pending, set(), set(), {})
    record = [2, b"", [[2, "b", 2, 20, [[3, 1]], [[0, 1]], 0], [4, [[1, 5]]]]]
    read.apply(msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=LaneBatch))
    assert {ticket: lot.attempt for ticket, lot in read.pending.items()} == {2: 1, 3: 1, 0: 2}
    assert read.waiting[1].attempt == 1
