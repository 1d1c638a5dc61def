"""Each way to read and write a space, on one version of Spark: python spark_version.py, with the Spark of that Python.

It prints a line of JSON for each way: its name, and the error or null.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import streamkit
from streamkit import Record, Store
from streamkit.spark import read_space, register, session, write_space

sys.path.append(str(Path(__file__).parent.parent.parent / "examples" / "spark"))  # the rollup

Row = tuple[str, int, bytes]
_TRIES = 5


def main() -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    root = Path(tempfile.mkdtemp())
    url = (root / "stores").as_uri()
    client = streamkit.connect(url)
    store = client.store(uuid4())
    store.create_space("orders", 2)
    fill(store, 0, 30)
    store.archive("orders")
    fill(store, 30, 40)
    connect = "--connect" in sys.argv
    spark: Any = (
        _connected()
        if connect
        else session(
            spark__master="local[2]",
            spark__ui__enabled="false",
            spark__ui__showConsoleProgress="false",
            spark__sql__shuffle__partitions="2",
            spark__driver__host="127.0.0.1",
            spark__driver__bindAddress="127.0.0.1",
            spark__driver__extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            spark__sql__warehouse__dir=str(root / "warehouse"),
        )
    )
    if not connect:
        spark.sparkContext.setLogLevel("OFF")
    given = {"url": url, "store": str(store.id), "space": "orders"}

    def entries(space: str = "orders") -> list[Row]:
        return sorted((entry.segment, entry.sequence, entry.payload) for entry in store.consume_space(space))

    def rows(frame: Any) -> list[Row]:
        return sorted((r[0], r[1], bytes(r[2])) for r in frame.select("segment", "sequence", "payload").collect())

    def source() -> None:
        frame = spark.read.format("streamkit").options(**given).load()
        same(rows(frame), entries())
        same(rows(frame.where("segment = 's1'")), [row for row in entries() if row[0] == "s1"])

    def native() -> None:
        same(rows(read_space(spark, url, store.id, "orders")), entries())

    def typed() -> None:
        same(read_space(spark, url, store.id, "orders", schema="n long").where("n >= 10").count(), 30)

    def sink() -> None:
        frame = read_space(spark, url, store.id, "orders").select("segment", "payload", "metadata", "sequence")
        for _ in range(2):
            write_space(frame, url, store.id, "written", order="sequence", idempotency_key="once")
        same(entries("written"), entries())

    def table() -> None:
        spark.sql(f"CREATE TABLE o USING streamkit OPTIONS (url '{url}', store '{store.id}', space 'orders')")
        same(spark.table("o").count(), len(entries()))

    def query(space: str, **options: str) -> list[int]:
        """The rows of each batch of a query that reads all that is there now."""
        frame = spark.readStream.format("streamkit").options(**given, **options).load()
        frame = frame.select("segment", "payload", "metadata", "sequence")
        out = {"url": url, "store": str(store.id), "space": space, "order": "sequence"}
        writer = frame.writeStream.format("streamkit").options(**out, checkpointLocation=str(root / space))
        running = writer.trigger(processingTime="0 seconds").start()
        try:
            running.processAllAvailable()
            return [progress["numInputRows"] for progress in running.recentProgress if progress["numInputRows"]]
        finally:
            running.stop()

    def stream() -> None:
        patiently(lambda: query("streamed"))
        fill(store, 40, 47)
        patiently(lambda: query("streamed"))
        same(entries("streamed"), entries())
        metadata = {(entry.segment, entry.sequence): dict(entry.metadata) for entry in store.consume_space("orders")}
        for entry in store.consume_space("streamed"):
            same(dict(entry.metadata), metadata[entry.segment, entry.sequence])

    def limited() -> None:
        batches = patiently(lambda: query("limited", maxRowsPerTrigger="10"))
        same(entries("limited"), entries())
        # Spark Connect may not tell of batches that were fast.
        assert max(batches, default=0) <= 10, batches

    def job(name: str, *arguments: str, store_too: bool = True) -> Callable[[], None]:
        def run() -> None:
            place = ["--store", str(store.id)] if store_too else []
            module = import_module(name if name == "rollup" else f"streamkit.spark.jobs.{name}")
            same(module.job(["--url", url, *place, *arguments]), 0)

        return run

    ways = {
        "source": source,
        "read_space": native,
        "typed": typed,
        "write_space": sink,
        "table": table,
        "stream": stream,
        "limited stream": limited,
        "archive": job("archive"),
        "archive, spread": job("archive", "--spread"),
        "compact": job("compact"),
        "verify": job("verify"),
        "rollup": job(
            "rollup", "--space", "orders", "--output", str(root / "r"), "--sql", "SELECT segment FROM entries"
        ),
        "restore": job("restore", "--into", str(uuid4())),
        "lag": job("lag", "--checkpoint", str(root / "streamed"), store_too=False),
    }
    for name in [name for name in sys.argv[1:] if name in ways] or ways:
        try:
            ways[name]()
            found = None
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        print("way: " + json.dumps([name, found]), flush=True)
    os._exit(0)


def _connected() -> Any:
    """A session of Spark Connect, with a server of its own."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = SparkSession.builder.remote("local[2]").getOrCreate()
    found.conf.set("spark.sql.shuffle.partitions", "2")
    register(found)
    return found


def fill(store: Store, begin: int, end: int) -> None:
    for at in range(begin, end):
        store.produce("orders", f"s{at % 5}", [Record(b'{"n": %d}' % at, {"k": str(at % 3)})])


def same(found: Any, wanted: Any) -> None:
    assert found == wanted, f"{found!r:.200}, not {wanted!r:.200}"


def patiently(ask: Callable[[], list[int]]) -> list[int]:
    """Spark waits ten seconds for a stream's Python process, which a busy machine may not give it."""
    for attempt in range(_TRIES):
        try:
            return ask()
        except Exception as error:
            if "failed to connect back" not in str(error) or attempt == _TRIES - 1:
                raise
    raise AssertionError


if __name__ == "__main__":
    main()
