"""A thread that commits the only request of its process, stopped or called again at any step of it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.codecs import CODECS, using
from harness.cuts import Cut, Interrupt
from streamkit import Record
from streamkit.reentry import Reentered
from streamkit.store import Store

PATIENCE = 20.0
Covered = Callable[[str, int], None]


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Iterator[str]:
    with using(request.param):
        yield request.param


@pytest.fixture(params=["memory", "committed", "buffered"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with streamkit.connect("memory://" if request.param == "memory" else tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        store.create_space("s", durability="committed" if request.param == "memory" else request.param)
        for segment in ("a", "b"):
            store.produce("s", segment, [Record(b"begun")])
        yield store


class Called(Cut):
    """Calls `act` once, at that step, as a signal handler that does not raise."""

    def __init__(self, after: int, act: Callable[[], object]) -> None:
        super().__init__(after)
        self._act = act

    def _step(self, frame: FrameType, event: str, argument: Any) -> None:
        try:
            super()._step(frame, event, argument)
        except Interrupt:
            self._act()


def payloads(store: Store, segment: str) -> list[bytes]:
    return [entry.payload for entry in store.consume_segment("s", segment)]


@pytest.mark.parametrize("expects", [False, True], ids=["", "expects"])
def test_an_interrupt_at_any_step_loses_nothing_and_leaves_nobody_behind(
    store: Store, codec: str, expects: bool, covered: Covered
) -> None:
    acknowledged, points = [b"begun"], 0
    while True:
        payload = b"%d" % points
        there = store.segment_status("s", "a").last_sequence if expects else None
        try:
            with Cut(points) as cut:
                store.produce("s", "a", [Record(payload)], expected_sequence=there)
            acknowledged.append(payload)
        except Interrupt:
            pass
        if not cut.where:
            break
        points += 1
        neighbour = threading.Thread(target=store.produce, args=("s", "b", [Record(payload)]))
        neighbour.start()
        neighbour.join(PATIENCE)
        assert not neighbour.is_alive(), cut.where
        store.produce("s", "a", [Record(b"after " + payload)])
        acknowledged.append(b"after " + payload)
    assert points > 30
    found = payloads(store, "a")
    assert len({*found}) == len(found)
    assert [payload for payload in found if payload in acknowledged] == acknowledged
    assert payloads(store, "b") == [b"begun", *(b"%d" % point for point in range(points))]
    assert store.verify().ok
    covered(f"interrupts of lone commits, {codec}", points)


def test_a_handler_at_any_step_appends_or_is_refused(store: Store, codec: str, covered: Covered) -> None:
    expected, refused, points = {"a": [b"begun"], "b": [b"begun"]}, 0, 0
    while True:
        payload, done = b"%d" % points, []

        def handle(payload: bytes = payload, done: list[bool] = done) -> None:
            try:
                store.produce("s", "b", [Record(payload)])
                done.append(True)
            except Reentered:
                done.append(False)

        with Called(points, handle) as cut:
            store.produce("s", "a", [Record(payload)])
        expected["a"].append(payload)
        if not cut.where:
            break
        assert len(done) == 1, cut.where
        if done[0]:
            expected["b"].append(payload)
        refused += not done[0]
        points += 1
    assert 5 < refused < points - 5
    assert {segment: payloads(store, segment) for segment in "ab"} == expected
    assert store.verify().ok
    covered(f"handlers in lone commits, {codec}", points)


def test_a_handler_while_the_index_is_brought_forward_appends_or_is_refused(store: Store, covered: Covered) -> None:
    expected, refused, points = [b"begun"], 0, 0
    while True:
        done: list[bytes] = []

        def handle(payload: bytes = b"%d" % points, done: list[bytes] = done) -> None:
            try:
                store.produce("s", "b", [Record(payload)])
                done.append(payload)
            except Reentered:
                done.append(b"")

        store.produce("s", "a", [Record(b"")])
        with Called(points, handle) as cut:
            store.maintain("s")
        expected += filter(None, done)
        if not cut.where:
            break
        refused += done == [b""]
        points += 1 if EXHAUSTIVE else 23
    assert refused < points
    assert payloads(store, "b") == expected
    assert store.verify().ok
    covered("handlers in upkeep", points if EXHAUSTIVE else points // 23)


def test_threads_beside_each_other_lose_no_turn(store: Store, codec: str) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=lambda: [store.produce("s", "a", [Record(b"")]) for _ in range(40)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)
    finally:
        sys.setswitchinterval(before)
    assert [entry.sequence for entry in store.consume_segment("s", "a")] == list(range(1, 162))
    assert store.statistics().conflicts == 0


def test_a_thread_that_looks_for_a_leader_follows_one_that_begins_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (committer,) = store._shared.spaces["s"].committers
    backend, inside, done = committer.partition.backend, threading.Event(), threading.Event()
    put = backend.put

    def slow(*arguments: Any, **named: Any) -> Any:
        if threading.current_thread() is neighbour:
            inside.set()
            while not committer._queue and not done.is_set():
                time.sleep(0.001)
        return put(*arguments, **named)

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_return" and argument.__name__ == "locked" and frame.f_code is committer.commit_alone.__code__:
            looks.append(frame.f_lineno)
            sys.setprofile(None)
            neighbour.start()
            assert inside.wait(PATIENCE)

    monkeypatch.setattr(backend, "put", slow)
    first = threading.Thread(target=store.produce, args=("s", "a", [Record(b"of a thread that ended")]))
    neighbour, looks = threading.Thread(target=store.produce, args=("s", "b", [Record(b"neighbour")])), []
    first.start()
    first.join(PATIENCE)
    sys.setprofile(look)
    try:
        store.produce("s", "a", [Record(b"")])
    finally:
        sys.setprofile(None)
    done.set()
    neighbour.join(PATIENCE)
    assert looks
    assert store.statistics().conflicts == 0
