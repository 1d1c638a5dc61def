"""Entries that are removed from the source while a group has them; and the group's own log, which is trimmed."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
from fix_stores import Subject

from harness.source_reads import SourceReads
from streamkit import Gap, Record, Retention
from streamkit.errors import PermanentError
from streamkit.groups import Group
from streamkit.groups.source import Source


def put(store: Any, count: int) -> None:
    store.produce("orders", "a", [Record(b"%d" % number) for number in range(1, count + 1)])


def requests(store: Any) -> int:
    return sum(count for name, count in store.statistics().requests.items() if "bytes" not in name)


def done(group: Group, consumer: Any) -> list[int]:
    found = []
    while deliveries := consumer.receive(100):
        for delivery in deliveries:
            consumer.ack(delivery)
            found.append(delivery.entry.sequence)
    return found


@pytest.mark.parametrize("segments", [None, ["a"]])
def test_what_is_trimmed_while_it_is_pending_counts_as_done(subject: Subject, segments: list[str] | None) -> None:
    store: Any = subject.store
    put(store, 6)
    group = store.group("orders", "billing", ack_timeout=0.3, segments=segments)
    group.consumer("killed").receive(5)
    store.trim("orders", "a", before=4)
    time.sleep(0.4)
    with group.consumer() as consumer:
        assert sorted(done(group, consumer)) == [4, 5, 6]
    status = group.status()
    assert (status.acked, status.pending, status.ready) == (6, 0, 0)
    assert [gap.last_sequence - gap.first_sequence + 1 for gap in status.gaps] == [3]
    assert all(isinstance(gap, Gap) and str(gap).endswith("were trimmed") for gap in status.gaps)


def test_what_was_trimmed_before_a_group_began_is_not_its_gap(subject: Subject) -> None:
    store: Any = subject.store
    put(store, 6)
    store.trim("orders", "a", before=4)
    for segments in (None, ["a"]):
        group = store.group("orders", f"billing {segments}", segments=segments)
        with group.consumer() as consumer:
            assert done(group, consumer) == [4, 5, 6]
        assert group.status().gaps == ()


@pytest.mark.parametrize(
    "retention", [Retention(max_age=0.3, per="space"), Retention(max_age=0.3), Retention(max_entries=1)]
)
@pytest.mark.parametrize("segments", [None, ["a"]])
def test_expired_entries_that_a_process_has_read_before_are_not_delivered(
    subject: Subject, segments: list[str] | None, retention: Retention
) -> None:
    store: Any = subject.store
    put(store, 20)
    group = store.group("orders", "billing", segments=segments)
    with group.consumer() as consumer:
        consumer.receive(5)
    store.set_retention("orders", retention)
    time.sleep(0.4)
    with group.consumer() as consumer:
        assert done(group, consumer) == [20][: retention.max_entries or 0]
    status = group.status()
    assert (status.acked, status.lag, status.ready) == (20, 0, 0)


@pytest.mark.parametrize("mode", ["shared", "exclusive", "key_shared"])
@pytest.mark.parametrize("how", ["erase", "trim"])
def test_a_consumer_gets_past_more_removed_entries_than_its_lane_has(subject: Subject, how: str, mode: str) -> None:
    """In one call: a caller takes an empty list for the end."""
    store: Any = subject.store
    put(store, 1500)
    group = store.group("orders", "billing", mode=mode)
    with group.consumer() as consumer:
        received = consumer.receive(10)
        if how == "erase":
            store.erase("orders", "a", first=11, last=1490)
        else:
            store.trim("orders", "a", before=1491)
        for delivery in received:
            consumer.ack(delivery)
        assert done(group, consumer) == list(range(1491, 1501))
    assert (group.status().lag, group.status().unread) == (0, 0)


@pytest.mark.parametrize("segments", [None, ["a"]])
@pytest.mark.parametrize("mode", ["shared", "exclusive", "key_shared"])
@pytest.mark.parametrize("received", [0, 20])
def test_a_call_gets_its_limit_where_every_second_entry_was_erased(
    subject: Subject, received: int, mode: str, segments: list[str] | None
) -> None:
    """`received`: from the lane that then has some of the erased entries."""
    store: Any = subject.store
    store.produce("orders", "a", [Record(b"x", {"odd": str(number % 2)}) for number in range(1, 1001)])
    group = store.group("orders", "billing", mode=mode, segments=segments)
    with group.consumer(linger=60) as consumer:
        for delivery in consumer.receive(received) if received else ():
            consumer.ack(delivery)
        store.erase("orders", metadata={"odd": "0"})
        found: list[list[int]] = []
        before = requests(store)
        while deliveries := consumer.receive(60):
            for delivery in deliveries:
                consumer.ack(delivery)
            found.append([delivery.entry.sequence for delivery in deliveries])
        assert [sequence for some in found for sequence in some] == list(range(received + 1, 1001, 2))
        # In key_shared a call takes from one lane, which is emptied before it gets more.
        assert len(found) <= (12 if mode == "key_shared" else 9), "it took more calls than 500 entries need"
        assert (requests(store) - before) / len(found) < 30
    assert (group.status().lag, group.status().acked) == (0, len([*range(received + 1, 1001, 2)]) + received)


@pytest.mark.parametrize("segments", [None, ["a"]])
def test_entries_between_erased_ones_come_once_to_each_of_several_processes(
    subject: Subject, segments: list[str] | None
) -> None:
    store: Any = subject.store
    store.produce("orders", "a", [Record(b"x", {"third": str(number % 3)}) for number in range(1, 1501)])
    store.group("orders", "billing", segments=segments)
    found: list[int] = []
    consumers = [subject.stranger().group("orders", "billing").consumer(linger=60) for _ in range(3)]
    for round in range(100):
        if round == 2:
            store.erase("orders", metadata={"third": "0"})
        some = [delivery for consumer in consumers for delivery in consumer.receive(20)]
        for delivery in some:
            consumers[[each.session for each in consumers].index(delivery.session)].ack(delivery)
        found += [delivery.entry.sequence for delivery in some]
        if round > 2 and not some:
            break
    for consumer in consumers:
        consumer.close()
    assert len(set(found)) == len(found)
    assert [sequence for sequence in sorted(found) if sequence % 3] == [each for each in range(1, 1501) if each % 3]
    assert store.group("orders", "billing").status().lag == 0


def test_a_lane_whose_entries_are_all_to_come_alone_gets_past_removed_ones(subject: Subject) -> None:
    store: Any = subject.store
    put(store, 150)
    group = store.group("orders", "billing", max_deliveries=1, ack_timeout=0.2)
    group.consumer("killed").receive(145)
    store.erase("orders", "a", first=1, last=140)
    time.sleep(0.3)
    with group.consumer() as consumer:
        assert sorted(done(group, consumer)) == list(range(141, 151))
    assert (group.status().lag, group.status().dead) == (0, 0)


@pytest.mark.parametrize("segments", [None, ["a"]])
def test_trimmed_entries_that_no_consumer_has_looked_for_are_not_unread(
    subject: Subject, segments: list[str] | None
) -> None:
    store: Any = subject.store
    trim = partial(store.trim, "orders", "a" if segments else None)
    put(store, 1)
    group = store.group("orders", "billing", start=store.end_offset("orders"), segments=segments)
    for _ in range(5):
        put(store, 1)
    trim(before=5) if segments else trim(keep_entries=2)

    def counts(of: Group) -> tuple[int, int, int, list[tuple[int, int]]]:
        status = of.status()
        return (
            status.lag,
            status.unread,
            status.acked,
            [(gap.first_sequence, gap.last_sequence) for gap in status.gaps],
        )

    assert counts(group) == (2, 2, 3, [(2, 4)])
    late = store.group("orders", "late", segments=segments)
    assert counts(late) == (2, 2, 0, []), "they were trimmed before the group began"
    with group.consumer() as consumer:
        assert done(group, consumer) == [5, 6]
    assert counts(group) == (0, 0, 5, [(2, 4)])
    trim(before=7) if segments else trim(keep_entries=0)
    assert counts(late) == (0, 0, 0, [])


def test_what_is_erased_vanishes_and_a_late_ack_is_fine(subject: Subject) -> None:
    store: Any = subject.store
    put(store, 4)
    group = store.group("orders", "billing", ack_timeout=0.3)
    late = group.consumer("late", linger=0)
    held = late.receive(3)
    store.erase("orders", "a", first=2, last=2)
    time.sleep(0.4)
    with group.consumer() as consumer:
        assert sorted(done(group, consumer)) == [1, 3, 4]
    late.ack(held[1])
    assert group.status().gaps == ()


@pytest.mark.parametrize("segments", [None, ["a"]])
def test_nothing_is_kept_that_was_erased_while_it_was_read(
    subject: Subject, segments: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = subject.store
    put(store, 4)
    group = store.group("orders", "billing", segments=segments)
    consumer = group.consumer("one")
    consumer.receive(4)
    group.core.source._kept.clear()  # as in a process that begins
    keep = Source._keep

    def slow(source: Source, *read: Any) -> None:
        monkeypatch.undo()
        store.erase("orders", "a", first=2, last=2)
        assert [each.entry.sequence for each in group.pending()] == [1, 3, 4]
        keep(source, *read)

    monkeypatch.setattr(Source, "_keep", slow)
    group.pending()
    assert [each.entry.sequence for each in group.pending()] == [1, 3, 4]


@pytest.mark.parametrize("segments", [None, ["a"]])
def test_what_is_erased_at_the_front_is_not_taken_for_trimmed(subject: Subject, segments: list[str] | None) -> None:
    store: Any = subject.store
    put(store, 6)
    group = store.group("orders", "billing", segments=segments)
    with group.consumer() as consumer:
        for delivery in consumer.receive(2):
            consumer.release(delivery)
        store.erase("orders", "a", first=1, last=1)
        group.core.source._looked = float("-inf")  # where a look is a request there is one a second
        assert sorted(done(group, consumer)) == [2, 3, 4, 5, 6]
    assert (group.status().acked, group.status().gaps) == (5, ())


@pytest.mark.parametrize("segments", [None, ["a"]])
@pytest.mark.parametrize("how", ["trimmed", "erased"])
def test_where_all_that_is_left_is_removed_nothing_is_left(
    subject: Subject, segments: list[str] | None, how: str
) -> None:
    store: Any = subject.store
    put(store, 2)
    group = store.group("orders", "billing", segments=segments)
    with group.consumer() as consumer:
        assert done(group, consumer) == [1, 2]
        put(store, 5)
        if how == "trimmed":
            store.trim("orders", "a", before=8)
        else:
            store.erase("orders", "a", first=3, last=7)
        assert done(group, consumer) == []
        status = group.status()
        assert (status.lag, status.acked) == (0, 7 if how == "trimmed" else 2)
        assert [gap.last_sequence for gap in status.gaps] == ([7] if how == "trimmed" else [])
        put(store, 1)
        assert done(group, consumer) == [8]


def test_done_jobs_are_trimmed_as_it_goes(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.groups.feeding._TRIM", 50)
    queue = subject.store.queue("jobs", lanes=2)
    for _ in range(10):
        queue.put_many([b"x"] * 60)
        with queue.consumer() as consumer:
            done(queue.group, consumer)
    assert subject.store.segment_status("jobs", "jobs/0/0").first_sequence > 400
    assert queue.status().acked == 600


def test_done_jobs_are_trimmed_by_processes_that_do_a_few_each(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamkit.groups.feeding._TRIM", 50)
    for _ in range(30):
        queue = subject.stranger().queue("jobs", lanes=2)
        queue.put_many([b"x"] * 20)
        with queue.consumer() as consumer:
            assert len(done(queue.group, consumer)) == 20
    assert subject.store.segment_status("jobs", "jobs/0/0").first_sequence > 400


def test_a_groups_own_log_stays_short_and_one_that_is_behind_goes_on(subject: Subject) -> None:
    other = subject.stranger()
    put(subject.store, 10)
    behind = other.group("orders", "billing", lanes=1)
    with behind.consumer(linger=0) as consumer:
        consumer.ack(consumer.receive(1)[0])
    group = subject.store.group("orders", "billing")
    for lane in group.core.lanes():
        lane.chain._records = 5
    with group.consumer(linger=0) as consumer:
        for delivery in consumer.receive(9):
            consumer.ack(delivery)
        put(subject.store, 3)
    chain = group.core.lane(0).chain
    status = subject.store.segment_status(chain.space, chain.segment)
    assert status.first_sequence > 5
    with behind.consumer() as consumer:
        assert len(done(behind, consumer)) == 3
    assert behind.status().acked == 13


def test_a_group_of_a_space_that_is_made_again_begins_at_its_first_entry(subject: Subject) -> None:
    store: Any = subject.store
    put(store, 4)
    group = store.group("orders", "billing")
    consumer = group.consumer(linger=0)
    held = consumer.receive(3)
    consumer.ack(held[0])
    store.delete_space("orders")
    assert store.get_groups("orders") == []
    put(store, 5)
    with pytest.raises(PermanentError):
        consumer.receive(3)
    assert subject.stranger().get_groups("orders") == []
    again = subject.stranger().group("orders", "billing", max_deliveries=2)
    with again.consumer() as other:
        assert done(again, other) == [1, 2, 3, 4, 5]
    assert subject.stranger().get_groups("orders") == ["billing"]
    assert (again.status().acked, again.status().gaps) == (5, ())


def test_a_group_that_was_made_before_its_space_goes_on(subject: Subject) -> None:
    store: Any = subject.store
    group = store.group("orders", "billing")
    for count in (1, 3):
        put(store, count)
        with subject.stranger().group("orders", "billing").consumer() as consumer:
            assert len(done(group, consumer)) == count
    assert group.status().acked == 4


@pytest.mark.parametrize("segments", [None, ["a"]])
def test_after_a_removal_what_is_left_is_read_again_once(
    subject: Subject, segments: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block is not read from its beginning for each delivery."""
    put(subject.store, 600)
    group = subject.store.group("orders", "billing", segments=segments, max_pending=1000)
    reads = SourceReads(monkeypatch)
    with group.consumer() as consumer:
        for _ in range(10):
            consumer.receive(1)
        subject.store.erase("orders", "a", first=5, last=5)
        reads.count = 0
        for _ in range(500):
            assert len(consumer.receive(1)) == 1
    assert 0 < reads.count < 3000
