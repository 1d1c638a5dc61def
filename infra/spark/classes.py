"""Keep the classes that Spark loads in a file, from which another JVM of the tests starts in half of the time.

    python infra/spark/classes.py FILE

A JVM that finds the file of another version, or of other jars, starts without it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from uuid import uuid4

import streamkit
from streamkit import Record
from streamkit.spark import read_space

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from harness.spark_session import JVM_FLAGS, small_session


def keep(file: Path) -> None:
    """Run what the tests of Spark run, and have the JVM write `file` when it ends."""
    spark = small_session(f'{JVM_FLAGS} "-XX:ArchiveClassesAtExit={file}"')
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
        jvm = spark.sparkContext._gateway.proc
        spark.stop()
        jvm.stdin.close()
        jvm.wait()


if __name__ == "__main__":
    keep(Path(sys.argv[1]).resolve())
