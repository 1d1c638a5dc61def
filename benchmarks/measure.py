"""Measurements: rounds of several contenders, and the targets that they must reach."""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

import msgspec

from streamkit import speed

__all__ = ["PYTHON", "Bench", "Result", "Target", "at_least", "at_most", "both_codecs", "rate", "timed"]

PYTHON = "streamkit without the twin"
"""The contender that runs streamkit's Python codec, if the compiled twin is installed."""


class Target(msgspec.Struct, frozen=True):
    """`limit` for the figure itself, for its ratio to contender `of`, or for its difference from `above`.

    `subject`: the contender that is judged; None: the first one.
    """

    limit: float
    at_least: bool
    of: str | None = None
    above: str | None = None
    subject: str | None = None


def at_least(limit: float, of: str | None = None, subject: str | None = None) -> Target:
    return Target(limit, True, of, None, subject)


def at_most(limit: float, of: str | None = None, above: str | None = None) -> Target:
    return Target(limit, False, of, above)


class Result(msgspec.Struct, frozen=True):
    """One row of the table. `rounds` has each contender's figures. The first contender is judged, if a target names
    no other."""

    work: str
    unit: str
    setting: str
    """Durability, payload and batch, in words."""
    rounds: dict[str, list[float]]
    targets: list[Target] = []

    @property
    def subject(self) -> str:
        return next(iter(self.rounds))

    def median(self, name: str | None = None) -> float:
        return statistics.median(self.rounds[name or self.subject])

    def value(self, target: Target) -> float:
        """The figure, ratio or difference that `target` limits."""
        # Where the twin is not installed, the first contender is the one without it.
        median = self.median(target.subject if target.subject in self.rounds else None)
        if target.of is not None:
            return median / self.median(target.of)
        if target.above is not None:
            return median - self.median(target.above)
        return median

    def reached(self, target: Target) -> bool:
        value = self.value(target)
        return value >= target.limit if target.at_least else value <= target.limit


class Subject(Protocol):
    def __call__(self, bench: Bench) -> Iterator[Result]: ...


def _silent(text: str) -> None:
    pass


class Bench:
    """One run: its directory, its size, and a function that reports progress. A copy in another process is silent."""

    def __init__(self, directory: Path, *, quick: bool, say: Callable[[str], None]) -> None:
        self.directory = directory
        self.quick = quick
        self.rounds = 2 if quick else 5
        self.seconds = 0.05 if quick else 1.2
        """Seconds for which a contender appends, or looks things up, in a round."""
        self.say = say

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "say": _silent}

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """An empty directory that goes away."""
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def race(self, work: str, contenders: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
        """The figures of each contender: every round calls each of them once, another one first each time."""
        names = list(contenders)
        rounds: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(self.rounds):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                self.say(f"{work}: {name}, round {turn + 1} of {self.rounds}")
                gc.collect()
                os.sync()  # what others left unwritten is not this one's to wait for
                rounds[name].append(contenders[name]())
        return rounds


def both_codecs(turns: Mapping[str, Callable[[], float]]) -> dict[str, Callable[[], float]]:
    """The contenders, the first one also without the compiled twin, if that is installed. Its turn is picklable."""
    (name, turn), *others = turns.items()
    if speed.twin is None:
        return dict(turns)
    return {name: turn, PYTHON: partial(_in_python, turn), **dict(others)}


def _in_python(turn: Callable[[], float]) -> float:
    """The figure of `turn` in a new process that does not use the twin."""
    before = os.environ.get("STREAMKIT_PURE")
    os.environ["STREAMKIT_PURE"] = "1"
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(turn).result()
    finally:
        if before is None:
            del os.environ["STREAMKIT_PURE"]
        else:
            os.environ["STREAMKIT_PURE"] = before


def rate(seconds: float, most: int, step: Callable[[int], int]) -> float:
    """Things done a second: calls `step(n)`, which does n-th work and returns how many things, for `seconds`."""
    done = turn = 0
    clock = time.perf_counter
    start = clock()
    end = start + seconds
    while True:
        done += step(turn)
        turn += 1
        now = clock()
        if now >= end or done >= most:
            return done / (now - start)


def timed(work: Callable[[], int], expected: int) -> float:
    """Things done a second by one call of `work`, which must say that it did `expected`."""
    start = time.perf_counter()
    done = work()
    seconds = time.perf_counter() - start
    if done != expected:
        raise AssertionError(f"{done} instead of {expected}: this run measures nothing")
    return done / seconds
