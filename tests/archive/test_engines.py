"""The archive is a table that other engines read as it is: DuckDB and Polars, natively, and by Delta's own reader."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

import streamkit
from streamkit import Record
from streamkit.archive.compact import compact_space

SPACE = "flights/JFK"
CARRIERS = ["AA", "B6", "DL", "UA"]


@pytest.fixture(scope="module", params=["as archived", "compacted"])
def archived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    """The path of a table, and the entries that it holds."""
    with streamkit.connect(tmp_path_factory.mktemp("stores").as_uri()) as client:
        store = client.store(uuid4())
        for turn in range(3):
            for begin in range(0, 400, 100):
                with store.transaction(SPACE) as trx:
                    for at in range(begin, begin + 100):
                        payload = json.dumps({"carrier": CARRIERS[at % 4], "turn": turn, "tail": f"N{at}ü"}).encode()
                        metadata = {"by": "tower", "größe": str(at)} if at % 7 == 0 else None
                        trx.produce(f"N{at}ü", [Record(payload, metadata), Record(bytes([turn, at % 256]) * turn)])
            store.archive(SPACE)
        archive = store._archive(SPACE)
        if request.param == "compacted":
            before, after, _ = compact_space(archive, 1 << 30, 0.0)
            assert after < before
        yield archive.table.url.removeprefix("file://"), list(store.consume_space(SPACE))


def rows_of(entries: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (
            entry.origin.partition,
            entry.trx.number,
            entry.segment,
            entry.sequence,
            entry.timestamp,
            str(entry.trx.id),
            entry.payload,
            dict(entry.metadata),
        )
        for entry in entries
    )


def test_duckdb_reads_the_files_natively(archived: tuple[str, Any]) -> None:
    path, entries = archived
    files = [uri.removeprefix("file://") for uri in DeltaTable(path).file_uris()]
    found = duckdb.sql(
        "SELECT partition, number, segment, sequence, epoch_ms(timestamp), trx_id, payload, metadata "
        f"FROM read_parquet({files!r})"
    ).fetchall()
    assert sorted((*row[:7], row[7] or {}) for row in found) == rows_of(entries)


def test_polars_reads_the_table(archived: tuple[str, Any]) -> None:
    path, entries = archived
    names = ["partition", "number", "segment", "sequence", "timestamp", "trx_id", "payload", "metadata"]
    found = pl.scan_delta(path).with_columns(pl.col("timestamp").dt.epoch("ms")).select(names).collect().rows()
    pairs = [(*row[:7], row[7] or {}) for row in found]
    assert sorted(pairs) == rows_of(entries)


def test_a_segment_is_found_by_the_statistics_of_its_files(archived: tuple[str, Any]) -> None:
    path, entries = archived
    expected = [entry.payload for entry in entries if entry.segment == "N42ü"]
    with duckdb.connect() as engine:
        engine.register("entries", DeltaTable(path).to_pyarrow_dataset())
        asked = engine.sql("SELECT payload FROM entries WHERE segment = 'N42ü' ORDER BY sequence").fetchall()
    assert [payload for (payload,) in asked] == expected
    lazy = pl.scan_delta(path).filter(pl.col("segment") == "N42ü").sort("sequence").select("payload")
    assert lazy.collect()["payload"].to_list() == expected


def example() -> ModuleType:
    path = Path(__file__).parent.parent.parent / "examples" / "spark" / "engines.py"
    spec = importlib.util.spec_from_file_location("engines", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_gives_the_same_answer_by_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        store.produce(
            "JFK", "N1", [Record(b'{"carrier": "AA"}'), Record(b'{"carrier": "B6"}'), Record(b'{"carrier": "B6"}')]
        )
        store.archive("JFK")
        example().main(store._archive("JFK").table.url.removeprefix("file://"))
    assert capsys.readouterr().out == "B6: 2 departures\nAA: 1 departures\n"
