"""Removing beside what else goes on: erasures at the same time or half done, repair, the inbox, the archive of another
process, batches of records that are all alike."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from fix_stores import Subject
from msgspec.structs import replace

import streamkit
import streamkit_memory
from harness.archived_world import SPACE, World
from harness.combining import CombiningDriver, posting
from harness.deep_search import files_below, found_in
from harness.index_rows import read_head
from streamkit import Entry, Gap, Record, Retention, Store
from streamkit.client import Client
from streamkit.clock import SYSTEM_CLOCK
from streamkit.log.inbox import Inbox
from streamkit.log.keys import HEAD, run_key
from streamkit.log.rows import Head, decode_row, encode_row
from streamkit.removing import space
from streamkit.removing.report import Rewritten
from streamkit.testing import ManualClock
from streamkit_memory.driver import MemoryDriver


@contextmanager
def stopped() -> Iterator[None]:
    """Erasures in here are said in the log, and their processes are stopped then."""
    with patch("streamkit.removing.erase.finish", lambda *_: Rewritten()):
        yield


def read(store: Store, segment: str) -> list[int]:
    return [entry.sequence for entry in store.consume_segment("a", segment)]


def test_two_erasures_of_the_same_entries_at_the_same_time_leave_none(subject: Subject) -> None:
    store, other = subject.store, subject.stranger()
    store.produce("a", "s", [Record(b"secret%d" % at) for at in range(1, 31)])
    assert len(read(other, "s")) == 30

    with stopped():
        search = "streamkit.removing.erase._search"
        from streamkit.removing.erase import _search

        def overtaken(*arguments: object) -> object:
            found = _search(*arguments)  # type: ignore[arg-type]
            with patch(search, _search):
                other.erase("a", "s", first=5, last=7)
            return found

        with patch(search, overtaken):
            store.erase("a", "s", first=1, last=20)
    store.maintain()
    assert read(store, "s") == list(range(21, 31))
    assert read(other, "s") == list(range(21, 31))


def test_entries_keep_their_offsets_while_an_erasure_is_not_finished(subject: Subject) -> None:
    store = subject.store
    for at in range(20):
        store.produce("a", "s", [Record(b"%d" % at)])
        store.produce("a", "t", [Record(b"%d" % at)])
    before = {entry.sequence: (entry.space_offset, entry.stream_id) for entry in store.consume_segment("a", "s")}
    with stopped():
        store.erase("a", "s", first=5, last=6)
    for reverse in (False, True):
        found = list(store.consume_segment("a", "s", reverse=reverse))
        assert len(found) == 18
        assert all((entry.space_offset, entry.stream_id) == before[entry.sequence] for entry in found)


@pytest.mark.parametrize("kind", ["same", "near", "beats"])
def test_any_of_many_records_that_are_alike_can_be_erased(kind: str) -> None:
    """Compressed payloads take no room each, so the marks of their removal need some."""
    chance = random.Random(kind)
    with streamkit.connect(f"memory://{uuid4()}") as client:
        store = client.store(uuid4())
        for count in (2, 5, 100, 1000):
            base = chance.randbytes(400) if kind != "beats" else b'{"ok": true, "level": 1}'
            who = [f"user-{chance.randrange(3)}" for _ in range(count)]
            payloads = [base + (b"%d" % at if kind == "near" else b"") for at in range(count)]
            segment = str(count)
            pairs = zip(payloads, who, strict=True)
            store.produce(
                "a", segment, [Record(one, {"who": name} if kind == "beats" else None) for one, name in pairs]
            )
            gone = {at for at in range(1, count + 1) if chance.random() < 0.5} or {1}
            with stopped():
                for at in sorted(gone):
                    store.erase("a", segment, first=at, last=at)
            store.maintain()
            kept = {at: payload for at, payload in enumerate(payloads, 1) if at not in gone}
            found = list(store.consume_segment("a", segment))
            assert {entry.sequence: entry.payload for entry in found} == kept
            if kind == "beats":
                assert [entry.metadata["who"] for entry in found] == [who[at - 1] for at in kept]
        assert store.verify("a").ok


def test_letters_of_the_inbox_do_not_keep_what_was_erased_nor_a_deleted_space() -> None:
    url = f"memory://{uuid4()}?remote=1"

    def open_driver() -> streamkit_memory.MemoryDriver:
        return streamkit_memory.connect(url, timeout=5.0)

    def client(driver: object) -> Client:
        return Client(url, driver, 5.0, None, 64 << 20, SYSTEM_CLOCK)  # type: ignore[arg-type]

    def stored() -> Iterator[tuple[str, bytes]]:
        driver = open_driver()
        backend = driver.open(store.id)
        for partition in list(driver._service.stores[store.id]):
            for row in backend.scan(partition, b"", b"\xff" * 300):
                yield f"{partition!r} {row.key!r}", row.key + row.data

    with posting(), client(open_driver()) as other, client(CombiningDriver(open_driver(), other)) as posts:
        store = posts.store(uuid4())
        # A slow process has no lead, and removes its answered letters at once.
        with patch.object(Inbox, "sweep", lambda inbox: None):
            for at in range(6):
                store.produce("a", "s", [Record(b"secretword" + bytes(at % 2 * 900))])
        assert any("INB" in name for name, _ in found_rows(stored(), b"secretword")), "none is left anyway"
        store.erase("a", "s")
        assert found_in(stored(), b"secretword") == []
        store.produce("a", "s", [Record(b"secretword")])
        assert read(store, "s") == [7]
        store.delete_space("a")
        assert found_in(stored(), b"secretword") == []


def found_rows(rows: Iterator[tuple[str, bytes]], text: bytes) -> list[tuple[str, bytes]]:
    return [row for row in rows if text in row[1]]


@pytest.mark.parametrize("lost", ["head", "index"])
@pytest.mark.parametrize("removed", ["erased", "space", "segment"])
def test_repair_brings_nothing_back(tmp_path: Path, removed: str, lost: str) -> None:
    """The removal of just before is in the log alone."""
    url = f"file://{tmp_path}"
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        for at in range(30):
            store.produce("a", f"s{at % 3}", [Record(b"x%d" % at)])
        store.maintain()
        if removed == "erased":
            with stopped():
                store.erase("a", "s0", first=2, last=4)
        elif removed == "space":
            store.trim("a", keep_entries=12)
        else:
            store.trim("a", "s1", before=5)
        before = list(store.consume_space("a"))
        known = store._known("a")
        assert known is not None
        partition = known.partitions[0]
        row = partition.backend.get(partition.key, [bytes(HEAD)])[0]
        assert row is not None
        if lost == "head":
            partition.backend.delete(partition.key, [bytes(HEAD)])
        else:
            head = decode_row(Head, HEAD, row.data)
            other = encode_row(HEAD, replace(head, timestamp=head.timestamp + 1))
            partition.backend.put(partition.key, bytes(HEAD), other, row.etag)
    with streamkit.connect(url) as client:
        store = client.store(store.id)
        assert store.repair("a") > 0
        assert list(store.consume_space("a")) == before
        by_segment = [entry for name in store.get_segments("a") for entry in store.consume_segment("a", name)]
        assert sorted(by_segment, key=lambda entry: entry.trx.number) == before
        store.maintain()
        assert list(store.consume_space("a")) == before
        assert store.verify("a").ok


@pytest.mark.parametrize(
    "retention", [None, Retention(max_entries=30, per="space"), Retention(max_bytes=50, per="space"), Retention(30_000)]
)
@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_damaged_head_does_not_make_what_was_removed_a_loss(
    tmp_path: Path, kind: str, retention: Retention | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader finds its beginning also after the removal from the log, from the transactions that remain."""
    world = World(kind, tmp_path / "archive")
    store = world.process().store(world.id)
    for at in range(40):
        if at == 10:
            world.clock.sleep(40_000)
        store.produce(SPACE, f"s{at % 3}", [Record(b"%d" % at)])
    if retention is None:
        store.trim(SPACE, keep_entries=30)
    else:
        store.set_retention(SPACE, retention)
    for _ in range(3):
        store.maintain()
        world.clock.sleep(7200)
    before = world.look()
    partition = store._known(SPACE).partitions[0]  # type: ignore[union-attr]
    assert partition.backend.get(partition.key, [partition.transaction_key(1)]) == [None]
    partition.backend.put(partition.key, bytes(HEAD), b"damaged")
    store = world.process().store(world.id)
    assert store.repair(SPACE) > 0
    assert world.look() == before
    assert store.verify(SPACE).ok
    assert store.produce(SPACE, "s0", [Record(b"40")]).last_sequence == 15
    assert "a retention and other settings if they were set by one of these" in caplog.text


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_retention_is_not_forgotten_with_a_head_while_the_log_tells_it(tmp_path: Path, trimmed: bool) -> None:
    """The retention was set by a transaction below the floor that the log still has."""
    world = World("remote", tmp_path / "archive")
    store = world.process().store(world.id)
    store.set_retention(SPACE, Retention(max_entries=10, per="space"))
    for at in range(40):
        store.produce(SPACE, f"s{at % 3}", [Record(b"%d" % at)])
    if trimmed:
        store.trim(SPACE, keep_entries=8)
    store.maintain()
    for at in range(4):
        store.produce(SPACE, "s0", [Record(b"%d" % at)])
    before = world.look()
    partition = store._known(SPACE).partitions[0]  # type: ignore[union-attr]
    partition.backend.put(partition.key, bytes(HEAD), b"damaged")
    assert world.process().store(world.id).repair(SPACE) > 0
    assert world.look() == before
    assert len(before[0]) == 10


