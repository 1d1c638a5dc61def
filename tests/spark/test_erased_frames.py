"""Frames that were planned before an erasure, and read after it: by Spark's own reader, and by the source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from harness.foreign_engines import optimize
from streamkit import Record, Store

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from streamkit.archive.table import Table
from streamkit.spark import FilesReplaced, planned_again, read_space, rows, write_space
from streamkit.spark.source import StreamkitSource

pytestmark = pytest.mark.spark

SPACE = "orders"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return (tmp_path / "stores").as_uri()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store of 20 archived entries in four files."""
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        for at in range(20):
            store.produce(SPACE, f"s{at % 4}", [Record(b"%d" % at)])
            if at % 5 == 4:
                store.archive(SPACE)
        yield store


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clients of their own, as those of Spark's workers are."""
    clients: dict[Any, Any] = {}
    monkeypatch.setattr(rows, "_clients", clients)
    yield
    for client in clients.values():
        client.close()


def payloads(store: Store) -> list[bytes]:
    return sorted(entry.payload for entry in store.consume_space(SPACE))


def planned(url: str, store: Store) -> Iterator[Any]:
    """The rows of the source, planned now and read when they are taken."""
    reader = StreamkitSource({"url": url, "store": str(store.id), "space": SPACE}).reader(None)  # type: ignore[arg-type]
    tasks = reader.partitions()
    return (row for task in tasks for batch in reader.read(task) for row in batch.to_pylist())


def test_the_source_reads_what_an_erasure_left_of_the_files_that_it_planned(
    url: str, store: Store, workers: None
) -> None:
    found = planned(url, store)
    store.erase(SPACE, "s1")
    assert sorted(row["payload"] for row in found) == payloads(store)
    assert len(payloads(store)) == 15


def test_the_source_tells_that_files_of_another_engine_were_replaced(url: str, store: Store, workers: None) -> None:
    optimize(Path(store._archive(SPACE).table.directory or ""))
    found = planned(url, store)
    store.erase(SPACE, "s1")
    with pytest.raises(FilesReplaced, match=r"space 'orders' .* were replaced .* Make the frame again"):
        list(found)
    assert sorted(row["payload"] for row in planned(url, store)) == payloads(store)


@pytest.mark.s3
def test_the_source_tells_that_a_file_was_replaced_while_it_was_read(
    s3_bucket: Any, workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the cloud an open file can vanish. A large one has parts that Arrow has not asked for yet."""
    opened = Table.open

    class Slow:
        """A file without read-ahead: Arrow asks for its row groups one after the other."""

        def __init__(self, source: Any) -> None:
            self.source, self.metadata = source, source.metadata

        def iter_batches(self, _: int, row_groups: list[int], columns: list[str]) -> Iterator[Any]:
            for group in row_groups:
                yield from self.source.read_row_group(group, columns=columns).to_batches()

    url = s3_bucket.url("replaced")
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        for at in range(3):
            store.produce(SPACE, f"s{at}", [Record(os.urandom(100)) for _ in range(2000)])
        store.archive(SPACE)
        with monkeypatch.context() as patch:
            patch.setattr(Table, "open", lambda table, path, **options: Slow(opened(table, path, **options)))
            found = planned(url, store)
            next(found)
            patch.undo()
            store.erase(SPACE, "s1", last=5)
            with pytest.raises(FilesReplaced, match=r"space 'orders' .* were replaced .* Make the frame again"):
                list(found)
        assert sorted(row["payload"] for row in planned(url, store)) == payloads(store)


def test_a_frame_of_files_that_an_erasure_replaced_is_told_of_or_planned_again(
    spark: Any, url: str, store: Store
) -> None:
    frame = read_space(spark, url, store.id, SPACE)
    store.erase(SPACE, "s1")
    # Spark's own reader ends the query, and its API has no place for another message.
    with pytest.raises(Exception, match=r"FAILED_READ_FILE\.FILE_NOT_EXIST"):
        frame.collect()
    into = uuid4()
    with pytest.raises(FilesReplaced, match=r"Make the frame again, with read_space\(\)"):
        write_space(frame.select("segment", "payload"), url, into, "copy")
    with streamkit.connect(url) as client:
        assert list(client.store(into).consume_space("copy")) == []

    frames = [frame]

    def query() -> list[bytes]:
        made = frames.pop() if frames else read_space(spark, url, store.id, SPACE)
        return sorted(bytes(row.payload) for row in made.select("payload").collect())

    assert planned_again(query) == payloads(store)
    with pytest.raises(FilesReplaced):
        planned_again(frame.collect)
