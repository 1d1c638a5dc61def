"""Readings that arrive late: a stream counts them by five minutes of their own time, and says how far it is behind.

python examples/spark/late.py

A reading has two times. The timestamp of the entry is the time of its commit. The field `at` of its payload is the time
of the measurement. The watermark is ten minutes: a window is written once a reading is ten minutes younger than its
end. Spark leaves out readings that come later than that. They are in the space all the same, so a batch counts them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any
from uuid import UUID, uuid4

import streamkit
from streamkit import Record
from streamkit.spark import parse_payloads, read_space, session, stream_lag

SCHEMA = "sensor string NOT NULL, at timestamp NOT NULL"


def measure(store: streamkit.Store, *times: str) -> None:
    for at in times:
        payload = json.dumps({"sensor": "s1", "at": f"2026-01-31T{at}:00Z"}).encode()
        store.produce("readings", "s1", [Record(payload)])


def by_five_minutes(readings: Any) -> Any:
    from pyspark.sql import functions as F

    window = F.window("at", "5 minutes")
    return readings.groupBy(window).count().select(F.date_format("window.start", "HH:mm").alias("start"), "count")


def follow(spark: Any, url: str, store: UUID, folder: str) -> int:
    """Count what has come since the last call; the number of readings that came too late."""
    options = {"url": url, "store": str(store), "space": "readings"}
    entries = spark.readStream.format("streamkit").options(**options).load().select("payload")
    readings = parse_payloads(entries, SCHEMA).withWatermark("at", "10 minutes")
    query = (
        by_five_minutes(readings)
        .writeStream.format("parquet")
        .options(path=f"{folder}/windows", checkpointLocation=f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(state.numRowsDroppedByWatermark for batch in query.recentProgress for state in batch.stateOperators)


def counts(frame: Any) -> dict[str, int]:
    return {row["start"]: row["count"] for row in frame.orderBy("start").collect()}


def run(spark: Any, folder: str) -> tuple[dict[str, int], dict[str, int], list[int]]:
    """The counts of the stream and of a batch, and the number of entries by which the stream was behind."""
    url = f"file://{folder}/stores"
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        measure(store, "12:01", "12:02", "12:07", "12:20")
        follow(spark, url, store.id, folder)
        measure(store, "12:12", "12:03", "12:40")  # ten minutes late, much too late, and on time
        behind = [lag.entries for lag in stream_lag(f"{folder}/checkpoint", url).values()]
        print(f"the stream is {behind[0]} entries behind")
        late = follow(spark, url, store.id, folder)
        behind += [lag.entries for lag in stream_lag(f"{folder}/checkpoint", url).values()]
        print(f"the stream is {behind[1]} entries behind; {late} came too late for it")
        streamed = counts(spark.read.parquet(f"{folder}/windows"))
        batch = counts(by_five_minutes(read_space(spark, url, store.id, "readings", schema=SCHEMA)))
    for start, count in batch.items():
        print(f"{start}: {count} readings, {streamed.get(start, 'not yet')} in the stream")
    return streamed, batch, behind


def main() -> None:
    spark = session("late", spark__sql__shuffle__partitions="2", spark__sql__session__timeZone="UTC")
    with tempfile.TemporaryDirectory() as folder:
        run(spark, folder)
    spark.stop()


if __name__ == "__main__":
    sys.exit(main())
