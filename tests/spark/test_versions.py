"""The versions of Spark: every way to read and write on each minor one; and streams without the interface of Spark
4.2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from streamkit import Record

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from streamkit.spark import sink
from streamkit.spark.options import parse
from streamkit.spark.stream import StreamReader

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SPACE = "orders"
VERSIONS = ("4.0", "4.1", "4.2")
LACKING = {"4.0": {"limited stream"}, "4.1": {"limited stream"}}
"""The ways that a version lacks: it asks for the end of the first batch before it tells where that begins."""


@pytest.mark.slow
@pytest.mark.skipif(not EXHAUSTIVE, reason="`make test-exhaustive` builds an environment for each version")
@pytest.mark.parametrize("version", VERSIONS)
def test_every_way_to_read_and_write_works_on_an_older_spark(version: str) -> None:
    python = Path(sys.prefix) / f"spark-{version}" / "bin" / "python"
    assert python.exists(), f"make .venv/spark-{version}.stamp"
    wrong = problems(python)
    assert wrong.keys() == LACKING.get(version, set()), wrong


@pytest.mark.slow
@pytest.mark.skipif(not EXHAUSTIVE, reason="it starts a server of Spark Connect, which takes minutes")
def test_every_way_to_read_and_write_works_on_spark_connect() -> None:
    pytest.importorskip("grpc_status")
    assert problems(Path(sys.executable), "--connect") == {}


def problems(python: Path, *arguments: str) -> dict[str, str]:
    """The ways that failed with the Spark of that Python, and why."""
    command = [str(python), str(ROOT / "tests" / "harness" / "spark_version.py"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.partition("way: ")[2] for line in ran.stdout.splitlines() if "way: " in line]
    found = dict(json.loads(line) for line in lines)
    assert len(found) == 14, ran.stderr[-2000:]
    return {name: problem for name, problem in found.items() if problem is not None}


def taken(reader: StreamReader, begin: Any, end: Any) -> int:
    batches = (batch for task in reader.partitions(begin, end) for batch in reader.read(task))
    return sum(batch.num_rows for batch in batches)


def test_a_stream_reads_in_limited_batches_where_spark_does_not_say_where_they_begin(tmp_path: Path) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        for at in range(25):
            store.produce(SPACE, f"s{at % 3}", [Record(b"%d" % at)])
        given = {"url": tmp_path.as_uri(), "store": str(store.id), "space": SPACE, "maxRowsPerTrigger": "10"}
        reader = StreamReader(parse(given))
        place, batches = reader.initialOffset(), []
        # As Spark 4.0 and 4.1 call it.
        while (end := reader.latestOffset()) != place:
            batches.append(taken(reader, place, end))
            place = end
        assert batches == [10, 10, 5]
        store.produce(SPACE, "s0", [Record(b"more")] * 3)
        reader.stop()
        # A reader that knows of no beginning takes all that waits, then no more than the limit.
        reader = StreamReader(parse(given))
        end = reader.latestOffset()
        assert taken(reader, place, end) == 3
        store.produce(SPACE, "s1", [Record(b"%d" % at) for at in range(4)])
        for at in range(20):
            store.produce(SPACE, "s2", [Record(b"%d" % at)])
        after = reader.latestOffset()
        assert taken(reader, end, after) == 10
        reader.stop()


def test_a_streams_sink_takes_rows_as_well_as_batches() -> None:
    from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

    schema = StructType(
        [
            StructField("segment", StringType()),
            StructField("payload", BinaryType()),
            StructField("metadata", MapType(StringType(), StringType())),
            StructField("at", LongType()),
        ]
    )
    rows = [("s", b"1", {"a": "b"}, 1), ("t", b"2", None, None)]
    [batch] = sink.as_batches(iter(rows), schema)
    assert batch.to_pylist() == [
        {"segment": "s", "payload": b"1", "metadata": [("a", "b")], "at": 1},
        {"segment": "t", "payload": b"2", "metadata": None, "at": None},
    ]
    assert list(sink.as_batches(iter([]), schema)) == []
