"""The cold tier and Spark: python -m benchmarks.spark [entries] [--folder FOLDER] [--step STEP]

Archiving and its memory, reading the archive by library and by Spark, one segment out of very many, bytes on disk, a
stream from a store into another. With a folder the steps (fill, archive, read, spark, stream, table) may be run one by
one; `table` prints what they found.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

import streamkit
from streamkit import Record

from .machine import describe

SPACE = "orders"
STORE = UUID(int=7)
STEPS = ("fill", "archive", "read", "spark", "stream", "table")
TIMES = 3
TRIGGER = 10_000
TRIGGERS = 20


class Bench:
    """A folder with the stores, and the results so far."""

    def __init__(self, folder: Path, entries: int) -> None:
        self.entries = entries
        self.segments = max(1000, entries // 5)
        self.filled = folder / "filled"
        self.root = folder / "stores"
        self._notes = folder / "found.json"

    @property
    def found(self) -> dict[str, Any]:
        return json.loads(self._notes.read_text()) if self._notes.exists() else {}

    def note(self, **found: Any) -> None:
        self._notes.write_text(json.dumps({**self.found, **found}))
        for name, value in found.items():
            print(f"{name:24} {value}", flush=True)

    def store(self, root: Path) -> streamkit.Store:
        return streamkit.connect(root.as_uri()).store(STORE)


def median(work: Callable[[], Any]) -> float:
    """Seconds, of three times."""
    found = []
    for _ in range(TIMES):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)


def allocated(path: Path) -> int:
    """Bytes on disk."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def bytes_read() -> int:
    """The bytes that this process has read from files until now."""
    return int(Path("/proc/self/io").read_text().split()[1])


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


def fill(bench: Bench) -> None:
    """Five entries a segment, a thousand segments a transaction."""
    shutil.rmtree(bench.filled, ignore_errors=True)
    store, per = bench.store(bench.filled), bench.entries // bench.segments
    store.create_space(SPACE, archive_grace=0.5)
    for begin in range(0, bench.segments, 1000):
        with store.transaction(SPACE) as trx:
            for at in range(begin, min(begin + 1000, bench.segments)):
                records = [
                    {"order": at, "n": n, "item": f"item-{(at * 31 + n) % 997}", "price": (at * n) % 9999}
                    for n in range(per)
                ]
                trx.produce(f"order-{at:07}", [Record(json.dumps(record).encode()) for record in records])
    store.close()
    bench.note(entries=bench.entries, segments=bench.segments, before=allocated(bench.filled))


def archive(bench: Bench) -> None:
    rates, memory = [], 0.0
    for _ in range(TIMES):
        shutil.rmtree(bench.root, ignore_errors=True)
        shutil.copytree(bench.filled, bench.root)
        os.sync()
        store = bench.store(bench.root)
        with Memory() as used:
            begin = time.perf_counter()
            report = store.archive(SPACE)
            rates.append(report.entries / (time.perf_counter() - begin))
        memory = max(memory, used.megabytes)
        store.close()
    time.sleep(1)
    store = bench.store(bench.root)
    store.maintain()
    store.close()
    table = allocated(bench.root / "archive")
    bench.note(archiving=statistics.median(rates), memory=memory, files=report.files, table=table)
    bench.note(after=allocated(bench.root))


