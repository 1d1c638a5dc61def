"""Programs: the ways to stop one, the errors that stop one part alone, and the wait for a space that is away."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

from harness.drivers import MEMORY
from harness.sweep import StillClock
from streamkit import Record, Unavailable
from streamkit.client import Client
from streamkit.routes import Route
from streamkit.run import Program
from streamkit.views import Reduce


class Waits:
    """Runs until it is told to stop; the first time it does something else."""

    name = "waits"

    def __init__(self, first: BaseException | None = None) -> None:
        self.began, self.ended = threading.Event(), threading.Event()
        self._first = first

    def run(self, stop: Any = None, *, seconds: float | None = None) -> None:
        first, self._first = self._first, None
        if first is not None:
            raise first
        self.began.set()
        while not stop.is_set():
            self.ended.wait(0.001)
        self.ended.set()


def started(program: Program) -> threading.Thread:
    thread = threading.Thread(target=program.run)
    thread.start()
    return thread


def is_over(thread: threading.Thread) -> bool:
    thread.join(20)
    return not thread.is_alive()


def test_a_program_that_is_stopped_before_it_runs_does_not_run(subject: Subject) -> None:
    part = Waits()
    program = Program(subject.store, [part])
    program.stop()
    assert is_over(started(program))
    assert not part.began.is_set()
    again = started(program)
    assert part.began.wait(20), "it was the next run that was stopped"
    program.stop()
    assert is_over(again)


@pytest.mark.parametrize("led", [False, True])
def test_a_part_that_is_closed_ends_alone(subject: Subject, tmp_path: Path, led: bool) -> None:
    store = subject.store
    count: Reduce[int] = Reduce(lambda state, entry: state + 1, 0)
    view, route, other = store.view("count", count, ["a"], tmp_path / "count"), store.route("copy", "a", "b"), Waits()
    parts = [view, route]
    program = Program(store, [other], led=parts) if led else Program(store, [other, *parts])
    thread = started(program)
    entries = store.follow_space("b", timeout=20)
    store.produce("a", "s", [Record(b"1")])
    assert next(entries).payload == b"1"
    view.close()
    store.produce("a", "s", [Record(b"2")])
    assert next(entries).payload == b"2"
    route.close()
    for _ in range(10_000):
        assert not other.ended.wait(0.001), "the others go on"
        states = [part.state for part in program.status()]
        if states == ["running", "stopped", "stopped"]:
            break
    assert states == ["running", "stopped", "stopped"]
    program.stop()
    assert is_over(thread)
    assert other.ended.is_set()


def test_a_part_that_is_cancelled_is_one_that_raises(subject: Subject) -> None:
    part = Waits(asyncio.CancelledError("by somebody"))
    program = Program(subject.store, [part])
    thread = started(program)
    assert part.began.wait(20)
    program.stop()
    assert is_over(thread)
    (status,) = program.status()
    assert (status.restarts, status.error) == (1, "CancelledError: by somebody")


def test_parts_that_have_begun_are_stopped_where_another_cannot_begin(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [Waits(), Waits()]
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if parts[0].began.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)
        parts[0].began.wait(20)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        Program(subject.store, parts).run()
    assert parts[0].ended.wait(20)


def test_a_target_that_is_away_is_not_asked_whenever_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, driver = StillClock(), MEMORY["memory"](StillClock())
    store = Client("memory://", driver, 5.0, (0.01, 1.0), 64 << 20, clock).store(uuid4())
    store.produce("a", "s", [Record(b"1")])
    route, write, tried = store.route("copy", "a", "b"), Route._write, list[float]()

    def away(self: Route, key: str, copies: Any) -> None:
        tried.append(clock.monotonic())
        store.produce("a", "s", [Record(b"more")])
        if len(tried) < 8:
            raise Unavailable("away")
        write(self, key, copies)
        route.close()

    monkeypatch.setattr(Route, "_write", away)
    route.run()
    assert [later - earlier for earlier, later in pairwise(tried)][:7] == [1, 2, 4, 8, 16, 30, 30]
    assert [entry.payload for entry in store.consume_space("b", limit=2)] == [b"1", b"more"]
