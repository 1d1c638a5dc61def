"""What events take on disk: JSON of about 128 bytes, 1000 a commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from .contenders import BareFile, Contender, EventSourcing, SQLite, Streamkit, bytes_on_disk
from .measure import Bench, Result, at_most
from .payloads import json_batches

__all__ = ["run"]

_SEGMENTS = 10


def run(bench: Bench) -> Iterator[Result]:
    batches = json_batches(bench.size(500, 100), 1000)
    payload = sum(len(record) for batch in batches for record in batch)
    opened: dict[str, Callable[[Path], Contender]] = {
        "streamkit": Streamkit,
        "bare file": BareFile,
        "SQLite": SQLite,
        "eventsourcing": EventSourcing,
    }
    rounds: dict[str, list[float]] = {}
    for name, open_ in opened.items():
        bench.say(f"disk: {name}")
        with bench.scratch("disk") as path:
            contender = open_(path)
            for turn, batch in enumerate(batches):
                contender.append(turn % _SEGMENTS, 1 + turn // _SEGMENTS * 1000, batch)
            contender.close()
            os.sync()
            rounds[name] = [bytes_on_disk(path) / payload]
    size = payload / len(batches) / 1000
    setting = f"committed; JSON of {size:.0f} B on average; 1000 a batch; {payload / 1e6:.0f} MB"
    yield Result("bytes on disk / bytes of payload", "", setting, rounds, [at_most(0.6)])
