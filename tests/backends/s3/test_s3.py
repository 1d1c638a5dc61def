"""Stores on S3, proven on the moto server."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Mapping
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_proxy import PASS, Fault, Proxy, Request, hold
from fix_s3 import S3Bucket

import streamkit_s3
from streamkit.backend import NEXT, Backend, Driver, Range
from streamkit.errors import StoreClosed
from streamkit.testing import BackendConformance
from streamkit_s3.driver import S3Driver
from streamkit_s3.errors import Target
from streamkit_s3.layout import encode

pytestmark = pytest.mark.s3

STORE = UUID("7d9f2c1e-0000-4000-8000-000000000001")
PARTITION = b"orders\x00" + bytes(8)


class TestS3(BackendConformance):
    rounds = 20 if EXHAUSTIVE else 4
    keeps = True

    @pytest.fixture(autouse=True)
    def _bucket(self, s3_bucket: S3Bucket) -> None:
        self.target = Target(s3_bucket.name, "us-east-1", s3_bucket.server.endpoint)

    def make_driver(self) -> Driver:
        return S3Driver(self.target, "conformance", 30.0, page=20)


def behind(proxy: Proxy, bucket: S3Bucket, page: int = 1000) -> S3Driver:
    return S3Driver(Target(bucket.name, "us-east-1", proxy.endpoint), "", 30.0, page=page)


@pytest.fixture
def proxy(s3_bucket: S3Bucket, make_proxy: Callable[[str, int], Proxy]) -> Proxy:
    return make_proxy(s3_bucket.server.host, s3_bucket.server.port)


def fill(store: Backend, rows: Mapping[bytes, bytes]) -> None:
    for key, value in rows.items():
        store.put(PARTITION, key, value)


def values(request: Request) -> bool:
    return request.method == "GET" and "list-type" not in request.target


def test_what_is_stored_is_where_earlier_releases_look_for_it(s3_bucket: S3Bucket) -> None:
    driver = streamkit_s3.connect(s3_bucket.url("tenants/a"), timeout=30)
    store = driver.open(STORE)
    store.put(PARTITION, b"TXN\x00" + bytes(7) + b"\x01", b"transaction", NEXT)
    store.put(PARTITION, b"", b"empty")
    store.put("é".encode() * 150, b"\xff", b"long")
    assert store.acquire("leader/ä", 30.0) is not None
    at = f"tenants/a/{STORE}"
    long = "h." + ("!" + "c3a9" * 150)[:160] + "." + "ynY-KHhAF4TFcyuouCsdmhoZJd6pbHVPKNYFAp_83Ms"
    assert sorted(s3_bucket.names()) == sorted(
        [
            f"{at}/FORMAT",
            f"{at}/leases/p.leader!2fc3a4!",
            f"{at}/p.orders!000000000000000000!/-",
            f"{at}/p.orders!000000000000000000!/K4WD-----------0",
            f"{at}/{long}/zk",
        ]
    )
    marker = s3_bucket.server.client().get_object(Bucket=s3_bucket.name, Key=f"{at}/FORMAT")["Body"].read()
    assert marker == b'{"streamkit":3}'
    driver.close()


@pytest.mark.parametrize("prefix", ["", "a", "a/b/c", "büro/ключ", "with space"])
def test_every_prefix_is_a_root_of_its_own(s3_bucket: S3Bucket, prefix: str) -> None:
    mine, other = (
        streamkit_s3.connect(s3_bucket.url(where), timeout=30) for where in (prefix, f"{prefix}x" if prefix else "y")
    )
    mine.open(STORE).put(PARTITION, b"key", b"value")
    assert list(mine.stores()) == [STORE]
    assert list(other.stores()) == []
    assert other.open(STORE).get(PARTITION, [b"key"]) == [None]
    assert [row.data for row in mine.open(STORE).scan(PARTITION, b"", b"\xff")] == [b"value"]
    mine.delete(STORE)
    assert s3_bucket.names() == []


def test_foreign_objects_are_neither_read_nor_listed_nor_deleted(s3_bucket: S3Bucket) -> None:
    driver = streamkit_s3.connect(s3_bucket.url("shared"), timeout=30)
    store = driver.open(STORE)
    store.put(PARTITION, b"key", b"value")
    other = uuid4()
    foreign = [
        "shared/readme.txt",
        f"shared/{other}/photo.jpg",
        f"shared/{str(STORE).upper()}/FORMAT",
        "shared/not-a-uuid/FORMAT",
        f"shared/{STORE}/notes/today.txt",
        f"shared/{STORE}/p.orders!000000000000000000!/a/b",
        f"shared/{STORE}/p.orders!000000000000000000!/a=b",
        f"shared/{STORE}/p.orders!000000000000000000!/A",
        f"shared/{STORE}/p.orders!000000000000000000!/AB",
    ]
    client = s3_bucket.server.client()
    for name in foreign:
        client.put_object(Bucket=s3_bucket.name, Key=name, Body=b"foreign")
    assert list(driver.stores()) == [STORE]
    assert [row.data for row in store.scan(PARTITION, b"", b"\xff")] == [b"value"]
    assert [row.key for row in store.scan(PARTITION, b"", b"\xff", limit=1, values=False)] == [b"key"]
    driver.delete(other)
    driver.delete(STORE)
    assert list(driver.stores()) == []
    left = set(s3_bucket.names())
    # Only under the partitions of the deleted store nothing is spared.
    assert left == {name for name in foreign if "/p." not in name}


def test_a_scan_asks_for_its_range_only_and_for_each_value_once(proxy: Proxy, s3_bucket: S3Bucket) -> None:
    driver = behind(proxy, s3_bucket)
    store = driver.open(STORE)
    for family in (b"DAT", b"INV", b"TXN"):
        fill(store, {b"%b\x00%04d" % (family, n): b"%d" % n for n in range(60)})
    proxy.seen.clear()
    rows = list(store.scan(PARTITION, b"INV\x000010", b"INV\x000020"))
    assert [row.data for row in rows] == [b"%d" % n for n in range(10, 20)]
    (listed,) = (request for request in proxy.seen if not values(request))
    assert "start-after" in listed.target
    # The common prefix of the range's keys is in the request, so that the answer holds nothing else.
    assert "prefix=" in listed.target
    assert "%2FHJtL-2-kB" in listed.target.partition("&start-after")[0]
    assert len(proxy.seen) == 11
    proxy.seen.clear()
    assert [row.key for row in store.scan(PARTITION, b"INV\x000010", b"U", limit=1)] == [b"INV\x000010"]
    assert len(proxy.seen) == 2
    assert "max-keys=1" in proxy.seen[0].target + proxy.seen[1].target
    proxy.seen.clear()
    assert list(store.scan(PARTITION, b"b", b"b")) == []
    assert list(store.scan(PARTITION, b"c", b"b")) == []
    assert proxy.seen == []
    driver.close()


def test_a_long_scan_keeps_many_requests_in_flight_and_the_order(proxy: Proxy, s3_bucket: S3Bucket) -> None:
    driver = behind(proxy, s3_bucket, page=50)
    store = driver.open(STORE)
    fill(store, {b"%04d" % n: b"%d" % n for n in range(120)})
    proxy.seen.clear()
    many = threading.Event()

    def plan(request: Request) -> Fault:
        if sum(map(values, proxy.seen)) >= 32:
            many.set()
        return hold(many) if values(request) else PASS

    proxy.plan = plan
    assert [row.data for row in store.scan(PARTITION, b"", b"\xff")] == [b"%d" % n for n in range(120)]
    assert proxy.most >= 32
    assert len(proxy.seen) == 120 + 3
    driver.close()


def test_a_second_connection_reads_no_more_of_the_sdks_models(
    s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK's models are megabytes of JSON, and nine tenths of the memory of a connection."""
    from botocore.loaders import JSONFileLoader

    read: list[str] = []
    monkeypatch.setattr("streamkit_s3.connection.find", lambda target: None)
    load_file = JSONFileLoader.load_file
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda self, path: (read.append(path), load_file(self, path))[1])
    for _ in range(2):
        read.clear()
        driver = streamkit_s3.connect(s3_bucket.url("tenants/a"), timeout=30)
        assert list(driver.stores()) == []
        driver.close()
    assert read == []


