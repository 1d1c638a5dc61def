"""Spark as a program that is told what to do, so that it can be killed in the middle: spark_rounds.py FOLDER.

It takes FOLDER/ask-N.json in their order, for N from the number of answers that are there, and leaves
FOLDER/answer-N.json: what it found, or the error. Who asks kills it, or its workers, and asks again.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from streamkit.spark import read_space, session, write_space

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "spark"

SOURCE, OUT, FRAMES = "events", "out", "frames"
SQL = "SELECT segment, count(*) AS n, sum(length(payload)) AS size FROM entries GROUP BY segment"
DIGEST = ("count(*)", "coalesce(sum(crc32(concat(segment, '/', sequence, '/', cast(payload as string)))), 0)")


def batch(spark: Any, ask: dict[str, Any]) -> Any:
    """Read a frame up to an offset twice, in two ways."""
    given = {"url": ask["url"], "store": ask["store"], "space": SOURCE}
    if ask["native"]:
        frame = read_space(spark, ask["url"], ask["store"], SOURCE, until=ask["until"])
    else:
        frame = spark.read.format("streamkit").options(**given, until=ask["until"], segmentSplit="500").load()
    first = frame.where("segment >= 's3'").selectExpr(*DIGEST).first()
    whole = frame.selectExpr(*DIGEST).first()
    return [*first, *whole]


def stream(spark: Any, ask: dict[str, Any]) -> Any:
    """Into another store, until it has what is there now."""
    given = {"url": ask["url"], "store": ask["store"], "space": SOURCE, "segmentSplit": ask["split"]}
    frame = spark.readStream.format("streamkit").options(**given, maxRowsPerTrigger=ask["rows"]).load()
    out = {"url": ask["url"], "store": ask["into"], "space": OUT, "order": "sequence"}
    query = (
        frame.select("segment", "payload", "sequence")
        .writeStream.format("streamkit")
        .options(**out, checkpointLocation=ask["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress]


def sink(spark: Any, ask: dict[str, Any]) -> Any:
    """A frame, under its name."""
    from pyspark.sql import functions as F

    spark.conf.set("spark.sql.shuffle.partitions", str(ask["tasks"]))
    spark.conf.set("spark.sql.adaptive.enabled", ask["adaptive"])
    name = ask["frame"]
    frame = spark.range(ask["rows"], numPartitions=ask["parts"]).select(
        F.concat(F.lit("w"), F.col("id") % 40).alias("segment"),
        F.concat(F.lit(f"{name}-"), F.col("id")).alias("payload"),
        F.col("id").alias("n"),
    )
    write_space(frame, ask["url"], ask["into"], FRAMES, order="n", idempotency_key=name, partitions=2)
    return ask["rows"]


def rollup(spark: Any, ask: dict[str, Any]) -> Any:
    sys.path.append(str(EXAMPLES))
    from rollup import roll_up

    given = {"url": ask["url"], "store": ask["store"], "space": SOURCE}
    return roll_up(spark, given, SQL, ask["output"], batch_rows=1000).rows


def restore(spark: Any, ask: dict[str, Any]) -> Any:
    """Write the present entries of the source into a third store."""
    from streamkit.spark.jobs.restore import job

    said = io.StringIO()
    with redirect_stdout(said):
        code = job(["--url", ask["url"], "--store", ask["store"], "--space", SOURCE, "--into", ask["restored"]])
    if code:
        raise RuntimeError(said.getvalue())
    return None


WORK = {"batch": batch, "stream": stream, "sink": sink, "rollup": rollup, "restore": restore}


def main(folder: Path) -> None:
    spark = session()
    spark.sparkContext.setLogLevel("OFF")
    number = sum(1 for _ in folder.glob("answer-*.json"))
    (folder / f"ready-{os.getpid()}").touch()
    while True:
        path = folder / f"ask-{number}.json"
        while not path.exists():
            time.sleep(0.02)
        ask = json.loads(path.read_text())
        if ask["do"] == "end":
            break
        print(number, ask["do"], flush=True)
        try:
            answer = {"found": WORK[ask["do"]](spark, ask)}
        except Exception as error:
            # Spark's message about a stream's end does not name the cause; its stack trace does.
            answer = {"error": f"{type(error).__name__}: {error}\n{getattr(error, '_stackTrace', '')}"}
        written = folder / f"writing-{os.getpid()}"
        written.write_text(json.dumps(answer))
        written.rename(folder / f"answer-{number}.json")
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
