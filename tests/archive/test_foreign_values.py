"""Values of any type in the files of an archive are CorruptData; an error of streamkit's own code stays what it is."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

from harness.archived_world import SPACE, World, filled
from streamkit import Record
from streamkit.archive.location import path_name
from streamkit.archive.restore import archived_spaces, restore_space
from streamkit.errors import CorruptData, UnsupportedVersion

pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

REFUSED = (CorruptData, UnsupportedVersion)
LOGS = 4000 if EXHAUSTIVE else 100


class Archived(World):
    """A space of which only the archive holds the entries, in a few files; a copy of its table is put back."""

    def __init__(self, root: Path) -> None:
        self.__dict__.update(filled("memory", root / "archive").__dict__)
        self.run(self.process())
        self.clock.sleep(3601)
        self.process().store(self.id).maintain()
        self.table = root / "archive" / str(self.id) / path_name(SPACE)
        self.log = self.table / "_delta_log"
        self.before = self.look()
        assert {entry.tier for entry in self.before[0]} == {"cold"}
        self._copy = root / "copy"
        shutil.copytree(self.table, self._copy)

    def put_back(self) -> None:
        shutil.rmtree(self.table)
        shutil.copytree(self._copy, self.table)

    def files(self) -> list[Path]:
        return sorted(self.table.glob("*.parquet"))

    def use(self) -> list[Exception]:
        """Use the archive in every way, each time in a fresh process. Returns the refusals."""
        refusals: list[Exception] = []
        for use in (self._reads, self._verifies, self._searches, self._restores, self._compacts, self._archives):
            try:
                use()
            except REFUSED as refusal:
                refusals.append(refusal)
        return refusals

    def _reads(self) -> None:
        assert self.look() == self.before, "other entries are read, in silence"

    def _verifies(self) -> None:
        self.process().store(self.id).verify()

    def _searches(self) -> None:
        self.process().store(self.id).erase(SPACE, metadata={"subject": "nobody"}, dry_run=True)

    def _restores(self) -> None:
        client = self.process()
        archived_spaces(client.store(self.id))
        restore_space(client.store(self.id), client.store(uuid4()), SPACE, cold=True)

    def _compacts(self) -> None:
        self.process().store(self.id).compact(SPACE)

    def _archives(self) -> None:
        store = self.process().store(self.id)
        store.archive(SPACE)


@pytest.fixture(scope="module")
def _archived(tmp_path_factory: pytest.TempPathFactory) -> Archived:
    return Archived(tmp_path_factory.mktemp("archived"))


@pytest.fixture
def archived(_archived: Archived) -> Iterator[Archived]:
    yield _archived
    _archived.put_back()


# -- the log of the table ---------------------------------------------------------------------------------------------

VALUES: list[Any] = [None, True, 0, -1, 1.5, 1 << 40, 1 << 63, -(1 << 70), 10**30, "", "x", "1", "\ud800", "../x"]
VALUES += [[], {}, [None], ["x"], {"x": None}, {"type": {}}, {"path": 1}]
DEEP = "@deep@"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield (*path, name)
        yield from places(part, (*path, name))


def change_one(log: Path, dice: random.Random) -> str:
    """Change one action of the log; it as it is then."""
    commit = dice.choice(sorted(log.glob("*.json")))
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    at = dice.randrange(len(actions))
    whole = {"": actions[at]}
    action = copy.deepcopy(whole)
    found = [place for place in places(action) if place != ("",)]
    *path, last = dice.choice(found)
    _set(action, path, last, dice)
    actions[at] = action[""]
    text = "\n".join(map(json.dumps, actions)).replace(f'"{DEEP}"', "[" * 100_000)
    commit.write_text(text + "\n")
    return f"{commit.name}: {json.dumps(action[''])[:300]}"


def _set(value: Any, path: list[Any], last: Any, dice: random.Random) -> None:
    for name in path:
        value = value[name]
    old, chance = value[last], dice.random()
    if isinstance(old, str) and old.startswith("{") and chance < 0.8:
        inner = json.loads(old)  # statistics, the schema, settings
        if found := list(places(inner)):
            *path, name = dice.choice(found)
            _set(inner, path, name, dice)
        value[last] = json.dumps(inner).replace(f'"{DEEP}"', "[" * 100_000)
    elif chance < 0.85:
        value[last] = dice.choice(VALUES)
    elif chance < 0.9:
        value[last] = DEEP
    elif chance < 0.95 and isinstance(last, str):
        value[dice.choice(["add", "remove", "txn", "path", "x", last.upper()])] = value.pop(last)
    else:
        del value[last]


def test_a_log_with_any_values_is_read_as_it_was_or_refused(
    archived: Archived, covered: Callable[[str, int], None]
) -> None:
    refused = 0
    for seed in range(LOGS):
        what = change_one(archived.log, random.Random(seed))
        try:
            refused += bool(archived.use())
        except Exception as error:
            error.add_note(f"seed {seed}: {what}")
            raise
        archived.put_back()
    covered("changed values in a Delta log", LOGS)
    assert LOGS // 3 < refused < LOGS


def checkpoint(kind: str, field: str, values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    """A checkpoint in which one field of the actions of a kind has other values."""

    def write(rows: pa.Table) -> pa.Table:
        column = rows[kind].combine_chunks()
        names = [column.type.field(at).name for at in range(column.type.num_fields)]
        parts = [column.field(name) if name != field else pa.concat_arrays([values] * len(column)) for name in names]
        there = pa.StructArray.from_arrays(parts, names, mask=pc.is_null(column))
        return rows.set_column(rows.column_names.index(kind), kind, there)

    return write


def instead(kind: str, values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.set_column(rows.column_names.index(kind), kind, pa.concat_arrays([values] * rows.num_rows))


MAP = pa.array([[(1, 2)]], pa.map_(pa.int64(), pa.int64()))
CHECKPOINTS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "paths are numbers": checkpoint("add", "path", pa.array([1])),
    "paths are bytes": checkpoint("add", "path", pa.array([b"\xff"])),
    "sizes are text": checkpoint("add", "size", pa.array(["x"])),
    "sizes are negative": checkpoint("add", "size", pa.array([-1])),
    "statistics are a list": checkpoint("add", "stats", pa.array([[1]])),
    "marks are text": checkpoint("txn", "version", pa.array(["x"])),
    "applications are a struct": checkpoint("txn", "appId", pa.array([{"x": 1}])),
    "the configuration is a map of numbers": checkpoint("metaData", "configuration", MAP),
    "the configuration is a list": checkpoint("metaData", "configuration", pa.array([[1, 2]])),
    "the schema is a number": checkpoint("metaData", "schemaString", pa.array([1])),
    "the schema is no schema": checkpoint("metaData", "schemaString", pa.array(["[1]"])),
    "the protocol is text": checkpoint("protocol", "minReaderVersion", pa.array(["x"])),
    "files are numbers": instead("add", pa.array([1])),
    "the protocol is a number": instead("protocol", pa.array([1])),
    "the metadata are a map": instead("metaData", MAP),
    "marks are lists": instead("txn", pa.array([[1]])),
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_checkpoint_with_values_of_another_type_is_refused(archived: Archived, case: str) -> None:
    from deltalake import DeltaTable

    DeltaTable(str(archived.table)).create_checkpoint()
    (path,) = archived.log.glob("*.checkpoint.parquet")
    pq.write_table(CHECKPOINTS[case](pq.read_table(path)), path)
    for commit in archived.log.glob("*.json"):
        commit.unlink()
    assert len(archived.use()) >= 3


# -- the files of the table -------------------------------------------------------------------------------------------


def with_column(name: str, change: Callable[[pa.ChunkedArray], Any]) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.set_column(rows.column_names.index(name), name, change(rows[name]))


def nulls(column: pa.ChunkedArray) -> pa.Array:
    return pa.nulls(len(column), column.type)


FILES: dict[str, Callable[[pa.Table], pa.Table]] = {
    **{f"no {name}": lambda rows, name=name: rows.drop_columns([name]) for name in ("segment", "number", "payload")},
    **{f"{name} is null": with_column(name, nulls) for name in ("segment", "number", "position", "trx_id")},
    "two columns of a name": lambda rows: rows.append_column("segment", rows["segment"]),
    "numbers are text": with_column("number", lambda column: pa.array(["x"] * len(column))),
    "sequences are structs": with_column("sequence", lambda column: pa.array([{"x": 1}] * len(column))),
    "segments are numbers": with_column("segment", lambda column: pa.array(range(len(column)))),
    "metadata are text": with_column("metadata", lambda column: pa.array(["x"] * len(column))),
    "an id is no UUID": with_column("trx_id", lambda column: pa.array(["abc"] * len(column))),
    "an id is a short one": with_column("trx_id", lambda column: pa.array(["abcd"] * len(column))),
}


@pytest.mark.parametrize("name", ["own", "foreign"])
@pytest.mark.parametrize("case", FILES)
def test_a_file_with_other_columns_is_refused(archived: Archived, case: str, name: str) -> None:
    path = archived.files()[0]
    pq.write_table(FILES[case](pq.ParquetFile(path).read()), path, store_schema=False)
    if name == "foreign":
        for commit in archived.log.glob("*.json"):
            commit.write_text(commit.read_text().replace(path.name, "part-0.parquet"))
        path.rename(path.with_name("part-0.parquet"))
    with pytest.raises(CorruptData):
        archived.look()
    archived.use()


def test_a_code_that_a_dictionary_lacks_is_refused(archived: Archived) -> None:
    """Arrow takes the word from behind the end of the dictionary, or the process ends."""
    path = archived.files()[0]
    rows = pq.ParquetFile(path).read()
    segments = pa.array([f"a{at % 3}" for at in range(rows.num_rows)])
    options: dict[str, Any] = {"compression": "none", "use_dictionary": ["segment"], "write_statistics": False}
    rows = rows.set_column(rows.column_names.index("segment"), "segment", segments)
    pq.write_table(rows, path, store_schema=False, **options)
    data = bytearray(path.read_bytes())
    packed = bytes([2, 3 + (rows.num_rows - 1) // 8 * 2, 0b00100100])
    at = data.find(packed)
    assert at > 0
    data[at + 2] = 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptData, match="its dictionary lacks"):
        list(archived.process().store(archived.id).consume_space(SPACE))
    archived.use()


# -- errors of the code -----------------------------------------------------------------------------------------------

PARTS = [
    "delta_log._key",
    "delta_log.column_types",
    "table._milliseconds",
    "table.is_own_name",
    "snapshot.overlapping",
    "read.batches",
    "read._windows",
    "file_reader.check_rows",
    "columns.schema",
]


@pytest.mark.parametrize("error", [TypeError, KeyError, IndexError, AttributeError])
@pytest.mark.parametrize("part", PARTS)
def test_an_error_of_the_code_is_not_taken_for_damage(
    archived: Archived, part: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise error("a fault of the code")

    monkeypatch.setattr(f"streamkit.archive.{part}", broken)
    with pytest.raises(error, match="a fault of the code"):
        archived.look()


def test_an_error_of_the_code_that_reads_the_history_is_not_taken_for_damage(
    archived: Archived, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable, write_deltalake

    table = DeltaTable(str(archived.table))
    write_deltalake(table, table.to_pyarrow_table(), mode="overwrite")

    def broken(*_: Any) -> Any:
        raise TypeError("a fault of the code")

    monkeypatch.setattr("streamkit.archive.history._plain", broken)
    with pytest.raises(TypeError, match="a fault of the code"):
        archived.look()


def test_an_error_of_the_code_leaves_verify_as_it_is(archived: Archived, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise TypeError("a fault of the code")

    monkeypatch.setattr("streamkit.archive.examine._Walk._take_segments", broken)
    with pytest.raises(TypeError, match="a fault of the code"):
        archived.process().store(archived.id).verify()


def test_an_endless_idempotency_window_comes_back_from_the_archive(tmp_path: Path) -> None:
    world = World("memory", tmp_path / "archive")
    with world.process() as client:
        store, target = client.store(world.id), client.store(uuid4())
        store.create_space(SPACE, idempotency_window=float("inf"))
        store.produce(SPACE, "a", [Record(b"1")])
        store.archive(SPACE)
        restore_space(store, target, SPACE, cold=True)
        assert target.space_settings(SPACE).idempotency_window == float("inf")
