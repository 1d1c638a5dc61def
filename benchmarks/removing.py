"""What removing costs: trims, erasures, and what comes back on disk.

    python -m benchmarks.removing [--transactions N] [--segments N]

Prints a JSON object for each line of the table in docs/removing.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import streamkit
from streamkit import Record, Retention, Store

_GRACE = 1.0
"""Seconds for which what was packed is in the log a second time."""


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _tell(what: str, **figures: object) -> None:
    print(json.dumps({"what": what, **figures}), flush=True)


@contextmanager
def _local() -> Iterator[tuple[Path, Store]]:
    root = Path(tempfile.mkdtemp(prefix="removing-"))
    try:
        with streamkit.connect(f"file://{root}") as client:
            yield root, client.store(uuid4())
    finally:
        shutil.rmtree(root)


def _fill(store: Store, transactions: int, segments: int, metadata: bool = False) -> None:
    store.create_space("s", durability="buffered", archive_grace=_GRACE)
    body = os.urandom(1 << 16)
    for number in range(transactions):
        start = number * 97 % 65000
        record = Record(body[start : start + 100], {"subject": f"user-{number % 1000}"} if metadata else None)
        store.produce("s", f"segment-{number % segments}", [record])


def trim_space(transactions: int) -> None:
    with _local() as (root, store):
        _fill(store, transactions, 1000)
        store.maintain()
        before = _bytes(root)
        began = time.perf_counter()
        store.trim("s", keep_entries=1000)
        trimmed = time.perf_counter()
        store.maintain()
        _tell(
            "trim a space to its newest 1,000 transactions, local",
            transactions=transactions,
            trim_seconds=round(trimmed - began, 3),
            maintain_seconds=round(time.perf_counter() - trimmed, 3),
            bytes_before=before,
            bytes_after=_bytes(root),
        )


def trim_share(transactions: int) -> None:
    for what in ("space", "segments", "retention by segment"):
        with _local() as (root, store):
            _fill(store, transactions, 100)
            store.maintain()
            time.sleep(2 * _GRACE)  # nothing is in the log twice any more
            store.maintain()
            before = _bytes(root)
            if what == "space":
                store.trim("s", keep_entries=transactions // 10)
            elif what == "segments":
                for name in list(store.get_segments("s")):
                    store.trim("s", name, keep_entries=transactions // 1000)
            else:
                store.set_retention("s", Retention(max_entries=transactions // 1000))
            store.maintain()
            after = _bytes(root)
            _tell(f"90 % trimmed, by {what}", transactions=transactions, given_back=round(1 - after / before, 3))


def erase(entries: int, segments: int) -> None:
    with _local() as (_, store):
        body = os.urandom(1 << 16)
        store.create_space("s", durability="buffered")
        done = 0
        while done < entries:
            with store.transaction("s") as trx:
                for number in range(done, done + 500):
                    start = number * 97 % 65000
                    trx.produce(
                        f"segment-{number % segments}",
                        [Record(body[start : start + 100], {"subject": f"user-{number % 1000}"})],
                    )
            done += 500
        store.maintain()
        began = time.perf_counter()
        report = store.erase("s", "segment-7")
        _tell(
            "erase one segment, local",
            entries=entries,
            erased=report.entries,
            seconds=round(time.perf_counter() - began, 2),
        )
        began = time.perf_counter()
        report = store.erase("s", metadata={"subject": "user-13"}, dry_run=True)
        seconds = time.perf_counter() - began
        _tell(
            "search by metadata, local",
            entries=entries,
            found=report.entries,
            entries_per_second=round(entries / seconds),
            most_memory_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        )


def beside(seconds: float) -> None:
    """Appends of one thread, without and with a retention and a thread that maintains all the time."""
    rates = []
    for retained in (False, True):
        with _local() as (_, store):
            store.create_space("s", durability="buffered")
            if retained:
                store.set_retention("s", Retention(max_entries=2000, per="space"))
            stop = threading.Event()

            def keep(store: Store = store, stop: threading.Event = stop) -> None:
                while not stop.wait(0.5):
                    store.maintain()

            thread = threading.Thread(target=keep)
            if retained:
                thread.start()
            end, count = time.perf_counter() + seconds, 0
            while time.perf_counter() < end:
                store.produce("s", f"segment-{count % 10}", [Record(b"x" * 100)])
                count += 1
            stop.set()
            if retained:
                thread.join()
            rates.append(count / seconds)
    _tell(
        "append beside a retention",
        without=round(rates[0]),
        beside=round(rates[1]),
        share=round(rates[1] / rates[0], 2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--segments", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    trim_share(given.transactions // 5)
    beside(given.seconds)
    trim_space(given.transactions)
    erase(given.entries, given.segments)


if __name__ == "__main__":
    main()
