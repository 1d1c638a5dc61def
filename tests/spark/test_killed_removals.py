"""Processes that archive, compact, trim, retain and erase are killed at random: every door reads what readers read."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_spark import load, stream

import streamkit
from harness import restless
from harness.restless import SPACE
from streamkit import Entry, Store
from streamkit.errors import LeaseNotAcquired

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import duckdb
import polars
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable
from rollup import roll_up

from streamkit.spark import read_space
from streamkit.spark.options import parse
from streamkit.spark.source import StreamkitSource
from streamkit.spark.stream import StreamReader

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(0 if EXHAUSTIVE else 600)]

KILLS = int(os.environ.get("STREAMKIT_KILLS", "120" if EXHAUSTIVE else "2"))
SPARK_EVERY = 20
"""Kills after which Spark itself is asked, and not only its planner and its readers."""
PARTITIONS = 4
COLUMNS = ["segment", "sequence", "payload"]
Rows = list[tuple[str, int, bytes]]


class Restless:
    """The process that is killed, with the processes that it has started."""

    def __init__(self, url: str, store: UUID, seed: int, output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, str(restless.__file__), url, str(store), str(seed)],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, works: int) -> None:
        """Wait until the process has begun `works` pieces of work."""
        while len(self._output.read_text().splitlines()) < works:
            assert self._process.poll() is None, self._output.read_text()
            time.sleep(0.005)

    def kill(self) -> str:
        """The work that it was at."""
        assert self._process.poll() is None, self._output.read_text()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return self._output.read_text().split()[-1]


def rows_of(entries: list[Entry]) -> Rows:
    return sorted((entry.segment, entry.sequence, entry.payload) for entry in entries)


def told(url: str, id: UUID) -> list[Entry]:
    """The entries that a new reader finds."""
    with streamkit.connect(url) as client:
        return list(client.store(id).consume_space(SPACE))


def collected(batches: Iterator[Any]) -> Rows:
    return sorted(tuple(row[name] for name in COLUMNS) for batch in batches for row in batch.to_pylist())  # type: ignore[type-var]


def without_spark(url: str, id: UUID) -> dict[str, Rows]:
    """Read with the readers that Spark calls, and with to_arrow."""
    given = {"url": url, "store": str(id), "space": SPACE, "columns": ",".join(COLUMNS)}
    batch = StreamkitSource(given).reader(None)  # type: ignore[arg-type]
    query = StreamReader(parse({**given, "failOnDataLoss": "false"}))
    tasks = query.partitions(start := query.initialOffset(), query.latestOffset(start, ReadAllAvailable()))
    found = {
        "source": collected(rows for task in batch.partitions() for rows in batch.read(task)),
        "stream": collected(rows for task in tasks for rows in query.read(task)),
    }
    query.stop()
    with streamkit.connect(url) as client:
        found["to_arrow"] = collected(client.store(id).to_arrow(SPACE, columns=COLUMNS))
    return found


def by_spark(spark: Any, url: str, store: Store, path: Path) -> dict[str, Rows]:
    given = {"url": url, "store": str(store.id), "space": SPACE}

    def rows(frame: Any) -> Rows:
        return sorted((row[0], row[1], bytes(row[2])) for row in frame.select(*COLUMNS).collect())

    typed = read_space(spark, url, store.id, SPACE, schema="n int NOT NULL").where("bad_payload IS NULL")
    output, copy = str(path / f"rollup-{uuid4()}"), uuid4()
    roll_up(spark, given, f"SELECT {', '.join(COLUMNS)} FROM entries", output)
    rolled = DeltaTable(output).to_pyarrow_table(columns=COLUMNS).to_pylist()
    stream(spark, url, store.id, copy, path / f"checkpoint-{copy}")
    with streamkit.connect(url) as client:
        # The copy has sequences of its own: the payloads tell.
        copied = [(entry.segment, 0, entry.payload) for entry in client.store(copy).consume_space("out")]
    return {
        "read_space": rows(read_space(spark, url, store.id, SPACE)),
        "typed": sorted((row.segment, row.sequence, b'{"n":%d}' % row.n) for row in typed.collect()),
        "source": rows(load(spark, url, store)),
        "roll-up": sorted(tuple(row[name] for name in COLUMNS) for row in rolled),
        "stream": sorted(copied),
    }


def by_engines(store: Store) -> dict[str, Rows]:
    """The rows of the Delta table. A row of an erased entry has no payload."""
    url = store._archive(SPACE).table.url
    table = DeltaTable(url).to_pyarrow_table(columns=COLUMNS)
    found = {
        "DuckDB": duckdb.from_arrow(table).project(", ".join(COLUMNS)).fetchall(),
        "Polars": polars.read_delta(url).select(COLUMNS).rows(),
    }
    return {engine: sorted(row for row in rows if row[2] is not None) for engine, rows in found.items()}


def finish(store: Store) -> None:
    """Complete what was begun. The lease of the process that was killed ends soon."""
    ends = time.monotonic() + 120
    while True:
        try:
            store.archive(SPACE)
            store.maintain(SPACE)
            return
        except LeaseNotAcquired:
            assert time.monotonic() < ends
            time.sleep(0.1)


def test_every_door_reads_what_readers_read_after_kills_at_random(
    spark: Any, tmp_path: Path, covered: Callable[[str, int], None]
) -> None:
    seed = int(os.environ.get("STREAMKIT_SEED", "27"))
    chance, url, id = random.Random(seed), (tmp_path / "stores").as_uri(), uuid4()
    killed, answers = Counter[str](), 0
    with streamkit.connect(url) as client:
        store = client.store(id)
        store.create_space(SPACE, PARTITIONS, archive_grace=0.5)
        store.change_space(SPACE, trimmed_rows="remove")

        def compare(found: dict[str, Rows], wanted: Rows, phase: str) -> None:
            nonlocal answers
            for door, rows in found.items():
                if door == "stream" and rows and not any(sequence for _, sequence, _ in rows):
                    assert rows == sorted((segment, 0, payload) for segment, _, payload in wanted), f"{phase}, {door}"
                else:
                    assert rows == wanted, f"seed {seed}, {phase}, {door}: {len(rows)} rows, not {len(wanted)}"
                answers += 1

        for kill in range(1, KILLS + 1):
            process = Restless(url, id, chance.randrange(1 << 30), tmp_path / f"said-{kill}")
            process.wait_for(chance.randrange(2, 9))
            time.sleep(chance.choice((0, 0.002, 0.01, 0.05, 0.2)))  # into the middle of the work
            work = process.kill()
            killed[work] += 1
            print(f"{kill} killed, {answers} answers compared", flush=True)
            phase = f"kill {kill}, of {work}"
            wanted = rows_of(told(url, id))
            compare(without_spark(url, id), wanted, phase)
            if kill % SPARK_EVERY == 0:
                compare(by_spark(spark, url, store, tmp_path), wanted, phase)
            finish(store)
            entries = told(url, id)
            assert rows_of(entries) == wanted, f"seed {seed}, {phase}: upkeep changed what readers read"
            compare(by_engines(store), rows_of([entry for entry in entries if entry.tier == "cold"]), phase)
        compare(by_spark(spark, url, store, tmp_path), rows_of(told(url, id)), "at the end")
        assert not store.verify(SPACE).findings
    for name, count in killed.items():
        covered(f"killed removals: {name}", count)
    covered("answers after a kill", answers)
