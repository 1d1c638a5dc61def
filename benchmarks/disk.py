"""Bytes of events on disk: JSON of about 128 bytes, 1 and 1000 a commit, after the upkeep that was due."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .contenders import BareFile, Contender, EventSourcing, SQLite, Streamkit, bytes_on_disk
from .measure import Bench, Result, at_most
from .payloads import json_batches

__all__ = ["run"]

_SEGMENTS = 10
_GRACE = 1.0
"""Seconds for which packed transactions also stay in the log; usually 60."""


def run(bench: Bench) -> Iterator[Result]:
    yield _measure(bench, 1000, bench.size(500, 4), 0.35)
    yield _measure(bench, 1, bench.size(40, 2), 0.9)


def _measure(bench: Bench, size: int, thousands: int, limit: float) -> Result:
    records = json_batches(thousands, 1000)
    batches = [batch[at : at + size] for batch in records for at in range(0, 1000, size)]
    payload = sum(len(record) for batch in records for record in batch)
    opened: dict[str, Callable[[Path], Contender]] = {
        "streamkit": lambda path: Streamkit(path, "buffered", archive_grace=_GRACE),
        "bare file": lambda path: BareFile(path, synced=False),
        "SQLite": lambda path: SQLite(path, "NORMAL"),
        "eventsourcing": EventSourcing,
    }
    rounds: dict[str, list[float]] = {}
    for name, open_ in opened.items():
        bench.say(f"disk, {size} a commit: {name}")
        with bench.scratch("disk") as path:
            contender = open_(path)
            for turn, batch in enumerate(batches):
                contender.append(turn % _SEGMENTS, 1 + turn // _SEGMENTS * size, batch)
            if isinstance(contender, Streamkit):
                rounds["streamkit, at once"] = [_ratio(path, payload)]
                contender.store.maintain()
                time.sleep(_GRACE + 0.1)
                contender.store.maintain()
            contender.close()
            rounds[name] = [_ratio(path, payload)]
    rounds = {"streamkit": rounds.pop("streamkit"), **rounds}
    average = payload / len(records) / 1000
    setting = (
        f"buffered; JSON of {average:.0f} B on average; {size} a batch; {payload / 1e6:.0f} MB; "
        f"maintained, {_GRACE:.0f} s after writing (archive_grace={_GRACE}); at once: when the last append had returned"
    )
    return Result(f"bytes on disk / payload, {size} a commit", "", setting, rounds, [at_most(limit)])


def _ratio(path: Path, payload: int) -> float:
    os.sync()
    return bytes_on_disk(path) / payload
