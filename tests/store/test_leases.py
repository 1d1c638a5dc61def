"""Leases among processes: one holder at a time, a successor in time, and no write by one that was succeeded.

On S3 the emulator takes one request after the other (see fix_s3), so that its conditional writes are atomic as those
of S3 are: nothing but a lease keeps the contenders apart here.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_azurite import Azurite
from fix_proxy import DROP_REQUEST, SILENT, Fault, Proxy
from fix_s3 import S3Bucket

import streamkit
import streamkit_memory
from harness import leaseholder, warm
from harness.warm import Program
from streamkit import Client, Fenced, LeaseLost, Record, Store
from streamkit.clock import SYSTEM_CLOCK
from streamkit.leases import Lease

EXHAUSTIVE = bool(os.environ.get("STREAMKIT_EXHAUSTIVE"))
SECONDS = 60.0 if EXHAUSTIVE else 3.0
PROCESSES = 8
PATIENCE = 60.0
"""Seconds after the ttl in which a successor takes over, on a machine that has other things to do."""

pytestmark = [pytest.mark.slow, pytest.mark.sampled(2)]


class Place:
    """A store that several processes reach; some of them through proxies."""

    def __init__(self, kind: str, url: str, through: str = "", proxies: tuple[Proxy, ...] = (), ttl: float = 2) -> None:
        self.kind = kind
        self.url = url
        self.through = through or url
        self.proxies = proxies
        self.ttl = ttl
        self.id: UUID = uuid4()
        self.client = streamkit.connect(url)
        self.store: Store = self.client.store(self.id)
        self.processes: list[Program] = []

    def start(self, verb: str, *args: object, url: str = "") -> Program:
        """A process of leaseholder.py."""
        process = warm.start(leaseholder.__file__, verb, url or self.url, self.id, *args, url=self.url)
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            with process:
                process.kill()
        self.client.close()

    @property
    def native(self) -> bool:
        return self.kind == "azure native"

    @contextmanager
    def cut(self, fault: Fault) -> Iterator[None]:
        """No request of a process that goes through the proxies gets an answer."""
        if self.kind == "local":
            # The disk is always there. But a process that holds the lock of the leases blocks the others, and a blocked
            # renewal succeeds too late.
            leases = Path(self.url.removeprefix("file://")) / str(self.id) / "leases"
            with open(max(leases.glob("*.log")), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
            return
        for proxy in self.proxies:
            proxy.plan = lambda request: fault
        yield
        for proxy in self.proxies:
            proxy.plan = []


PLACES = ["local", "s3", "azure", "azure native"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, make_proxy: Callable[[str, int], Proxy]) -> Iterator[Place]:
    kind: str = request.param
    if kind == "local":
        found = Place(kind, f"file://{tmp_path}")
    elif kind == "s3":
        bucket: S3Bucket = request.getfixturevalue("s3_bucket")
        proxy = make_proxy(bucket.server.host, bucket.server.port)
        found = Place(kind, bucket.url("leases"), bucket.url("leases", endpoint_url=proxy.endpoint), (proxy,))
    else:
        if kind == "azure native" and not EXHAUSTIVE:
            pytest.skip("Azure's own leases last 15 seconds at least: set STREAMKIT_EXHAUSTIVE=1")
        azurite: Azurite = request.getfixturevalue("azurite")
        blobs, tables = make_proxy("127.0.0.1", azurite.blob_port), make_proxy("127.0.0.1", azurite.table_port)
        prefix = "leases" + uuid4().hex[:10]
        through = Azurite(blobs.port, tables.port).url(prefix)
        found = Place(kind, azurite.url(prefix), through, (blobs, tables), 15 if kind == "azure native" else 2)
    yield found
    found.close()


class Holder:
    """A process that holds the lease."""

    def __init__(self, place: Place, url: str = "") -> None:
        self.process = place.start("hold", place.ttl, url=url)
        said, self.token = self.hear()
        assert said == "held"

    def hear(self) -> Any:
        return json.loads(self.process.stdout.readline())

    def ask(self, what: str) -> Any:
        print(what, file=self.process.stdin, flush=True)
        return self.hear()


@contextmanager
def succeeded(place: Place, since: float) -> Iterator[tuple[Lease, float]]:
    """Hold the lease, for longer than any pause, after someone who had it at `since`; and when it was taken."""
    with place.store.lease("leader", 60 if place.native else 14, wait=place.ttl + PATIENCE) as lease:
        now = time.monotonic()
        print(f"{place.kind}, ttl {place.ttl} s: taken over after {now - since:.2f} s")
        yield lease, now


def tokens(place: Place) -> list[int]:
    """The tokens of the writers, in the order of the log."""
    return [int(entry.payload) for entry in place.client.store(place.id).consume_segment("terms", "leader")]


# -- one at a time --------------------------------------------------------------------------------------------------


def check_terms(terms: list[leaseholder.Term], written: list[int], seconds: float) -> str:
    """One holder at a time, tokens that grow, and a log in which no holder writes after its successor."""
    terms = sorted(terms, key=lambda term: term[1])
    for before, after in itertools.pairwise(terms):
        assert before[0] < after[0], "a token did not grow"
        assert before[2] < after[1], "two held the lease at a time"
    assert written == sorted(written), "someone wrote after a successor had"
    assert set(written) <= {term[0] for term in terms}
    held = sum(until - began for _, began, until in terms)
    return f"{len(terms)} terms, held {held / seconds:.0%} of {seconds:.0f} s, {len(written)} writes"


def test_of_many_processes_one_holds_the_lease(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    if place.kind == "local":
        place.ttl = 1
    contenders = [place.start("contend", place.ttl, SECONDS) for _ in range(PROCESSES)]
    for process in contenders:
        assert process.stdout.readline() == '["ready"]\n'
    began = time.monotonic()
    for process in contenders:
        print("go", file=process.stdin, flush=True)
    parts: list[list[leaseholder.Term]] = [json.loads(process.communicate()[0]) for process in contenders]
    assert all(process.returncode == 0 for process in contenders)
    written = [int(entry.payload) for entry in place.store.consume_segment("terms", "leader")]
    terms = [(token, start, end) for part in parts for token, start, end in part]
    said = check_terms(terms, written, time.monotonic() - began)
    holders = sum(map(bool, parts))
    with capsys.disabled():
        print(f"\n{place.kind}, {PROCESSES} processes, {holders} of which held it: {said}")
    assert holders == PROCESSES


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_of_many_threads_one_holds_the_lease(kind: str) -> None:
    client = streamkit.connect(f"memory://{uuid4()}?remote={int(kind == 'remote')}")
    store = client.store(uuid4())
    seconds = SECONDS / 2
    with ThreadPoolExecutor(PROCESSES) as threads:
        parts = list(threads.map(lambda _: leaseholder.contend(store, 1, seconds), range(PROCESSES)))
    written = [int(entry.payload) for entry in store.consume_segment("terms", "leader")]
    terms = [term for part in parts for term in part]
    print(f"memory, {kind}: {check_terms(terms, written, seconds)}")
    assert all(parts)
    client.close()


# -- holders that go ------------------------------------------------------------------------------------------------


def test_a_killed_holder_is_succeeded_in_time(place: Place) -> None:
    holder = Holder(place)
    assert holder.ask("write")[0] == "written"
    holder.process.kill()
    killed = time.monotonic()
    with succeeded(place, killed) as (lease, _):
        assert lease.token > holder.token
        place.store.produce("terms", "leader", [Record(b"%d" % lease.token)], lease=lease)
        assert tokens(place) == [holder.token, lease.token]


def test_a_paused_holder_that_wakes_up_is_fenced(place: Place) -> None:
    holder = Holder(place)
    assert holder.ask("write") == ["written", 1]
    os.kill(holder.process.pid, signal.SIGSTOP)
    paused = time.monotonic()
    with succeeded(place, paused) as (lease, _):
        place.store.produce("terms", "leader", [Record(b"%d" % lease.token)], lease=lease)
        os.kill(holder.process.pid, signal.SIGCONT)
        error, message = holder.ask("write")
        assert error == Fenced.__name__, message
        assert str(lease.token) in message
        lost, remaining = holder.ask("lost")
        assert lost is not None
        assert remaining == 0
        # The end of the old holder does no harm to its successor.
        assert holder.ask("leave") == ["left"]
        lease.check()
        place.store.produce("terms", "leader", [Record(b"%d" % lease.token)], lease=lease)
        assert tokens(place) == [holder.token, lease.token, lease.token]


@pytest.mark.parametrize("fault", [SILENT, DROP_REQUEST], ids=["renewals hang", "renewals fail"])
def test_a_holder_that_is_cut_off_knows_before_its_successor_begins(place: Place, fault: Fault) -> None:
    if place.kind == "local" and fault is not SILENT:
        pytest.skip("a disk does not refuse connections")
    if fault is not SILENT and not EXHAUSTIVE:
        pytest.skip("takes long and differs little: set STREAMKIT_EXHAUSTIVE=1")
    place.ttl = max(place.ttl, 3)
    holder = Holder(place, place.through)
    asked = time.monotonic()
    lost, sure = holder.ask("lost")
    assert holder.ask("write") == ["written", 1]
    with place.cut(fault):
        cut = time.monotonic()
        (until,) = holder.ask("until")
        while lost is None:
            time.sleep(0.01)
            lost, _ = holder.ask("lost")
            assert time.monotonic() < cut + place.ttl + PATIENCE, "lost was never set"
        print(f"{place.kind}, ttl {place.ttl} s: lost was set after {lost - cut:.2f} s")
        assert lost >= asked + sure - place.ttl / 10
        if place.kind != "local":
            successor = succeed_and_write(place, cut, until)
    if place.kind == "local":
        # The renewal that had to wait comes too late for the holder, which gives the lease up.
        successor = succeed_and_write(place, cut, lost)
    assert holder.ask("write")[0] == Fenced.__name__
    assert tokens(place) == [holder.token, successor]


def succeed_and_write(place: Place, cut: float, until: float) -> int:
    """Take over from a holder that knows the end of its lease. The machine decides when its thread notices."""
    with succeeded(place, cut) as (lease, taken):
        assert until < taken
        place.store.produce("terms", "leader", [Record(b"%d" % lease.token)], lease=lease)
        return lease.token


# -- in one process -------------------------------------------------------------------------------------------------


class Hanging:
    """A memory store whose requests, once `hang` is called, do not end before `go_on` is."""

    def __init__(self) -> None:
        self._going = threading.Event()
        self._going.set()
        driver = streamkit_memory.MemoryDriver(latency=1e-9, sleep=self._request)
        self.client = Client("memory://", driver, 30.0, None, 1 << 20, SYSTEM_CLOCK)
        self.hang = self._going.clear
        self.go_on = self._going.set

    def _request(self, seconds: float) -> None:
        self._going.wait(60)


def test_lost_is_set_while_a_renewal_hangs() -> None:
    service = Hanging()
    store = service.client.store(uuid4())
    with store.lease("leader", ttl=2) as lease:
        asked, sure = time.monotonic(), lease.remaining()
        service.hang()
        assert lease.lost.wait(50)
        assert time.monotonic() >= asked + sure - 0.2
        assert lease.remaining() == 0
        with pytest.raises(LeaseLost, match="'leader' was lost: stop"):
            lease.check()
        # The hanging renewal gets an answer at last. The lost lease stays lost.
        service.go_on()
        time.sleep(0.05)
        assert lease.lost.is_set()
        assert lease.remaining() == 0
    service.client.close()


def test_a_lease_is_held_for_longer_than_its_ttl() -> None:
    store = streamkit.connect(f"memory://{uuid4()}").store(uuid4())
    for _ in range(5):  # a machine that has other things to do may keep the renewal waiting, but not for ever
        with store.lease("leader", ttl=2) as lease:
            if not lease.lost.wait(2.5) and lease.remaining() >= 0.9:
                return
    pytest.fail("it was never renewed well before half of its ttl")
