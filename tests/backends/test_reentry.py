"""A call from a signal handler, or a finalizer, in the middle of another one: it works or is refused."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest

import streamkit_local
import streamkit_memory
from streamkit.backend import Append, Backend, Driver, Put

P = b"orders"


@contextlib.contextmanager
def at_line(number: int, interrupt: Callable[[], object]) -> Iterator[list[int]]:
    """Call `interrupt` before the line of this number, of those that a backend executes inside, as a signal would."""
    seen = [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "/streamkit_" not in frame.f_code.co_filename:
            return None
        if event == "line":
            seen[0] += 1
            if seen[0] == number:
                sys.settrace(None)
                interrupt()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


@pytest.fixture
def alarm() -> Iterator[None]:
    """Whoever waits for itself is woken by an error."""

    def ring(*_: object) -> None:
        raise TimeoutError("it waits for itself")

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(
    params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3), pytest.param("azure", marks=pytest.mark.azure)]
)
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    made: Driver
    match request.param:
        case "memory":
            made = streamkit_memory.connect("memory://", timeout=10)
        case "local":
            made = streamkit_local.connect(f"file://{tmp_path_factory.mktemp('stores')}", timeout=10)
        case "s3":
            import streamkit_s3

            made = streamkit_s3.connect(request.getfixturevalue("s3_bucket").url(), timeout=10)
        case _:
            import streamkit_azure

            made = streamkit_azure.connect(request.getfixturevalue("azurite").url(), timeout=10)
    yield made
    made.close()


def rows(store: Backend) -> dict[bytes, bytes]:
    return {row.key: row.data for row in store.scan(P, b"", b"\xff")}


OUTER: dict[str, Callable[[Backend, bytes], object]] = {
    "append": lambda store, key: store.write(P, [Append(b"outer " + key, key)]),
    "put": lambda store, key: store.write(P, [Put(b"outer " + key, key), Put(b"other " + key, key)]),
    "get": lambda store, key: store.get(P, [b"first", b"second"]),
    "scan": lambda store, key: rows(store),
}


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("fresh", [False, True], ids=["open", "just opened"])
def test_a_call_in_the_middle_of_a_call_never_waits_for_itself(driver: Driver, outer: str, fresh: bool) -> None:
    """At one line after the other: what was called in between is done or refused, and the outer call is whole."""
    remote = driver.__class__.__name__ in ("S3Driver", "AzureDriver")
    step, number, done = (17 if remote else 3 if fresh else 1), 1, 0
    store_id = uuid4()
    store = driver.open(store_id)
    store.write(P, [Append(b"first", b"x"), Put(b"row", b"x")])
    if fresh:
        store.close()
    while True:
        key = b"%06d" % number
        if fresh:
            store = driver.open(store_id)
        outcome: list[str] = []

        def interrupt(store: Backend = store, key: bytes = key, outcome: list[str] = outcome) -> None:
            try:
                store.write(P, [Put(b"inner", key)])
                found = rows(store)
                assert (found[b"inner"], found[b"first"]) == (key, b"x")
                outcome.append("done")
            except RuntimeError as error:
                outcome.append("refused" if "signal handler" in str(error) else repr(error))

        signal.setitimer(signal.ITIMER_REAL, 60)
        with at_line(number, interrupt) as lines:
            OUTER[outer](store, key)
        signal.setitimer(signal.ITIMER_REAL, 0)
        found = rows(store)
        assert found[b"first"] == b"x"
        if outer in ("append", "put"):
            assert found[b"outer " + key] == key
        if "done" in outcome:
            assert found[b"inner"] == key
        assert outcome in (["done"], ["refused"], [])
        done += outcome == ["done"]
        if fresh:
            store.close()
        if lines[0] < number:
            break
        number += step
    assert done
    assert number < 5000
