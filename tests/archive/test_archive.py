"""The cold tier: a read gives the same entries from both tiers, at any moment at which the archiver runs or stops."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid4

import pytest
from fix_archiving import ArchivedConformance, race
from fix_covered import EXHAUSTIVE, KINDS

import streamkit
from harness.harmed_tables import HARMS, damaged_file, missing_file
from harness.processes import Service
from streamkit import Record, Store
from streamkit.archive.location import path_name, space_name
from streamkit.errors import (
    CorruptData,
    LeaseNotAcquired,
    MissingDependency,
    SequenceMismatch,
    StreamkitError,
    Unavailable,
)
from streamkit.log.keys import DATA
from streamkit.log.records import all_records
from streamkit.testing import ManualClock

pytest.importorskip("deltalake")

SPACE = "flights/Ωmega #1"
HOUR = 3600.0
Make = Callable[..., streamkit.Client]


@pytest.fixture(params=KINDS if EXHAUSTIVE else ["remote"])  # TestArchivedLocal makes all checks of the contract
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes clients of one root."""
    name = uuid4().hex
    url = tmp_path.as_uri() if request.param == "local" else f"memory://{name}?remote={int(request.param == 'remote')}"
    clients = []

    def make(**options: Any) -> streamkit.Client:
        clients.append(streamkit.connect(url, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def fill(store: Store, transactions: int = 120, space: str = SPACE, start: int = 0) -> None:
    for at in range(start, start + transactions):
        if at % 5 == 0:
            with store.transaction(space) as trx:
                trx.produce(f"{{a}}/{at % 3}", [Record(b"first"), Record(b"", {"k": "v", "ü": "日本"})])
                trx.produce(f"{{a}}/{at % 4}x", [Record(b"%d" % at)])
        else:
            records = [
                Record(b'{"at":%d,"n":%d}' % (at, n), {"n": str(n)} if n % 2 else None) for n in range(at % 4 + 1)
            ]
            store.produce(space, f"segment {at % 7}", records)


def look(store: Store, space: str = SPACE) -> dict[str, Any]:
    """Everything that a reader can see, but the tier."""
    segments = list(store.get_segments(space))
    entries = list(store.consume_space(space))
    backwards = list(store.consume_space(space, reverse=True))
    assert [(entry, entry.space_offset) for entry in backwards] == [(e, e.space_offset) for e in reversed(entries)]
    for name in segments:
        there = list(store.consume_segment(space, name))
        assert list(store.consume_segment(space, name, reverse=True)) == there[::-1]
        assert list(store.consume_segment(space, name, max_sequence=3, limit=2, reverse=True)) == there[:3][:-3:-1]
    middle = entries[len(entries) // 2 :]
    if middle:
        after = store.consume_space(space, offset=middle[0].space_offset, reverse=True)
        assert list(after) == middle[:0:-1]
    return {
        "space": [(entry, entry.space_offset, entry.segment_offset, entry.stream_id) for entry in entries],
        "segments": {name: list(store.consume_segment(space, name)) for name in segments},
        "last": {name: store.peek(space, name) for name in segments},
        "status": {name: store.segment_status(space, name) for name in segments},
        "merged": list(store.consume({space: None})),
    }


def tiers(store: Store, space: str = SPACE) -> list[str]:
    return [tier for tier, _ in itertools.groupby(entry.tier for entry in store.consume_space(space))]


def table_path(client: streamkit.Client, store: Store, space: str = SPACE) -> Path:
    return Path(unquote(client._archive_root()[0].removeprefix("file://")), str(store.id), path_name(space))


# -- reads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 3])
def test_archived_entries_are_read_as_they_were(make: Make, partitions: int) -> None:
    store = make().store(uuid4())
    store.create_space(SPACE, partitions)
    fill(store)
    before = look(store)
    report = store.archive(SPACE)
    assert report.entries == len(before["space"])
    assert look(store) == before
    assert tiers(store) == ["cold"]
    other = make().store(store.id)
    assert look(other) == before
    assert {entry.tier for entry in look(other)["last"].values()} == {"cold"}


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_is_written_after_archiving_follows_on(make: Make, partitions: int) -> None:
    store = make().store(uuid4())
    store.create_space(SPACE, partitions)
    fill(store, 60)
    store.archive(SPACE)
    fill(store, 60, start=60)
    reference = make().store(uuid4())
    reference.create_space(SPACE, partitions)
    fill(reference)
    assert [entry.payload for entry in store.consume_space(SPACE)].sort() == [
        entry.payload for entry in reference.consume_space(SPACE)
    ].sort()
    for segment in reference.get_segments(SPACE):
        found = list(store.consume_segment(SPACE, segment))
        wanted = list(reference.consume_segment(SPACE, segment))
        assert [(e.sequence, e.payload, e.metadata) for e in found] == [
            (e.sequence, e.payload, e.metadata) for e in wanted
        ]
    if partitions == 1:
        assert tiers(store) == ["cold", "hot"]
    before = look(store)
    assert store.archive(SPACE).entries
    assert look(store) == before
    assert store.archive(SPACE).entries == 0


def test_an_offset_from_before_goes_on_after(make: Make) -> None:
    store = make().store(uuid4())
    store.create_space(SPACE, 2)
    fill(store, 80)
    entries = list(store.consume_space(SPACE))
    segment_entries = list(store.consume_segment(SPACE, "segment 3"))
    store.archive(SPACE)
    fill(store, 20, start=80)
    everything = list(store.consume_space(SPACE))
    for at in range(0, len(entries), 7):
        rest = list(store.consume_space(SPACE, offset=entries[at].space_offset))
        assert rest == everything[at + 1 :]
        assert [entry.space_offset for entry in rest] == [entry.space_offset for entry in everything[at + 1 :]]
    for entry in segment_entries:
        seen = {(e.segment, e.sequence) for e in store.consume_space(SPACE, offset=entry.space_offset)}
        assert {(later.segment, later.sequence) for later in segment_entries if later.sequence > entry.sequence} <= seen
        assert (entry.segment, entry.sequence) not in seen


def test_bounds_mean_the_same_in_both_tiers() -> None:
    clock = ManualClock()
    with streamkit.connect("memory://", clock=clock) as client:
        store = client.store(uuid4())
        for at in range(60):
            clock.sleep(1)
            store.produce(SPACE, f"s{at % 3}", [Record(b"%d.%d" % (at, n)) for n in range(3)])
        times = sorted({entry.timestamp for entry in store.consume_space(SPACE)})

        def bounded() -> list[Any]:
            found: list[Any] = []
            for low, high in (
                (times[10], times[20]),
                (times[35], 0),
                (0, times[5]),
                (times[-1] + 1, 0),
                (times[30], times[30]),
            ):
                bounds = {"min_timestamp": low, "max_timestamp": high}
                found.append(list(store.consume_space(SPACE, **bounds)))
                found.append(list(store.consume_segment(SPACE, "s1", **bounds)))
                found.append(list(store.consume({SPACE: None}, **bounds)))
            for low, high in ((1, 4), (2, 2), (30, 0), (0, 31), (61, 0)):
                found.append(list(store.consume_segment(SPACE, "s2", min_sequence=low, max_sequence=high)))
            found.append(list(store.consume_space(SPACE, limit=7)))
            return found

        before = bounded()
        store.archive(SPACE, until=times[29])
        assert bounded() == before
        assert tiers(store) == ["cold", "hot"]
        store.archive(SPACE)
        assert bounded() == before


def test_followers_and_subscribers_cross_the_border(make: Make) -> None:
    store = make().store(uuid4())
    fill(store, 30)
    entries = list(store.consume_space(SPACE))
    space, segment = store.follow_space(SPACE, timeout=0), store.follow_segment(SPACE, "segment 1", timeout=0)
    statuses = store.subscribe_to_space(SPACE, timeout=0)
    first = [next(space) for _ in range(5)]
    status = next(statuses)
    store.archive(SPACE)
    fill(store, 10, start=30)
    assert first + list(space) == list(store.consume_space(SPACE))[: len(entries)]
    assert [entry.sequence for entry in segment] == list(
        range(1, store.segment_status(SPACE, "segment 1").last_sequence + 1)
    )
    told = {found.segment: found.last_sequence for found in (status, *statuses)}
    assert told == {name: store.segment_status(SPACE, name).last_sequence for name in store.get_segments(SPACE)}


def test_many_files_and_commits_hold_each_entry_once(make: Make) -> None:
    store = make().store(uuid4())
    for at in range(150):
        store.produce(SPACE, f"s{at % 9}", [Record(b"x" * 50)] * 3)
    before = look(store)
    report = store.archive(SPACE, target_file_bytes=300)
    assert (report.files, report.commits) == (75, 2)
    assert look(make().store(store.id)) == before


# -- the grace -------------------------------------------------------------------------------------------------------


def log_rows(store: Store, space: str = SPACE) -> tuple[int, int]:
    """Return (transactions, data rows) in the log and its index."""
    known = store._known(space)
    assert known is not None
    transactions = rows = 0
    for partition in known.partitions:
        partition.read_head()
        transactions += sum(1 for _ in all_records(partition, partition.packs, 1))
        rows += sum(1 for _ in partition.index.scan(*DATA.children()))
    return transactions, rows


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_the_log_keeps_what_was_archived_until_the_grace_is_over(kind: str, partitions: int) -> None:
    service = Service(kind)
    clock = service.clock
    with service.process()[1] as client:
        store = client.store(uuid4())
        store.create_space(SPACE, partitions)
        fill(store)
        before, rows = look(store), log_rows(store)
        store.archive(SPACE)
        clock.sleep(HOUR - 10)
        assert store.archive(SPACE).removed == 0
        store.maintain()
        assert log_rows(store)[0] == rows[0]
        clock.sleep(20)
        store.maintain()
        assert log_rows(store) == (0, 0)
        assert look(store) == before
        fill(store, 40, start=120)
        after = look(store)
        assert store.archive(SPACE).removed == 0
        clock.sleep(HOUR + 1)
        assert store.archive(SPACE).removed == sum(1 for _ in range(40)) or partitions > 1
        assert log_rows(store) == (0, 0)
        assert look(store) == after
        assert after["space"][: len(before["space"])] == before["space"] or partitions > 1
        assert store.verify().ok


def test_an_archiver_that_runs_often_still_lets_go() -> None:
    service = Service("memory")
    clock = service.clock
    with service.process()[1] as client:
        store = client.store(uuid4())
        for at in range(200):
            store.produce(SPACE, "s", [Record(b"%d" % at)])
            clock.sleep(60)
            store.archive(SPACE)
        # Sixty transactions of the grace, some more because the grace ends in shares, and a pack, which is removed as a
        # whole.
        assert 60 <= log_rows(store)[0] <= 100
        assert [entry.payload for entry in store.consume_segment(SPACE, "s")] == [b"%d" % at for at in range(200)]


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_a_client_that_slept_writes_no_number_twice(kind: str) -> None:
    service = Service(kind)
    clock = service.clock
    with service.process()[1] as sleeper, service.process()[1] as client:
        asleep, store = sleeper.store(uuid4()), client.store(uuid4())
        store = client.store(asleep.id)
        asleep.produce(SPACE, "s", [Record(b"1")])
        for at in range(2, 30):
            store.produce(SPACE, "s", [Record(b"%d" % at)])
        store.archive(SPACE)
        clock.sleep(2 * HOUR)
        store.maintain()
        with pytest.raises(SequenceMismatch):
            asleep.produce(SPACE, "s", [Record(b"no")], expected_sequence=1)
        assert asleep.produce(SPACE, "s", [Record(b"30")]).last_sequence == 30
        assert [entry.payload for entry in store.consume_space(SPACE)] == [b"%d" % at for at in range(1, 31)]


def test_an_idempotency_key_outlives_archiving(make: Make) -> None:
    store = make().store(uuid4())
    first = store.produce(SPACE, "s", [Record(b"once")], idempotency_key="k")
    fill(store, 10)
    store.archive(SPACE)
    assert make().store(store.id).produce(SPACE, "s", [Record(b"once")], idempotency_key="k") == first


def test_the_outcome_of_an_archived_transaction_is_known(make: Make) -> None:
    store = make().store(uuid4())
    trx = store.produce(SPACE, "s", [Record(b"1")]).trx
    assert trx is not None
    fill(store, 10)
    store.archive(SPACE)
    assert make().store(store.id).outcome(trx.id) == "committed"
    assert make().store(store.id).outcome(UUID(bytes=trx.raw_id[:8] + bytes(8))) == "absent"


def test_a_new_client_sees_whatever_was_committed_since_all_was_archived(make: Make) -> None:
    """A first read asks for fewer numbers if all indexed transactions are archived."""
    store = make().store(uuid4())
    store.create_space(SPACE, 2)
    fill(store, 4)
    store.archive(SPACE)
    for count in range(1, 20):
        store.produce(SPACE, "segment 1", [Record(b"%d" % count)])
        fresh = make().store(store.id)
        assert fresh.peek(SPACE, "segment 1").payload == b"%d" % count
        if EXHAUSTIVE or count % 4 == 1:
            assert look(fresh) == look(store)


# -- who archives ----------------------------------------------------------------------------------------------------


def test_one_archiver_at_a_time(make: Make) -> None:
    store = make().store(uuid4())
    fill(store, 10)
    with make().store(store.id).lease(f"archive/{path_name(SPACE)}/0"), pytest.raises(LeaseNotAcquired):
        store.archive(SPACE)
    assert store.archive(SPACE).transactions == 10


def test_an_archiver_that_lost_its_lease_adds_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archiver is overtaken after its last check of the lease."""
    from streamkit.archive.table import Table

    slow, fast = make().store(uuid4()), make()
    fill(slow, 40)
    before = look(slow)
    commit = Table.commit

    def overtaken(self: Table, *arguments: Any) -> bool:
        monkeypatch.setattr(Table, "commit", commit)
        store = fast.store(slow.id)
        monkeypatch.setattr(store, "_archiver_lease", lambda name: store.lease(f"other {name}"))
        assert store.archive(SPACE).transactions == 40
        return commit(self, *arguments)

    monkeypatch.setattr(Table, "commit", overtaken)
    with pytest.raises(StreamkitError, match="another archiver"):
        slow.archive(SPACE)
    assert look(slow) == before
    assert look(make().store(slow.id)) == before


def test_until_and_min_age_leave_the_young(make: Make) -> None:
    store = make().store(uuid4())
    fill(store, 10)
    assert store.archive(SPACE, min_age=60).transactions == 0
    last = list(store.consume_space(SPACE))[-1].timestamp
    assert store.archive(SPACE, until=last - 100_000).transactions == 0
    assert store.archive(SPACE, until=last).transactions == 10


def test_wrong_arguments_are_named(make: Make) -> None:
    store = make().store(uuid4())
    fill(store, 1)
    for error, arguments in (
        (TypeError, {"until": "x"}),
        (TypeError, {"until": 1.5}),
        (TypeError, {"min_age": "1"}),
        (ValueError, {"min_age": -1}),
        (TypeError, {"target_file_bytes": 1.0}),
        (ValueError, {"target_file_bytes": 0}),
    ):
        with pytest.raises(error, match=next(iter(arguments))):
            store.archive(SPACE, **arguments)  # type: ignore[arg-type]
    assert store.archive("nothing here").transactions == 0


# -- names -----------------------------------------------------------------------------------------------------------


NAMES = ["a", "ab", "a/b", "a b", "a%20b", "a~20b", "..", ".", "_x", "é", "🎉", "con", "a#b?c", "x" * 255, "é" * 127]


def test_every_name_has_a_path_of_its_own() -> None:
    paths = [path_name(name) for name in NAMES]
    assert len(set(paths)) == len(NAMES)
    assert all(
        path.isascii() and len(path) <= 200 and path[0] not in "._" and not set(path) & set("/%#?") for path in paths
    )
    assert [space_name(path) for path in paths[:-2]] == NAMES[:-2]


def test_spaces_of_any_name_are_archived(make: Make) -> None:
    store = make().store(uuid4())
    for name in NAMES:
        store.produce(name, name, [Record(name.encode())])
        assert store.archive(name).entries == 1
    other = make().store(store.id)
    for name in NAMES:
        (entry,) = other.consume_space(name)
        assert (entry.tier, entry.segment, entry.payload) == ("cold", name, name.encode())


# -- the table -------------------------------------------------------------------------------------------------------


def test_other_engines_read_the_table(make: Make) -> None:
    from deltalake import DeltaTable

    client = make()
    store = client.store(uuid4())
    fill(store)
    store.archive(SPACE)
    rows = DeltaTable(str(table_path(client, store))).to_pyarrow_table().sort_by("position").to_pylist()
    entries = list(store.consume_space(SPACE))
    assert [(row["segment"], row["sequence"], row["payload"], dict(row["metadata"] or ())) for row in rows] == [
        (entry.segment, entry.sequence, entry.payload, entry.metadata) for entry in entries
    ]
    assert [row["trx_id"] for row in rows] == [str(entry.trx.id) for entry in entries]
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [entry.timestamp for entry in entries]


def test_stores_are_listed_and_deleted_with_their_archive(make: Make) -> None:
    client = make()
    store, other = client.store(uuid4()), client.store(uuid4())
    for one in (store, other):
        fill(one, 5)
        one.archive(SPACE)
    path = table_path(client, store)
    assert set(client.stores()) == {store.id, other.id}
    assert path.exists()
    client.delete_store(store.id)
    assert list(client.stores()) == [other.id]
    assert not path.exists()
    assert list(make().store(store.id).consume_space(SPACE)) == []
    assert len(list(other.consume_space(SPACE))) == len(list(make().store(other.id).consume_space(SPACE)))


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_archiving_a_store_that_others_have_deleted_ends_with_an_error(make: Make, again: bool) -> None:
    store = make().store(uuid4())
    fill(store, 5)
    store.maintain()  # the head says that something is indexed
    fill(store, 5)
    other = make()
    other.delete_store(store.id)
    if again:
        other.store(store.id).produce(SPACE, "new", [Record(b"new")])
    with pytest.raises(StreamkitError, match=r"deleted|is missing from the log"):
        store.archive(SPACE)
    seen = [entry.payload for entry in make().store(store.id).consume_space(SPACE)]
    assert seen == ([b"new"] if again else [])
    assert not make().store(store.id).verify().findings


def test_the_archive_may_be_elsewhere(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = (tmp_path / "else where").as_uri()
    client = make(archive=url)
    store = client.store(uuid4())
    fill(store, 20)
    before = look(store)
    store.archive(SPACE)
    assert (tmp_path / "else where" / str(store.id) / path_name(SPACE) / "_delta_log").is_dir()
    assert look(make(archive=url).store(store.id)) == before
    # A client without an archive's place reads the entries that the log still holds, and then gets an error.
    assert [entry for entry, *_ in look(make().store(store.id))["space"]] == [entry for entry, *_ in before["space"]]
    assert "say where they are kept" in caplog.text
    assert "connect(archive=" in caplog.text
    client.delete_store(store.id)
    assert not (tmp_path / "else where" / str(store.id)).exists()
    with pytest.raises(ValueError, match="archive is the URL"):
        make(archive="/no/url")


def test_compacted_by_others_it_reads_the_same(make: Make) -> None:
    from deltalake import DeltaTable

    client = make()
    store = client.store(uuid4())
    for at in range(60):
        store.produce(SPACE, f"s{at % 9}", [Record(b"x" * 50)] * 3)
    before = look(store)
    store.archive(SPACE, target_file_bytes=300)
    list(store.consume_space(SPACE))
    table = DeltaTable(str(table_path(client, store)))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(table.file_uris()) < 5
    assert look(store) == before
    assert look(make().store(store.id)) == before


def test_compacted_by_us_it_reads_the_same_also_for_who_had_it_open(make: Make) -> None:
    from streamkit.archive.compact import compact_space

    client = make()
    store = client.store(uuid4())
    store.create_space(SPACE, 2)
    fill(store, 60)
    before = look(store)
    store.archive(SPACE, target_file_bytes=100)
    reading = store.consume_space(SPACE)
    first = [next(reading) for _ in range(10)]
    many, few, removed = compact_space(make().store(store.id)._archive(SPACE), 64 << 20, 0)
    assert many > 10
    assert (few, removed) == (1, many)
    assert first + list(reading) == [entry for entry, *_ in before["space"]]
    assert look(store) == before
    fill(store, 10, start=60)
    assert store.archive(SPACE).transactions == 10
    assert look(make().store(store.id))["space"][0] == before["space"][0]


@pytest.mark.parametrize(("harm", "error", "says"), HARMS)
def test_a_table_that_was_tampered_with_is_refused(
    make: Make, harm: Callable[[Path], None], error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after the removal from the log.
    monkeypatch.setattr("streamkit.log.partition.still_in_log_from", lambda *_: None)
    client = make()
    store = client.store(uuid4())
    fill(store, 30)
    store.archive(SPACE, target_file_bytes=200)
    harm(table_path(client, store))
    store = make().store(store.id)
    with pytest.raises(error, match=says):
        list(store.consume_space(SPACE))
    if harm not in (missing_file, damaged_file):
        fill(store, 5)
        with pytest.raises(error):
            store.archive(SPACE)


def test_a_table_of_another_space_is_refused(make: Make) -> None:
    client = make()
    store = client.store(uuid4())
    store.produce("a", "s", [Record(b"1")])
    store.produce("b", "s", [Record(b"2")])
    store.archive("a")
    shutil.copytree(table_path(client, store, "a"), table_path(client, store, "b"))
    with pytest.raises(CorruptData, match="is the archive of"):
        store.archive("b")
    assert [entry.tier for entry in store.consume_space("b")] == ["hot"]


def test_without_the_extra_the_error_says_what_to_install(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make().store(uuid4())
    fill(store, 3)
    monkeypatch.setattr("streamkit.archive.schema.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'streamkit-store\[archive\]'"):
        store.archive(SPACE)
    assert len(list(store.consume_space(SPACE))) > 0


def test_opening_a_store_imports_no_table_format() -> None:
    import subprocess

    code = (
        "import streamkit, sys, uuid; store = streamkit.connect('memory://').store(uuid.uuid4()); "
        "store.produce('a', 'b', [streamkit.Record(b'x')]); list(store.consume_space('a')); "
        "sys.exit(any(name in sys.modules for name in ('deltalake', 'pyarrow', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_segment_is_found_without_reading_the_table(tmp_path: Path) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        for begin in range(0, 40_000, 1000):
            with store.transaction(SPACE) as trx:
                for at in range(begin, begin + 1000):
                    trx.produce(f"{at:06}", [Record(json.dumps({"at": at, "x": str(uuid4())}).encode())] * 5)
        store.archive(SPACE)
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(store.id)
        archive = store._archive(SPACE)
        size = sum(file.stat().st_size for file in table_path(client, store).glob("*.parquet"))
        read: list[int] = []
        inner = archive.table.filesystem

        class Counting:
            get_file_info, open_input_stream = inner.get_file_info, inner.open_input_stream

            def open_input_file(self, path: str) -> Any:
                import pyarrow as pa

                file = inner.open_input_file(path)

                class Counted(io.RawIOBase):
                    tell, seek, readable, seekable = file.tell, file.seek, file.readable, file.seekable

                    def read(self, count: int = -1) -> bytes:
                        read.append(count)
                        return bytes(file.read(count))

                return pa.PythonFile(Counted(), "r")

        archive.table._filesystem = Counting()
        assert [entry.sequence for entry in store.consume_segment(SPACE, "023456")] == [1, 2, 3, 4, 5]
        assert 0 < sum(read) < size * 0.1
        read.clear()
        assert store.peek(SPACE, "012345").sequence == 5
        assert 0 < sum(read) < size * 0.03


# -- all the time ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("partitions", [1, 3])
def test_readers_lose_nothing_while_writers_and_an_archiver_race(kind: str, partitions: int, tmp_path: Path) -> None:
    race(
        tmp_path.as_uri() if kind == "local" else f"memory://{uuid4().hex}?remote={int(kind == 'remote')}",
        SPACE,
        partitions,
    )


class _OfItsOwn(ArchivedConformance):
    url = ""

    def setup_method(self, method: object = None) -> None:
        self.name = uuid4().hex
        super().setup_method(method)

    def root(self) -> str:
        return self.url.format(self.name)


@pytest.mark.slow
@pytest.mark.exhaustive_only  # TestArchivedLocal commits in batches too
class TestArchivedInBatches(_OfItsOwn):
    url = "memory://{}"


@pytest.mark.slow
class TestArchivedByKeys(_OfItsOwn):
    url = "memory://{}?remote=1"


@pytest.mark.slow
class TestArchivedLocal(_OfItsOwn):
    url = f"file://{gettempdir()}/streamkit-archived-{{}}"

    def teardown_method(self, method: object = None) -> None:
        super().teardown_method(method)
        shutil.rmtree(self.root().removeprefix("file://"), ignore_errors=True)


def test_files_around_what_was_trimmed_before_it_was_archived_are_not_put_together(tmp_path: Path) -> None:
    with streamkit.connect(f"file://{tmp_path / 'store'}", archive=f"file://{tmp_path / 'cold'}") as client:
        store = client.store(uuid4())
        for turn in range(3):
            for at in range(4):
                store.produce(SPACE, "s", [Record(b"%d" % at)])
                if turn == 1 and at == 2:
                    store.archive(SPACE)
                    store.trim(SPACE, before=store.end_offset(SPACE))
                    for _ in range(3):
                        store.produce(SPACE, "s", [Record(b"trimmed")])
                    store.trim(SPACE, before=store.end_offset(SPACE))
            store.archive(SPACE)
        left = list(store.consume_segment(SPACE, "s"))
        assert len(left) == 5
        store.compact(SPACE)
        assert list(store.consume_segment(SPACE, "s")) == left
        assert store.verify(SPACE).ok


def test_what_is_in_very_many_files_is_erased_from_all_of_them_in_one_version(tmp_path: Path) -> None:
    with streamkit.connect(f"file://{tmp_path / 'store'}", archive=f"file://{tmp_path / 'cold'}") as client:
        store = client.store(uuid4())
        for at in range(25):
            store.produce(SPACE, "s", [Record(b"secret%d" % at)])
            store.produce(SPACE, f"t{at % 2}", [Record(b"kept")])
        store.archive(SPACE, target_file_bytes=1)
        table = store._archive(SPACE).table
        before = table.snapshot()
        assert before is not None
        assert len(before.files) >= 25
        assert store.erase(SPACE, "s").files == 25
        after = table.snapshot()
        assert after is not None
        assert after.state.version == before.state.version + 1
        assert not any(b"secret" in path.read_bytes() for path in (tmp_path / "cold").rglob("*.parquet"))
        assert len(list(store.consume_space(SPACE))) == 25
        assert store.verify(SPACE).ok


def test_an_erasure_is_completed_beside_what_a_killed_process_left_half_written(tmp_path: Path) -> None:
    with streamkit.connect(tmp_path.as_uri(), archive=f"file://{tmp_path / 'cold'}") as client:
        store = client.store(uuid4())
        for at in range(8):
            store.produce(SPACE, "s", [Record(b"secret%d" % at)])
        store.archive(SPACE)
        (file,) = (tmp_path / "cold").rglob("*[0-9a-f].parquet")
        left = [file.with_name(f"00-0-{at}-12-0123456789ab-0123456789abcdef.parquet") for at in range(2)]
        left[0].write_bytes(b"")
        left[1].write_bytes(file.read_bytes()[:-40])
        with pytest.raises(Unavailable, match="erase again in a minute"):
            store.erase(SPACE, "s", first=3, last=3)
        assert [entry.sequence for entry in store.consume_space(SPACE)] == [1, 2, 4, 5, 6, 7, 8]
        assert all(path.exists() for path in left)
        for path in left:
            os.utime(path, (0, 0))
        store.maintain(SPACE)
        assert not any(path.exists() for path in left)
        assert not any(b"secret2" in path.read_bytes() for path in (tmp_path / "cold").rglob("*.parquet"))
        store.erase(SPACE, "s", first=5, last=5)
        assert store.verify(SPACE).ok


def test_a_space_that_does_not_exist_is_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with streamkit.connect(f"file://{tmp_path}") as client, client.store(uuid4()) as store:
        store.produce("orders", "a", [Record(b"1")])
        assert store.archive("ordres").entries == 0
        assert store.compact("ordres").before == 0
        assert [record.getMessage() for record in caplog.records] == [
            "there is no space 'ordres': nothing was archived",
            "there is no space 'ordres': nothing was compacted",
        ]
        assert {(record.__dict__["store"], record.__dict__["space"]) for record in caplog.records} == {
            (str(store.id), "ordres")
        }
        caplog.clear()
        assert store.archive("orders").entries == 1
        assert not caplog.records


@pytest.mark.parametrize("metadata", [None, {"of": "s"}], ids=["by name", "by metadata"])
def test_an_erasure_removes_what_a_killed_engine_had_not_renamed(
    tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    """delta-rs writes to a name with a number at its end, and renames the file when it is complete."""
    with streamkit.connect(tmp_path.as_uri(), archive=f"file://{tmp_path / 'cold'}") as client:
        store = client.store(uuid4())
        store.produce(SPACE, "s", [Record(b"secret", {"of": "s"})])
        store.produce(SPACE, "t", [Record(b"kept")])
        store.archive(SPACE)
        (file,) = (tmp_path / "cold").rglob("*[0-9a-f].parquet")
        whole, half = file.with_name("part-00000-c000.zstd.parquet#1"), file.with_name("part-00001-c000.parquet#12")
        whole.write_bytes(file.read_bytes())
        half.write_bytes(file.read_bytes()[:-40])
        os.utime(half, (0, 0))
        store.erase(SPACE, None if metadata else "s", metadata=metadata)
        assert not whole.exists()
        assert not half.exists()
        assert [entry.payload for entry in store.consume_space(SPACE)] == [b"kept"]
        assert store.verify(SPACE).ok
