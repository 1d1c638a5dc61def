"""Stores in memory beyond the contract of all backends."""

from __future__ import annotations

import os
import threading
from uuid import uuid4

import pytest

from streamkit.backend import NEXT
from streamkit.errors import StoreClosed
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver, connect

STORE = uuid4()


def test_drivers_of_one_name_share_their_stores_and_others_do_not() -> None:
    name = f"shared-{uuid4()}"
    connect(f"memory://{name}", timeout=1).open(STORE).put(b"p", b"k", b"v")
    assert list(connect(f"memory://{name}?remote=1", timeout=1).stores()) == [STORE]
    assert list(connect(f"memory://{name}-2", timeout=1).stores()) == []


def test_drivers_without_a_name_are_private() -> None:
    one, two = connect("memory://", timeout=1), connect("memory://", timeout=1)
    one.open(STORE).put(b"p", b"k", b"v")
    assert list(one.stores()) == [STORE]
    assert list(two.stores()) == []


@pytest.mark.parametrize(
    ("url", "wrong"),
    [
        ("memory://x?remote=yes", "0 or 1"),
        ("memory://x?latency=fast", "'latency'"),
        ("memory://x?latency=-1", "'latency'"),
        ("memory://x?latency=nan", "'latency'"),
        ("memory://x?page=0", "'page'"),
        ("memory://x?size=9", "latency, page, remote"),
        ("memory://x?page=1&page=2", "twice"),
        ("memory://x#y", "memory://name"),
        ("file:///x", "memory://name"),
    ],
)
def test_a_wrong_url_says_what_is_expected(url: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        connect(url, timeout=1)


@pytest.mark.parametrize(
    ("options", "remote"), [("", False), ("?remote=0", False), ("?remote=1", True), ("?latency=5", True)]
)
def test_the_url_says_whether_it_is_like_a_service(options: str, remote: bool) -> None:
    assert connect(f"memory://{options}", timeout=1).open(STORE).limits.remote == remote


def test_every_request_takes_the_latency() -> None:
    slept: list[float] = []
    driver = MemoryDriver(latency=0.25, page=2, sleep=slept.append)
    backend = driver.open(STORE)
    assert backend.limits.remote
    assert slept == []
    for number in range(5):
        backend.put(b"p", b"%d" % number, b"v")
    backend.get(b"p", [b"1", b"2"])
    assert slept == [0.25] * 6
    list(backend.scan(b"p", b"", b"\xff"))
    backend.delete(b"p", [b"1", b"2"])
    assert slept == [0.25] * 10


def test_requests_and_bytes_are_counted() -> None:
    backend = MemoryDriver(page=2).open(STORE)
    for number in range(5):
        backend.put(b"p", b"%d" % number, b"1234")
    backend.get(b"p", [b"1", b"9"])
    list(backend.scan(b"p", b"", b"\xff", values=False))
    backend.acquire("leader", 1)
    assert backend.requests == {
        "put": 5,
        "bytes_written": 20,
        "get": 2,
        "bytes_read": 4,
        "scan": 3,
        "lease": 1,
    }


def test_a_request_that_waits_does_not_hold_others_up() -> None:
    asleep, wake = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        asleep.set()
        assert wake.wait(60)

    name = f"latency-{uuid4()}"
    slow = MemoryDriver(name, latency=1, sleep=sleep).open(STORE)
    writer = threading.Thread(target=slow.put, args=(b"p", b"1", b"slow", NEXT), daemon=True)
    writer.start()
    assert asleep.wait(60)
    fast = MemoryDriver(name).open(STORE)
    fast.put(b"p", b"0", b"fast", NEXT)
    assert [row.data for row in fast.scan(b"p", b"", b"\xff")] == [b"fast"]
    wake.set()
    writer.join(60)
    assert [row.data for row in fast.scan(b"p", b"", b"\xff")] == [b"fast", b"slow"]


def test_what_the_contract_forbids_raises_at_once() -> None:
    backend = MemoryDriver().open(STORE)
    for call in (
        lambda: backend.put(b"p", bytes(301), b""),
        lambda: backend.delete(b"p", [b"k", bytes(301)]),
        lambda: backend.get(b"p", [bytes(301)]),
    ):
        with pytest.raises(ValueError, match="a key has at most 300"):
            call()
    with pytest.raises(ValueError, match="a partition has at most 300"):
        backend.get(bytes(301), [b"k"])
    with pytest.raises(ValueError, match="ttl"):
        backend.acquire("leader", 0)


def test_an_expired_lease_is_renewed_if_nobody_took_it() -> None:
    clock = ManualClock()
    backend = MemoryDriver(clock=clock).open(STORE)
    grant = backend.acquire("leader", 10)
    assert grant is not None
    clock.sleep(11)
    backend.renew(grant)
    assert backend.acquire("leader", 10) is None


def test_a_forked_child_is_told_that_memory_is_not_shared() -> None:
    name = f"fork-{uuid4()}"
    driver = connect(f"memory://{name}", timeout=1)
    backend = driver.open(STORE)
    backend.put(b"p", b"k", b"v")
    child = os.fork()
    if not child:
        code = 0
        for call in (lambda: backend.get(b"p", [b"k"]), driver.stores, lambda: driver.open(STORE)):
            try:
                call()
                code = 1
            except StoreClosed as error:
                code |= 0 if "fork" in str(error) else 2
            except BaseException:
                code |= 4
        code |= 8 if list(connect(f"memory://{name}", timeout=1).stores()) else 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert backend.get(b"p", [b"k"]) != [None]


def test_a_closed_driver_closes_its_backends() -> None:
    driver = MemoryDriver()
    backend = driver.open(STORE)
    driver.close()
    for call in (lambda: backend.get(b"p", [b"k"]), driver.stores, lambda: driver.open(STORE)):
        with pytest.raises(StoreClosed):
            call()
    assert "closed" in repr(driver)
