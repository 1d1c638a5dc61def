"""Requests to open and to write an archive's table, counted by the S3 server itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

import streamkit
from streamkit import Record, Store
from streamkit.backend import Ambiguous

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
        """Requests by method and by subject: "table" or "engine"."""
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
    """A store whose table has `versions` versions, with entries in each partition."""
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


@pytest.mark.exhaustive_only(partitions=8)
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
            # A HEAD goes before each file of the table; a table of 48 commits has up to nine more versions to read.
            assert first["table"] <= 7 + 2 * (9 if commits == 48 else 0), first
            # The heads of the first partition and of the segment's, the store's mark, and a possible tail.
            assert first["engine"] <= 11, first
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
            partition.read_head()
        counted.look()
        assert [entry.payload for entry in reader.consume_segment(SPACE, "segment 0")][-1] == b"new"
        # The new version, the question for one more, and the new file.
        assert counted.look()["table"] <= 9


@pytest.mark.parametrize("partitions", [1, 64])
def test_an_archive_run_costs_few_requests_for_each_partition(
    client: streamkit.Client, counted: Counted, partitions: int
) -> None:
    """One lease, one commit, and one note of when for all; a look at each log, two writes of its head, one file. A new
    client also reads each head, and the entries."""
    store = client.store(uuid4())
    store.create_space(SPACE, partitions)

    def run(archiver: Store = store) -> Counter[str]:
        for at in range(128):
            store.produce(SPACE, f"segment {at}", [Record(b"x")])
        counted.look()
        report = archiver.archive(SPACE)
        assert (report.entries, report.commits) == (128, 1)
        requests = counted.look()
        assert requests["POST"] == 0  # a small file is sent at once, not in parts
        assert requests["table"] <= report.files + 30, requests
        return requests

    first, later = run(), run()
    assert first["engine"] + first["table"] <= 40 + 5 * partitions
    assert later["engine"] + later["table"] <= 40 + 4 * partitions
    with streamkit.connect(counted.url) as stranger:
        new = run(stranger.store(store.id))
    assert new["engine"] + new["table"] <= 500


def test_a_client_that_knows_nothing_archives_after_a_look_at_each_log(
    client: streamkit.Client, counted: Counted
) -> None:
    store = client.store(uuid4())
    store.create_space(SPACE, 8)
    for at in range(16):
        store.produce(SPACE, f"segment {at}", [Record(b"x")])
    with streamkit.connect(counted.url) as other:
        counted.look()
        assert other.store(store.id).archive(SPACE).entries == 16
        requests = counted.look()
        # Of the first partition the tail is read when the space is opened.
        assert requests["engine"] <= 10 + 21 + 8 * 8, requests


def test_a_file_whose_answer_is_lost_is_sent_by_delta_rs(
    client: streamkit.Client, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamkit_s3 import S3Driver

    put = S3Driver.put_archived

    def lost(driver: S3Driver, path: str, data: bytes) -> None:
        put(driver, path, data)
        raise Ambiguous("the answer was lost")

    monkeypatch.setattr(S3Driver, "put_archived", lost)
    store = client.store(uuid4())
    store.produce(SPACE, "segment", [Record(b"x")])
    counted.look()
    assert store.archive(SPACE).files == 1
    assert counted.look()["POST"] == 2
    assert [entry.tier for entry in store.consume_space(SPACE)] == ["cold"]
