"""Spark's own Parquet reader on S3: hadoop-aws against moto. The jars are those that `make test` has fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_spark import SPACE, entries_of, fill, rows_of

import streamkit
from harness.spark_session import CONNECTORS
from streamkit import Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from streamkit.spark import read_space

pytestmark = [
    pytest.mark.spark,
    pytest.mark.s3,
    pytest.mark.skipif(not CONNECTORS.exists(), reason="python infra/spark/connectors.py fetches hadoop-aws"),
]

FILES = 12


@pytest.fixture(scope="module")
def bucket(spark: Any, s3_server: Any, s3_credentials: None) -> Any:
    """A bucket that Spark may read. It may read no other one."""
    made = s3_server.bucket()
    configuration = spark._jsc.hadoopConfiguration()
    configuration.set(f"fs.s3a.bucket.{made.name}.endpoint", made.server.endpoint + "/")
    configuration.set(f"fs.s3a.bucket.{made.name}.path.style.access", "true")
    # The default one keeps what it has read, and requests are counted here.
    configuration.set(f"fs.s3a.bucket.{made.name}.input.stream.type", "classic")
    return made


@pytest.fixture(scope="module")
def store(bucket: Any) -> Iterator[Store]:
    """A space of one partition, archived in many files, with a tail."""
    with streamkit.connect(bucket.url("stores")) as client:
        store = client.store(uuid4())
        fill(store, 3 * FILES)
        store.archive(SPACE, target_file_bytes=100)
        fill(store, 6, start=3 * FILES)
        yield store


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan())


def test_spark_reads_the_cold_tier_by_itself(bucket: Any, spark: Any, store: Store) -> None:
    wanted = entries_of(store)
    assert {row[-1] for row in wanted} == {"hot", "cold"}
    frame = read_space(spark, bucket.url("stores"), store.id, SPACE)
    assert plan_of(frame).count("FileScan parquet") == 1
    assert rows_of(frame) == wanted
    cold = read_space(spark, bucket.url("stores"), store.id, SPACE, tier="cold")
    assert "BatchScan" not in plan_of(cold)
    assert rows_of(cold) == [row for row in wanted if row[-1] == "cold"]
    entries = list(store.consume_space(SPACE))
    some = read_space(spark, bucket.url("stores"), store.id, SPACE, until=bytes(entries[50].space_offset))
    assert sorted((e.segment, e.sequence) for e in entries[:51]) == [row[:2] for row in rows_of(some)]


def test_files_are_listed_and_not_asked_for_one_by_one(bucket: Any, spark: Any, store: Store) -> None:
    names = [name for name in bucket.names() if name.endswith(".parquet") and str(store.id) in name]
    assert len(names) >= FILES
    read_space(spark, bucket.url("stores"), store.id, SPACE).count()
    before = len(bucket.requests())
    frame = read_space(spark, bucket.url("stores"), store.id, SPACE, tier="cold")
    requests = bucket.requests()[before:]
    for found in ([r for r in requests if r[0] == "HEAD"], [r for r in requests if "list-type" in r[1]]):
        assert len(found) < FILES - 2, found
    assert frame.count() == sum(1 for entry in store.consume_space(SPACE) if entry.tier == "cold")


def test_files_of_other_versions_are_neither_read_nor_opened(bucket: Any, spark: Any, tmp_path: Path) -> None:
    with streamkit.connect(bucket.url("old")) as client:
        store = client.store(uuid4())
        fill(store, 20)
        store.archive(SPACE, target_file_bytes=50)
        pinned, before = read_space(spark, bucket.url("old"), store.id, SPACE), entries_of(store)
        store.compact(SPACE)
        fill(store, 12, start=20)
        store.archive(SPACE, target_file_bytes=50)
        snapshot = store._archive(SPACE).table.snapshot()
        assert snapshot is not None
        kept = {file.path for file in snapshot.files}
        there = [name for name in bucket.names() if name.endswith(".parquet") and str(store.id) in name]
        assert len(there) > len(kept)
        assert rows_of(pinned) == before
        assert rows_of(read_space(spark, bucket.url("old"), store.id, SPACE)) == entries_of(store)
        frame = read_space(spark, bucket.url("old"), store.id, SPACE, tier="cold")
        frame.collect()
        assert files_opened(frame) == len(kept)


def files_opened(frame: Any) -> int:
    """The metrics of the scans of an evaluated frame."""
    left, count = [frame._jdf.queryExecution().executedPlan()], 0
    while left:
        node = left.pop()
        children = node.children().iterator()
        while children.hasNext():
            left.append(children.next())
        if node.metrics().contains("numFiles"):
            count += node.metrics().apply("numFiles").value()
    return count


def test_a_missing_file_is_an_error_and_never_fewer_rows(bucket: Any, spark: Any, tmp_path: Path) -> None:
    with streamkit.connect(bucket.url("lost")) as client:
        store = client.store(uuid4())
        fill(store, 20)
        store.archive(SPACE, target_file_bytes=50)
        names = [name for name in bucket.names() if name.endswith(".parquet") and str(store.id) in name]
        pinned = read_space(spark, bucket.url("lost"), store.id, SPACE)
        bucket.server.client().delete_object(Bucket=bucket.name, Key=sorted(names)[-1])
        with pytest.raises(Exception, match=r"missing|FAILED_READ_FILE|does not exist|No such file"):
            pinned.count()
        with pytest.raises(Exception, match="missing"):
            read_space(spark, bucket.url("lost"), store.id, SPACE).count()
