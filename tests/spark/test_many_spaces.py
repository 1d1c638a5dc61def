"""Many small spaces and files: one scan and few tasks read them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record, Retention

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

pytestmark = pytest.mark.spark

SPACES = 8


def tenants(url: str, stores: int) -> set[tuple[str, str, bytes]]:
    """Stores with small spaces, partly archived in several files; and all their entries."""
    there = set()
    with streamkit.connect(url) as client:
        for number in range(stores):
            store = client.store(uuid4())
            for at in range(SPACES):
                space = f"space {at}/ü"
                for turn in range(3):
                    store.produce(space, "s", [Record(b"%d.%d.%d" % (number, at, turn))])
                    if turn < 2:
                        store.archive(space)
                there |= {(str(store.id), space, b"%d.%d.%d" % (number, at, turn)) for turn in range(3)}
    return there


def test_one_scan_reads_the_files_of_all_spaces(spark: Any, tmp_path: Path) -> None:
    from streamkit.spark import read_space

    url = tmp_path.as_uri()
    there = tenants(url, 2)
    frame = read_space(spark, url, "*", "*")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("FileScan parquet") == 1
    found = [(row.store, row.space, bytes(row.payload)) for row in frame.select("store", "space", "payload").collect()]
    assert len(found) == len(there)
    assert set(found) == there
    assert {row.tier for row in frame.select("tier").distinct().collect()} == {"cold", "hot"}


def test_many_files_are_planned_without_a_job_and_the_session_stays_as_it_was(spark: Any, tmp_path: Path) -> None:
    """A job has a task for each file, which takes longer than to look at a local one."""
    from streamkit.spark import read_space

    url, setting = tmp_path.as_uri(), "spark.sql.sources.parallelPartitionDiscovery.threshold"
    there = tenants(url, 3)
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    for given in (None, "3"):
        if given:
            spark.conf.set(setting, given)
        try:
            before = len(jobs())
            frame = read_space(spark, url, "*", "*")
            assert len(jobs()) == before
            assert spark.conf.get(setting, None) == given
        finally:
            spark.conf.unset(setting)
    found = {(row.store, row.space, bytes(row.payload)) for row in frame.select("store", "space", "payload").collect()}
    assert found == there


@pytest.mark.parametrize("tier", ["cold", "hot", "all"])
def test_small_pieces_share_a_task(tier: str, tmp_path: Path) -> None:
    from streamkit.spark.source import StreamkitSource

    url = tmp_path.as_uri()
    tenants(url, 1)
    reader = StreamkitSource({"url": url, "store": "*", "space": "*", "tier": tier}).reader(None)  # type: ignore[arg-type]
    tasks = reader.partitions()
    assert len(tasks) == (2 if tier == "all" else 1)
    assert sum(len(task.pieces) for task in tasks) == SPACES * {"cold": 2, "hot": 1, "all": 3}[tier]  # type: ignore[attr-defined]
    assert (
        sum(batch.num_rows for task in tasks for batch in reader.read(task))
        == SPACES * ({"cold": 2, "hot": 1, "all": 3}[tier])
    )
    few = {"url": url, "store": "*", "space": "*", "tier": tier, "segmentSplit": "4"}
    assert len(StreamkitSource(few).reader(None).partitions()) >= SPACES // 4  # type: ignore[arg-type]


def test_verify_looks_at_all_spaces_at_once_and_names_the_one(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkit.spark.jobs import verify
    from streamkit.spark.jobs.verify import find

    url = tmp_path.as_uri()
    tenants(url, 2)
    with streamkit.connect(url) as client:
        work = [(str(id), space) for id in client.stores() for space in client.store(id).get_spaces()]
    make, frames = verify.frame_of, []

    def made(*given: Any) -> Any:
        frames.append(make(*given))
        return frames[-1]

    monkeypatch.setattr(verify, "frame_of", made)
    assert find(spark, url, work).count() == 0
    assert len(frames) == 1
    # One file less in one of them: its space is named, and no other.
    store, space = work[5]
    place = f"{store}/{space.replace(' ', '~20').replace('/', '~2F').replace('ü', '~C3~BC')}"
    next((tmp_path / "archive" / place / "_delta_log").glob("*.json")).write_text("{")
    found = find(spark, url, work).collect()
    assert {(row.store, row.space) for row in found} == {(store, space)}


def test_what_was_removed_is_no_finding(spark: Any, tmp_path: Path) -> None:
    from streamkit.spark.jobs.verify import find

    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        for space in ("whole", "trimmed", "by segment", "erased", "deleted", "kept"):
            for at in range(12):
                store.produce(space, f"s{at % 2}", [Record(b"x")])
            store.archive(space)
        store.trim("trimmed", keep_entries=5)
        store.trim("by segment", "s1", before=3)
        store.erase("erased", "s0", first=2, last=3)
        store.delete_segment("deleted", "s1")
        store.set_retention("kept", Retention(max_entries=3))
        work = [(str(store.id), space) for space in store.get_spaces()]
        assert len(work) == 6
        assert find(spark, url, work).collect() == []
        store.maintain()
        assert find(spark, url, work).collect() == []
