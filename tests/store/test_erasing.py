"""Erasure: the bytes are searched for in all that is stored, with the process stopped at every call on the way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fix_azurite import Azurite
from fix_s3 import S3Bucket

import streamkit
import streamkit_local
import streamkit_memory
from harness.deep_search import files_below, found_in
from streamkit import Record, Store
from streamkit.backend import Driver
from streamkit.client import Client
from streamkit.clock import SYSTEM_CLOCK
from streamkit.testing import CRASHES, Crash, FaultyDriver, Plan

Stored = Callable[[], Iterator[tuple[str, bytes]]]
EXHAUSTIVE = bool(os.environ.get("STREAMKIT_EXHAUSTIVE"))


class Secrets:
    """Payloads that nothing else has, of many sizes, among others that stay."""

    def __init__(self) -> None:
        self.tag = os.urandom(24)
        self.kept = os.urandom(24)

    def write(self, store: Store, turns: int = 24, large: int = 0) -> None:
        for turn in range(turns):
            size = large if large and turn == 5 else (10, 3000, 40_000)[turn % 3]
            body = os.urandom(size)
            with store.transaction("a") as trx:
                trx.produce("user-1", [Record(self.tag + body, {"who": "user-1"}), Record(b"log in")])
                trx.produce("user-2", [Record(self.kept + body)])
            if turn in (7, 15):
                store.maintain()


def check(store: Store, secrets: Secrets, stored: Stored, turns: int = 24) -> None:
    assert found_in(stored(), secrets.tag) == []
    assert found_in(stored(), secrets.kept), "the search finds nothing at all"
    assert [entry.sequence for entry in store.consume_segment("a", "user-1")] == list(range(2, 2 * turns + 1, 2))
    kept = list(store.consume_segment("a", "user-2"))
    assert len(kept) == turns
    assert all(entry.payload.startswith(secrets.kept) for entry in kept)
    report = store.verify("a")
    assert report.ok, report.findings[:3]


def memory_of(url: str) -> Stored:
    def stored() -> Iterator[tuple[str, bytes]]:
        driver = streamkit_memory.connect(url, timeout=5.0)
        for store in driver.stores():
            backend = driver.open(store)
            for partition in list(driver._service.stores[store]):
                for row in backend.scan(partition, b"", b"\xff" * 300):
                    yield f"{partition!r}/{row.key!r}", row.data

    return stored


def test_nothing_is_left_on_disk_of_what_was_erased(tmp_path: Path) -> None:
    secrets = Secrets()
    with streamkit.connect(f"file://{tmp_path}") as client, client.store(uuid4()) as store:
        secrets.write(store, large=3 << 20)
        assert len(found_in(files_below(tmp_path), secrets.tag)) >= 2
        report = store.erase("a", metadata={"who": "user-1"})
        assert (report.entries, report.searched) == (24, 72)
        check(store, secrets, lambda: files_below(tmp_path))
    with streamkit.connect(f"file://{tmp_path}") as client:
        check(client.store(store.id), secrets, lambda: files_below(tmp_path))


def test_nothing_is_left_on_disk_of_heads_and_runs_that_were_replaced(tmp_path: Path) -> None:
    secrets = Secrets()
    with streamkit.connect(f"file://{tmp_path}") as client, client.store(uuid4()) as store:
        for _ in range(8):
            store.produce("a", "user-1", [Record(secrets.tag), Record(b"log in")])
            store.produce("a", "user-2", [Record(secrets.kept)])
            store.maintain()
        store.erase("a", "user-1", first=1, last=14)
        store.erase("a", "user-1", first=15, last=15)
        assert found_in(files_below(tmp_path), secrets.tag) == []
        assert [entry.sequence for entry in store.consume_segment("a", "user-1")] == [16]


@pytest.mark.parametrize("url", ["memory://erasing", "memory://erasing-remote?remote=1"])
def test_nothing_is_left_in_memory(url: str) -> None:
    secrets = Secrets()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        secrets.write(store, large=2 << 20)
        store.erase("a", metadata={"who": "user-1"})
        check(store, secrets, memory_of(url))
        client.delete_store(store.id)


@pytest.mark.s3
def test_nothing_is_left_in_a_bucket(s3_bucket: S3Bucket) -> None:
    def stored() -> Iterator[tuple[str, bytes]]:
        plain = s3_bucket.server.client()
        for name in s3_bucket.names():
            yield name, plain.get_object(Bucket=s3_bucket.name, Key=name)["Body"].read()

    secrets = Secrets()
    with streamkit.connect(s3_bucket.url("erasing")) as client:
        store = client.store(uuid4())
        secrets.write(store)
        store.erase("a", metadata={"who": "user-1"})
        check(store, secrets, stored)


@pytest.mark.azure
def test_nothing_is_left_in_a_table_and_its_blobs(azurite: Azurite) -> None:
    from azure.data.tables import TableServiceClient
    from azure.storage.blob import BlobServiceClient

    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    account = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};"
    ends = (
        f"BlobEndpoint=http://127.0.0.1:{azurite.blob_port}/devstoreaccount1;"
        f"TableEndpoint=http://127.0.0.1:{azurite.table_port}/devstoreaccount1;"
    )

    def stored() -> Iterator[tuple[str, bytes]]:
        tables = TableServiceClient.from_connection_string(account + ends)
        for table in tables.list_tables():
            if "erasing" in table.name:
                for entity in tables.get_table_client(table.name).list_entities():
                    parts = [entity[name] for name in sorted(entity) if isinstance(entity[name], bytes)]
                    yield f"{table.name}/{entity['RowKey']}", b"".join(parts)
        blobs = BlobServiceClient.from_connection_string(account + ends)
        for container in blobs.list_containers():
            inside = blobs.get_container_client(container.name)
            for blob in inside.list_blobs():
                if "erasing" in container.name or "erasing" in blob.name:
                    yield blob.name, inside.download_blob(blob.name).readall()

    secrets = Secrets()
    with streamkit.connect(azurite.url("erasing")) as client:
        store = client.store(uuid4())
        secrets.write(store, 12)
        store.erase("a", metadata={"who": "user-1"})
        check(store, secrets, stored, 12)


def test_the_archive_and_its_history_lose_it_too(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    import pyarrow.parquet as pq

    secrets = Secrets()
    root, cold = tmp_path / "store", tmp_path / "cold"
    with streamkit.connect(f"file://{root}", archive=f"file://{cold}") as client, client.store(uuid4()) as store:
        secrets.write(store, 12)
        store.archive("a")
        secrets.write(store, 12)
        store.archive("a")
        store.compact("a")  # leaves older versions of the table, and their files
        secrets.write(store, 6)

        def stored() -> Iterator[tuple[str, bytes]]:
            yield from files_below(root, cold)
            for path in cold.rglob("*.parquet"):
                for payload in (
                    pq.read_table(path).column("payload").to_pylist() if "_delta_log" not in str(path) else ()
                ):
                    yield str(path), payload or b""

        store.erase("a", "user-1", first=1, last=1)
        report = store.erase("a", metadata={"who": "user-1"})
        assert report.files >= 1
        check(store, secrets, stored, 30)
        table = store.to_arrow("a").read_all()
        assert table.num_rows == 60
        assert table["payload"].null_count == 0
        store.archive("a")
        check(store, secrets, stored, 30)


def _crashed(make: Callable[[], Driver], plan: Plan, work: Callable[[Store], None], store_id: UUID) -> int:
    """Do `work` until it crashes; how many calls it made."""
    driver = FaultyDriver(make(), plan)
    store = Client("erasing://", driver, 5.0, None, 64 << 20, SYSTEM_CLOCK).store(store_id)
    with contextlib.suppress(Crash):
        work(store)
    return len(driver.faults.trace)


@pytest.mark.parametrize("options", ["", "?remote=1"])
def test_an_erasure_that_is_stopped_anywhere_is_completed(options: str) -> None:
    """The next upkeep completes it: nothing is left then, whatever was done before."""
    name = f"memory://{uuid4()}{options}"
    driver = streamkit_memory.connect(name, timeout=5.0)

    def work(store: Store) -> None:
        store.erase("a", metadata={"who": "user-1"})

    calls = number = 0
    while number <= calls:
        store_id, secrets = uuid4(), Secrets()
        with streamkit.connect(name) as client:
            secrets.write(client.store(store_id), 6)
            secrets_before = found_in(memory_of(name)(), secrets.tag)
            assert secrets_before
            fault = CRASHES[number % len(CRASHES)] if not EXHAUSTIVE else CRASHES[0]
            made = _crashed(lambda: streamkit_memory.connect(name, timeout=5.0), Plan.at(number, fault), work, store_id)
            calls = max(calls, made) if number == 0 or made > number else calls
            driver._service.leases.clear()  # as after their time
        with streamkit.connect(name) as client:
            store = client.store(store_id)
            begun = not any(entry.payload.startswith(secrets.tag) for entry in store.consume_space("a"))
            store.maintain()
            if begun:
                check(store, secrets, memory_of(name), 6)
            store.erase("a", metadata={"who": "user-1"})
            check(store, secrets, memory_of(name), 6)
            client.delete_store(store_id)
        number += 1 if EXHAUSTIVE else 3
        if made <= number and number > 3:
            break


def test_an_erasure_on_disk_that_is_stopped_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "_eraser_lease", lambda self, name, wait: self.lease(name, 1.0, wait))

    def work(store: Store) -> None:
        store.erase("a", metadata={"who": "user-1"})

    for number in range(8, 40, 1 if EXHAUSTIVE else 9):
        root, secrets, store_id = tmp_path / str(number), Secrets(), uuid4()
        url = f"file://{root}"
        with streamkit.connect(url) as client:
            secrets.write(client.store(store_id), 6)
        _crashed(lambda: streamkit_local.connect(url, timeout=5.0), Plan.at(number, CRASHES[0]), work, store_id)  # noqa: B023
        with streamkit.connect(url) as client:
            store = client.store(store_id)
            store.maintain()
            store.erase("a", metadata={"who": "user-1"})
            check(store, secrets, lambda: files_below(root), 6)  # noqa: B023


def test_a_process_that_has_cached_an_entry_gives_it_out_no_more(tmp_path: Path) -> None:
    with streamkit.connect(f"file://{tmp_path}") as one, streamkit.connect(f"file://{tmp_path}") as other:
        store = one.store(uuid4())
        reader = other.store(store.id)
        store.produce("a", "s", [Record(b"secret")])
        store.maintain()
        assert reader.peek("a", "s").payload == b"secret"
        assert [entry.payload for entry in reader.consume_space("a")] == [b"secret"]
        store.erase("a", "s")
        assert reader.peek("a", "s").sequence == 0
        assert list(reader.consume_segment("a", "s")) == []
        assert list(reader.consume_space("a")) == []


def test_the_search_by_metadata_finds_what_reading_all_finds() -> None:
    """Small entries are searched as bytes: text of any kind, several pairs, and what only looks like them."""
    pairs = {"who": "Zoë", "land": "FR"}
    given = [
        {"who": "Zoë", "land": "FR"},
        {"who": "Zoë", "land": "DE"},
        {"who": "FR", "land": "Zoë"},
        {"who": "Zoë", "land": "FR", "more": "x" * 300},
        {"land": "FR"},
        {"who": "Zoë Miller", "land": "FR"},
        None,
    ]
    with streamkit.connect("memory://erasing-search") as client:
        store = client.store(uuid4())
        for turn in range(70):
            metadata = given[turn % 7]
            size = (0, 20, 600, 5000)[turn % 4]
            text = (b"who Zo\xc3\xab land FR " + bytes(size)) if turn % 3 else os.urandom(size).hex().encode()
            with store.transaction("a") as trx:
                trx.produce("one", [Record(text, metadata)])
                trx.produce("many", [Record(text), Record(text, metadata), Record(b"", given[(turn + 3) % 7])])
            if turn == 40:
                store.maintain()
        matching = [
            (entry.segment, entry.sequence)
            for entry in store.consume_space("a")
            if all(entry.metadata.get(name) == value for name, value in pairs.items())
        ]
        found = store.erase("a", metadata=pairs, dry_run=True)
        assert (found.entries, found.searched) == (len(matching), 280)
        store.erase("a", "one", first=1, last=30)  # frames with holes are searched too
        store.erase("a", "many", first=2, last=9)
        gone = {"one": range(1, 31), "many": range(2, 10)}
        left = [segment for segment, sequence in matching if sequence not in gone[segment]]
        assert store.erase("a", metadata=pairs).entries == len(left)
        assert not [entry for entry in store.consume_space("a") if entry.metadata == pairs]