def test_repair_says_what_is_forgotten_with_an_index_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World("remote", tmp_path / "archive")
    store = world.process().store(world.id)
    for at in range(40):
        store.produce(SPACE, "late" if at > 20 else "early", [Record(b"%d" % at)])
    store.trim(SPACE, keep_entries=10)
    for _ in range(3):
        store.maintain()
        world.clock.sleep(7200)
    partition = store._known(SPACE).partitions[0]  # type: ignore[union-attr]
    for file in read_head(partition.backend, partition.key).manifest.files():
        partition.backend.put(partition.key, run_key(file.id), b"damaged")
    before = list(store.consume_space(SPACE))
    store = world.process().store(world.id)
    assert store.repair(SPACE) > 0
    assert list(store.consume_space(SPACE)) == before
    assert "an empty segment begins again at sequence 1" in caplog.text


@pytest.mark.parametrize("partitions", [1, 3])
def test_an_archive_of_which_parts_were_erased_is_maintained_and_read_by_others(
    tmp_path: Path, partitions: int
) -> None:
    pytest.importorskip("deltalake")
    url, archive = f"file://{tmp_path / 'store'}", f"file://{tmp_path / 'cold'}"
    with streamkit.connect(url, archive=archive) as one, streamkit.connect(url, archive=archive) as two:
        store = one.store(uuid4())
        other = two.store(store.id)
        store.create_space("a", partitions, archive_grace=0.001)
        for at in range(12):
            store.produce("a", f"s{at % 4}", [Record(b"x%d" % at), Record(b"y", {"who": "me"})])
        store.trim("a", "s2", before=3)
        store.archive("a")
        other.archive("a")
        assert len(list(other.consume_space("a"))) == 22
        store.erase("a", "s1")
        other.maintain()  # looks for the files that hold what leaves the log
        for at in range(4):
            store.produce("a", f"s{at}", [Record(b"z")])
        for reader in (store, other):
            rows = reader.to_arrow("a").read_all()
            entries = list(reader.consume_space("a"))
            assert len(entries) == 20
            told = list(zip(rows["segment"].to_pylist(), rows["sequence"].to_pylist(), strict=True))
            assert sorted(told) == sorted((entry.segment, entry.sequence) for entry in entries)
            assert reader.verify("a").ok
        assert store.repair("a") == 0
        assert read(other, "s2") == [3, 4, 5, 6, 7]


