"""`write_space`, rows a second: python -m benchmarks.spark_sink [rows]

A frame that Spark has ready is written into a store on local disk, which syncs each commit: few segments, and as many
as there are rows.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import streamkit
from streamkit.spark import session, write_space

from .busy import busy

_TIMES = 3


def main(rows: int = 1_000_000) -> None:
    from pyspark.sql import functions as F

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {"spark__ui__enabled": "false", "spark__ui__showConsoleProgress": "false", "spark__master": "local[2]"}
    spark = session("sink", **settings)
    for segments in (100, rows):
        frame = spark.range(rows).select(
            F.concat(F.lit("segment "), F.col("id") % segments).alias("segment"),
            F.concat(F.lit('{"at":'), F.col("id"), F.lit("}")).alias("payload"),
            F.col("id").alias("n"),
        )
        frame = frame.cache()
        frame.count()
        best = least = float("inf")
        for _ in range(_TIMES):
            with tempfile.TemporaryDirectory() as path:
                seconds, used = _write(frame, Path(path).as_uri(), rows)
                best, least = min(best, seconds), min(least, used)
        told = f"{rows / best:,.0f} rows/s, {rows / least:,.0f} for each second of a processor"
        print(f"{rows:,} rows, {segments:,} segments: {told}", flush=True)
        frame.unpersist()
    spark.stop()


def _write(frame: Any, url: str, rows: int) -> tuple[float, float]:
    """Seconds, and those of processors."""
    id = uuid4()
    begin, used = time.perf_counter(), busy()
    write_space(frame, url, id, "s", order="n", idempotency_key="once")
    took = time.perf_counter() - begin, busy() - used
    with streamkit.connect(url) as client:
        assert sum(batch.num_rows for batch in client.store(id).to_arrow("s", columns=["sequence"])) == rows
    return took


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
