"""What a large store costs: the same work on one of 10 million entries in a million segments, and on a small one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

from .contenders import Streamkit
from .lookups import fill
from .measure import Bench, Result, at_least, rate
from .payloads import random_batches

__all__ = ["run"]

_USED = 1000
_TIMES = 10
_TOGETHER = 1000
_MOST = 500_000
_LONGER = 3
"""Than others' rounds: whoever has opened a store first checks its index, which is a matter of its size."""


def run(bench: Bench) -> Iterator[Result]:
    segments = bench.size(1_000_000, 20_000)
    chance = random.Random(3)
    many = f"{segments * _TIMES:,} entries in {segments:,} segments"
    with bench.scratch("growth") as path:
        # Half of them in each of two spaces, one for each durability.
        sizes = {"large store": segments // 2, "small store": _USED}
        for name, count in sizes.items():
            for durability in ("committed", "buffered"):
                fill(Streamkit(path / name, durability), count, 1, _TIMES, _TOGETHER, bench.say)

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
            return Result(f"growth: {work}", unit, setting, rounds, [at_least(0.5, "small store")])

        # Peeks first: after the appends the last frame of a segment is large in the small store, where each got many.
        yield compare("peek", "peeks/s", "buffered", partial(_peek, bench))
        thousand, ones = random_batches(1, 1000), random_batches(1000, 1)
        for durability in ("committed", "buffered"):
            for size, batches in ((1, ones), (1000, thousand)):
                name = f"append {durability}, {size} a commit"
                yield compare(name, "entries/s", durability, partial(_append, bench, batches))


def _append(bench: Bench, batches: list[list[bytes]], store: Streamkit, segments: list[int]) -> float:
    def step(turn: int) -> int:
        batch = batches[turn % len(batches)]
        store.append(segments[turn % len(segments)], 0, batch)
        return len(batch)

    step(0)
    return rate(bench.seconds * _LONGER, _MOST, step)


def _peek(bench: Bench, store: Streamkit, segments: list[int]) -> float:
    def step(turn: int) -> int:
        if not store.peek(segments[turn % len(segments)]).sequence:
            raise AssertionError("an empty segment: this run measures nothing")
        return 1

    step(0)
    return rate(bench.seconds * _LONGER, _MOST, step)
