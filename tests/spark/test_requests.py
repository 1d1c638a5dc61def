"""Requests of a read on S3, counted by the server: few of them look for removed entries."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from streamkit.log.partition import Partition
from streamkit.spark import rows
from streamkit.spark.source import StreamkitSource

pytestmark = [pytest.mark.spark, pytest.mark.s3]

SPACE = "orders"
PARTITIONS = 4


def once(refresh: Any) -> Any:
    """Count the calls of Partition.refresh, without the first one of each partition."""

    def found(partition: Partition, segments: Any = (), since: int | None = None, **more: Any) -> int:
        known = since == 0 and partition.looks.completed
        return partition.number if known else refresh(partition, segments, since, **more)

    return found


def test_a_task_asks_twice_for_each_partition_and_a_planner_reads_each_once(
    s3_bucket: Any, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    url = s3_bucket.url("p")
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        store.create_space(SPACE, PARTITIONS)
        for at in range(24):
            store.produce(SPACE, f"s{at}", [Record(b"x")])
        store.archive(SPACE)
        store.archive(SPACE)
    clients: dict[Any, Any] = {}
    monkeypatch.setattr(rows, "_clients", clients)

    def requests(work: Any) -> tuple[Any, int]:
        before = len(s3_bucket.requests())
        found = work()
        return found, len(s3_bucket.requests()) - before

    def read() -> int:
        return sum(batch.num_rows for task in tasks for batch in reader.read(task))

    reader = StreamkitSource({"url": url, "store": str(store.id), "space": SPACE}).reader(None)  # type: ignore[arg-type]
    tasks, planned = requests(reader.partitions)
    with monkeypatch.context() as patch:
        # The planner looks at the partitions of spans that another client has planned. Here it read them a moment ago,
        # and a look costs nothing.
        patch.setattr(Partition, "refresh", once(Partition.refresh))
        assert requests(reader.partitions)[1] == planned
    first = requests(read)
    looks = []
    look = rows._partition
    monkeypatch.setattr(rows, "_partition", lambda *given: looks.append(requests(lambda: look(*given))) or looks[-1][0])
    again = requests(read)
    for client in clients.values():
        client.close()
    for name, count in (("planned", planned), ("first", first[1]), ("again", again[1])):
        record_property(name, count)
    assert first[0] == again[0] == 24
    # The head, and the transaction that would follow: in a worker that knows the partition.
    assert [count for _, count in looks] == [2] * PARTITIONS
    assert planned <= 50
