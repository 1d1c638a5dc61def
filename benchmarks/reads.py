"""Reading everything, as one log and segment by segment. It is in the page cache, but the store was not open before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .contenders import Contender, EventSourcing, Reader, SQLite, Streamkit
from .measure import PYTHON, Bench, Result, Target, at_least, both_codecs, timed
from .payloads import random_batches

__all__ = ["run"]

_SEGMENTS = 10
_ONES = [at_least(1, "SQLite"), at_least(2.5, "eventsourcing"), at_least(2, "eventsourcing", PYTHON)]


def run(bench: Bench) -> Iterator[Result]:
    yield from _read(bench, 1000, bench.size(1_000_000, 20_000), [at_least(7_000_000)])
    yield from _read(bench, 1, bench.size(200_000, 2000), _ONES)


def _read(bench: Bench, size: int, entries: int, targets: list[Target]) -> Iterator[Result]:
    written = f"written {size} a commit"
    setting = f"128 B random; {written}; {entries:,} entries in {_SEGMENTS} segments"
    with bench.scratch("reads") as path:
        bench.say(f"read, {written}: writing")
        _fill(Streamkit(path, "buffered"), size, entries)
        # The peers keep the same rows however they were committed: write theirs in the quick way.
        _fill(SQLite(path), 1000, entries)
        _fill(EventSourcing(path), 1000, entries)
        contenders: dict[str, Callable[[Path], Reader]] = {
            "streamkit": partial(Streamkit, durability="buffered"),
            "SQLite": SQLite,
            "eventsourcing": EventSourcing,
        }
        for work, read in (("consume_space", _all), ("consume_segment", _segment_by_segment)):
            turns = {name: partial(_turn, open_, path, read, entries) for name, open_ in contenders.items()}
            name = f"{work}, {written}"
            yield Result(name, "entries/s", setting, bench.race(name, both_codecs(turns)), targets)


def _fill(contender: Contender, size: int, entries: int) -> None:
    batches = random_batches(max(1, 64_000 // size), size)
    following = [1] * _SEGMENTS
    for turn in range(entries // size):
        segment = turn % _SEGMENTS
        contender.append(segment, following[segment], batches[turn % len(batches)])
        following[segment] += size
    contender.close()


def _turn(open_: Callable[[Path], Reader], path: Path, read: Callable[[Reader], int], entries: int) -> float:
    reader = open_(path)
    try:
        return timed(lambda: read(reader), entries)
    finally:
        reader.close()


def _all(reader: Reader) -> int:
    return reader.read_all()


def _segment_by_segment(reader: Reader) -> int:
    return sum(reader.read_segment(segment) for segment in range(_SEGMENTS))
