"""Payloads as columns: JSON documents against a schema, and other payloads kept beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
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
from streamkit.spark.typed import bad_payloads

pytestmark = pytest.mark.spark

SCHEMA = "item string, price double, at timestamp, tags array<string>"
GOOD = {
    b'{"item":"a","price":2.5,"at":"2026-01-31T08:00:00Z","tags":["x"]}': ("a", 2.5, ["x"]),
    b'  {"item":"b","price":1,"unknown":{"more":1}}': ("b", 1.0, None),
    b'\r\n\t{"item":"c"}\n': ("c", None, None),
    b"{}": (None, None, None),
    b" { \n}\t ": (None, None, None),
    b'{"item":"d"\n} \n': ("d", None, None),
    b'{"item":"}","more":"{"}': ("}", None, None),
    '{"item":"ü"}'.encode(): ("ü", None, None),
}
BAD = [b"", b" ", b"null", b"[]", b'[{"item":"a"}]', b"7", b'"text"', b"nonsense", b'{"item":', b"\xff", b"{\xff}",
       b'{"item":"\xc3"}', b'{"price":"dear"}', b'{"tags":1}', b'{"at":"some day"}', b'{"item":"a"}{"item":"b"}',
       b'{"item":"a"}]', b'{"item":"a"}}', b'{"item":"a"},', b'{"item":"a"} and more', b'{"item":"a"},"more":{}',
       b'{"item":"a"},{}', b'{"item":"a"}],"more":[{}',
       b"{}\x00", b"}", b"{", b"{}}", b"{}{}", b"{} {}", b"null}", b'[{"item":"a"}', b'[{"item":"a"}]}',
       b'{"item":"a",}',
       b'{"item":"a}', b'{"item":{"a":1}', b"\xef\xbb\xbf{}", b'\xef\xbb\xbf{"item":"a"}', b"{,}",
       b'{"item":"a"}\x0b']  # fmt: skip


REQUIRED = """id int NOT NULL, price decimal(5,2), day date, parts array<struct<sku: string NOT NULL, due: date>>,
    labels map<string, decimal(3,1)>, buyer struct<name: string NOT NULL, born: date>"""
FITTING = [
    ('{"id":1}', (1, None, None, None, None, None)),
    ('{"id":2,"price":12.340,"day":"2026-01-31"}', (2, Decimal("12.34"), date(2026, 1, 31), None, None, None)),
    ('{"id":2,"day":"2026-1-3"}', (2, None, date(2026, 1, 3), None, None, None)),
    ('{"id":3,"price":"999.99"}', (3, Decimal("999.99"), None, None, None, None)),
    ('{"id":4,"parts":[{"sku":"a","due":"2026-02-01"},{"sku":"b"}]}',
     (4, None, None, [("a", date(2026, 2, 1)), ("b", None)], None, None)),
    ('{"id":5,"labels":{"x":1.5},"buyer":{"name":"n"}}', (5, None, None, None, {"x": Decimal("1.5")}, ("n", None))),
    ('{"id":6,"parts":[],"labels":{}}', (6, None, None, [], {}, None)),
]  # fmt: skip
UNFIT = [
    "{}", '{"id":null}', '{"Id":1}', '{"id":1.5}', '{"id":"1"}',
    '{"id":1,"price":12.345}', '{"id":1,"price":"12.345"}', '{"id":1,"price":1000}', '{"id":1,"price":99999.999}',
    '{"id":1,"day":"2026-01-31T08:00:00Z"}', '{"id":1,"day":"2026-01-31 08:00:00"}', '{"id":1,"day":"2026-02-30"}',
    '{"id":1,"day":20260131}', '{"id":1,"day":"2026"}', '{"id":1,"day":"2026-01"}', '{"id":1,"day":" 2026-01-31"}',
    '{"id":1,"day":"2026-01-31 "}', '{"id":1,"day":""}', '{"id":1,"day":"today"}', '{"id":1,"day":{}}',
    '{"id":1,"parts":[{}]}', '{"id":1,"parts":[{"sku":"a"},{"sku":null}]}',
    '{"id":1,"parts":[{"sku":"a","due":"2026-01-31T08:00:00Z"}]}', '{"id":1,"parts":{}}',
    '{"id":1,"labels":{"x":1.25}}', '{"id":1,"buyer":{}}', '{"id":1,"buyer":{"name":"n","born":"2026-01-31 01:00"}}',
    '{"id":1,"buyer":[]}',
]  # fmt: skip


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_a_payload_that_its_types_would_change_is_bad(spark: Any, ansi: str) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        texts = [text for text, _ in FITTING] + UNFIT
        frame = spark.createDataFrame([(at, text.encode()) for at, text in enumerate(texts)], "at int, payload binary")
        rows = parse_payloads(frame, REQUIRED).orderBy("at").collect()
        assert bad_payloads(frame, REQUIRED).count() == len(UNFIT)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    for row, (text, wanted) in zip(rows, FITTING, strict=False):
        assert row.bad_payload is None, text
        assert (row.id, row.price, row.day, row.parts, row.labels, row.buyer) == wanted
    for row, text in zip(rows[len(FITTING) :], UNFIT, strict=True):
        assert row.bad_payload is not None, text
        assert bytes(row.bad_payload).decode() == text
        assert tuple(row)[1:-1] == (None,) * 6


def test_fields_that_the_schema_lacks_are_rescued(spark: Any, url: str) -> None:
    texts = ['{"item":"a","more":{"x":[1,"2"]},"n":1.50}', '{"item":"b"}', '{"ITEM":"c"}', "nonsense", "{}"]
    frame = spark.createDataFrame([(at, text.encode()) for at, text in enumerate(texts)], "at int, payload binary")
    rows = parse_payloads(frame, "item string", rescue="rest").orderBy("at").collect()
    assert [json.loads(row.rest) if row.rest else None for row in rows] == [
        {"more": {"x": [1, "2"]}, "n": 1.5}, None, {"ITEM": "c"}, None, None
    ]  # fmt: skip
    assert rows[3].bad_payload is not None
    with pytest.raises(ValueError, match="'AT', which is a column"):
        parse_payloads(frame, "item string", rescue="AT")


def test_a_payload_is_parsed_once_whatever_is_asked_of_its_columns(spark: Any, url: str, store: Store) -> None:
    frame = read_space(spark, url, store.id, SPACE, schema=SCHEMA, columns=["segment"])
    asked = frame.where("bad_payload IS NULL AND price > 1").groupBy("item").sum("price")
    plan = asked._jdf.queryExecution().optimizedPlan().toString()
    # The archived files and the log are a scan each.
    assert plan.count("from_json") == frame._jdf.queryExecution().optimizedPlan().toString().count("from_json") <= 2
    # Spark interprets lambdas; all else is compiled.
    assert "lambda" not in plan


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
    # The same rows are bad in every query.
    assert frame.where("bad_payload IS NOT NULL").count() == 2 * len(BAD)
    assert frame.select("bad_payload").where("bad_payload IS NULL").count() == 2 * len(GOOD)
    assert frame.where("item IS NOT NULL").count() == 2 * 6


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