def read(bench: Bench) -> None:
    # As in a process that has just begun, which has the libraries, and knows nothing of the table.
    bench.store(bench.root).peek(SPACE, "order-0000000")
    names = [f"order-{at:07}" for at in range(7, bench.segments, max(1, bench.segments // 20))]
    first, then = [], []
    for name in names[:TIMES]:
        first.append(_look_up(bench.store(bench.root), name))
    store = bench.store(bench.root)
    for name in names:
        _look_up(store, name)
    for name in names:
        then.append(_look_up(store, name))
    milliseconds, size = (statistics.median(parts) for parts in zip(*first, strict=True))
    bench.note(first_milliseconds=milliseconds, first_bytes=size)
    milliseconds, size = (statistics.median(parts) for parts in zip(*then, strict=True))
    bench.note(segment_milliseconds=milliseconds, segment_bytes=size)
    took = median(lambda: sum(1 for _ in store.consume_space(SPACE)))
    bench.note(consume=bench.entries / took)


def _look_up(store: streamkit.Store, name: str) -> tuple[float, int]:
    """Return (ms, bytes read) of reading one segment."""
    size, begin = bytes_read(), time.perf_counter()
    assert len(list(store.consume_segment(SPACE, name))) == 5
    return (time.perf_counter() - begin) * 1000, bytes_read() - size


def started() -> Any:
    """Spark on two threads."""
    from streamkit.spark import session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    running = session(spark__master="local[2]", spark__ui__enabled="false", spark__ui__showConsoleProgress="false")
    running.sparkContext.setLogLevel("ERROR")
    return running


def spark(bench: Bench) -> None:
    from pyspark.sql import functions as F

    from streamkit.spark import read_space

    running = started()
    url = bench.root.as_uri()
    files = [file.as_uri() for file in bench.root.glob("archive/*/*/*.parquet")]

    def aggregate(frame: Any) -> None:
        frame.groupBy((F.col("sequence") % 10).alias("g")).agg(F.sum(F.length("payload")), F.count("*")).collect()

    columns = ["sequence", "payload"]
    options = {"url": url, "store": str(STORE), "space": SPACE, "columns": ",".join(columns)}
    ways = {
        "plain": lambda: aggregate(running.read.parquet(*files)),
        "native": lambda: aggregate(read_space(running, url, STORE, SPACE, columns=columns)),
        "source": lambda: aggregate(running.read.format("streamkit").options(**options).load()),
    }
    for way in ways.values():
        way()
    # In turns, so that other load on the machine meets all of them.
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TIMES):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            took[name].append(time.perf_counter() - begin)
    running.stop()
    bench.note(**{name: statistics.median(times) for name, times in took.items()})


def stream(bench: Bench) -> None:
    """Stream from one store into another, which syncs, TRIGGER rows a trigger. The first trigger does not count."""
    running = started()
    rates, most = [], 0
    for _ in range(TIMES):
        root = bench.root.parent / "streams"
        shutil.rmtree(root, ignore_errors=True)
        store = bench.store(root)
        for begin in range(0, TRIGGER * TRIGGERS, 1000):
            with store.transaction(SPACE) as trx:
                for segment in range(20):
                    trx.produce(f"s{segment}", [Record(b'{"at":%d}' % at) for at in range(begin, begin + 50)])
        options = {"url": root.as_uri(), "store": str(STORE), "space": SPACE, "maxRowsPerTrigger": str(TRIGGER)}
        frame = running.readStream.format("streamkit").options(**options, columns="segment,payload,sequence").load()
        sink = {"url": root.as_uri(), "store": str(UUID(int=8)), "space": SPACE, "order": "sequence"}
        query = (
            frame.writeStream.format("streamkit")
            .options(**sink, checkpointLocation=str(root / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        assert sum(progress.numInputRows for progress in batches) == TRIGGER * TRIGGERS
        most = max(most, *(progress.numInputRows for progress in batches))
        took = sum(progress.batchDuration for progress in batches[1:]) / 1000
        rates.append(sum(progress.numInputRows for progress in batches[1:]) / took)
        store.close()
    running.stop()
    bench.note(stream=statistics.median(rates), trigger=most)


def table(bench: Bench) -> None:
    """The results as Markdown."""
    found = bench.found
    machine = describe(bench.root)
    size = found["table"]
    rows = [
        ("`spark.read.parquet` on the files of the archive, an aggregate", "", f"{found['plain']:.2f} s"),
        ("`read_space`, the same", "≤ 1.3 ×", f"{found['native']:.2f} s, {found['native'] / found['plain']:.2f} ×"),
        ("the source, the same", "≤ 3 ×", f"{found['source']:.2f} s, {found['source'] / found['plain']:.2f} ×"),
        ("archiving", "≥ 300,000 entries/s", f"{found['archiving']:,.0f} entries/s"),
        ("its memory", "< 500 MB", f"{found['memory']:.0f} MB"),
        ("`consume_space`, cold", "≥ 500,000 entries/s", f"{found['consume']:,.0f} entries/s"),
    ]
    figure = f"{found['stream']:,.0f} rows/s, at most {found['trigger']:,} a trigger"
    rows.append((f"a stream into another store, {TRIGGER:,} rows a trigger", "", figure))
    for what, name in (("the first of a client", "first"), ("another", "segment")):
        milliseconds, read = found[f"{name}_milliseconds"], found[f"{name}_bytes"]
        figure = f"{milliseconds:.1f} ms, {read / 1000:,.0f} kB, {100 * read / size:.2f} %"
        rows.append((f"one segment, {what}", "≤ 100 ms, ≤ 1 % of the table's bytes", figure))
    share = f"{found['after'] / found['before']:.2f}"
    sizes = f"{found['after'] / 1e6:,.0f} of {found['before'] / 1e6:,.0f} MB, {size / 1e6:,.0f} of them the table"
    rows.append(("bytes on disk after archiving and the grace / before", "≤ 0.6", f"{share} ({sizes})"))
    print(
        f"{found['entries']:,} entries of {found['segments']:,} segments, {found['files']} files; "
        f"{machine['processor']}, {machine['memory']}, {machine['disk'].split()[0]}; "
        f"Python {machine['python']}, Spark {version('pyspark')} as `local[2]`; medians of {TIMES}.\n"
    )
    print("| work | reach | is |\n|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("entries", nargs="?", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path, help="where the stores are kept; else they are gone at the end")
    parser.add_argument("--step", choices=STEPS, help="all, if none is named")
    given = parser.parse_args()
    steps = {"fill": fill, "archive": archive, "read": read, "spark": spark, "stream": stream, "table": table}
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder.resolve(), given.entries)
        for name in [given.step] if given.step else STEPS:
            steps[name](bench)


if __name__ == "__main__":
    main()
