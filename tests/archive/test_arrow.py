"""`store.to_arrow` gives the entries of consume_space as columns, from both tiers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record, Store
from streamkit.archive import arrow, scattered
from streamkit.errors import InvalidOffset
from streamkit.names import partition_of

pytest.importorskip("deltalake")

import pyarrow as pa

SPACE = "orders/ü"
COLUMNS = "store space partition number index position segment sequence timestamp trx_id trx_node payload metadata tier"


@pytest.fixture(params=["local", "memory"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[streamkit.Client]:
    with streamkit.connect(tmp_path.as_uri() if request.param == "local" else "memory://") as client:
        yield client


def filled(client: streamkit.Client, partitions: int) -> Store:
    """A space in both tiers, with transactions of one and of several segments, with and without metadata."""
    store = client.store(uuid4())
    store.create_space(SPACE, partitions)
    for at in range(60):
        if at % 5 == 0:
            with store.transaction(SPACE) as trx:
                trx.produce(f"{{{at % 4}}}/a", [Record(b"first"), Record(b"", {"k": "v", "ü": "日本"})])
                trx.produce(f"{{{at % 4}}}/b", [Record(b"%d" % at)])
        else:
            store.produce(SPACE, f"segment {at % 7}", [Record(b"%d.%d" % (at, n)) for n in range(at % 4 + 1)])
        if at in (17, 39):
            store.archive(SPACE, target_file_bytes=40)
    return store


def expected(store: Store, offset: Any = None, tiers: str = "cold hot") -> list[dict[str, Any]]:
    return [
        {
            "store": str(store.id),
            "space": SPACE,
            "partition": entry.origin.partition,
            "number": entry.trx.number,
            "index": entry.origin.index + entry.sequence - entry.origin.first_sequence,
            "position": entry.origin.position + entry.sequence - entry.origin.first_sequence,
            "segment": entry.segment,
            "sequence": entry.sequence,
            "timestamp": datetime.fromtimestamp(entry.timestamp / 1000, UTC),
            "trx_id": str(entry.trx.id),
            "trx_node": str(entry.trx.node),
            "payload": entry.payload,
            "metadata": list(entry.metadata.items()) or None,
            "tier": entry.tier,
        }
        for entry in store.consume_space(SPACE, offset=offset)
        if entry.tier in tiers
    ]


def rows(reader: pa.RecordBatchReader) -> list[dict[str, Any]]:
    return list(reader.read_all().to_pylist())


def test_columns_of_partitions_that_are_read_differently_come_together(client: streamkit.Client) -> None:
    """A partition with a trimmed segment is read by another reader, which gives fewer columns."""
    store = filled(client, 3)
    for name in store.get_segments(SPACE):
        if partition_of(name, 3):
            store.trim(SPACE, name, keep_entries=1)
            break
    wanted = [{"segment": row["segment"], "payload": row["payload"]} for row in expected(store)]
    assert rows(store.to_arrow(SPACE, columns=["segment", "payload"])) == wanted


@pytest.mark.parametrize("partitions", [1, 3])
def test_it_is_what_consume_space_reads(client: streamkit.Client, partitions: int) -> None:
    store = filled(client, partitions)
    reader = store.to_arrow(SPACE)
    assert isinstance(reader, pa.RecordBatchReader)
    assert " ".join(reader.schema.names) == COLUMNS
    assert rows(reader) == expected(store)
    assert {row["tier"] for row in expected(store)} == {"cold", "hot"}
    for tier in ("cold", "hot"):
        assert rows(store.to_arrow(SPACE, tier=tier)) == expected(store, tiers=tier)  # type: ignore[arg-type]
    assert rows(client.store(store.id).to_arrow(SPACE)) == expected(store)


@pytest.mark.parametrize("partitions", [1, 3])
def test_from_an_offset_on(client: streamkit.Client, partitions: int) -> None:
    store = filled(client, partitions)
    for entry in list(store.consume_space(SPACE))[::7]:
        offset = entry.space_offset
        assert rows(store.to_arrow(SPACE, offset=offset)) == expected(store, offset)
    segment = next(store.consume_segment(SPACE, "segment 2")).space_offset
    assert rows(store.to_arrow(SPACE, offset=segment)) == expected(store, segment)
    assert rows(store.to_arrow(SPACE, offset=store.end_offset(SPACE).hex())) == []


@pytest.mark.parametrize("partitions", [1, 3])
def test_pieces_of_any_size_make_the_same_log(
    client: streamkit.Client, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order holds, also if timestamps are equal at the end of a piece."""
    store = filled(client, partitions)
    before = expected(store)
    monkeypatch.setattr(arrow, "_ROWS", 4)
    monkeypatch.setattr(scattered, "WINDOW", 900)
    assert rows(store.to_arrow(SPACE)) == before
    assert max(batch.num_rows for batch in store.to_arrow(SPACE)) <= 4


