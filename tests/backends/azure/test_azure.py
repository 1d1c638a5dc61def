"""Stores on Azure Storage, proven on Azurite: the contract, the form of a row, and the number of requests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest
from azure.storage.blob import BlobLeaseClient
from fix_azurite import Azurite
from fix_covered import EXHAUSTIVE

import streamkit_azure
from streamkit.backend import ABSENT, NEXT, ArchiveHost, Backend, Conflict, Driver, Range, Scrubs
from streamkit.errors import CorruptData, MissingDependency, StoreClosed, UnsupportedVersion
from streamkit.testing import BackendConformance
from streamkit_azure import write
from streamkit_azure.driver import AzureDriver

pytestmark = pytest.mark.azure

PARTITION = b"orders\x00" + bytes(8)
KIB = 1024
MIB = 1024 * KIB


class TestAzure(BackendConformance):
    rounds = 20 if EXHAUSTIVE else 4
    keeps = True

    @pytest.fixture(autouse=True)
    def _server(self, azurite: Azurite) -> None:
        self.url = azurite.url("conformance")

    def make_driver(self) -> Driver:
        return AzureDriver(self.url, timeout=30, page=20)


def fill(store: Backend, rows: Mapping[bytes, bytes]) -> list[str]:
    """Put the rows, in order, and return their etags."""
    return [store.put(PARTITION, key, value) for key, value in rows.items()]


class Setting:
    """A store, and the requests that it made since they were last looked at."""

    def __init__(self, azurite: Azurite) -> None:
        self.azurite = azurite
        self.id = uuid4()
        self.driver = streamkit_azure.connect(azurite.url(), timeout=30)
        self.store: Backend = self.driver.open(self.id)
        self._before: dict[str, int] = {}

    @property
    def requests(self) -> dict[str, int]:
        now = dict(self.store.requests)
        made = {kind: count - self._before.get(kind, 0) for kind, count in now.items() if "bytes" not in kind}
        self._before = now
        return {kind: count for kind, count in made.items() if count}

    def table(self) -> Any:
        """The SDK's client, to look behind the backend's back."""
        return self.driver._clients(self.id).table

    def container(self) -> Any:
        return self.driver._clients(self.id).container

    def blobs(self) -> list[str]:
        return sorted(self.container().list_blob_names(name_starts_with=f"{self.id}/"))


@pytest.fixture
def setting(azurite: Azurite) -> Iterator[Setting]:
    setting = Setting(azurite)
    yield setting
    setting.driver.delete(setting.id)
    setting.driver.close()


class TestRequests:
    """Requests to the service, counted at the transport."""

    def test_opening_a_store_asks_nothing(self, setting: Setting) -> None:
        assert setting.requests == {}

    def test_the_first_put_makes_the_table_and_every_other_is_one_request(self, setting: Setting) -> None:
        etag = setting.store.put(PARTITION, b"a", b"1")
        assert setting.requests == {"table.put": 2, "table.create": 1}
        setting.store.put(PARTITION, b"b", b"2", NEXT)
        assert setting.requests == {"table.insert": 1}
        etag = setting.store.put(PARTITION, b"a", bytes(300 * KIB), etag)
        setting.store.put(PARTITION, b"a", b"3")
        assert setting.requests == {"table.put": 2}
        with pytest.raises(Conflict):
            setting.store.put(PARTITION, b"a", b"4", etag)
        with pytest.raises(Conflict):
            setting.store.put(PARTITION, b"b", b"4", ABSENT)
        assert setting.requests == {"table.put": 1, "table.insert": 1}

    def test_a_process_that_knows_nothing_appends_with_one_request(self, setting: Setting) -> None:
        setting.store.put(PARTITION, b"a", b"1")
        other = setting.driver.open(setting.id)
        other.put(PARTITION, b"b", b"2", NEXT)
        assert {kind: count for kind, count in other.requests.items() if "bytes" not in kind} == {"table.insert": 1}

    def test_nothing_is_sent_for_an_etag_that_azure_never_gave(self, setting: Setting) -> None:
        with pytest.raises(Conflict) as refused:
            setting.store.put(PARTITION, b"a", b"1", "not an etag\r\nX: y")
        assert refused.value.key == b"a"
        assert setting.requests == {}

    def test_a_put_that_needs_a_row_makes_no_table(self, setting: Setting) -> None:
        etag = setting.store.put(PARTITION, b"a", b"1")
        other = setting.driver.open(uuid4())
        with pytest.raises(Conflict):
            other.put(PARTITION, b"a", b"2", etag)
        other.delete(PARTITION, [b"a"])
        other.delete(PARTITION, [b"a", b"b"])
        assert "table.create" not in other.requests
        assert list(setting.driver.stores()).count(setting.id) == 1

    def test_a_thousand_small_rows_are_read_by_five_requests_at_most_and_a_hundred_by_one(
        self, setting: Setting
    ) -> None:
        rows = {b"TXN\x00%08d" % number: b"%0200d" % number for number in range(1000)}
        setting.store.put(PARTITION, b"first", b"")
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda row: setting.store.put(PARTITION, *row, NEXT), rows.items()))
        assert setting.requests == {"table.put": 2, "table.insert": 1000, "table.create": 1}
        assert {row.key: row.data for row in setting.store.scan(PARTITION, b"TXN\x00", b"TXN\x01")} == rows
        assert setting.requests["table.query"] <= 5
        found = list(setting.store.scan(PARTITION, b"TXN\x00%08d" % 300, b"TXN\x00%08d" % 400))
        assert [row.data for row in found] == [b"%0200d" % number for number in range(300, 400)]
        assert setting.requests == {"table.query": 1}

    def test_keys_alone_are_fewer_bytes(self, setting: Setting) -> None:
        fill(setting.store, {b"%d" % number: bytes(20 * KIB) for number in range(50)})
        before = setting.store.requests["bytes_read"]
        assert len(list(setting.store.scan(PARTITION, b"", b"\xff", values=False))) == 50
        assert setting.store.requests["bytes_read"] - before < 20 * KIB

    def test_part_of_a_row_is_fewer_bytes(self, setting: Setting) -> None:
        value = os.urandom(600 * KIB)
        setting.store.put(PARTITION, b"a", value)
        before = setting.store.requests["bytes_read"]
        assert setting.store.read(PARTITION, [Range(b"a", 64 * KIB - 5, 10)]) == [value[64 * KIB - 5 : 64 * KIB + 5]]
        assert setting.store.requests["bytes_read"] - before < 200 * KIB

    def test_removing_a_hundred_rows_is_a_look_and_a_request_each(self, setting: Setting) -> None:
        keys = [b"%03d" % number for number in range(100)]
        fill(setting.store, dict.fromkeys(keys, b"x"))
        assert setting.requests
        setting.store.delete(PARTITION, [*keys, *keys])
        assert setting.requests == {"table.query": 1, "table.delete": 100}
        assert list(setting.store.scan(PARTITION, b"", b"\xff")) == []
        assert setting.requests
        setting.store.delete(PARTITION, [b"001"])
        assert setting.requests == {"table.get": 1, "table.delete": 1}
        setting.store.delete(PARTITION, [])
        assert setting.requests == {}

    def test_a_range_of_a_blob_is_one_request_if_the_etag_is_known(self, setting: Setting) -> None:
        value = os.urandom(4 * MIB)
        etag = setting.store.put(PARTITION, b"run", value, ABSENT)
        assert setting.requests == {"blob.put": 2, "blob.create": 1, "table.insert": 2, "table.create": 1}
        parts = [(0, 10), (MIB, 70 * KIB), (4 * MIB - 5, 10), (5 * MIB, 10)]
        wanted = [value[start : start + length] for start, length in parts]
        other = setting.driver.open(setting.id)
        assert other.read(PARTITION, [Range(b"run", *part, etag) for part in parts]) == wanted
        assert {kind: count for kind, count in other.requests.items() if "bytes" not in kind} == {"blob.get": 3}
        assert other.requests["bytes_read"] < 100 * KIB
        assert setting.store.read(PARTITION, [Range(b"run", *part) for part in parts]) == wanted
        assert setting.requests == {"table.get": 1, "blob.get": 3}
        setting.store.put(PARTITION, b"run", value[::-1], etag)
        assert setting.store.read(PARTITION, [Range(b"run", 0, 5, etag), Range(b"run", 0, 5)]) == [None, value[:-6:-1]]

    def test_the_ranges_of_many_rows_and_blobs_come_in_their_order(self, setting: Setting) -> None:
        values = {b"%d" % at: os.urandom(size) for at, size in enumerate((10, MIB, 300 * KIB, 2 * MIB, 0))}
        etags = dict(zip(values, fill(setting.store, values), strict=True))
        parts = [(key, start, 9) for start in (0, 5, 200 * KIB) for key in (b"4", b"1", b"none", b"0", b"3", b"2")]
        wanted = [None if key == b"none" else values[key][start : start + length] for key, start, length in parts]
        assert setting.store.read(PARTITION, [Range(*part) for part in parts]) == wanted
        assert setting.store.read(PARTITION, [Range(*part, etags.get(part[0])) for part in parts]) == wanted
        some = [Range(*part, etags.get(part[0]) if at % 2 else None) for at, part in enumerate(parts)]
        assert setting.store.read(PARTITION, some) == wanted

    def test_a_lease_costs_two_or_three_requests_and_one_a_renewal(self, setting: Setting) -> None:
        for ttl, taking, renewing in ((5.0, 1, "blob.metadata"), (30.0, 2, "blob.lease")):
            first = setting.store.acquire(f"leader {ttl}", ttl)
            assert first is not None
            setting.store.release(first)
            assert setting.requests
            grant = setting.store.acquire(f"leader {ttl}", ttl)
            assert grant is not None
            made = setting.requests
            assert (made.pop("blob.head"), sum(made.values())) == (1, taking)
            setting.store.renew(grant)
            assert setting.requests == {renewing: 1}


class TestLargeValues:
    @pytest.mark.parametrize("size", [0, 1, 64 * KIB, 64 * KIB + 1, 704 * KIB, 704 * KIB + 1, 5 * MIB, 65 * MIB])
    def test_a_value_of_any_size_comes_back(self, setting: Setting, size: int) -> None:
        value = os.urandom(min(size, MIB)) * max(1, size // MIB)
        value = (value + bytes(max(0, size - len(value))))[:size]
        etag = setting.store.put(PARTITION, b"a", value, NEXT)
        setting.store.put(PARTITION, b"b", b"beside")
        found = setting.store.get(PARTITION, [b"a", b"b"])
        assert found[0] is not None
        assert found[0].data == value
        assert found[0].etag == etag
        assert [row.data == value for row in setting.store.scan(PARTITION, b"a", b"b")] == [True]
        parts = [(0, 10), (max(0, size - 5), 10), (size, 5), (size + 100, 5), (size // 2, 0), (size // 3, 70 * KIB)]
        read = setting.store.read(PARTITION, [Range(b"a", start, length) for start, length in parts])
        assert read == [value[start : start + length] for start, length in parts]
        assert len(setting.blobs() if size > 704 * KIB else []) == (size > 704 * KIB)

    def test_rows_in_blobs_are_scanned_in_order_with_those_in_the_table(self, setting: Setting) -> None:
        values = [os.urandom(1000 if number % 3 else MIB) for number in range(20)]
        for number, value in enumerate(values):
            setting.store.put(PARTITION, b"%02d" % number, value, NEXT)
        found = list(setting.store.scan(PARTITION, b"", b"\xff"))
        assert [row.key for row in found] == [b"%02d" % number for number in range(20)]
        assert [row.data for row in found] == values

    def test_a_blob_that_no_row_refers_to_is_removed_once_nobody_can_be_writing_it(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = setting.store
        assert isinstance(store, Scrubs)
        store.put(PARTITION, b"kept", bytes(800 * KIB))
        assert store.scrub(PARTITION) is None
        with pytest.raises(Conflict):
            store.put(PARTITION, b"kept", bytes(800 * KIB), ABSENT)
        assert len(setting.blobs()) == 2, "the refused value is not there"
        told = store.scrub(PARTITION)
        assert told is not None
        assert "1 blobs" in told
        assert len(setting.blobs()) == 2
        monkeypatch.setattr("streamkit_azure.leftovers.WRITING", -60.0)
        assert store.scrub(PARTITION) is None
        assert len(setting.blobs()) == 1
        assert store.get(PARTITION, [b"kept"])[0] is not None

    def test_a_writer_that_took_too_long_puts_its_blob_again(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A scrub removed the blob as unreferenced before its row was written."""
        store, send = setting.store, write._send

        def slow(*arguments: Any) -> Any:
            for name in setting.blobs():
                setting.container().delete_blob(name)
            return send(*arguments)

        monkeypatch.setattr(write, "_send", slow)
        monkeypatch.setattr(write, "WRITING", -60.0)
        store.put(PARTITION, b"a", b"x" * 800 * KIB)
        found = store.get(PARTITION, [b"a"])[0]
        assert found is not None
        assert found.data == b"x" * 800 * KIB

    def test_a_blob_goes_after_its_row(self, setting: Setting) -> None:
        _, second, _ = fill(setting.store, {b"%d" % at: bytes(MIB) for at in range(3)})
        assert len(setting.blobs()) == 3
        setting.store.delete(PARTITION, [b"0"])
        assert len(setting.blobs()) == 2
        setting.store.put(PARTITION, b"1", b"small", second)
        assert len(setting.blobs()) == 1
        setting.store.delete(PARTITION, [b"2", b"3", b"1"])
        assert setting.blobs() == []

    def test_a_refused_row_keeps_its_blob_because_a_first_copy_of_the_request_may_refer_to_it(
        self, setting: Setting
    ) -> None:
        setting.store.put(PARTITION, b"a", b"there")
        with pytest.raises(Conflict):
            setting.store.put(PARTITION, b"a", bytes(MIB), ABSENT)
        assert len(setting.blobs()) == 1

    def test_a_missing_blob_is_corrupt_data_that_names_the_row(self, setting: Setting) -> None:
        setting.store.put(PARTITION, b"broken", bytes(MIB))
        setting.container().delete_blob(setting.blobs()[0])
        for read in (
            lambda: setting.store.get(PARTITION, [b"broken"]),
            lambda: setting.store.read(PARTITION, [Range(b"broken", 5, 5)]),
            lambda: list(setting.store.scan(PARTITION, b"", b"\xff")),
        ):
            with pytest.raises(CorruptData, match="broken"):
                read()
        assert [row.key for row in setting.store.scan(PARTITION, b"", b"\xff", values=False)] == [b"broken"]
        setting.store.delete(PARTITION, [b"broken"])
        assert setting.store.get(PARTITION, [b"broken"]) == [None]

    def test_a_blob_that_was_cut_short_is_corrupt_data(self, setting: Setting) -> None:
        setting.store.put(PARTITION, b"broken", bytes(MIB))
        setting.container().upload_blob(setting.blobs()[0], bytes(1000), overwrite=True)
        for start in (0, 5000):
            with pytest.raises(CorruptData, match="cut short"):
                setting.store.read(PARTITION, [Range(b"broken", start, 50000)])


