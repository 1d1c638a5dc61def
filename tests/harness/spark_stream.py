"""A stream as a program: spark_stream.py URL SOURCE INTO CHECKPOINT ROWS. It prints a line of JSON for each batch.

A query that fails, because its workers were killed, is started again from its checkpoint.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.errors import StreamingQueryException

from streamkit.spark import session

SPACE, OUT = "in", "out"


def main(url: str, source: str, into: str, checkpoint: str, rows: str) -> None:
    spark = session()
    spark.sparkContext.setLogLevel("OFF")
    frame = (
        spark.readStream.format("streamkit")
        .options(url=url, store=source, space=SPACE, maxRowsPerTrigger=rows, columns="segment,payload,sequence")
        .load()
    )
    while not run(frame, url, into, checkpoint):
        print("failed", flush=True)
    print("ended", flush=True)


def run(frame: Any, url: str, into: str, checkpoint: str) -> bool:
    """Wait until the query ends (True) or fails (False)."""
    query = (
        frame.writeStream.format("streamkit")
        .options(url=url, store=into, space=OUT, order="sequence", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    print("started", flush=True)
    told = -1
    while True:
        try:
            ended = query.awaitTermination(0.2)
        except StreamingQueryException:
            return False
        for progress in query.recentProgress:
            if progress.batchId > told and progress.numInputRows:
                told = progress.batchId
                done = {"batch": told, "rows": progress.numInputRows, "ms": progress.batchDuration}
                print(json.dumps(done), flush=True)
        if ended:
            return True


if __name__ == "__main__":
    main(*sys.argv[1:])
