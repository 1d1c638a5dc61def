"""The benchmark of flights, on a few rows that look like them: every way to read a space answers as pandas does."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fix_covered import EXHAUSTIVE

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import flights
from benchmarks.flights import Flights, check

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 600
AIRPORTS = {"SFO": "CA", "LAX": "CA", "ATL": "GA", "ANC": "AK", "YYZ": "NA"}


def made(folder: Path) -> None:
    """The two files of the package, with rows of this test's own."""
    chance, date, rows = random.Random(7), datetime(2001, 1, 1), []
    for _ in range(ROWS + 100):
        date += timedelta(minutes=chance.choice((0, 1, 5, 30, 31, 90)))
        origin, destination = chance.sample([*AIRPORTS, "XXX"], 2)
        delay, distance = chance.randrange(-60, 300), chance.randrange(20, 5000)
        row = {"date": date, "delay": delay, "distance": distance, "origin": origin, "destination": destination}
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows), folder / "flights-3m.parquet")
    lines = [f"{name},Its Name,City,{state},USA,31.5,-89.2" for name, state in AIRPORTS.items()]
    (folder / "airports.csv").write_text("\n".join(["iata,name,city,state,country,latitude,longitude", *lines]))


def test_every_way_answers_as_pandas_does_and_the_figures_are_a_table(spark: Any, tmp_path: Path) -> None:
    made(tmp_path)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        bench = Flights(tmp_path / "work", tmp_path, ROWS, spark)
        bench.folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            if not EXHAUSTIVE:
                patch.setattr(flights, "QUESTIONS", ("sessions",))
            patch.setattr(flights, "TURNS", 1)
            patch.setattr(flights, "TRIGGER", 450)
            for step in flights.WORK.values():
                step(bench)
            asked = set(flights.QUESTIONS)
        lines = flights.table(bench)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert bench.found["rows"] == ROWS
    assert bench.found["equal"] == ["read_space", "typed", "source", "DuckDB", "Polars"]
    assert set(bench.found["streams"]) == asked
    for work in ("`write_space`", "archiving by two processes", "stream, sessions", "`read_space` / plain Parquet"):
        assert any(line.startswith(f"| {work}") for line in lines)


def test_an_answer_that_differs_is_told() -> None:
    check("typed", "join", [("CA", 1)], [("CA", 1)])
    with pytest.raises(AssertionError, match=r"typed, join: 1 rows where pandas has 2.*\('GA', 2\)"):
        check("typed", "join", [("CA", 1)], [("CA", 1), ("GA", 2)])
