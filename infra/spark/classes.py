"""Keep the classes that Spark loads in a file, from which another JVM of the tests starts in half of the time.

    python infra/spark/classes.py FILE

A JVM that finds the file of another version, or of other jars, starts without it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

import streamkit
from streamkit import Record
from streamkit.spark import read_space, session

CONNECTORS = Path(sys.prefix) / "connectors"
FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")


def keep(file: Path) -> None:
    """Run what the tests of Spark run, and have the JVM write `file` when it ends."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = session(
        spark__master="local[2]",
        spark__ui__enabled="false",
        spark__ui__showConsoleProgress="false",
        spark__sql__shuffle__partitions="2",
        spark__driver__extraClassPath=f"{CONNECTORS}/*",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        spark__driver__extraJavaOptions=" ".join([*FLAGS, f'"-XX:ArchiveClassesAtExit={file}"']),
    )
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as folder, streamkit.connect(url := f"file://{folder}/stores") as client:
        store = client.store(uuid4())
        for at in range(4):
            store.produce("s", f"segment-{at % 2}", [Record(b'{"n":%d}' % at)])
            if at == 2:
                store.archive("s")
        given = {"url": url, "store": str(store.id), "space": "s"}
        read_space(spark, url, store.id, "s").groupBy("segment").count().orderBy("segment").collect()
        spark.read.format("streamkit").options(**given).load().collect()
        spark.range(9).write.parquet(f"{folder}/rows")
        out = {**given, "space": "out", "checkpointLocation": f"{folder}/checkpoint"}
        frame = spark.readStream.format("streamkit").options(**given).load().select("segment", "payload")
        query = frame.writeStream.format("streamkit").options(**out).trigger(availableNow=True).start()
        query.awaitTermination()
        jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        jvm.stdin.close()
        jvm.wait()


if __name__ == "__main__":
    keep(Path(sys.argv[1]).resolve())
