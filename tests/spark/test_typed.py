"""Payloads as columns: JSON documents against a schema, and what is none kept beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_spark import SPACE

import streamkit
from streamkit import Record, Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from streamkit.spark import parse_payloads, read_space

pytestmark = pytest.mark.spark

SCHEMA = "item string, price double, at timestamp, tags array<string>"
GOOD = {
    b'{"item":"a","price":2.5,"at":"2026-01-31T08:00:00Z","tags":["x"]}': ("a", 2.5, ["x"]),
    b'  {"item":"b","price":1,"unknown":{"more":1}}': ("b", 1.0, None),
    b'\r\n\t{"item":"c"}\n': ("c", None, None),
    b"{}": (None, None, None),
    '{"item":"ü"}'.encode(): ("ü", None, None),
}
BAD = [b"", b" ", b"null", b"[]", b'[{"item":"a"}]', b"7", b'"text"', b"nonsense", b'{"item":', b"\xff", b"{\xff}",
       b'{"item":"\xc3"}', b'{"price":"dear"}', b'{"tags":1}', b'{"at":"some day"}', b'{"item":"a"}{"item":"b"}',
       b'{"item":"a"}]', b'{"item":"a"}}', b'{"item":"a"},', b'{"item":"a"} and more', b'{"item":"a"},"more":{}',
       b'{"item":"a"},{}', b'{"item":"a"}],"more":[{}',
       b"{}\x00"]  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("typed").as_uri()


@pytest.fixture(scope="module")
def store(url: str) -> Iterator[Store]:
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        for at, payload in enumerate([*GOOD, *BAD] * 2):
            store.produce(SPACE, f"s{at % 4}", [Record(payload)])
            if at == len(BAD):
                store.archive(SPACE)
        yield store


def test_payloads_become_columns_and_bad_ones_are_kept(spark: Any, url: str, store: Store) -> None:
    frame = read_space(spark, url, store.id, SPACE, schema=SCHEMA, columns=["segment", "sequence", "tier"])
    assert frame.columns == ["segment", "sequence", "tier", "item", "price", "at", "tags", "bad_payload"]
    rows = {(row.segment, row.sequence): row for row in frame.collect()}
    entries = list(store.consume_space(SPACE))
    assert len(rows) == len(entries)
    for entry in entries:
        row = rows[entry.segment, entry.sequence]
        if entry.payload in GOOD:
            assert (row.item, row.price, row.tags) == GOOD[entry.payload]
            assert row.bad_payload is None
        else:
            assert row.bad_payload is not None
            assert bytes(row.bad_payload) == entry.payload
            assert (row.item, row.price, row.at, row.tags) == (None, None, None, None), entry.payload
    # Whatever is asked of it, the same are bad.
    assert frame.where("bad_payload IS NOT NULL").count() == 2 * len(BAD)
    assert frame.select("bad_payload").where("bad_payload IS NULL").count() == 2 * len(GOOD)
    assert frame.where("item IS NOT NULL").count() == 2 * 4


def test_a_field_is_no_column_twice(spark: Any, url: str, store: Store) -> None:
    with pytest.raises(ValueError, match=r"'Timestamp', which is a column of the entries too.*`columns`"):
        read_space(spark, url, store.id, SPACE, schema="Timestamp string")
    frame = read_space(spark, url, store.id, SPACE, schema="timestamp string", columns=["segment"])
    assert frame.columns == ["segment", "timestamp", "bad_payload"]
    with pytest.raises(ValueError, match="no column 'payload'"):
        parse_payloads(frame, "item string")


def test_a_stream_is_parsed_as_well(spark: Any, url: str, store: Store, tmp_path: Path) -> None:
    options = {"url": url, "store": str(store.id), "space": SPACE, "columns": "segment,payload"}
    frame = parse_payloads(spark.readStream.format("streamkit").options(**options).load(), "item string")
    out, name = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    query = frame.writeStream.format("parquet").option("path", out).option("checkpointLocation", name)
    query.trigger(availableNow=True).start().awaitTermination()
    assert spark.read.parquet(out).where("item = 'a'").count() == 2
