"""Costs of a large store: memory while it is made and read, and the same work as on a small one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .contenders import Streamkit
from .measure import Bench, Result, at_least, at_most, rate
from .memory import TIMES, peak
from .payloads import random_batches

__all__ = ["run"]

_USED = 1000
_MOST = 500_000
_SPACES = ("committed", "buffered")
"""Half of the entries are in each of two spaces, one for each durability."""
_LONGER = 2
"""The factor by which rounds are longer than others, so that the first costs of an opened store are a small part."""


def run(bench: Bench) -> Iterator[Result]:
    each = bench.size(500_000, 2000)
    many = f"{each * TIMES * 2:,} entries in {each * 2:,} segments"
    with bench.scratch("growth") as path:
        sizes = {"large store": each, "small store": _USED}
        yield from _memory(bench, path / "large store", each, many)
        for space in _SPACES:
            peak("write", path / "small store", space, _USED)
        yield from _compare(bench, path, sizes, many)


def _memory(bench: Bench, path: Path, each: int, many: str) -> Iterator[Result]:
    path.mkdir()
    setting = f"128 B random; 1000 segments a commit; {many}; highest resident size of the process, all included"
    for work, name in (("write", "writing and merging"), ("maintain", "maintaining"), ("read", "reading")):
        rounds = []
        for space in _SPACES if work == "write" else _SPACES[1:]:
            bench.say(f"memory, {name}: {space}")
            rounds.append(peak(work, path, space, each))
        yield Result(f"memory, {name}", "MB", setting, {"streamkit": [max(rounds)]}, [at_most(120)])


def _compare(bench: Bench, path: Path, sizes: dict[str, int], many: str) -> Iterator[Result]:
    chance = random.Random(3)

    def compare(work: str, unit: str, durability: str, turn: Callable[[Streamkit, list[int]], float]) -> Result:
        def go(name: str) -> float:
            # Drawn anew each round and opened anew, so that some are not in memory.
            used = chance.sample(range(sizes[name]), _USED)
            store = Streamkit(path / name, durability)
            try:
                return turn(store, used)
            finally:
                store.close()

        rounds = bench.race(f"growth: {work}", {name: partial(go, name) for name in sizes})
        setting = f"{durability}; 128 B random; {many}; {bench.seconds * _LONGER:g} s from opening it"
        return Result(f"growth: {work}", unit, setting, rounds, [at_least(0.8, "small store")])

    # Peeks first: after the appends the last frame of a segment is large in the small store, where each got many.
    yield compare("peek", "peeks/s", "buffered", partial(_peek, bench))
    thousand, ones = random_batches(1, 1000), random_batches(1000, 1)
    for durability in _SPACES:
        for size, batches in ((1, ones), (1000, thousand)):
            name = f"append {durability}, {size} a commit"
            yield compare(name, "entries/s", durability, partial(_append, bench, batches))


def _append(bench: Bench, batches: list[list[bytes]], store: Streamkit, segments: list[int]) -> float:
    def step(turn: int) -> int:
        batch = batches[turn % len(batches)]
        store.append(segments[turn % len(segments)], 0, batch)
        return len(batch)

    return rate(bench.seconds * _LONGER, _MOST, step)


def _peek(bench: Bench, store: Streamkit, segments: list[int]) -> float:
    def step(turn: int) -> int:
        if not store.peek(segments[turn % len(segments)]).sequence:
            raise AssertionError("an empty segment: this run measures nothing")
        return 1

    return rate(bench.seconds * _LONGER, _MOST, step)