def test_a_scan_that_is_dropped_asks_for_nothing_more(proxy: Proxy, s3_bucket: S3Bucket) -> None:
    driver = behind(proxy, s3_bucket)
    store = driver.open(STORE)
    fill(store, {b"%c%03d" % (letter, n): b"" for letter in b"ab" for n in range(100)})
    proxy.seen.clear()
    busy, dropped = store.scan(PARTITION, b"a", b"b"), store.scan(PARTITION, b"b", b"c")
    assert proxy.seen == [], "nothing is asked for before the first row is"
    gate = threading.Event()
    held = {encode(b"a%03d" % n) for n in range(1, 100)}
    proxy.plan = lambda request: hold(gate) if request.target.rpartition("/")[2] in held else PASS
    # The first scan leaves one thread to the second, whose read-ahead has to queue.
    assert next(busy).key == b"a000"
    assert next(dropped).key == b"b000"
    del dropped
    gc.collect()
    gate.set()
    assert len(list(busy)) == 99
    names = {encode(b"b%03d" % n) for n in range(100)}
    assert sum(request.target.rpartition("/")[2] in names for request in proxy.seen) < 20
    driver.close()


def test_a_scan_holds_no_more_than_its_window_of_large_rows(proxy: Proxy, s3_bucket: S3Bucket) -> None:
    driver = behind(proxy, s3_bucket)
    store = driver.open(STORE)
    large = bytes(24 << 20)
    fill(store, {b"%d" % n: large for n in range(5)})
    proxy.seen.clear()
    rows = store.scan(PARTITION, b"", b"\xff")
    next(rows)
    assert sum(map(values, proxy.seen)) <= 3, "64 MiB hold two such rows, and one was taken"
    assert len(list(rows)) == 4
    driver.close()