class TestFormat:
    @pytest.mark.parametrize(("version", "says"), [(4, "install a newer"), (1, "the release that wrote it")])
    def test_a_row_of_another_format_is_refused(self, setting: Setting, version: int, says: str) -> None:
        setting.store.put(PARTITION, b"a", b"1")
        (entity,) = setting.table().list_entities()
        setting.table().upsert_entity(entity | {"f": version})
        for read in self.readers(setting.store):
            with pytest.raises(UnsupportedVersion, match=says):
                read()

    def test_a_row_that_another_program_wrote_is_corrupt_data(self, setting: Setting) -> None:
        setting.store.put(PARTITION, b"a", b"1")
        (entity,) = setting.table().list_entities()
        setting.table().delete_entity(entity)
        setting.table().create_entity({"PartitionKey": entity["PartitionKey"], "RowKey": entity["RowKey"], "x": 1})
        for read in self.readers(setting.store):
            with pytest.raises(CorruptData):
                read()

    @staticmethod
    def readers(store: Backend) -> list[Any]:
        return [
            lambda: store.get(PARTITION, [b"a"]),
            lambda: store.read(PARTITION, [Range(b"a", 0, 1)]),
            lambda: list(store.scan(PARTITION, b"", b"\xff")),
            lambda: list(store.scan(PARTITION, b"", b"\xff", values=False)),
        ]

    def test_keys_that_look_like_numbers_are_in_the_order_of_their_bytes(self, setting: Setting) -> None:
        keys = sorted(bytes([number]) * length for number in (0x00, 0x08, 0x09, 0x10, 0x99) for length in range(1, 6))
        for key in keys:
            setting.store.put(b"\x11\x11", key, key)
        assert [row.key for row in setting.store.scan(b"\x11\x11", b"", b"\xff" * 9)] == keys