def test_an_erasure_that_was_stopped_also_removes_snapshots_and_what_was_published_when_it_is_completed(
    tmp_path: Path,
) -> None:
    from streamkit.eventsourcing import Aggregate, Repository, event
    from streamkit.views import Index

    class Person(Aggregate):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        @event
        def rename(self, name: str) -> None:
            self.names.append(name)

    with streamkit.connect(f"file://{tmp_path / 'store'}", archive=f"file://{tmp_path / 'cold'}") as client:
        store = client.store(uuid4())
        people = Repository(store, "a", Person, snapshot_every=2)
        for who in ("one", "two"):
            for at in range(5):
                people.execute(who, lambda person, who=who, at=at: person.rename(f"secretname-{who}-{at}"))  # type: ignore[misc]
        view = store.view("v", Index(lambda entry: entry.segment), ["a"], tmp_path / "view" / "v")
        view.publish()
        with stopped():
            store.erase("a", "one")
        assert len(view._snapshots().all()) == 1
        store.maintain()
        assert view._snapshots().all() == []
        root = tmp_path / "store"
        assert found_in(files_below(root), b"secretname-one") == []
        assert found_in(files_below(root), b"secretname-two"), "the search finds nothing at all"
        assert people.load("two").names[-1] == "secretname-two-4"
        assert Repository(store, "a", Person).load("one").names == []