def test_a_deletion_that_failed_half_way_goes_on(proxy: Proxy, s3_bucket: S3Bucket) -> None:
    from fix_proxy import DROP_REQUEST

    from streamkit.backend import Ambiguous

    driver = behind(proxy, s3_bucket, page=40)
    store = driver.open(STORE)
    fill(store, {b"%04d" % n: b"x" for n in range(100)})
    proxy.once(DROP_REQUEST, lambda request: request.method == "DELETE")
    with pytest.raises(Ambiguous):
        driver.delete(STORE)
    assert list(driver.stores()) == [STORE], "it is there until all of it is gone"
    driver.delete(STORE)
    assert list(driver.stores()) == []
    assert s3_bucket.names() == []
    driver.delete(STORE)
    # It can be made again, by the same process.
    store.put(PARTITION, b"again", b"x")
    assert list(driver.stores()) == [STORE]
    driver.close()


def test_a_thousand_deletes_are_one_request(proxy: Proxy, s3_bucket: S3Bucket) -> None:
    driver = behind(proxy, s3_bucket)
    store = driver.open(STORE)
    rows = {b"%04d" % n: b"x" for n in range(0, 2000, 40)}
    fill(store, rows)
    proxy.seen.clear()
    store.delete(PARTITION, [b"%04d" % n for n in range(1000)] * 2)
    assert [request.method for request in proxy.seen] == ["POST"]
    assert [row.key for row in store.scan(PARTITION, b"", b"\xff", values=False)] == [*rows][25:]
    proxy.seen.clear()
    store.delete(PARTITION, [b"%04d" % n for n in range(1001)])
    assert sorted(request.method for request in proxy.seen) == ["DELETE", "POST"]
    store.delete(PARTITION, [])
    assert len(proxy.seen) == 2
    driver.close()


def test_parts_are_read_at_the_same_time_and_of_the_object_that_is_meant(proxy: Proxy, s3_bucket: S3Bucket) -> None:
    driver = behind(proxy, s3_bucket)
    store = driver.open(STORE)
    large = bytes(range(256)) * 4096
    etag = store.put(PARTITION, b"run", large)
    proxy.seen.clear()
    all_sent = threading.Event()

    def plan(request: Request) -> Fault:
        if len(proxy.seen) == 5:
            all_sent.set()
        return hold(all_sent)

    proxy.plan = plan
    parts = [Range(b"run", 1000 * n, 70, etag) for n in range(5)]
    assert store.read(PARTITION, parts) == [large[part.start :][:70] for part in parts]
    assert [request.headers["if-match"] for request in proxy.seen] == [etag] * 5
    assert {request.headers["range"] for request in proxy.seen} == {
        f"bytes={1000 * n}-{1000 * n + 69}" for n in range(5)
    }
    proxy.plan = []
    store.put(PARTITION, b"run", large[::-1])
    assert store.read(PARTITION, [Range(b"run", 0, 70, etag), Range(b"run", 0, 3)]) == [None, large[:-4:-1]]
    driver.close()


def test_closing_the_driver_ends_a_scan_in_another_thread_with_an_error(s3_bucket: S3Bucket) -> None:
    driver = streamkit_s3.connect(s3_bucket.url(), timeout=30)
    store = driver.open(STORE)
    fill(store, {b"%04d" % n: b"x" for n in range(100)})
    rows = store.scan(PARTITION, b"", b"\xff")
    next(rows)
    driver.close()
    with pytest.raises(StoreClosed):
        list(rows)
    for call in (lambda: store.get(PARTITION, [b"x"]), driver.stores, lambda: driver.open(STORE)):
        with pytest.raises(StoreClosed):
            call()
    driver.close()


def test_one_process_serves_many_stores_with_one_client(proxy: Proxy, s3_bucket: S3Bucket) -> None:
    driver = behind(proxy, s3_bucket)
    stores = [uuid4() for _ in range(5)]
    for store in stores:
        driver.open(store).put(PARTITION, b"key", store.bytes, NEXT)
    assert set(driver.stores()) == set(stores)
    # Only the first had to find out what the service can do; the others: look, mark, write.
    assert sum("probe" in request.target for request in proxy.seen) == 4
    assert proxy.connections <= 12
    driver.close()
