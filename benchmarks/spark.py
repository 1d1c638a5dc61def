"""The cold tier and Spark: python -m benchmarks.spark [entries]

Archiving, its memory, reading the cold tier by library and by Spark, one segment out of very many, and bytes on disk.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import streamkit
from streamkit import Record

SPACE = "orders"


def timed(work: Callable[[], Any], times: int = 3) -> float:
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def fill(store: streamkit.Store, entries: int, segments: int) -> None:
    per = entries // segments
    for begin in range(0, segments, 1000):
        with store.transaction(SPACE) as trx:
            for at in range(begin, min(begin + 1000, segments)):
                trx.produce(
                    f"order-{at:07}",
                    [
                        Record(
                            json.dumps(
                                {"order": at, "n": n, "item": f"item-{(at * 31 + n) % 997}", "price": (at * n) % 9999}
                            ).encode()
                        )
                        for n in range(per)
                    ],
                )


def bytes_in(path: Path) -> int:
    """What is allocated on disk."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


class Memory:
    """The most private memory above the start, sampled."""

    def __enter__(self) -> Memory:
        self._start = self.most = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self.most = max(self.most, self._now())

    @property
    def megabytes(self) -> float:
        return (self.most - self._start) / 1e6

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def library(entries: int, segments: int, root: Path) -> Any:
    client = streamkit.connect(root.as_uri())
    store = client.store(uuid4())
    store.create_space(SPACE, archive_grace=0.5)
    fill(store, entries, segments)
    client.close()
    before = bytes_in(root)
    client = streamkit.connect(root.as_uri())
    store = client.store(store.id)
    with Memory() as memory:
        begin = time.perf_counter()
        report = store.archive(SPACE)
        took = time.perf_counter() - begin
    say("archiving", f"{report.entries / took:,.0f} entries/s, {report.files} files, {memory.megabytes:.0f} MB more")
    took = timed(lambda: sum(1 for _ in store.consume_space(SPACE)))
    say("consume_space, cold", f"{report.entries / took:,.0f} entries/s")
    names = [f"order-{at:07}" for at in range(7, segments, max(1, segments // 20))]
    begin = time.perf_counter()
    list(streamkit.connect(root.as_uri()).store(store.id).consume_segment(SPACE, names[0]))
    say("one segment, first of a process", f"{(time.perf_counter() - begin) * 1000:.0f} ms")
    found = []
    for name in names[1:]:
        begin = time.perf_counter()
        assert len(list(store.consume_segment(SPACE, name))) == entries // segments
        found.append(time.perf_counter() - begin)
    say("one segment", f"{statistics.median(found) * 1000:.1f} ms")
    time.sleep(1)
    store.maintain()
    client.close()
    after = bytes_in(root)
    say("bytes after / before", f"{after / before:.2f} ({after / 1e6:.0f} / {before / 1e6:.0f} MB)")
    return store.id


def spark(root: Path, id: Any) -> None:
    from pyspark.sql import functions as F

    from streamkit.spark import read_space, session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    running = session(spark__master="local[2]", spark__ui__enabled="false", spark__ui__showConsoleProgress="false")
    running.sparkContext.setLogLevel("ERROR")
    url = root.as_uri()
    files = [file.as_uri() for file in root.glob("archive/*/*/*.parquet")]

    def aggregate(frame: Any) -> None:
        frame.groupBy((F.col("sequence") % 10).alias("g")).agg(F.sum(F.length("payload")), F.count("*")).collect()

    options = {"url": url, "store": str(id), "space": SPACE, "columns": "sequence,payload"}
    aggregate(running.read.parquet(*files))
    plain = timed(lambda: aggregate(running.read.parquet(*files)))
    native = timed(lambda: aggregate(read_space(running, url, id, SPACE, columns=["sequence", "payload"])))
    source = timed(lambda: aggregate(running.read.format("streamkit").options(**options).load()))
    say("spark.read.parquet", f"{plain:.2f} s")
    say("read_space", f"{native:.2f} s, {native / plain:.2f} x")
    say("the source", f"{source:.2f} s, {source / plain:.2f} x")
    running.stop()


def say(what: str, figure: str) -> None:
    print(f"{what:34} {figure}", flush=True)


def main() -> None:
    entries = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
    segments = max(1000, entries // 5)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "stores")
        say("entries, segments", f"{entries:,}, {segments:,}")
        id = library(entries, segments, root)
        spark(root, id)


if __name__ == "__main__":
    main()
