"""The option `filters`: the rows that pass, as SQL counts them, and the files and row groups that are not read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import streamkit
from streamkit import Entry, Record, Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from streamkit.spark import filters as pruning
from streamkit.spark import read_space, rows
from streamkit.spark.options import parse
from streamkit.spark.source import StreamkitSource

pytestmark = pytest.mark.spark

SPACE = "orders"
COLUMNS = "segment,sequence,payload"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("filters").as_uri()


class _Clock:
    """A clock that goes on by a second with each look."""

    def __init__(self) -> None:
        self.time = 1_700_000_000_000

    def now(self) -> int:
        self.time += 1000
        return self.time

    def __getattr__(self, name: str) -> Any:
        from streamkit.clock import SYSTEM_CLOCK

        return getattr(SYSTEM_CLOCK, name)


@pytest.fixture(scope="module")
def store(url: str) -> Iterator[Store]:
    """Two partitions, four files of the archive and a tail. Some entries have no metadata, or lack a key."""
    with streamkit.connect(url, clock=_Clock()) as client:  # type: ignore[arg-type]
        store = client.store(uuid4())
        store.create_space(SPACE, 2)
        for at in range(60):
            metadata = [None, {"type": "paid"}, {"type": "sent", "n": str(at)}, {"n": str(at % 5), "a.b": ""}][at % 4]
            store.produce(SPACE, f"{'abü'[at % 3]}-{at % 7}", [Record(b"%d" % at, metadata), Record(b"", metadata)])
            if at in (19, 39):
                store.archive(SPACE)
        yield store


@pytest.fixture(scope="module")
def workers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        clients: dict[Any, Any] = {}
        patch.setattr(rows, "_clients", clients)
        yield
        for client in clients.values():
            client.close()


def reader(url: str, store: Store, filters: Any, **options: str) -> Any:
    given = {"url": url, "store": str(store.id), "space": SPACE, "columns": COLUMNS, **options}
    if filters is not None:
        given["filters"] = json.dumps(filters)
    return StreamkitSource(given).reader(None)  # type: ignore[arg-type]


def found(url: str, store: Store, filters: Any) -> list[tuple[str, int]]:
    source = reader(url, store, filters)
    batches = [batch for task in source.partitions() for batch in source.read(task)]
    assert all(batch.schema.names == COLUMNS.split(",") for batch in batches)
    return sorted((row["segment"], row["sequence"]) for batch in batches for row in batch.to_pylist())


def value_of(entry: Entry, column: str) -> Any:
    if column.startswith("metadata."):
        return (entry.metadata or {}).get(column.removeprefix("metadata."))
    return {
        "segment": entry.segment,
        "sequence": entry.sequence,
        "timestamp": entry.timestamp,
        "number": entry.trx.number,
        "partition": entry.origin.partition,
    }[column]


def passes(entry: Entry, test: list[Any]) -> bool:
    """The rule of SQL: a comparison with null is neither true nor false, and leaves the row out."""
    value = value_of(entry, test[0])
    if test[1] in ("is null", "is not null"):
        return (value is None) == (test[1] == "is null")
    if value is None:
        return False
    return {
        "=": lambda v: value == v,
        "!=": lambda v: value != v,
        "<": lambda v: value < v,
        "<=": lambda v: value <= v,
        ">": lambda v: value > v,
        ">=": lambda v: value >= v,
        "in": lambda v: value in v,
        "not in": lambda v: value not in v,
        "starts with": lambda v: value.startswith(v),
    }[test[1]](test[2])


def wanted(store: Store, filters: list[Any]) -> list[tuple[str, int]]:
    alternatives = filters if isinstance(filters[0][0], list) else [filters]
    return sorted(
        (entry.segment, entry.sequence)
        for entry in store.consume_space(SPACE)
        if any(all(passes(entry, test) for test in tests) for tests in alternatives)
    )


VALUES: dict[str, Any] = {
    "segment": st.sampled_from(["a-0", "a-3", "b-1", "ü-2", "", "a", "b-", "z"]),
    "sequence": st.integers(-1, 8),
    "timestamp": st.integers(1_700_000_000_000, 1_700_000_400_000),
    "number": st.integers(0, 40),
    "partition": st.integers(-1, 2),
    "metadata.type": st.sampled_from(["paid", "sent", "p", "", "x"]),
    "metadata.n": st.sampled_from(["0", "1", "2", "22"]),
    "metadata.a.b": st.sampled_from(["", "x"]),
    "metadata.none": st.just("x"),
}


@st.composite
def one_test(draw: Any) -> list[Any]:
    column = draw(st.sampled_from(list(VALUES)))
    text = column == "segment" or column.startswith("metadata.")
    operators = ["=", "!=", "<", "<=", ">", ">=", "in", "not in", "is null", "is not null"]
    operator = draw(st.sampled_from([*operators, *["starts with"] * text]))
    if operator.startswith("is "):
        return [column, operator]
    if operator.endswith("in"):
        return [column, operator, draw(st.lists(VALUES[column], min_size=1, max_size=3))]
    return [column, operator, draw(VALUES[column])]


FILTERS = st.one_of(
    st.lists(one_test(), min_size=1, max_size=3),
    st.lists(st.lists(one_test(), min_size=1, max_size=2), min_size=1, max_size=3),
)


@settings(
    max_examples=2000 if EXHAUSTIVE else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example([["metadata.type", "not in", ["paid"]]])
@example([["metadata.type", "!=", "paid"]])
@example([[["metadata.type", "not in", ["paid"]]], [["sequence", "<", 0]]])
@example([[["metadata.n", "<", "1"]], [["metadata.type", "is null"], ["partition", "not in", [1]]]])
@given(filters=FILTERS)
def test_the_source_gives_the_rows_that_pass(url: str, store: Store, workers: None, filters: list[Any]) -> None:
    assert found(url, store, filters) == wanted(store, filters)


def pieces(url: str, store: Store, filters: Any) -> list[Any]:
    return [piece for task in reader(url, store, filters).partitions() for piece in task.pieces]


def test_files_and_ranges_that_hold_no_row_are_not_planned(url: str, store: Store) -> None:
    entries = list(store.consume_space(SPACE))
    first = min(entry.timestamp for entry in entries)
    files = [piece for piece in pieces(url, store, None) if piece.file]
    assert len(files) == 4
    last = max(end for piece in files for end in [piece.file.timestamps[1]])
    for filters, count in (
        ([["timestamp", "<", first]], 0),
        ([["timestamp", ">", last]], 0),
        ([["timestamp", "=", first]], 1),
        ([[["timestamp", "=", first]], [["number", "<", 0]]], 1),
        ([["partition", "=", 0]], 2),
        ([["segment", "starts with", "A"]], 0),
        ([["segment", "is null"]], 0),
        ([["metadata.type", "=", "paid"]], 4),
    ):
        assert len([piece for piece in pieces(url, store, filters) if piece.file]) == count, filters
    assert {piece.partition for piece in pieces(url, store, [["partition", "=", 0]])} == {0}


def test_row_groups_that_hold_no_row_are_not_read() -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    moments = [datetime.fromtimestamp(1_700_000_000 + at, UTC) for at in range(6)]
    target = io.BytesIO()
    table = pa.table({"segment": list("aabbcc"), "timestamp": pa.array(moments, pa.timestamp("us", "UTC"))})
    pq.write_table(table, target, row_group_size=2)
    metadata = pq.ParquetFile(target).metadata
    base = {"url": "memory://x", "store": "*", "space": "*"}

    def groups(*filters: Any) -> list[int]:
        options = parse({**base, "filters": json.dumps(filters)})
        return pruning.groups_that_may(metadata, pruning.tests_of(options))

    assert groups(["segment", "=", "b"]) == [1]
    assert groups(["segment", "!=", "b"]) == [0, 2]
    assert groups(["segment", "not in", ["a", "c"]]) == [1]
    assert groups(["segment", "starts with", "c"]) == [2]
    assert groups(["timestamp", "<", 1_700_000_002_000]) == [0]
    assert groups(["timestamp", ">=", "2023-11-14T22:13:24Z"]) == [2]
    assert groups([["segment", "=", "a"], ["timestamp", ">", 1_700_000_004_000]], [["segment", ">", "b"]]) == [2]


@pytest.mark.parametrize(
    ("filters", "problem"),
    [
        ('{"segment": "a"}', "a JSON array of tests"),
        ("[]", "a JSON array of tests"),
        ("nonsense", "a JSON array of tests"),
        ('[["payload", "=", "a"]]', "names the column 'payload'; filters are for segment"),
        ('[["metadata.", "=", "a"]]', "names the column 'metadata.'"),
        ('[["segment", "like", "a"]]', "operator 'like'; there are ="),
        ('[["segment", "in", "a"]]', "'in' takes an array of values"),
        ('[["segment", "in", []]]', "'in' takes an array of values"),
        ('[["segment", "="]]', "'=' takes one value"),
        ('[["segment", "is null", "a"]]', "takes no value"),
        ('[["segment", "=", 1]]', "takes text; not 1"),
        ('[["sequence", "=", "1"]]', "takes a number; not '1'"),
        ('[["sequence", "=", true]]', "takes a number; not True"),
        ('[["sequence", "starts with", 1]]', "is for text"),
        ('[["timestamp", ">", 1700000000]]', "in milliseconds"),
        ('[["timestamp", ">", "latest"]]', "'filters' is"),
        ('[["timestamp", ">", 1.5]]', "takes milliseconds"),
        ('[[["segment", "=", "a"]], ["segment", "=", "a"]]', "a filter is a column, an operator and a value"),
    ],
)
def test_what_is_no_filter_is_refused(filters: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("[", r"\[")):
        parse({"url": "memory://x", "store": "*", "space": "*", "filters": filters})


SHOWN: list[Any] = [
    [("segment", "in", ["a-0", "ü-2"]), ("sequence", ">", 2)],
    [[("metadata.type", "!=", "paid")], [("metadata.n", "is null"), ("partition", "=", 1)]],
    [("metadata.type", "not in", ["sent", "x"]), ("timestamp", ">=", datetime.fromtimestamp(1_700_000_030, UTC))],
    [[("segment", "starts with", "b-")], [("metadata.a.b", "=", ""), ("segment", "<", "b")]],
]


def test_every_door_of_spark_gives_the_rows_that_pass(spark: Any, url: str, store: Store) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            return int(value.timestamp() * 1000)
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    for filters in SHOWN:
        rows_wanted = wanted(store, plain(filters))
        frame = read_space(spark, url, store.id, SPACE, filters=filters, columns=["segment", "sequence"])
        assert sorted(map(tuple, frame.collect())) == rows_wanted, filters
        given = {"url": url, "store": str(store.id), "space": SPACE, "filters": json.dumps(plain(filters))}
        loaded = spark.read.format("streamkit").options(**given).load().select("segment", "sequence")
        assert sorted(map(tuple, loaded.collect())) == rows_wanted, filters
        assert 0 < len(rows_wanted) < 120
