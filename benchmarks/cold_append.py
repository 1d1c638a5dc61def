"""The first append of a new process on S3, by the ways in which it can learn the end of the log.

    python -m benchmarks.cold_append [--rounds 12] [--plain] [--quick]

The head says how far the index goes, and 0 to 20 transactions follow in the log. Each round draws a number of them, and
measures every way with 15 and 30 ms for each request, with a whole processor and with 1/14 of one. The modules are
loaded before. Connections have TLS, as those to S3 have.

A list of the transactions after the head can only begin when the head is known. A list that is sent beside the read of
the head begins at the log's first row.

The last two ways do not exist in streamkit. In them each transaction tells of those before it, so only the last one is
read. The process gets the others from a file, which it reads before it begins.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from msgspec import msgpack

import streamkit
from streamkit import Record, Store
from streamkit.backend import Range
from streamkit.log.keys import transaction_number
from streamkit.log.refresher import Refresher

from .cloud_cpu import SHARE, hold_back
from .late_s3 import divert, serving_late
from .machine import describe
from .published_views import trips

WAYS = {
    "21 reads at once": "21",
    "12 reads, then 9": "12 9",
    "8 reads, then 13": "8 13",
    "4 reads, then 8, then 9": "4 8 9",
    "a list, then the reads": "list",
    "a list beside the head, then the reads": "beside",
    "a list, then the last, which tells of all": "list last",
    "4 reads at a time, until the last is found": "search",
}
INDEXED = 63
"""Transactions before the head's end. Their rows are in the log for some minutes."""
_TRANSACTIONS = b"TXN\x00", b"TXN\x01"
_WHOLE = 256 << 20


class Took(NamedTuple):
    clock: float
    """ms, from `connect` to the end of the append."""
    cpu: float
    """ms."""
    requests: int
    trips: int


def append(way: str, url: str, store: str, log: str) -> None:
    """Run in a new process: make the first append. Prints its seconds by the clock and of CPU."""
    for module in ("streamkit.client", "streamkit.log.inbox", "streamkit_s3.lean", "streamkit_s3.tls"):
        __import__(module)
    divert()
    _go(way, msgpack.decode(Path(log).read_bytes()))
    os.write(1, b"\n")
    begun = time.perf_counter(), time.process_time()
    with streamkit.connect(url) as client:
        client.store(store).produce("orders", "order-1", [Record(b"x" * 100)])
        took = time.perf_counter() - begun[0], time.process_time() - begun[1]
    print(json.dumps(took))


def _go(way: str, log: list[bytes]) -> None:
    """Replace the refresher's way to the end of the log. `log` has the transactions."""
    found: list[int] = []
    thread: list[threading.Thread] = []
    read_head = Refresher.read_head

    def read(self: Refresher, numbers: list[int], segments: Any, load: bool) -> list[bytes | None]:
        """Read transactions, and the parts of the index that `segments` need."""
        partition = self._partition
        needed = partition.index.needed(segments, load)
        rows = [Range(partition.transaction_key(number), 0, _WHOLE) for number in numbers]
        wanted = [*needed.values(), *rows]
        parts = partition.backend.read(partition.key, wanted) if wanted else []
        for id, part in zip(needed, parts, strict=False):
            if part is not None:
                partition.index.receive(id, part)
        return parts[len(needed) :]

    def take(self: Refresher, numbers: list[int], segments: Any, load: bool) -> int:
        """The number of them that are there."""
        records = [record for record in read(self, numbers, segments, load) if record is not None]
        for number, record in zip(numbers, records, strict=False):
            self._partition.apply(record, number)
        return len(records)

    def end_at(self: Refresher, last: int) -> None:
        for number in range(self._partition.number + 1, last + 1):
            self._partition.apply(log[number - 1], number)

    def by_search(self: Refresher, segments: Any, load: bool) -> None:
        low = self._partition.number
        high = low + 21
        while high - low > 1:
            numbers = sorted({low + max(1, round((high - low) * step / 5)) for step in range(1, 5)})
            found = dict(zip(numbers, read(self, numbers, segments, load), strict=True))
            low = max((number for number in numbers if found[number] is not None), default=low)
            high = min((number for number in numbers if found[number] is None), default=high)
        end_at(self, low)

    def by_reads(self: Refresher, segments: Any, load: bool) -> None:
        for size in map(int, way.split()):
            number = self._partition.number
            if take(self, list(range(number + 1, number + 1 + size)), segments, load) < size:
                return

    def by_list(self: Refresher, segments: Any, load: bool) -> None:
        partition = self._partition
        if way != "beside":
            start, end = partition.transaction_key(partition.number + 1), partition.transaction_key(1 << 64)
            found[:] = [
                transaction_number(row.key) for row in partition.backend.scan(partition.key, start, end, values=False)
            ]
        if way == "list last":
            read(self, found[-1:], segments, load)
            end_at(self, max(found, default=0))
        else:
            take(self, [number for number in found if number > partition.number], segments, load)

    def beside(self: Refresher) -> None:
        partition = self._partition
        if not thread:
            rows = partition.backend.scan(partition.key, *_TRANSACTIONS, limit=100, values=False)
            thread.append(threading.Thread(target=lambda: found.extend(transaction_number(row.key) for row in rows)))
            thread[0].start()
        read_head(self)
        thread[0].join()

    if way == "beside":
        Refresher.read_head = beside  # type: ignore[method-assign]
    if way != "21":
        others = by_search if way == "search" else by_list
        Refresher._apply_tail = by_reads if way[0].isdigit() else others  # type: ignore[method-assign]


