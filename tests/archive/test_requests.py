"""What opening and writing an archive's table costs in requests, counted by the S3 server itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

import streamkit
from streamkit import Record, Store
from streamkit.log.policy import REMOTE

pytest.importorskip("deltalake")

pytestmark = pytest.mark.s3

SPACE = "orders"


class Counted:
    """A bucket, and the requests to it since the last look."""

    def __init__(self, bucket: Any) -> None:
        self.bucket = bucket
        self.url: str = bucket.url("p")
        self._seen = 0
        self.look()

    def look(self) -> Counter[str]:
        """By method, and by what they are about: "table" or "engine"."""
        found = self.bucket.requests()
        new, self._seen = found[self._seen :], len(found)
        kinds = Counter[str]()
        for method, target in new:
            kinds[method] += 1
            kinds["table" if "/archive/" in target or "archive%2F" in target else "engine"] += 1
        return kinds


@pytest.fixture
def counted(s3_bucket: Any) -> Counted:
    return Counted(s3_bucket)


@pytest.fixture
def client(counted: Counted) -> Iterator[streamkit.Client]:
    with streamkit.connect(counted.url) as client:
        yield client


def archived(client: streamkit.Client, partitions: int, commits: int) -> UUID:
    """A store whose table has that many versions, and entries in each of its partitions."""
    store = client.store(uuid4())
    store.create_space(SPACE, partitions)
    for at in range(max(partitions // 2, 2)):
        store.produce(SPACE, f"segment {at}", [Record(b"x")] * 2)
    store.archive(SPACE)
    commit(store, commits)
    return store.id


def commit(store: Store, version: int) -> None:
    """Bring the table to that version, with commits that only set marks."""
    table = store._archive(SPACE).table
    while (state := table.state()) is not None and state.version < version:
        assert table.commit(state, [])


@pytest.mark.parametrize("partitions", [1, 8, 64])
def test_the_first_lookup_costs_the_same_however_many_partitions_a_table_has(
    client: streamkit.Client, counted: Counted, partitions: int
) -> None:
    """A table of 40 commits; and of 48, where no version is further from a checkpoint."""
    id = archived(client, partitions, 40)
    for commits in (40, 48):
        commit(client.store(id), commits)
        with streamkit.connect(counted.url) as stranger:
            counted.look()
            assert len(list(stranger.store(id).consume_segment(SPACE, "segment 1"))) == 2
            first = counted.look()
            assert first["table"] <= 30, first  # a HEAD goes before each file of the log
            # The first partition and the segment's: what may be the tail of the log is asked for in one round trip.
            assert first["engine"] <= 2 * (REMOTE.upkeep + 4), first
            list(stranger.store(id).consume_segment(SPACE, "segment 1"))
            assert counted.look()["table"] <= 2


def test_a_reader_that_has_a_version_reads_only_those_after_it(client: streamkit.Client, counted: Counted) -> None:
    id = archived(client, 4, 12)
    store = client.store(id)
    with streamkit.connect(counted.url) as other:
        reader = other.store(id)
        list(reader.consume_space(SPACE))
        store.produce(SPACE, "segment 0", [Record(b"new")])
        store.archive(SPACE)
        known = reader._known(SPACE)
        assert known is not None
        for partition in known.partitions:
            partition.look_at_head()
        counted.look()
        assert [entry.payload for entry in reader.consume_segment(SPACE, "segment 0")][-1] == b"new"
        # The new version, the question for one more, and the new file.
        assert counted.look()["table"] <= 9


@pytest.mark.parametrize("partitions", [1, 20])
def test_an_archive_run_commits_once_for_many_partitions(
    client: streamkit.Client, counted: Counted, partitions: int
) -> None:
    store = client.store(uuid4())
    store.create_space(SPACE, partitions)
    for at in range(40):
        store.produce(SPACE, f"segment {at}", [Record(b"x")])
    counted.look()
    report = store.archive(SPACE)
    requests = counted.look()
    assert report.entries == 40
    assert report.commits == -(-partitions // 16)
    # Of them three for each file, which delta-rs sends in parts.
    assert requests["table"] <= 3 * report.files + 20 * report.commits + 15, requests
    store.produce(SPACE, "segment 0", [Record(b"y")])
    counted.look()
    assert store.archive(SPACE).commits == 1
    assert counted.look()["table"] <= 25 + 2 * partitions // 16
