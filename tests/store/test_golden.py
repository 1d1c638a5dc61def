"""Stores that earlier versions wrote are opened by every later one. `golden/write.py` wrote them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

import streamkit
from harness.combining import CombiningDriver, posting
from harness.log_keys import transaction_keys
from harness.sweep import StillClock
from streamkit import Record
from streamkit.backend import Backend, Driver
from streamkit.errors import CorruptData, Fenced, TransactionIdMismatch, UnsupportedVersion
from streamkit.log import record_format, rows
from streamkit.log.keys import CATALOG, HEAD, partition_key, space_key
from streamkit.log.rows import Head, decode_row
from streamkit.store import Store
from streamkit_memory.driver import MemoryDriver

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(path.stem.partition("-")[2] for path in GOLDEN.glob("entries-*.json"))
FIRST = "3-first"
"""A release without inbox, and without removals."""
WAYS = ["local", "memory", "remote"]


def _writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_write", GOLDEN / "write.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITER = _writer()


@contextmanager
def opened(version: str, way: str, tmp_path: Path) -> Iterator[Store]:
    """A copy of the golden store."""
    if way == "local":
        shutil.copytree(GOLDEN / f"local-{version}", tmp_path / "root")
        with streamkit.connect((tmp_path / "root").as_uri()) as client:
            yield client.store(WRITER.STORE)
        return
    clock = StillClock(1_700_000_100)
    driver = MemoryDriver(remote=way == "remote", clock=clock, sleep=clock.sleep)
    backend = driver.open(WRITER.STORE)
    for partition, key, data in json.loads((GOLDEN / f"rows-{version}.json").read_text())[way]:
        backend.put(bytes.fromhex(partition), bytes.fromhex(key), bytes.fromhex(data))
    with streamkit.Client("memory://", driver, 5.0, None, 1 << 26, clock) as client:
        yield client.store(WRITER.STORE)


def wanted(version: str, way: str) -> Any:
    return json.loads((GOLDEN / f"entries-{version}.json").read_text())[way]


@pytest.mark.usefixtures("codec")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_any_version_reads_as_it_was_written(version: str, way: str, tmp_path: Path) -> None:
    truth = wanted(version, way)
    with opened(version, way, tmp_path) as store:
        assert WRITER.reading(store) == truth
        assert store.verify().findings == ()
        for space, entries in truth.items():
            offsets = [entry[9] for entry in entries]
            for at in range(0, len(offsets), 3):
                rest = [entry.space_offset.hex() for entry in store.consume_space(space, offset=offsets[at])]
                assert rest == offsets[at + 1 :]


@pytest.mark.usefixtures("codec")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_any_version_goes_on(version: str, way: str, tmp_path: Path) -> None:
    """Sequences, idempotency keys and fences are those of then; maintenance and repair find their way."""
    with opened(version, way, tmp_path) as store:
        before = store.segment_status("plain", "a").last_sequence
        assert store.produce("plain", "a", [Record(b"new")], expected_sequence=before).last_sequence == before + 1
        with pytest.raises(TransactionIdMismatch):
            store.produce("plain", "a", [Record(b"other content")], idempotency_key="packed")
        lease = store.lease("leader")
        lease._grant = store._backend.acquire("leader", 30.0)
        assert lease._grant is not None
        lease._grant = lease._grant._replace(token=0)
        with pytest.raises(Fenced):
            store.produce("plain", "c", [Record(b"from an old leader")], lease=lease)
        store.maintain()
        assert store.verify().findings == ()
        store.repair()
        assert store.verify().findings == ()
        assert [entry.sequence for entry in store.consume_segment("plain", "a")] == list(range(1, before + 2))


def test_this_version_has_a_golden_store() -> None:
    assert str(max(record_format.VERSION, rows.VERSION)) in VERSIONS


@pytest.mark.parametrize("row", ["catalog", "head"])
def test_a_store_of_a_release_before_the_first_is_refused(row: str, tmp_path: Path) -> None:
    partition, key = {
        "catalog": (bytes(CATALOG), bytes(space_key("plain"))),
        "head": (bytes(partition_key("plain", 0)), bytes(HEAD)),
    }[row]
    with opened(VERSIONS[-1], "memory", tmp_path) as store:
        value = store._backend.get(partition, [key])[0]
        assert value is not None
        body = b"\x02" + value.data[5:]
        store._backend.put(partition, key, zlib.crc32(body, zlib.crc32(key)).to_bytes(4, "little") + body)
        with pytest.raises(UnsupportedVersion, match="before the first one that was published"):
            store.create_space("plain") if row == "catalog" else store.peek("plain", "a")


@contextmanager
def release_without_inbox() -> Iterator[None]:
    """Read and write the formats of an earlier release in this context."""
    with patch.object(record_format, "VERSION", 1), patch.object(rows, "VERSION", 3):
        yield


def process(store: Store, around: Callable[[Driver], Driver] = lambda driver: driver) -> Store:
    """Another process on the same rows."""
    driver = around(_Same(store._backend))
    return streamkit.Client("memory://", driver, 5.0, None, 1 << 26, StillClock(1_700_000_100)).store(WRITER.STORE)


def versions(store: Store) -> tuple[int, int]:
    """Return (of the head, of the last transaction in the log) of the space "plain"."""
    backend, partition = store._backend, bytes(partition_key("plain", 0))
    head = backend.get(partition, [bytes(HEAD)])[0]
    *_, last = backend.scan(partition, b"TXN", b"TXO")
    assert head is not None
    return head.data[4], last.data[8]


def test_processes_share_an_inbox_in_a_store_of_a_release_that_had_none(tmp_path: Path) -> None:
    with opened(FIRST, "remote", tmp_path) as store, posting():
        assert versions(store) == (3, 1)
        before = list(process(store).consume_space("plain"))
        last = before[-1].sequence
        other = streamkit.Client("memory://", _Same(store._backend), 5.0, None, 1 << 26, StillClock(1_700_000_100))
        poster = process(store, lambda driver: CombiningDriver(driver, other))
        for at in range(30):
            poster.produce("plain", "a", [Record(b"%d" % at)], expected_sequence=last + at)
        assert poster.statistics().posted == 30
        assert other.store(WRITER.STORE).statistics().combined == 30
        with pytest.raises(TransactionIdMismatch):
            poster.produce("plain", "a", [Record(b"other content")], idempotency_key="packed")
        poster.maintain()
        assert versions(store) == (rows.VERSION, record_format.VERSION)
        after = list(process(store).consume_space("plain"))
        assert after[: len(before)] == before
        assert [entry.payload for entry in after[len(before) :]] == [b"%d" % at for at in range(30)]
        assert store.verify().findings == ()


@pytest.mark.parametrize("indexed", [False, True])
def test_a_release_without_inbox_is_refused_where_this_one_has_written(indexed: bool, tmp_path: Path) -> None:
    """A process learns of the deletion from its next transaction, or from the head if there is none."""
    with opened(FIRST, "remote", tmp_path) as store:
        with release_without_inbox():
            older = process(store)
            older.produce("plain", "a", [Record(b"as before")])
            assert versions(store) == (3, 1)
        store.produce("plain", "a", [Record(b"of this release")])
        if indexed:
            store.maintain("plain")
        assert versions(store) == (rows.VERSION if indexed else 3, record_format.VERSION)
        before = rows_of(store)
        with release_without_inbox():
            for one in (older, process(store)):
                with pytest.raises(UnsupportedVersion, match=r"Upgrade"):
                    one.produce("plain", "a", [Record(b"refused")])
                with pytest.raises(UnsupportedVersion, match=r"Upgrade"):
                    list(one.consume_space("plain"))
                with pytest.raises(UnsupportedVersion, match=r"Upgrade"):
                    one.maintain("plain")
        assert rows_of(store) == before
        assert [entry.payload for entry in store.consume_space("plain")][-2:] == [b"as before", b"of this release"]


def rows_of(store: Store) -> list[tuple[bytes, bytes]]:
    return [(row.key, row.data) for row in store._backend.scan(bytes(partition_key("plain", 0)), b"", b"\xff")]


class _Same:
    """A driver for another process on the same rows."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def open(self, store: UUID) -> Backend:
        return self._backend

    def stores(self) -> Iterator[UUID]:
        return iter(())

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


