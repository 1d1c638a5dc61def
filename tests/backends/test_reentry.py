"""A call from a signal handler, or a finalizer, in the middle of another one: it works or is refused."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest

import streamkit_local
import streamkit_memory
from streamkit.backend import NEXT, Backend, Driver

P = b"orders"


@contextlib.contextmanager
def at_line(number: int, interrupt: Callable[[], object]) -> Iterator[list[tuple[str, int]]]:
    """Call `interrupt` before the line of this number, of those that a backend executes inside, as a signal would.

    The lines that were executed up to there are in the list.
    """
    seen: list[tuple[str, int]] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if "/streamkit_" not in frame.f_code.co_filename:
            return None
        if event == "line":
            seen.append((frame.f_code.co_filename, frame.f_lineno))
            if len(seen) == number:
                sys.settrace(None)
                interrupt()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


def numbers(lines: list[tuple[str, int]]) -> list[int]:
    """The first time and the last time that each line is executed."""
    first = {line: number for number, line in reversed(list(enumerate(lines, 1)))}
    last = {line: number for number, line in enumerate(lines, 1)}
    return sorted({*first.values(), *last.values()})


@pytest.fixture
def alarm() -> Iterator[None]:
    """An alarm raises an error in a call that waits for itself."""

    def ring(*_: object) -> None:
        raise TimeoutError("it waits for itself")

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(
    params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3), pytest.param("azure", marks=pytest.mark.azure)]
)
def driver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Driver]:
    made: Driver
    match request.param:
        case "memory":
            made = streamkit_memory.connect("memory://", timeout=10)
        case "local":
            monkeypatch.setattr(os, "fdatasync", lambda fd: None)  # other tests cover power cuts
            monkeypatch.setattr(os, "fsync", lambda fd: None)
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
    "put next": lambda store, key: store.put(P, b"outer " + key, key, NEXT),
    "put": lambda store, key: store.put(P, b"outer " + key, key),
    "delete": lambda store, key: store.delete(P, [b"outer " + key, b"no such row"]),
    "get": lambda store, key: store.get(P, [b"first", b"second"]),
    "scan": lambda store, key: rows(store),
}


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("fresh", [False, True], ids=["open", "just opened"])
def test_a_call_in_the_middle_of_a_call_never_waits_for_itself(driver: Driver, outer: str, fresh: bool) -> None:
    """Call the store again at each line of a call: the inner call is done or refused, and the outer call is
    complete."""
    remote = driver.__class__.__name__ in ("S3Driver", "AzureDriver")
    store_id = uuid4()
    store = driver.open(store_id)
    store.put(P, b"first", b"x", NEXT)
    store.put(P, b"row", b"x")

    def call(number: int, interrupt: Callable[[bytes], object]) -> list[tuple[str, int]]:
        nonlocal store
        key = b"%06d" % number
        if fresh:
            store.close()
            store = driver.open(store_id)
        signal.setitimer(signal.ITIMER_REAL, 60)
        with at_line(number, lambda: interrupt(key)) as lines:
            OUTER[outer](store, key)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return lines

    done, reached = 0, 0
    executed = call(0, lambda key: None)
    store.delete(P, [b"outer 000000"])
    for number in range(1, len(executed), 41) if remote else numbers(executed):
        outcome: list[str] = []

        def interrupt(key: bytes, outcome: list[str] = outcome) -> None:
            try:
                store.put(P, b"inner", key)
                found = rows(store)
                assert (found[b"inner"], found[b"first"]) == (key, b"x")
                outcome.append("done")
            except RuntimeError as error:
                outcome.append("refused" if "signal handler" in str(error) else repr(error))

        call(number, interrupt)
        key = b"%06d" % number
        found = rows(store)
        assert found[b"first"] == b"x"
        if outer in ("put next", "put"):
            assert found[b"outer " + key] == key
        if "done" in outcome:
            assert found[b"inner"] == key
        assert outcome in (["done"], ["refused"], [])
        done += outcome == ["done"]
        reached += bool(outcome)
        store.delete(P, [b"outer " + key])
    assert done
    assert reached > 0.9 * (len(executed) / 41 if remote else len(numbers(executed)))
