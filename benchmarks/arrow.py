"""`to_arrow` against `consume_space`, entries a second: python -m benchmarks.arrow [entries]"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

import streamkit
from streamkit import Record, Store

from .payloads import json_batches

_COMMIT = 1000
_SEGMENTS = 10


def _timed(what: str, entries: int, read: object) -> None:
    assert callable(read)
    best = busy = float("inf")
    for _ in range(3):
        start, used = time.perf_counter(), time.process_time()
        assert read() == entries
        best, busy = min(best, time.perf_counter() - start), min(busy, time.process_time() - used)
    # Where others use the machine too, the processor's time tells more than the clock on the wall.
    speeds = f"{entries / best / 1e6:8.2f} M entries/s, {entries / busy / 1e6:.2f} M for each second of a processor"
    print(f"{what:<58} {best:7.2f} s {speeds}", flush=True)


def _rows(store: Store, columns: list[str] | None = None) -> int:
    return sum(batch.num_rows for batch in store.to_arrow("s", columns=columns))


def main(entries: int = 2_000_000) -> None:
    with tempfile.TemporaryDirectory() as path, streamkit.connect(Path(path).as_uri()) as client:
        store = client.store(uuid4())
        batches = json_batches(100, _COMMIT)
        for at in range(entries // _COMMIT):
            store.produce("s", f"segment {at % _SEGMENTS}", map(Record, batches[at % len(batches)]))
        names = ["segment", "sequence", "timestamp", "payload"]
        for tier in ("hot", "cold"):
            if tier == "cold":
                store.archive("s")
            _timed(f"consume_space, {tier}", entries, lambda: sum(1 for _ in store.consume_space("s")))
            _timed(f"to_arrow, {tier}, all columns", entries, lambda: _rows(store))
            _timed(f"to_arrow, {tier}, {', '.join(names)}", entries, lambda: _rows(store, names))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