@pytest.mark.parametrize("way", ["memory", "remote"])
def test_what_a_newer_version_wrote_is_refused_and_left_alone(way: str, tmp_path: Path) -> None:
    """Two versions at work on one store: the older one stops at the first record that it cannot read."""
    with opened(VERSIONS[-1], way, tmp_path) as store:
        backend, partition = store._backend, bytes(partition_key("plain", 0))
        trx = store.produce("plain", "a", [Record(b"the last")]).trx
        assert trx is not None
        number = trx.number
        key = transaction_keys(backend, "plain")(number)
        row = backend.get(partition, [key])[0]
        assert row is not None
        record = bytearray(row.data)
        record[8] = record_format.VERSION + 1
        header = 24 + int.from_bytes(record[12:16], "little")
        head = backend.get(partition, [bytes(HEAD)])[0]
        assert head is not None
        incarnation = decode_row(Head, HEAD, head.data).settings.incarnation
        seed = zlib.crc32(incarnation, zlib.crc32(partition))
        record[4:8] = zlib.crc32(record[8:header], seed).to_bytes(4, "little")
        backend.put(partition, key, bytes(record))
        client = streamkit.Client("memory://", _Same(backend), 5.0, None, 1 << 26, StillClock())
        older = client.store(WRITER.STORE)
        with pytest.raises(UnsupportedVersion, match="Upgrade"):
            list(older.consume_space("plain"))
        assert any("Upgrade" in finding.problem for finding in older.verify("plain").findings)
        with pytest.raises((UnsupportedVersion, CorruptData)):
            older.repair("plain")