@pytest.mark.parametrize("retention", [Retention(max_entries=5), Retention(max_bytes=100)])
def test_what_a_retention_has_given_back_stays_gone_when_it_is_taken_away(
    subject: Subject, retention: Retention
) -> None:
    """The index no longer has the entry. The log reports the removal to every reader, with any later retention."""
    store, other = subject.store, subject.stranger()
    for at in range(60):
        store.produce("a", f"s{at % 3}", [Record(bytes(10))])
    store.set_retention("a", retention)
    left = list(store.consume_space("a"))
    assert 15 <= len(left) <= 33
    store.maintain()
    assert other.verify("a").findings == ()
    store.set_retention("a", Retention())
    for reader in (store, other, subject.stranger()):
        assert list(reader.consume_space("a")) == left
        found = [entry for name in reader.get_segments("a") for entry in reader.consume_segment("a", name)]
        assert sorted(found, key=lambda entry: entry.trx.number) == left
        gap = next(iter(reader.consume_segment("a", "s0", min_sequence=1, gaps="yield")))
        assert isinstance(gap, Gap)
        assert gap.reason == "expired"
    assert store.verify("a").findings == ()


def test_a_reader_that_goes_by_a_retention_of_before_hides_nothing_from_those_after_it(subject: Subject) -> None:
    store = subject.store
    for at in range(20):
        store.produce("a", "s", [Record(b"%d" % at)])
    store.set_retention("a", Retention(max_entries=5, per="space"))
    from streamkit.log.visible import floor_at

    def changed(*arguments: Any, **options: Any) -> Any:
        found = floor_at(*arguments, **options)
        with patch("streamkit.log.visible.floor_at", floor_at):
            store.set_retention("a", Retention(max_entries=15, per="space"))
        return found

    with patch("streamkit.log.visible.floor_at", changed):
        assert len(list(store.consume_space("a"))) == 5
    assert len(list(store.consume_space("a"))) == 15
    store.maintain()
    assert read(store, "s") == list(range(6, 21))


