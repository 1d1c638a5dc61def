"""Requests of each operation, and those that wait for each other, counted on the wire.

`python tests/log/test_requests.py` prints the table. Requests are held back by a proxy until every thread waits, so
those that do not wait for each other are let go together: such a wave is one round trip.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from fix_azurite import Azurite
from fix_covered import EXHAUSTIVE
from fix_proxy import PASS, Fault, Proxy, Request, delay, hold
from fix_s3 import S3Bucket

import streamkit
from benchmarks.requests import appends, fresh
from streamkit import Record, Store
from streamkit.log import commit, inbox
from streamkit.testing import ManualClock

_APPENDS = 1000 if EXHAUSTIVE else 300
_LOOKS = 4
"""The number of looks in a row that find no request on its way and every thread waiting, before the held ones are let
go."""
_THREADS = Path("/proc/self/task")
_SILENCE = 5.0 if _THREADS.is_dir() else 0.8
"""Seconds without a request after which the held ones are let go in any case."""

pytestmark = pytest.mark.slow


class Wire:
    """A cloud behind proxies that see every request."""

    def __init__(self, cloud: str, url: str, proxies: list[Proxy]) -> None:
        self.cloud = cloud
        self.url = url
        self.proxies = proxies
        self._lock = threading.Lock()
        self._arrived = 0
        self._latest = 0.0
        self._gate: threading.Event | None = None
        """The event for which the present wave of requests waits; None if none are held."""
        self._waiting = 0
        for proxy in proxies:
            proxy.plan = self._plan

    def _plan(self, request: Request) -> Fault:
        with self._lock:
            self._arrived += 1
            if self._gate is None:
                return PASS
            self._latest = time.monotonic()
            self._waiting += 1
            return hold(self._gate)

    def store(self, store_id: object, clock: ManualClock | None = None) -> Store:
        """The store, as a fresh process would open it."""
        client = streamkit.connect(self.url, clock=clock) if clock else streamkit.connect(self.url)
        return client.store(str(store_id))

    def count(self, work: Callable[[], object]) -> int:
        """The requests that `work` makes."""
        before = self._arrived
        work()
        return self._arrived - before

    def _all_wait(self) -> bool:
        """True if each sent request is held and all other threads wait. Then no thread sends another one, also on a
        slow machine."""
        if sum(proxy.active for proxy in self.proxies) != self._waiting:
            return False
        if time.monotonic() > self._latest + _SILENCE:
            return True
        if not _THREADS.is_dir():
            return False
        for thread in _THREADS.iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                state = (thread / "stat").read_text().rpartition(") ")[2][0]
                if state != "S" and int(thread.name) != threading.get_native_id():
                    return False
        return True

    def trips(self, work: Callable[[], object]) -> tuple[int, int]:
        """Return (round trips one after the other, requests) of `work`."""
        before, waves = self._arrived, 0
        self._gate = threading.Event()
        looks, seen = 0, before
        with ThreadPoolExecutor(1) as thread:
            working = thread.submit(work)
            while not working.done():
                time.sleep(0.01)
                looks = looks + 1 if seen == self._arrived and self._all_wait() else 0
                seen = self._arrived
                with self._lock:
                    if self._waiting and looks >= _LOOKS and seen == self._arrived:
                        self._gate.set()
                        self._gate, self._waiting, looks = threading.Event(), 0, 0
                        waves += 1
            self._gate.set()
            self._gate = None
        working.result()
        return waves, self._arrived - before


@pytest.fixture(params=["s3", "azure"])
def wire(request: pytest.FixtureRequest, make_proxy: Callable[[str, int], Proxy]) -> Iterator[Wire]:
    if request.param == "s3":
        bucket: S3Bucket = request.getfixturevalue("s3_bucket")
        proxy = make_proxy(bucket.server.host, bucket.server.port)
        yield Wire("s3", bucket.url("wire", endpoint_url=proxy.endpoint), [proxy])
    else:
        azurite: Azurite = request.getfixturevalue("azurite")
        blobs, tables = make_proxy("127.0.0.1", azurite.blob_port), make_proxy("127.0.0.1", azurite.table_port)
        through = Azurite(blobs.port, tables.port)
        yield Wire("azure", through.url("w" + uuid4().hex[:10]), [blobs, tables])


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str], wire: Wire) -> Callable[[str, object, object], None]:
    def tell(operation: str, measured: object, reach: object) -> None:
        with capsys.disabled():
            print(f"\n| {wire.cloud:5} | {operation:58} | {measured!s:24} | {reach!s:24} |", end="")

    return tell


Tell = Callable[[str, object, object], None]


def _entries(store: Store, segment: str) -> int:
    return sum(1 for _ in store.consume_segment("space", segment))


def _note_entries(found: list[int], store: Store, segment: str) -> None:
    found.append(_entries(store, segment))


def test_an_append_is_one_request(wire: Wire, tell: Tell) -> None:
    store = wire.store(uuid4())
    names = [f"segment-{number}" for number in range(40)]

    def transaction(size: int) -> None:
        with store.transaction("space") as trx:
            for name in names:
                trx.produce(name, [Record(b"x" * size)])

    transaction(1)
    one = wire.count(lambda: store.produce("space", names[0], [Record(b"one")]))
    batch = wire.count(lambda: store.produce("space", names[0], [Record(os.urandom(128))] * 200))
    forty = wire.count(lambda: transaction(100))
    tell("append, warm: 1 record / 200 records / 40 segments", f"{one} / {batch} / {forty} requests", "1 request")
    assert (one, batch, forty) == (1, 1, 1)


def test_the_first_append_of_a_fresh_process(wire: Wire, tell: Tell) -> None:
    store_id = uuid4()
    for number in range(10):
        wire.store(store_id).produce("space", "order", [Record(b"%d" % number)])
    fresh = wire.store(store_id)
    trips, requests = wire.trips(lambda: fresh.produce("space", "order", [Record(b"next")], expected_sequence=10))
    reach = 4 if wire.cloud == "s3" else 3
    tell("append, first of a fresh process", f"{trips} trips, {requests} requests", f"<= {reach} trips")
    assert trips <= reach
    assert _entries(wire.store(store_id), "order") == 11


def test_threads_share_requests(wire: Wire, tell: Tell) -> None:
    store = wire.store(uuid4())
    store.produce("space", "first", [Record(b"")])

    def append(thread: int) -> None:
        for number in range(50):
            store.produce("space", f"segment-{thread}", [Record(b"%d" % number)])

    def work() -> None:
        with ThreadPoolExecutor(64) as threads:
            list(threads.map(append, range(64)))

    rate = wire.count(work) / (64 * 50)
    tell("64 threads x 50 appends", f"{rate:.3f} an append", "<= 0.15 an append")
    assert rate <= 0.15
    assert sum(1 for _ in store.consume_space("space")) == 64 * 50 + 1


def test_index_upkeep(wire: Wire, tell: Tell) -> None:
    store = wire.store(uuid4(), ManualClock(time.time()))  # which looks into the inbox by the clock
    names = [f"segment-{number}" for number in range(100)]
    with store.transaction("space") as trx:
        for name in names[:40]:
            trx.produce(name, [Record(b"")])
    for name in names[40:]:
        store.produce("space", name, [Record(b"")])

    def work() -> None:
        for number in range(_APPENDS):
            store.produce("space", names[number % 100], [Record(b"%d" % number)])

    further = wire.count(work) / _APPENDS - 1
    tell(f"index upkeep, {_APPENDS:,} appends to 100 segments", f"{further:.3f} an append", "<= 0.06 an append")
    assert further <= 0.06


def test_loading_a_segment(wire: Wire, tell: Tell) -> None:
    store_id = uuid4()
    store = wire.store(store_id)
    for number in range(100):
        store.produce("space", "order", [Record(b"%d" % number)])
    store.maintain()
    trips, requests = wire.trips(lambda: _entries(store, "order"))
    fresh = wire.store(store_id)
    fresh_trips, fresh_requests = wire.trips(lambda: _entries(fresh, "order"))
    reach = (3, 5, 45) if wire.cloud == "s3" else (2, 4, 45)
    tell(
        "load a segment of 100 commits, warm / fresh process",
        f"{trips} / {fresh_trips} trips, {fresh_requests} req.",
        f"<= {reach[0]} / {reach[1]} trips, {reach[2]} req.",
    )
    assert _entries(fresh, "order") == 100
    assert (trips <= reach[0], fresh_trips <= reach[1], fresh_requests <= reach[2]) == (True, True, True)
    assert requests <= fresh_requests


def test_reading_a_space(wire: Wire, tell: Tell) -> None:
    store_id = uuid4()
    store = wire.store(store_id)
    for number in range(_APPENDS):
        store.produce("space", f"segment-{number % 7}", [Record(b"%d" % number)])
    fresh = wire.store(store_id)
    found: list[int] = []
    requests = wire.count(lambda: found.append(sum(1 for _ in fresh.consume_space("space"))))
    reach = 40  # most of them the tail
    tell(f"read a space of {_APPENDS:,} commits, fresh process", f"{requests} requests", f"<= {reach} requests")
    assert found == [_APPENDS]
    assert requests <= reach


def test_a_warm_peek(wire: Wire, tell: Tell) -> None:
    store = wire.store(uuid4())
    for number in range(3):
        store.produce("space", "order", [Record(b"%d" % number)])
    store.peek("space", "order")
    requests = wire.count(lambda: store.peek("space", "order"))
    tell("peek, warm", f"{requests} request", "<= 1 request")
    assert requests <= 1
    assert store.peek("space", "order").payload == b"2"


def test_following_an_idle_space(wire: Wire, tell: Tell) -> None:
    store_id = uuid4()
    wire.store(store_id).produce("space", "order", [Record(b"")])
    clock = ManualClock(start=time.time())
    store = wire.store(store_id, clock)
    times: list[float] = []
    for proxy in wire.proxies:
        proxy.plan = lambda request: times.append(clock.monotonic()) or delay(0)  # type: ignore[func-returns-value]
    began = clock.monotonic()
    assert len(list(store.follow_space("space", timeout=120))) == 1
    late = [at for at in times if at > began + 30]
    rate = len(late) / (began + 120 - (began + 30)) * 5
    tell("following an idle space, after 30 s", f"{rate:.2f} in 5 s", "<= 1 in 5 s")
    assert rate <= 1.1


# --- as many requests as on S3, counted above a store in memory ---


def test_what_is_counted_above_a_store_in_memory_is_what_goes_over_the_wire(
    wire: Wire, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both counts are equal, without the store's mark that a fresh process reads on S3.

    Azure looks for blobs before it deletes rows.
    """
    if wire.cloud != "s3":
        pytest.skip("counted as on S3")
    monkeypatch.setattr(inbox, "_LOOK", (1 << 62, 1.0))  # by the clock: one list, if the wire takes so long
    name, store_id = f"requests-{uuid4()}", uuid4()
    counted, driver = fresh(name, store_id)
    sent = wire.store(store_id)

    def append(store: Store) -> None:
        for number in range(200):
            store.produce("space", f"segment-{number % 90}", [Record(b"%d" % number * 40)])

    for store in (counted, sent):
        store.produce("space", "segment-1", [Record(b"the first")])
    appends = driver.count(lambda: append(counted)).requests, wire.count(lambda: append(sent))
    there, one = fresh(name, store_id)
    loads = (
        one.count(lambda: _entries(there, "segment-7")),
        wire.trips(lambda: _entries(wire.store(store_id), "segment-7")),
    )
    there, one = fresh(name, store_id)
    reads = (
        one.count(lambda: sum(1 for _ in there.consume_space("space"))).requests,
        wire.count(lambda: sum(1 for _ in wire.store(store_id).consume_space("space"))),
    )
    tell(
        "200 appends / load / read a space: counted, sent",
        f"{appends} {loads[0].requests, loads[1][1]} {reads}",
        "the same",
    )
    assert appends[0] == appends[1]
    assert (loads[1][0], loads[1][1] - 1) == (loads[0]["trips"], loads[0].requests)
    assert reads[1] - 1 == reads[0]