class TestStores:
    def test_tables_of_others_are_no_stores(self, setting: Setting) -> None:
        setting.store.put(PARTITION, b"a", b"1")
        tables = setting.driver._clients().tables
        others = [f"streamkit{'g' * 32}", f"streamkit{uuid4().hex}x", f"streamkit2{uuid4().hex}"]
        for name in others:
            tables.create_table(name)
        found = set(setting.driver.stores())
        assert setting.id in found
        assert not {store.hex for store in found} & {name.removeprefix("streamkit") for name in others}
        for name in others:
            tables.delete_table(name)

    def test_deleting_a_store_takes_its_blobs_and_held_leases_and_nothing_else(self, setting: Setting) -> None:
        neighbour = setting.driver.open(uuid4())
        for store in (setting.store, neighbour):
            store.put(PARTITION, b"a", bytes(MIB))
            assert store.acquire("native", 30) is not None
            assert store.acquire("short", 5) is not None
        assert len(setting.blobs()) == 3
        setting.driver.delete(setting.id)
        assert setting.blobs() == []
        assert setting.id not in set(setting.driver.stores())
        assert neighbour.get(PARTITION, [b"a"])[0] is not None
        assert neighbour.acquire("native", 30) is None

    def test_deleting_a_store_goes_on_where_a_lease_is_given_back_or_taken_again_meanwhile(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = [setting.store.acquire("native", 30)]
        assert held[0] is not None
        break_lease = BlobLeaseClient.break_lease

        def slow_break(client: BlobLeaseClient, *args: Any, **options: Any) -> int:
            setting.store.release(held[-1])  # type: ignore[arg-type]
            try:
                return break_lease(client, *args, **options)
            finally:
                if len(held) < 3:
                    held.append(setting.store.acquire("native", 30))

        monkeypatch.setattr(BlobLeaseClient, "break_lease", slow_break)
        setting.driver.delete(setting.id)
        assert len(held) == 3
        assert setting.blobs() == []

    def test_a_closed_driver_closes_its_stores(self, azurite: Azurite) -> None:
        driver = streamkit_azure.connect(azurite.url(), timeout=30)
        store = driver.open(uuid4())
        rows = store.scan(PARTITION, b"", b"\xff")
        driver.close()
        for call in (lambda: store.get(PARTITION, [b"a"]), lambda: next(rows), lambda: driver.open(uuid4())):
            with pytest.raises(StoreClosed):
                call()


class TestArchives:
    def test_are_kept_where_delta_can_read_and_write_and_go_with_their_store(self, setting: Setting) -> None:
        deltalake = pytest.importorskip("deltalake")
        pyarrow = pytest.importorskip("pyarrow")
        assert isinstance(setting.driver, ArchiveHost)
        setting.store.acquire("archive", 5)  # the archiver's, which makes the container
        root, options = setting.driver.archive_root()
        neighbour = uuid4()
        for store in (setting.id, neighbour):
            deltalake.write_deltalake(
                f"{root}/{store}/orders", pyarrow.table({"number": [1, 2]}), storage_options=options
            )
        assert setting.id not in set(setting.driver.stores())
        setting.driver.delete(setting.id)
        assert not deltalake.DeltaTable.is_deltatable(f"{root}/{setting.id}/orders", options)
        assert deltalake.DeltaTable(f"{root}/{neighbour}/orders", storage_options=options).version() == 0


class TestProcesses:
    def test_a_forked_child_uses_the_store_and_leaves_its_parent_alone(self, setting: Setting) -> None:
        fill(setting.store, {b"%d" % at: b"parent" for at in range(20)})
        keys = [b"%d" % at for at in range(20)]
        setting.store.get(PARTITION, keys)
        child = os.fork()
        if not child:
            status = 1
            try:
                found = setting.store.get(PARTITION, keys)
                setting.store.put(PARTITION, b"child", b"1")
                status = 0 if all(value and value.data == b"parent" for value in found) else 2
            finally:
                os._exit(status)
        for _ in range(20):
            assert all(setting.store.get(PARTITION, keys))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert setting.store.get(PARTITION, [b"child"])[0] is not None

    def test_connecting_imports_no_sdk(self) -> None:
        program = (
            "import sys, streamkit_azure; streamkit_azure.connect('azurite:///abc', timeout=1);"
            "print([name for name in sys.modules if name in ('azure.core', 'azure.data.tables', 'requests')])"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"

    @pytest.mark.parametrize("module", ["azure.data.tables", "azure.storage.blob"])
    def test_a_missing_sdk_is_named_with_its_extra(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingDependency, match=r"pip install 'streamkit-store\[azure\]'"):
            streamkit_azure.connect("azurite:///abc", timeout=1)


def test_the_store_of_a_table_is_the_one_that_made_it() -> None:
    from streamkit_azure.account import account_of

    account = account_of("azurite:///tenant", {})
    store = UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert account.table(store) == "tenant00112233445566778899aabbccddeeff"
    assert account.store(account.table(store)) == store
    assert account.store("tenants00112233445566778899aabbccddeeff") is None