def test_columns_are_those_that_are_named(client: streamkit.Client) -> None:
    store = filled(client, 2)
    for names in (["payload"], ["tier", "segment"], ["metadata", "partition"], ["store"]):
        found = store.to_arrow(SPACE, columns=names)
        assert found.schema.names == names
        assert rows(found) == [{name: row[name] for name in names} for row in expected(store)]


def test_what_is_committed_when_it_is_called_is_read_whatever_the_archiver_does(client: streamkit.Client) -> None:
    store = client.store(uuid4())
    store.create_space(SPACE, archive_grace=0.05)
    for at in range(20):
        store.produce(SPACE, f"s{at % 3}", [Record(b"%d" % at)])
    reader = store.to_arrow(SPACE, columns=["payload"])
    store.produce(SPACE, "s0", [Record(b"later")])
    store.archive(SPACE)
    assert [row["payload"] for row in rows(reader)] == [b"%d" % at for at in range(20)]


def test_an_empty_space_is_an_empty_table(client: streamkit.Client) -> None:
    found = client.store(uuid4()).to_arrow("nothing here")
    assert " ".join(found.schema.names) == COLUMNS
    assert found.read_all().num_rows == 0


def test_wrong_arguments_are_named(client: streamkit.Client) -> None:
    store = filled(client, 1)
    with pytest.raises(ValueError, match=r"no column 'payloads'; there are store, space"):
        store.to_arrow(SPACE, columns=["payloads"])
    with pytest.raises(TypeError, match="list of names"):
        store.to_arrow(SPACE, columns="payload")
    with pytest.raises(ValueError, match="names none"):
        store.to_arrow(SPACE, columns=[])
    with pytest.raises(ValueError, match=r'tier is "all"'):
        store.to_arrow(SPACE, tier="warm")  # type: ignore[arg-type]
    other = filled(client, 1)
    with pytest.raises(InvalidOffset):
        store.to_arrow(SPACE, offset=other.end_offset(SPACE))


def test_damage_is_named_where_the_log_has_let_go(client: streamkit.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamkit.errors import CorruptData

    store = filled(client, 1)
    before = expected(store)
    table = store._archive(SPACE).table
    snapshot = table.snapshot()
    assert snapshot is not None
    table.filesystem.delete_file(snapshot.files[0].path)
    stranger = client.store(store.id)
    stranger._shared.archives.clear()
    # The log still holds it.
    found = rows(stranger.to_arrow(SPACE))
    assert [row["payload"] for row in found] == [row["payload"] for row in before]
    monkeypatch.setattr("streamkit.log.partition.still_in_log_from", lambda *_: None)
    with pytest.raises(CorruptData, match=f"{snapshot.files[0].path}.*missing"):
        rows(stranger.to_arrow(SPACE))


def test_polars_duckdb_and_pandas_see_the_tail_too(client: streamkit.Client) -> None:
    import duckdb
    import pandas as pd
    import polars as pl

    store = filled(client, 2)
    wanted: dict[str, int] = {}
    for row in expected(store):
        wanted[row["segment"]] = wanted.get(row["segment"], 0) + 1
    frame = pl.from_arrow(store.to_arrow(SPACE, columns=["segment"]))
    assert isinstance(frame, pl.DataFrame)
    assert dict(frame.group_by("segment").len().rows()) == wanted
    entries = store.to_arrow(SPACE, columns=["segment", "payload"])
    with duckdb.connect() as engine:
        engine.register("entries", entries)
        found = engine.sql("SELECT segment, count(*) FROM entries GROUP BY segment").fetchall()
    assert dict(found) == wanted
    pandas: pd.DataFrame = store.to_arrow(SPACE).read_pandas()
    assert pandas.groupby("segment").size().to_dict() == wanted
