"""Finding one segment among many: its latest entry, and all of its 20."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from .contenders import EventSourcing, Peeker, Reader, SQLite, Streamkit, fill
from .measure import Bench, Result, at_least, rate
from .payloads import random_batches

__all__ = ["run"]

_ENTRIES = 20
_PEEKED = 10_000
_MOST = 10_000_000
_TOGETHER = 1000


def run(bench: Bench) -> Iterator[Result]:
    segments, peeked = bench.size(100_000, 1000), bench.size(_PEEKED, 100)
    chance = random.Random(2)
    every = [chance.randrange(segments) for _ in range(1 << 20)]
    some = [chance.randrange(peeked) for _ in range(1 << 18)]
    with bench.scratch("lookups") as path:
        gradual, maintained, at_once = path / "gradual", path / "maintained", path / "at-once"
        bench.say(f"lookups: writing {segments:,} segments")
        _fill_peers(path, segments)
        # Ten writers' records share a commit in the one, a thousand segments' in the other.
        fill(Streamkit(gradual, "buffered"), segments, 1, _ENTRIES, 10, bench.say)
        shutil.copytree(gradual, maintained)
        store = Streamkit(maintained, "buffered")
        store.store.maintain()
        store.close()
        fill(Streamkit(at_once, "buffered"), segments, _ENTRIES, 1, _TOGETHER, bench.say)
        setting = f"128 B random; {segments:,} segments of {_ENTRIES} entries"
        work = "peek"
        rounds = bench.race(
            work,
            {
                f"streamkit, any of {peeked:,}": lambda: _peek(bench, _buffered, gradual, some),
                f"SQLite, any of {peeked:,}": lambda: _peek(bench, SQLite, path, some),
            },
        )
        yield Result(work, "peeks/s", setting, rounds, [at_least(170_000)])
        work = "peek of any segment"
        rounds = bench.race(
            work,
            {
                "streamkit": lambda: _peek(bench, _buffered, gradual, every),
                "streamkit, maintained": lambda: _peek(bench, _buffered, maintained, every),
                "SQLite": lambda: _peek(bench, SQLite, path, every),
            },
        )
        yield Result(work, "peeks/s", setting, rounds, [at_least(1, "SQLite")])
        work = f"load a segment of {_ENTRIES} entries"
        rounds = bench.race(
            work,
            {
                f"streamkit, written in {_ENTRIES} commits": lambda: _load(bench, _buffered, gradual, every),
                "streamkit, maintained": lambda: _load(bench, _buffered, maintained, every),
                "streamkit, written in 1 commit": lambda: _load(bench, _buffered, at_once, every),
                "SQLite": lambda: _load(bench, SQLite, path, every),
                "eventsourcing": lambda: _load(bench, EventSourcing, path, every),
            },
        )
        yield Result(work, "segments/s", setting, rounds, [at_least(1, "SQLite"), at_least(3, "eventsourcing")])


def _fill_peers(path: Path, segments: int) -> None:
    (payloads,) = random_batches(1, _TOGETHER * _ENTRIES)
    for peer in (SQLite(path), EventSourcing(path)):
        for at in range(0, segments, _TOGETHER):
            peer.append_to_many(range(at, min(at + _TOGETHER, segments)), payloads, _ENTRIES)
        peer.close()


def _peek(bench: Bench, open_: Callable[[Path], Peeker], path: Path, segments: list[int]) -> float:
    peeker = open_(path)
    count = len(segments)

    def step(turn: int) -> int:
        if not peeker.peek(segments[turn % count]):
            raise AssertionError("an empty segment: this run measures nothing")
        return 1

    try:
        step(0)
        return rate(bench.seconds, _MOST, step)
    finally:
        peeker.close()


def _load(bench: Bench, open_: Callable[[Path], Reader], path: Path, segments: list[int]) -> float:
    reader = open_(path)
    count = len(segments)

    def step(turn: int) -> int:
        if reader.read_segment(segments[turn % count]) != _ENTRIES:
            raise AssertionError("an incomplete segment: this run measures nothing")
        return 1

    try:
        step(0)
        return rate(bench.seconds, _MOST, step)
    finally:
        reader.close()


def _buffered(path: Path) -> Streamkit:
    return Streamkit(path, "buffered")
