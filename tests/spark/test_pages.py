"""The pages of Spark: each block runs, in the order of the page, in the state that its text needs."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from fix_pages import ROOT, STORE, Page, of
from fix_spark import SPACE, fill, patiently, stream

import streamkit
from streamkit import Record, Store

pytestmark = pytest.mark.spark

ORDERS = {"order-42": 3, "order-43": 1}


@pytest.fixture(scope="module", autouse=True)
def tables() -> None:
    pytest.importorskip("deltalake")


def both_tiers(page: Page, **segments: list[Record]) -> Store:
    """A space `orders`, whose first entry of each segment is archived, and the others are in the log."""
    store = page.store()
    for segment, records in segments.items():
        store.produce("orders", segment, records[:1])
    store.archive("orders")
    for segment, records in segments.items():
        store.produce("orders", segment, records[1:])
    return store


def counted(page: Page) -> Store:
    return both_tiers(page, **{segment: [Record(b"%d" % n) for n in range(count)] for segment, count in ORDERS.items()})


def shown(said: str) -> list[tuple[str, ...]]:
    """The rows of a table that show() has printed."""
    lines = re.findall(r"^\|(.*)\|$", said, re.MULTILINE)
    return [tuple(cell.strip() for cell in line.split("|")) for line in lines[1:]]


@of("spark.md")
def test_spark(page: Page, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    counted(page)
    page.run(1)
    assert shown(capsys.readouterr().out) == [("order-42", "3"), ("order-43", "1")]


@of("spark-read.md")
def test_reading(page: Page, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    paid, placed = Record(b"paid", {"type": "paid"}), Record(b"placed", {"type": "placed"})
    store = both_tiers(page, **{"order-42": [placed, paid], "order-43": [paid], "return-1": [paid]})
    names = page.run(1)
    assert names["orders"].columns == ["segment", "sequence", "payload"]
    everything = [("order-42", "2"), ("order-43", "1"), ("return-1", "1")]
    assert sorted(shown(capsys.readouterr().out)) == everything

    rows = page.run(2)["paid"].select("segment", "sequence", "tier").collect()
    assert sorted(tuple(row) for row in rows) == [("order-42", 2, "hot"), ("order-43", 1, "cold")]
    assert page.run(3, url=page.url, store=store.id)["count"] == 3

    found = re.search(r"^```sql\n(.*?)^```", (ROOT / "docs" / "spark-read.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    create, select = page.moved(found[1]).strip().removesuffix(";").split(";\n")
    try:
        spark.sql(create)
        assert sorted((row[0], str(row[1])) for row in spark.sql(select).collect()) == everything
        one = spark.read.option("segment", "order-42").table("orders")
        assert {row.segment for row in one.collect()} == {"order-42"}
    finally:
        spark.sql("DROP TABLE IF EXISTS orders")


@of("spark-streams.md")
def test_streams(page: Page, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    store = counted(page)

    def follow() -> None:
        query = page.run(1, spark=spark, url=page.url, store=STORE)["query"]
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    patiently(follow)
    written = spark.read.parquet(str(page.folder / "data" / "orders")).select("segment", "sequence").collect()
    assert sorted(tuple(row) for row in written) == [("order-42", 1), ("order-42", 2), ("order-42", 3), ("order-43", 1)]
    store.produce("orders", "order-42", [Record(b"12345"), Record(b"678")])
    page.run(2)
    assert capsys.readouterr().out.split()[:4] == [STORE, "orders", "2", "8"]


@of("spark-typed.md")
def test_typed(page: Page, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fit = [Record(b'{"item":"pen","price":1.25}'), Record(b'{"item":"pen","price":2.5}')]
    both_tiers(page, **{"order-42": [*fit, Record(b'{"price":1.25}')], "order-43": [Record(b"no JSON"), Record(b"[]")]})
    page.run(1)
    said = capsys.readouterr().out
    assert shown(said) == [("pen", "3.75")]
    assert said.splitlines()[-1] == "3 payloads do not fit"


@of("spark-write.md")
def test_writing(page: Page, spark: Any) -> None:
    store = page.store()
    rows = [("order-42", "paid", 2), ("order-42", "placed", 1), ("order-43", "placed", 3)]
    frame = spark.createDataFrame(rows, "segment string, payload string, placed_at long")
    for _ in range(2):  # the second time, all is there
        page.run(1, frame=frame, url=page.url, store=STORE)
        assert [entry.payload for entry in store.consume_segment("orders", "order-42")] == [b"placed", b"paid"]
        assert store.size("orders").entries == 3

    def total() -> None:
        entries = spark.readStream.format("streamkit").options(url=page.url, store=STORE, space="orders").load()
        by_hour = entries.selectExpr("segment", "date_trunc('hour', timestamp) AS hour").groupBy("segment", "hour")
        totals = by_hour.count().selectExpr("segment", "cast(count AS string) AS payload", "hour")
        query = page.run(2, totals=totals)["query"]
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    patiently(total)
    sums = [
        sum(int(e.payload) for e in store.consume_segment("totals", segment)) for segment in ("order-42", "order-43")
    ]
    assert sums == [2, 1]

    # A batch was written, and not noted as done. Then its source lost entries.
    client = streamkit.connect(page.url)
    source, target = client.store(uuid4()), client.store(uuid4())
    target.create_space("out", 4)
    fill(source, 30)
    checkpoint = page.folder / "checkpoint"
    stream(spark, page.url, source.id, target.id, checkpoint)
    for commit in (checkpoint / "commits").iterdir():
        commit.unlink()
    source.erase(SPACE, "s1", last=2)
    before = target.size("out")
    with pytest.raises(Exception, match=r"TransactionIdMismatch: .* entries of the source were removed"):
        stream(spark, page.url, source.id, target.id, checkpoint)
    assert target.size("out") == before

    def finish() -> None:
        given = {"url": page.url, "store": str(source.id), "space": SPACE}
        entries = spark.readStream.format("streamkit").options(**given).load().select("segment", "payload", "sequence")
        names = {"spark": spark, "frame": entries, "target": target.id, "checkpoint": str(checkpoint)}
        page.run(3, **names)["query"].awaitTermination()

    patiently(finish)
    assert target.size("out") == before
    fill(source, 10, start=30)
    stream(spark, page.url, source.id, target.id, checkpoint)
    copied = Counter((entry.segment, entry.payload) for entry in target.consume_space("out"))
    left = Counter((entry.segment, entry.payload) for entry in source.consume_space(SPACE))
    assert (left - copied, (copied - left).total()) == (Counter(), 2)


@of("pipeline.md")
def test_pipeline(page: Page, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    page.left -= {2, 3}  # tests/project/test_pipeline.py runs the definitions for Airflow and Dagster
    store = page.store()
    flights = [b'{"carrier":"UA","dep_delay":2}', b'{"carrier":"UA","dep_delay":5}', b"no JSON"]
    store.produce("JFK", "N14228", [Record(flight) for flight in flights])
    page.run(1, url=page.url, store=STORE)
    said = capsys.readouterr().out
    assert shown(said) == [("UA", "3.5")]
    assert said.splitlines()[-1] == "1 are not of the schema"