def run(way: str, url: str, store: UUID, log: str, share: float) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.cold_append", "--append", way, url, str(store), log]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        if share < 1:
            hold_back(process)
        clock, cpu = json.loads(process.stdout.read())
    finally:
        process.kill()
        process.wait()
    return clock * 1000, cpu * 1000


def transactions(store: Store) -> list[bytes]:
    space = store._handle.space("orders")
    assert space is not None
    log = space.partitions[0]
    keys = [log.transaction_key(number) for number in range(1, log.number + 1)]
    return [value.data for value in log.backend.get(log.key, keys) if value is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description="The first append of a new process on S3.")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--plain", action="store_true", help="without TLS")
    parser.add_argument("--quick", action="store_true", help="one round with a whole processor, to see that it runs")
    given = parser.parse_args()
    shares = (1.0,) if given.quick else (1.0, SHARE)
    figures: dict[tuple[str, float, float], list[Took]] = {}
    with serving_late(tls=not given.plain) as server, tempfile.NamedTemporaryFile() as log:
        divert()
        with streamkit.connect(server.url) as client:
            for _ in range(1 if given.quick else given.rounds):
                tail = random.randrange(21)
                ways = [(way, share, late) for way in WAYS.values() for share in shares for late in (0.015, 0.03)]
                random.shuffle(ways)
                for way, share, late in ways:
                    server.seen(0.0)
                    store = client.store(uuid4())
                    for number in range(INDEXED + tail):
                        store.produce("orders", f"order-{number % 20}", [Record(b"x" * 100)])
                    Path(log.name).write_bytes(msgpack.encode(transactions(store)))
                    server.seen(late)
                    clock, cpu = run(way, server.url, store.id, log.name, share)
                    requests = server.seen(0.0)
                    figures.setdefault((way, share, late), []).append(Took(clock, cpu, len(requests), trips(requests)))
    for name, value in describe(Path.cwd()).items():
        print(f"- {name}: {value}")
    columns = [(share, late) for share in shares for late in (0.015, 0.03)]
    heads = [f"{'whole' if share == 1 else '1/14'}, {late * 1000:.0f} ms" for share, late in columns]
    print(f"\n| after the head | {' | '.join(heads)} | ms of CPU | requests | round trips |")
    print("|---" * (len(heads) + 4) + "|")
    for name, way in WAYS.items():
        whole = figures[way, 1.0, 0.03]
        cells = [f"{statistics.mean(took.clock for took in figures[way, *column]):.0f}" for column in columns]
        cells.append(f"{statistics.mean(took.cpu for late in (0.015, 0.03) for took in figures[way, 1.0, late]):.1f}")
        cells.append(f"{statistics.mean(took.requests for took in whole):.1f}")
        cells.append(f"{statistics.mean(took.trips for took in whole):.1f}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--append"]:
        append(*sys.argv[2:])
    else:
        main()