@pytest.mark.parametrize("per", ["segment", "space"])
def test_what_is_hidden_is_erased_too_and_no_other_retention_brings_it_back(tmp_path: Path, per: str) -> None:
    with streamkit.connect(f"file://{tmp_path}") as client, client.store(uuid4()) as store:
        for at in range(20):
            store.produce("a", "s", [Record(b"secretword%d" % at + bytes(1000), {"who": "me"})])
            store.produce("a", "t", [Record(b"kept")])
        store.set_retention("a", Retention(max_entries=4, per=per))
        store.trim("a", "t", before=2)
        assert store.erase("a", "s").entries <= 4
        store.set_retention("a", Retention())
        assert read(store, "s") == []
        if per == "segment":
            assert found_in(files_below(tmp_path), b"secretword") == []
        assert read(store, "t")[-1] == 20
        assert store.verify("a").ok


def test_of_entries_with_one_timestamp_those_are_kept_that_are_read_last() -> None:
    clock = ManualClock()
    driver = MemoryDriver(uuid4().hex, clock=clock)
    store = Client("memory://", driver, 30.0, None, 1 << 20, clock).store(uuid4())
    store.create_space("a", 3)
    for at in range(30):
        store.produce("a", f"s{at % 9}", [Record(b"%d" % at)])
    log = list(store.consume_space("a"))
    assert len({entry.timestamp for entry in log}) == 1
    store.trim("a", keep_entries=9)
    assert list(store.consume_space("a")) == log[-9:]


def test_who_was_told_of_a_gap_is_not_told_again_by_the_offsets_that_follow(subject: Subject) -> None:
    store = subject.store
    store.create_space("a", 3)
    for at in range(30):
        store.produce("a", f"s{at % 9}", [Record(b"%d" % at)])
    start = list(store.consume_space("a", limit=5))[-1].space_offset
    store.trim("a", keep_entries=9)
    with pytest.raises(streamkit.EntriesRemoved):
        list(store.consume_space("a", offset=start))
    left = list(store.consume_space("a"))
    assert len(left) == 9
    for found in (
        list(store.consume_space("a", offset=start, gaps="skip")),
        [one for one in store.consume_space("a", offset=start, gaps="yield") if isinstance(one, Entry)],
    ):
        assert found == left
        for at, entry in enumerate(found, 1):
            assert list(store.consume_space("a", offset=entry.space_offset)) == found[at:]


def test_a_lease_whose_writes_were_trimmed_is_no_finding(subject: Subject) -> None:
    """The lease's token stays in the index after its transaction has left the log."""
    store = subject.store
    with store.lease("leader") as lease:
        store.produce("a", "s", [Record(b"x")], lease=lease)
    store.trim("a", keep_entries=0)
    store.maintain()
    assert store.verify().findings == ()


@pytest.mark.parametrize("more", [1, 2, 9, 40])
def test_who_is_behind_what_was_trimmed_sees_what_comes_after_it(subject: Subject, more: int) -> None:
    """The process's next number was committed, trimmed and freed since its look."""
    store, other = subject.store, subject.stranger()
    store.produce("a", "s", [Record(b"x")])
    assert read(other, "s") == [1]
    for _ in range(more):
        store.produce("a", "s", [Record(b"x")])
    store.trim("a", keep_entries=0)
    store.maintain()
    assert read(other, "s") == []
    store.produce("a", "s", [Record(b"y")])
    assert read(other, "s") == [more + 2]
    assert other.produce("a", "s", [Record(b"z")]).last_sequence == more + 3


def test_two_processes_delete_a_space_at_the_same_time(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    subject.store.produce("a", "s", [Record(b"x")])
    other = subject.stranger()
    remove = space._delete_all

    def overtaken(*arguments: Any) -> None:
        remove(*arguments)
        monkeypatch.setattr(space, "_delete_all", remove)
        other.delete_space("a")

    monkeypatch.setattr(space, "_delete_all", overtaken)
    subject.store.delete_space("a")
    assert list(subject.stranger().get_spaces()) == []
    assert subject.stranger().verify().ok
