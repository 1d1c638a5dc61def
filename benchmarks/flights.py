"""Flights through Spark: `python -m benchmarks.flights [--rows N] [--folder FOLDER] [--step STEP] [--publish]`.

Three million flights of 2001, the npm package vega-datasets that infra/flights pins, are written to a space, archived,
and asked four questions through every way to read them. Each answer must equal the one of pandas, which reads the
package's own file. The rates and the ratios of one run follow. With a folder the steps may be run one by one, and
again; `table` prints what they found.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

import streamkit
from streamkit.archive import Processes
from streamkit.spark import parse_payloads, read_space, write_space

from .busy import busy
from .flights_answers import QUESTIONS, Rows, by_duckdb, by_pandas, by_polars, by_spark, by_stream
from .groups_page import publish
from .machine import describe
from .spark import started

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
PACKAGE = ROOT / "infra" / "flights"
SPACE, STORE, PARTITIONS = "flights", UUID(int=27), 8
SCHEMA = "date timestamp, delay int, distance int, origin string, destination string"
TURNS = 5
TRIGGER = 500_000
"""Rows of a batch of a stream."""


class Flights:
    """A folder with the stores, and the figures that the steps have found so far."""

    def __init__(self, folder: Path, data: Path, rows: int, spark: Any) -> None:
        self.folder, self.data, self.rows, self.spark = folder, data, rows, spark
        self.ready, self.filled, self.root = folder / "rows.parquet", folder / "filled", folder / "stores"
        self._notes = folder / "found.json"

    @property
    def url(self) -> str:
        return self.root.as_uri()

    @property
    def found(self) -> dict[str, Any]:
        return json.loads(self._notes.read_text()) if self._notes.exists() else {}

    def note(self, **found: Any) -> None:
        self._notes.write_text(json.dumps({**self.found, **found}))
        for name, value in found.items():
            print(f"{name:24} {value}", flush=True)

    def answers(self) -> dict[str, Rows]:
        return by_pandas(self.data, self.rows)

    def entries(self) -> Any:
        return read_space(self.spark, self.url, STORE, SPACE, columns=["payload"])

    def typed(self) -> Any:
        return read_space(self.spark, self.url, STORE, SPACE, columns=["segment"], schema=SCHEMA).where(
            "bad_payload IS NULL"
        )


def by_hand(entries: Any) -> Any:
    """The fields of the payloads, without a check."""
    from pyspark.sql import functions as F

    document = F.from_json(F.col("payload").cast("string"), SCHEMA)
    return entries.select(document.alias("flight")).select("flight.*")


def prepare(bench: Flights) -> None:
    """The flights as rows to write: an entry for each, a segment for each airport and day."""
    from pyspark.sql import functions as F

    flights = bench.spark.read.parquet(str(bench.data / "flights-3m.parquet")).coalesce(1).limit(bench.rows)
    date = F.date_format("date", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("date")
    rows = flights.select(
        F.concat("origin", F.lit(" "), F.substring(date, 1, 10)).alias("segment"),
        F.to_json(F.struct(date, "delay", "distance", "origin", "destination")).alias("payload"),
        F.unix_timestamp("date").alias("at"),
    )
    rows.repartition(4).write.mode("overwrite").parquet(str(bench.ready))
    rows = bench.spark.read.parquet(str(bench.ready))
    bench.note(rows=rows.count(), segments=rows.select("segment").distinct().count())


def ingest(bench: Flights) -> None:
    """The rate of `write_space`, into a new store."""
    shutil.rmtree(bench.filled, ignore_errors=True)
    rows = bench.spark.read.parquet(str(bench.ready))
    begin = time.perf_counter()
    write_space(rows, bench.filled.as_uri(), STORE, SPACE, order="at", idempotency_key="flights", partitions=PARTITIONS)
    bench.note(write_space=bench.rows / (time.perf_counter() - begin))


def archive(bench: Flights) -> None:
    """The rate of two processes. Each round archives a fresh copy of the written store."""
    shutil.rmtree(bench.root, ignore_errors=True)
    shutil.copytree(bench.filled, bench.root)
    with streamkit.connect(bench.url) as client:
        begin = time.perf_counter()
        report = client.store(STORE).archive(SPACE, spread=Processes(bench.url, 2))
        took = time.perf_counter() - begin
    assert report.entries == bench.rows, f"{report.entries:,} of {bench.rows:,} entries were archived"
    bench.note(archive=bench.rows / took)


def batch(bench: Flights) -> None:
    """Check that every way to read a space at rest gives the answers of pandas."""
    given = {"url": bench.url, "store": str(STORE), "space": SPACE, "columns": "payload"}
    source = bench.spark.read.format("streamkit").options(**given).load()
    table = next(bench.root.glob("archive/*/*/_delta_log")).parent
    ways: dict[str, Callable[[str], Rows]] = {
        "read_space": lambda question: by_spark(by_hand(bench.entries()), bench.data, question),
        "typed": lambda question: by_spark(bench.typed(), bench.data, question),
        "source": lambda question: by_spark(by_hand(source), bench.data, question),
        "DuckDB": lambda question: by_duckdb(table, bench.data, question),
        "Polars": lambda question: by_polars(table, bench.data, question),
    }
    wanted, equal = bench.answers(), []
    for name, way in ways.items():
        for question in QUESTIONS:
            check(name, question, way(question), wanted[question])
        equal.append(name)
        bench.note(equal=equal)


def stream(bench: Flights) -> None:
    """Streams give the answers of pandas; the rate of the one that aggregates."""
    wanted, rates = bench.answers(), {}
    for question in QUESTIONS:
        checkpoint = bench.folder / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        given = {"url": bench.url, "store": str(STORE), "space": SPACE, "columns": "payload"}
        frame = bench.spark.readStream.format("streamkit").options(**given, maxRowsPerTrigger=str(TRIGGER)).load()
        flights = parse_payloads(frame, SCHEMA).where("bad_payload IS NULL")
        rows, progress = by_stream(flights, bench.data, question, str(checkpoint))
        check("stream", question, rows, wanted[question])
        assert sum(each.numInputRows for each in progress) == bench.rows
        # The first batch starts Spark's workers and compiles the query.
        batches = progress[1:] or progress
        seconds = sum(each.batchDuration for each in batches) / 1000
        rates[question] = sum(each.numInputRows for each in batches) / seconds
        bench.note(streams=rates)


def check(way: str, question: str, rows: Rows, wanted: Rows) -> None:
    """AssertionError, with a row as an example, if an answer is not the one of pandas."""
    if rows != wanted:
        other = sorted(set(rows) ^ set(wanted))[:1]
        raise AssertionError(
            f"{way}, {question}: {len(rows)} rows where pandas has {len(wanted)}; one differs: {other}"
        )


def times(bench: Flights) -> None:
    """The same aggregate in three ways, in turns, so that other work of the machine meets all of them."""
    files = [file.as_uri() for file in bench.root.glob("archive/*/*/*.parquet")]

    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: by_hand(bench.spark.read.parquet(*files).select("payload")),
        "by hand": lambda: by_hand(bench.entries()),
        "typed": bench.typed,
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    used: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, way in ways.items():
            begin, before = time.perf_counter(), busy()
            by_spark(way(), bench.data, "aggregate")
            if turn:  # the first one compiles
                took[name].append(time.perf_counter() - begin)
                used[name].append(busy() - before)
    bench.note(times=took, processors=used)


def table(bench: Flights) -> list[str]:
    """The results as Markdown."""
    found = bench.found
    machine = describe(bench.folder)

    def ratio(of: str, ours: str, theirs: str) -> float:
        return statistics.median(a / b for a, b in zip(found[of][ours], found[of][theirs], strict=True))

    goals = [
        ("`write_space`", found["write_space"], 150_000, True),
        ("archiving by two processes", found["archive"], 300_000, True),
        *((f"stream, {question}", rate, 100_000, True) for question, rate in found["streams"].items()),
        ("`read_space` / plain Parquet, time", ratio("times", "by hand", "plain"), 1.5, False),
        ("`read_space(schema=…)` / `from_json` by hand, time", ratio("times", "typed", "by hand"), 1.1, False),
        ("the same, seconds of processors", ratio("processors", "typed", "by hand"), 1.1, False),
    ]
    lines = [
        f"{found['rows']:,} flights in {found['segments']:,} segments and {PARTITIONS} partitions; "
        f"{machine['processor']}, {machine['memory']}, {machine['disk'].split()[0]}, load {machine['load']}; "
        f"Python {machine['python']}, Spark {version('pyspark')} as `local[2]`.",
        "",
        f"Equal to pandas in {', '.join([*found['equal'], 'streams'])}: {', '.join(QUESTIONS)}.",
        "",
        "| work | is | to reach | reached |",
        "| --- | --- | --- | --- |",
    ]
    for work, figure, limit, at_least in goals:
        told, wanted = (f"{figure:,.0f} rows/s", f"≥ {limit:,} rows/s") if at_least else (f"{figure:.2f}", f"≤ {limit}")
        reached = figure >= limit if at_least else figure <= limit
        lines.append(f"| {work} | {told} | {wanted} | {'yes' if reached else '**no**'} |")
    seconds = ", ".join(f"{name} {statistics.median(took):.2f} s" for name, took in found["times"].items())
    return [*lines, "", f"The aggregate over all flights, median of {TURNS}: {seconds}."]


WORK = {"prepare": prepare, "ingest": ingest, "archive": archive, "batch": batch, "stream": stream, "times": times}


def fetched() -> Path:
    """The folder of the package's files, which npm has fetched."""
    said = subprocess.run([sys.executable, ROOT / "infra" / "npm.py", PACKAGE], capture_output=True, text=True)
    if said.returncode:
        raise SystemExit(said.stderr)
    return Path(said.stdout.splitlines()[-1]) / "vega-datasets" / "data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000, help="so many of the flights")
    parser.add_argument("--folder", type=Path, help="where the stores are kept; else they are gone at the end")
    parser.add_argument("--step", choices=(*WORK, "table"), help="all, if none is named")
    parser.add_argument("--publish", action="store_true", help="also write docs/benchmarks.md")
    given = parser.parse_args()
    steps = tuple(WORK) if given.step is None else tuple(step for step in (given.step,) if step != "table")
    with ExitStack() as stack:
        folder = given.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        spark = None
        if set(steps) - {"archive"}:
            spark = started()
            stack.callback(spark.stop)
            spark.conf.set("spark.sql.shuffle.partitions", "4")
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        bench = Flights(folder.resolve(), fetched(), given.rows, spark)
        if "prepare" not in steps:
            bench.rows = bench.found["rows"]
        for step in steps:
            WORK[step](bench)
        if given.step in (None, "table"):
            lines = table(bench)
            print("\n".join(lines))
            if given.publish:
                publish("benchmarks.flights", lines, PAGE)


if __name__ == "__main__":
    main()
