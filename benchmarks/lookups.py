"""Finding one segment among many: its latest entry, and all of its 20."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .contenders import EventSourcing, Filled, Peeker, Reader, SQLite, Streamkit, fill
from .measure import PYTHON, Bench, Result, at_least, both_codecs, rate

__all__ = ["run"]

_ENTRIES = 20
_PEEKED = 10_000
_MOST = 10_000_000
_GRADUAL = 10
_TOGETHER = 1000
"""Segments a commit."""


def run(bench: Bench) -> Iterator[Result]:
    segments, peeked = bench.size(100_000, 1000), bench.size(_PEEKED, 100)
    chance = random.Random(2)
    every = [chance.randrange(segments) for _ in range(1 << 20)]
    some = [chance.randrange(peeked) for _ in range(1 << 18)]
    with bench.scratch("lookups") as path:
        gradual, maintained, at_once = path / "gradual", path / "maintained", path / "at-once"
        _fill_all(bench, gradual, segments, 1, _ENTRIES, _GRADUAL)
        _fill_all(bench, at_once, segments, _ENTRIES, 1, _TOGETHER)
        shutil.copytree(gradual / "streamkit", maintained / "streamkit")
        store = _buffered(maintained)
        store.store.maintain()
        store.close()
        setting = f"128 B random; {segments:,} segments of {_ENTRIES} entries"
        turns = f"{setting}, which all have written in {_ENTRIES} commits, {_GRADUAL} segments a commit"
        work, peer = "peek", f"SQLite, any of {peeked:,}"
        rounds = bench.race(
            work,
            both_codecs(
                {
                    f"streamkit, any of {peeked:,}": partial(_peek, bench, _buffered, gradual, some),
                    peer: partial(_peek, bench, SQLite, gradual, some),
                }
            ),
        )
        yield Result(work, "peeks/s", turns, rounds, [at_least(1, peer), at_least(170_000)])
        work = "peek of any segment"
        rounds = bench.race(
            work,
            both_codecs(
                {
                    "streamkit": partial(_peek, bench, _buffered, gradual, every),
                    "streamkit, maintained": partial(_peek, bench, _buffered, maintained, every),
                    "SQLite": partial(_peek, bench, SQLite, gradual, every),
                }
            ),
        )
        yield Result(work, "peeks/s", turns, rounds, [at_least(1, "SQLite")])
        targets = [at_least(1, "SQLite"), at_least(3, "eventsourcing"), at_least(1, "eventsourcing", PYTHON)]
        work = f"load a segment of {_ENTRIES} entries"
        rounds = bench.race(
            work,
            both_codecs(
                {
                    f"streamkit, written in {_ENTRIES} commits": partial(_load, bench, _buffered, gradual, every),
                    "streamkit, maintained": partial(_load, bench, _buffered, maintained, every),
                    "SQLite": partial(_load, bench, SQLite, gradual, every),
                    "eventsourcing": partial(_load, bench, EventSourcing, gradual, every),
                }
            ),
        )
        yield Result(work, "segments/s", turns, rounds, targets)
        work = f"load a segment of {_ENTRIES} entries of one commit"
        rounds = bench.race(
            work,
            both_codecs(
                {
                    "streamkit": partial(_load, bench, _buffered, at_once, every),
                    "SQLite": partial(_load, bench, SQLite, at_once, every),
                    "eventsourcing": partial(_load, bench, EventSourcing, at_once, every),
                }
            ),
        )
        yield Result(
            work, "segments/s", f"{setting}, which all have written {_TOGETHER} segments a commit", rounds, targets
        )


def _fill_all(bench: Bench, path: Path, segments: int, entries: int, times: int, together: int) -> None:
    """Write the same records in the same commits to all. The peers do not wait for the disk: that changes no page."""
    path.mkdir()
    contenders: list[tuple[str, Filled]] = [
        ("streamkit", _buffered(path)),
        ("SQLite", SQLite(path, "OFF")),
        ("eventsourcing", EventSourcing(path, synced=False)),
    ]
    for name, contender in contenders:
        bench.say(f"lookups: {name} writes {segments:,} segments")
        fill(contender, segments, entries, times, together, bench.say)


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
    return Streamkit(path / "streamkit", "buffered")