def test_upkeep_costs_few_writes_and_nobody_waits_for_long(capsys: pytest.CaptureFixture[str]) -> None:
    count = 10_000 if EXHAUSTIVE else 4_000
    store, driver = fresh(f"requests-{uuid4()}", uuid4())
    store.produce("space", "first", [Record(b"")])
    total, longest = appends(store, driver, count, count)
    with capsys.disabled():
        print(
            f"\n{total.writes / count:.4f} writes an append, the longest wait {longest['trips'] - 1} requests", end=""
        )
    assert total.writes <= 1.06 * count + count / 64  # one look into the inbox, at most, for so many
    assert longest["trips"] - 1 <= 4
    assert sum(1 for _ in store.consume_space("space")) == count + 1
    assert store.verify().ok


def test_a_fresh_process_asks_little_of_a_large_store(capsys: pytest.CaptureFixture[str]) -> None:
    name, store_id, segments = f"requests-{uuid4()}", uuid4(), 5_000
    store, _ = fresh(name, store_id)
    for number in range(400):
        with store.transaction("space") as trx:
            for at in range(100):
                trx.produce(f"segment-{(number * 100 + at) * 7919 % segments}", [Record(os.urandom(128))])
    plain = 0
    for number in range(30):
        segment = f"segment-{number * 11}"
        reader, driver = fresh(name, store_id)
        found: list[int] = []
        asked = driver.count(partial(_note_entries, found, reader, segment))
        assert found[0] >= 8
        assert (asked["trips"] <= 5, asked.requests <= 45) == (True, True), (number, asked)
        writer, driver = fresh(name, store_id)
        asked = driver.count(partial(writer.produce, "space", segment, [Record(b"")]))
        if asked["put"] == 1:  # else the index was brought forward behind it, or something merged
            plain += 1
            assert (asked["trips"] <= 4, asked.requests <= 40) == (True, True), (number, asked)
    assert plain >= 20


def test_a_space_is_read_in_few_requests() -> None:
    name, store_id, count = f"requests-{uuid4()}", uuid4(), 10_000
    store, driver = fresh(name, store_id)
    appends(store, driver, count, 1000)
    reader, driver = fresh(name, store_id)
    found: list[int] = []
    asked = driver.count(lambda: found.append(sum(1 for _ in reader.consume_space("space"))))
    assert found == [count]
    assert asked.requests <= 60


def test_the_tail_is_longer_than_what_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    name, store_id = f"requests-{uuid4()}", uuid4()
    store, _ = fresh(name, store_id)
    monkeypatch.setattr(commit.Committer, "keep_index", lambda committer: None)
    for number in range(100):
        store.produce("space", "order", [Record(b"%d" % number)])
    reader, driver = fresh(name, store_id)
    found: list[int] = []
    asked = driver.count(lambda: found.append(_entries(reader, "order")))
    assert found == [100]
    assert asked["trips"] <= 1 + 100 // 24 + 1


if __name__ == "__main__":
    print("| cloud | operation | measured | reach |\n|---|---|---|---|", end="", flush=True)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "-q", __file__, *sys.argv[1:]])
