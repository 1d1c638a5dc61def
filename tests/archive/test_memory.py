"""Memory of compaction and of archive readers: the decoded size bounds it, not the compressed size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record, Store

pytest.importorskip("deltalake")

import pyarrow as pa

SPACE = "documents"
MIB = 1 << 20
DOCUMENT = (b"a document that is like every other one, " * 26_000)[:MIB]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[streamkit.Client]:
    with streamkit.connect(tmp_path.as_uri()) as client:
        yield client


def documents(store: Store, files: int, each: int) -> None:
    """Archive `files` files of `each` MiB of payload, which compress to almost nothing."""
    for file in range(files):
        for at in range(each):
            store.produce(SPACE, f"s{at % 3}", [Record(DOCUMENT[:-8] + b"%08d" % (file * each + at))])
        store.archive(SPACE)


def test_compaction_holds_what_a_file_may_have_decoded(client: streamkit.Client, pool: pa.MemoryPool) -> None:
    store = client.store(uuid4())
    documents(store, 16, 16)
    archive = store._archive(SPACE)
    snapshot = archive.table.snapshot()
    assert snapshot is not None
    assert sum(file.size for file in snapshot.files) < 16 * MIB
    report = store.compact(SPACE, retention_hours=0)
    assert (report.before, report.after) == (16, 4)
    assert pool.max_memory() < 300 * MIB
    assert store.compact(SPACE).after == 4
    assert [entry.payload[-8:] for entry in store.consume_space(SPACE)] == [b"%08d" % at for at in range(256)]
    assert sum(1 for _ in store.to_arrow(SPACE, columns=["payload"])) >= 8
    assert pool.max_memory() < 300 * MIB


def test_a_file_that_nobody_can_hold_is_read_in_parts_and_compacted(
    client: streamkit.Client, pool: pa.MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier releases made them, by their size compressed."""
    from streamkit.archive import scattered

    store = client.store(uuid4())
    for at in range(256):
        store.produce(SPACE, f"s{at % 3}", [Record(DOCUMENT[:-8] + b"%08d" % at)])
    monkeypatch.setattr(scattered, "WINDOW", 24 * MIB)
    store.archive(SPACE, target_file_bytes=1 << 30)
    archived = pool.max_memory()
    assert archived > 256 * MIB
    pa.set_memory_pool(reading := pa.proxy_memory_pool(pool))
    payloads = [b"%08d" % at for at in range(256)]
    with streamkit.connect(client.store(store.id)._shared.archive_root()[0].removesuffix("/archive")) as other:
        reader = other.store(store.id)
        assert [entry.payload[-8:] for entry in reader.consume_space(SPACE)] == payloads
        assert sum(batch.num_rows for batch in reader.to_arrow(SPACE)) == 256
        assert reading.max_memory() < 150 * MIB
        report = reader.compact(SPACE, retention_hours=0)
        assert report.before == 1
        assert report.after > 8
        assert reading.max_memory() < 200 * MIB
        assert [entry.payload[-8:] for entry in reader.consume_space(SPACE)] == payloads
        again = reader.compact(SPACE, target_file_bytes=20 * MIB)
        assert again.after == report.after


def test_a_search_by_metadata_holds_little_of_a_file(client: streamkit.Client, pool: pa.MemoryPool) -> None:
    store = client.store(uuid4())
    for at in range(96):
        of = {"subject": "person"} if at in (0, 50, 95) else {"subject": "another"}
        store.produce(SPACE, f"s{at % 3}", [Record(DOCUMENT[:-8] + b"%08d" % at, of)])
    store.archive(SPACE, target_file_bytes=1 << 30)
    pa.set_memory_pool(searching := pa.proxy_memory_pool(pool))
    report = store.erase(SPACE, metadata={"subject": "person"}, dry_run=True)
    assert (report.entries, report.searched) == (3, 96)
    assert searching.max_memory() < 64 * MIB
    assert store.erase(SPACE, metadata={"subject": "person"}).entries == 3
    assert [entry.payload[-8:] for entry in store.consume_space(SPACE, gaps="skip")] == [
        b"%08d" % at for at in range(96) if at not in (0, 50, 95)
    ]


def test_archiving_many_segments_holds_what_one_file_of_them_takes(
    tmp_path: Path, client: streamkit.Client, pool: pa.MemoryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a segment of one entry, the position of its frame takes more memory than the entry."""
    from streamkit.archive import write

    monkeypatch.setattr(write, "_FRAMES", 2000)

    def archive(count: int) -> int:
        """The most that Python held, of a process that knows nothing of the space."""
        store = client.store(uuid4())
        store.create_space(SPACE, archive_grace=0.001)
        for begin in range(0, count, 1000):
            with store.transaction(SPACE) as trx:
                for at in range(begin, begin + 1000):
                    trx.produce(f"segment-{at:08}", [Record(b"one entry")])
        store.maintain()  # so that the other one begins with an index, and not with a tail
        with streamkit.connect(tmp_path.as_uri()) as other:
            tracemalloc.start()
            try:
                reports = [other.store(store.id).archive(SPACE) for _ in range(2)]
                most = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert sum(report.removed for report in reports) == count // 1000
        return most

    archive(2000)  # modules that are imported once
    few, many = archive(2000), archive(8000)
    assert many - few < 6000 * 250
    assert pool.max_memory() < 8 * MIB
