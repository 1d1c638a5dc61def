"""`python -m benchmarks.index_runs`: rows a second that runs are built, merged, scanned and looked up with, in memory.

Not among the published figures: it is what to look at while changing the format of runs. The best of some rounds.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from uuid import uuid4

from streamkit.backend import ABSENT, Backend
from streamkit.index.block_cache import BlockCache
from streamkit.index.compaction import Expiry
from streamkit.index.merge import FILE_BYTES, merge_step
from streamkit.index.run_format import SectionBuilder
from streamkit.index.runs import Runs
from streamkit.log.index_rows import encode_index_row
from streamkit.log.keys import data_key, data_range, run_key, segment_key
from streamkit.log.manifest import Manifest, Merge, Run, RunFile
from streamkit.log.rows import DataRow, Piece, SegmentRow
from streamkit_memory.driver import MemoryDriver

_PARTITION = b"benchmark"
_SEED = 1
_ROUNDS = 5
_END = b"\xff"
Rows = dict[bytes, bytes]


def best(work: Callable[[], int]) -> float:
    """Things a second of CPU time, in the best of the rounds."""
    rates = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        done = work()
        rates.append(done / (time.process_time() - start))
    return max(rates)


def rows_of(segments: Iterable[int], number: int, frame: int) -> Rows:
    """The rows that upkeep makes of a commit to each of `segments`: the row, and the place of the entry."""
    rows: Rows = {}
    for segment in segments:
        name, at = f"order-{segment:08d}", 1_700_000_000_000 + number
        body = os.urandom(frame // 2) + b"-" * (frame // 2) if frame else None
        rows[segment_key(name)] = encode_index_row(SegmentRow(1, at, number, at))
        rows[data_key(name, number)] = encode_index_row(DataRow([Piece(number, at, number, 1, 120, 200, body)]))
    return rows


def build_files(keys: list[bytes], values: list[bytes]) -> Iterator[tuple[bytes, RunFile]]:
    """Rows as the files of a run."""
    at = 0
    while at < len(keys):
        builder = SectionBuilder(os.urandom(16), _SEED)
        while at < len(keys) and builder.size < FILE_BYTES:
            builder.add(keys[at : at + 512], values[at : at + 512])
            at += 512
        yield builder.finish()


def put(backend: Backend, rows: Rows, number: int) -> Run:
    keys = sorted(rows)
    files = [
        file.stored(backend.put(_PARTITION, run_key(file.id), data, ABSENT))
        for data, file in build_files(keys, [rows[key] for key in keys])
    ]
    return Run(number, number, 0, tuple(files))


def show(what: str, rate: float, unit: str) -> None:
    print(f"{what:<70} {rate:>12,.0f} {unit}/s", flush=True)


def build(frame: int) -> None:
    rows = rows_of(range(50_000), 1, frame)
    keys = sorted(rows)
    values = [rows[key] for key in keys]

    def work() -> int:
        for _ in build_files(keys, values):
            pass
        return len(keys)

    show(f"build, 100,000 rows, frames of {frame} bytes", best(work), "rows")


def merge(frame: int, segments: int, expiry: Expiry | None) -> None:
    backend = MemoryDriver(remote=True).open(uuid4())
    chance = random.Random(1)
    runs = [put(backend, rows_of(chance.sample(range(segments), 10_000), at, frame), at) for at in range(8, 0, -1)]
    manifest = Manifest(runs=tuple(runs))
    total = sum(file.rows for file in manifest.files())

    def work() -> int:
        task, left = Merge(1, 8), True
        while left:
            index = Runs(backend, _PARTITION, _SEED, manifest, BlockCache())
            step = merge_step(index, task, 1 << 20, os.urandom(16), _SEED, expiry)
            task, left = Merge(1, 8, (), step.resume), not step.finished
        return total

    rules = "" if expiry is None else ", pieces expire"
    show(f"merge of 8 x 20,000 rows, frames of {frame} bytes, {segments:,} segments{rules}", best(work), "rows")


def look_up() -> None:
    backend = MemoryDriver(remote=True).open(uuid4())
    each = 2000
    runs = [put(backend, rows_of(range(at * each, (at + 1) * each), at + 1, 100), at + 1) for at in range(9, -1, -1)]
    index = Runs(backend, _PARTITION, _SEED, Manifest(runs=tuple(runs)), BlockCache())
    chance = random.Random(2)
    names = [f"order-{chance.randrange(10 * each):08d}" for _ in range(20_000)]
    keys = [segment_key(name) for name in names]
    ranges = [(*data_range(name, 0), name.encode()) for name in names]

    def get() -> int:
        for key in keys:
            if index.get([key])[0] is None:
                raise AssertionError("not found: this run measures nothing")
        return len(keys)

    def absent() -> int:
        for key in keys:
            if index.get([key + b"x"])[0] is not None:
                raise AssertionError("found: this run measures nothing")
        return len(keys)

    def scan() -> int:
        for start, end, subject in ranges:
            if len(list(index.scan(start, end, subject))) != 1:
                raise AssertionError("not found: this run measures nothing")
        return len(keys)

    def load() -> int:
        for name in names:
            if len(list(index.load(name, 1).rows)) != 1:
                raise AssertionError("not found: this run measures nothing")
        return len(keys)

    def many() -> int:
        return len(index.get(keys))

    index.get(sorted(set(keys)))
    show("get of one key, 10 runs of disjoint segments, cached", best(get), "keys")
    show("get of a key that is not there, same", best(absent), "keys")
    show("get of 20,000 keys at once, same", best(many), "keys")
    show("scan of a segment's data rows, same", best(scan), "scans")
    show("load of a segment, same", best(load), "loads")
    show("scan of all rows, 10 runs", best(lambda: sum(1 for _ in index.scan(b"", _END))), "rows")


if __name__ == "__main__":
    for size in (0, 200):
        build(size)
    for size in (0, 200):
        merge(size, 1_000_000, None)
        merge(size, 15_000, None)
    merge(0, 1_000_000, Expiry(removed=3))
    look_up()
