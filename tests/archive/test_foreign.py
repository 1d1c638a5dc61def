"""Other engines change the archive's table at every step: changes that keep the rows have no effect on readers, and all
other changes are named by an error."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.foreign_engines import (
    CHANGING,
    KEEPING,
    Operation,
    column_added,
    optimize_and_vacuum,
    pyarrow_overwrites,
    rows_of,
    shuffled,
    table_of,
    update_and_optimize,
    z_order_by_transaction,
)
from harness.foreign_engines import replace as replace_files
from harness.processes import Service
from streamkit import Record, Store
from streamkit.archive import scattered
from streamkit.archive.compact import compact_space
from streamkit.archive.location import path_name
from streamkit.errors import CorruptData
from streamkit.log.records import all_records

pytest.importorskip("deltalake")

import pyarrow as pa

SPACE = "flights/Ωmega #1"
_FILE_BYTES = 40 if EXHAUSTIVE else 250
"""A file a transaction, or some files a run."""


class World:
    """A store, and another one of the same content that is never archived."""

    def __init__(self, partitions: int) -> None:
        self._service = Service("memory")
        self.clock = self._service.clock
        self._clients: list[streamkit.Client] = []
        self.id = uuid4()
        self.store = self.another()
        self.store.create_space(SPACE, partitions)
        self.rows = 0
        self.first_trx: UUID | None = None

    def another(self) -> Store:
        """The store, opened by a process that knows nothing yet."""
        client = self._service.process()[1]
        self._clients.append(client)
        return client.store(self.id)

    @property
    def path(self) -> Path:
        root = unquote(self._clients[0]._archive_root()[0].removeprefix("file://"))
        return Path(root, str(self.id), path_name(SPACE))

    def write(self, transactions: int = 14) -> None:
        for at in range(self.rows, self.rows + transactions):
            self.clock.sleep(0.01)
            if at % 5 == 0:
                with self.store.transaction(SPACE) as trx:
                    trx.produce(f"{{a}}/{at % 3}", [Record(b"first"), Record(b"", {"k": "v", "ü": "日本"})])
                    trx.produce(f"{{a}}/{at % 4}x", [Record(b"%d" % at)])
            else:
                records = [Record(b"%d.%d" % (at, n), {"n": str(n)} if n % 2 else None) for n in range(at % 4 + 1)]
                trx_of = self.store.produce(SPACE, f"segment {at % 7}", records).trx
                if self.first_trx is None and trx_of is not None:
                    self.first_trx = trx_of.id
        self.rows += transactions

    def archive(self) -> None:
        assert self.store.archive(SPACE, target_file_bytes=_FILE_BYTES).transactions

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def world(partitions: int) -> Iterator[World]:
    world = World(partitions)
    yield world
    world.close()


def seen(store: Store) -> dict[str, Any]:
    """Everything that a reader can see of the space, by every way of reading; but the tier."""
    entries = list(store.consume_space(SPACE))
    segments = list(store.get_segments(SPACE))
    some = slice(None, None, 1 if EXHAUSTIVE else 3)
    middle = entries[len(entries) // 2]
    low, high = entries[len(entries) // 4].timestamp, entries[-len(entries) // 4].timestamp
    followed = store.follow_space(SPACE, offset=middle.space_offset, timeout=0)
    return {
        "space": [(entry, entry.space_offset, entry.segment_offset, entry.stream_id) for entry in entries],
        "from an offset": list(store.consume_space(SPACE, offset=middle.space_offset)),
        "by timestamps": list(store.consume_space(SPACE, min_timestamp=low, max_timestamp=high)),
        "segments": {name: list(store.consume_segment(SPACE, name)) for name in segments},
        "a part": [list(store.consume_segment(SPACE, n, min_sequence=2, max_sequence=4)) for n in segments[some]],
        "late": [list(store.consume_segment(SPACE, name, min_timestamp=low)) for name in segments[1:][some]],
        "last": {name: store.peek(SPACE, name) for name in segments},
        "status": {name: store.segment_status(SPACE, name) for name in segments},
        "followed": list(followed),
    }


def touched(store: Store) -> list[set[str]]:
    """The segments that the archive says were touched, by partition."""
    known = store._known(SPACE)
    assert known is not None
    archive = store._archive(SPACE)
    return [set(archive.touched(one.view(), 1, one.head.archived)) for one in known.partitions if one.head.archived]


def log_rows(store: Store) -> int:
    """Count the transactions that the log still holds."""
    known = store._known(SPACE)
    assert known is not None
    return sum(1 for partition in known.partitions for _ in all_records(partition, partition.packs, 1))


def between_runs(world: World, operation: Operation) -> None:
    world.write()
    world.archive()
    operation(world.path)
    world.write()
    world.archive()
    world.write(3)


def after_two_runs(world: World, operation: Operation) -> None:
    world.write()
    world.archive()
    world.write()
    world.archive()
    world.write(3)
    seen(world.store)  # from now on the store knows files that may be gone
    operation(world.path)


def after_the_log_has_gone(world: World, operation: Operation) -> None:
    world.write()
    world.archive()
    world.write()
    world.archive()
    world.clock.sleep(2 * 3600)
    world.store.maintain()
    assert "hot" not in {entry.tier for entry in world.another().consume_space(SPACE)}
    assert log_rows(world.another()) == 0
    operation(world.path)


def while_the_log_goes(world: World, operation: Operation) -> None:
    world.write()
    world.archive()
    world.write()
    world.archive()
    operation(world.path)
    world.clock.sleep(2 * 3600)
    world.store.maintain()
    assert log_rows(world.another()) == 0


def before_our_compaction(world: World, operation: Operation) -> None:
    world.write()
    world.archive()
    world.write()
    world.archive()
    operation(world.path)
    compact_space(world.store._archive(SPACE), 64 << 20, 0)


def after_our_compaction(world: World, operation: Operation) -> None:
    world.write()
    world.archive()
    world.write()
    world.archive()
    compact_space(world.store._archive(SPACE), 64 << 20, 0)
    world.write(3)
    world.archive()
    operation(world.path)


Step = Callable[[World, Operation], None]
STEPS: list[Step] = [
    between_runs,
    after_two_runs,
    after_the_log_has_gone,
    while_the_log_goes,
    before_our_compaction,
    after_our_compaction,
]


def cases(operations: Sequence[Any]) -> list[Any]:
    """Cases: each operation at one step, or at all steps, with three partitions; some operations at one step with
    one."""
    found = []
    for at, one in enumerate(operations):
        operation, *says = one if isinstance(one, tuple) else (one,)
        steps = STEPS if EXHAUSTIVE else [STEPS[at % len(STEPS)]]
        alone = [(1, after_two_runs)] if EXHAUSTIVE or at % 6 == 0 else []
        for partitions, step in [*alone, *((3, step) for step in steps)]:
            where = f"{operation.__name__}-{step.__name__}-{partitions}".replace("_", " ")
            found.append(pytest.param(partitions, operation, step, *says, id=where))
    return found


@pytest.mark.parametrize(("partitions", "operation", "step"), cases(KEEPING))
def test_who_keeps_the_rows_is_not_noticed(world: World, operation: Operation, step: Step) -> None:
    before: list[dict[str, Any]] = []

    def watched(path: Path) -> None:
        before.append(seen(world.another()))
        operation(path)

    step(world, watched)
    (there,) = before
    for store in (world.store, world.another()):
        found = seen(store)
        if len(found["space"]) == len(there["space"]):
            assert found == there
        assert found["space"][: len(there["space"])] == there["space"]
        by_segment: dict[str, list[Any]] = {}
        for entry, *_ in found["space"]:
            by_segment.setdefault(entry.segment, []).append(entry)
        assert by_segment == found["segments"]
        assert {name: entries[-1] for name, entries in by_segment.items()} == found["last"]
        for entries in by_segment.values():
            assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
        assert set().union(*touched(store)) == {entry.segment for entry, *_ in found["space"] if entry.tier == "cold"}
    assert world.first_trx is not None
    assert world.another().outcome(world.first_trx) == "committed"
    # And it goes on.
    world.write(6)
    world.archive()
    compact_space(world.another()._archive(SPACE), 64 << 20, 0)
    after = seen(world.another())
    assert after["space"][: len(found["space"])] == found["space"]
    assert len(after["space"]) > len(found["space"])
    assert after["segments"] == seen(world.store)["segments"]


@pytest.mark.parametrize(("partitions", "operation", "step", "says"), cases(CHANGING))
def test_who_changes_rows_is_named(world: World, operation: Operation, says: str, step: Step) -> None:
    before: list[int] = []

    def watched(path: Path) -> None:
        before.append(table_of(path).version())
        operation(path)

    if step in (between_runs, while_the_log_goes, before_our_compaction):
        # The archiver, or compaction, sees it first, and builds nothing on it.
        with pytest.raises(CorruptData, match=says):
            step(world, watched)
    else:
        step(world, watched)
    with pytest.raises(CorruptData, match=says):
        list(world.another().consume_space(SPACE))
    for segment in ("{a}/0", "segment 1"):
        with pytest.raises(CorruptData, match=says):
            list(world.another().consume_segment(SPACE, segment))
    world.write(3)
    with pytest.raises(CorruptData, match=says):
        world.another().archive(SPACE)
    table = table_of(world.path)
    if table.protocol().min_reader_version > 1 or operation is update_and_optimize:
        return  # delta-rs cannot restore it
    # What the error says is to be done.
    table.restore(before[0])
    assert world.store.archive(SPACE).transactions
    found = seen(world.another())
    assert found["segments"]
    for entries in found["segments"].values():
        assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))


def test_what_others_compacted_is_read_in_pieces_that_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(2)
    for at in range(40):
        world.store.produce(SPACE, f"s{at % 3}", [Record(bytes([at]) * 500)] * 3)
    there = seen(world.store)
    world.store.archive(SPACE, target_file_bytes=5000)
    replace_files(world.path, [shuffled(rows_of(world.path))], row_group_size=50)
    sizes: list[int] = []
    gather = scattered._gather

    def counted(*arguments: Any) -> Any:
        rows = gather(*arguments)
        if rows is not None:
            sizes.append(rows.nbytes)
        return rows

    monkeypatch.setattr(scattered, "WINDOW", 6000)
    monkeypatch.setattr(scattered, "_gather", counted)
    assert seen(world.another()) == there
    assert 500 < max(sizes) <= 6000
    compact_space(world.another()._archive(SPACE), 64 << 20, 0)
    assert max(sizes) <= 6000
    assert all(file.ours for file in world.another()._archive(SPACE).snapshot(0, 1).files)
    assert seen(world.another()) == there
    world.close()


def rewritten_and_vacuumed(path: Path) -> None:
    replace_files(path, [rows_of(path)])
    optimize_and_vacuum(path)


def test_a_file_that_others_took_away_while_it_was_read_is_found_in_a_newer_version() -> None:
    world = World(1)
    world.write(20)
    world.archive()
    reader = world.another()
    there = seen(reader)
    reading = [reader.consume_space(SPACE), reader.consume_segment(SPACE, "segment 1")]
    first = [[next(one)] for one in reading]
    optimize_and_vacuum(world.path)
    assert [some + list(one) for some, one in zip(first, reading, strict=True)] == [
        [entry for entry, *_ in there["space"]],
        there["segments"]["segment 1"],
    ]
    archive = reader._archive(SPACE)
    known = reader._known(SPACE)
    assert known is not None
    view = known.partitions[0].view()
    for ask in (
        lambda: archive.entries_until(view, 10),
        lambda: archive.first_at(view, there["space"][9][0].timestamp, 1, 20),
        lambda: list(archive.touched(view, 1, 20)),
    ):
        wanted = ask()
        rewritten_and_vacuumed(world.path)
        assert ask() == wanted


def test_a_column_that_others_added_outlives_our_compaction() -> None:
    world = World(3)
    world.write()
    world.archive()
    column_added(world.path)
    noted = table_of(world.path).to_pyarrow_table().sort_by([("partition", "ascending"), ("position", "ascending")])
    for _ in range(2):
        world.write(3)
        world.archive()
        compact_space(world.store._archive(SPACE), 64 << 20, 0)
    found = table_of(world.path).to_pyarrow_table()
    notes = {(row["partition"], row["position"]): row["note"] for row in found.to_pylist()}
    for row in noted.to_pylist():
        assert notes[row["partition"], row["position"]] == row["note"]
    assert "seen" in notes.values()
    world.close()


def test_a_row_group_of_any_size_is_read_a_little_at_a_time() -> None:
    world = World(1)
    for at in range(20):
        world.store.produce(SPACE, f"s{at % 4}", [Record(os.urandom(10_000)) for _ in range(100)])
    world.store.archive(SPACE)
    replace_files(world.path, [shuffled(rows_of(world.path))], use_dictionary=False)
    (file,) = world.path.glob("part-*")
    assert file.stat().st_size > 19_000_000
    store = world.another()
    table = store._archive(SPACE).table
    inner, read = table.filesystem, list[int]()

    class Counting:
        get_file_info, open_input_stream = inner.get_file_info, inner.open_input_stream

        def open_input_file(self, path: str) -> Any:
            file = inner.open_input_file(path)

            class Counted(io.RawIOBase):
                tell, seek, readable, seekable = file.tell, file.seek, file.readable, file.seekable

                def read(self, count: int = -1) -> bytes:
                    read.append(count)
                    return bytes(file.read(count))

            return pa.PythonFile(Counted(), "r")

    table._filesystem = Counting()
    assert sum(1 for _ in store.consume_segment(SPACE, "s1")) == 500
    assert sum(1 for _ in store.consume_space(SPACE)) == 2000
    assert max(read) <= 8 << 20
    world.close()


def test_another_engine_compacts_what_was_erased() -> None:
    """A payload that was erased is null: the table says that it may be."""
    world = World(1)
    world.write()
    world.archive()
    world.store.erase(SPACE, "segment 1")
    before = seen(world.another())
    for operation in (z_order_by_transaction, optimize_and_vacuum):
        operation(world.path)
        assert seen(world.another()) == before
    world.close()


@pytest.mark.exhaustive_only(partitions=1)
@pytest.mark.parametrize("operation", [optimize_and_vacuum, z_order_by_transaction, pyarrow_overwrites])
@pytest.mark.parametrize("partitions", [1, 3])
def test_another_engine_compacts_what_was_trimmed_between_two_runs(partitions: int, operation: Operation) -> None:
    """Entries that were trimmed before the archive run leave no gap among the rows of one file."""

    def read(store: Store) -> list[Any]:
        return [
            list(store.consume_space(SPACE)),
            *(list(store.consume_segment(SPACE, n)) for n in store.get_segments(SPACE)),
        ]

    world = World(partitions)
    world.write()
    world.archive()
    world.write()
    world.store.trim(SPACE, keep_entries=3)
    world.write(8)
    world.archive()
    before = read(world.another())
    operation(world.path)
    assert read(world.another()) == before
    world.clock.sleep(2 * 3600)
    world.store.maintain()
    assert read(world.another()) == before
    world.close()
