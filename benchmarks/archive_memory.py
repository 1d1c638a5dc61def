"""The most memory that archiving, with removing, compacting and reading take: python -m benchmarks.archive_memory

Each step is a process of its own; the figures are its largest resident set, and the memory of streamkit alone.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import streamkit
from streamkit import Record

_ID = UUID(int=7)
_MIB = 1 << 20


def _open(url: str) -> streamkit.Store:
    return streamkit.connect(url).store(_ID)


def _segments(url: str, count: int) -> None:
    store = _open(url)
    store.create_space("s", archive_grace=0.001)
    for begin in range(0, count, 1000):
        with store.transaction("s") as trx:
            for at in range(begin, min(begin + 1000, count)):
                trx.produce(f"segment-{at:08}", [Record(b"one entry of it")])


def _documents(url: str, megabytes: int) -> None:
    """Archive files of 10 MiB of payload, which compress to a hundredth."""
    store = _open(url)
    document = (b"a document that is like every other one, " * 300)[:10_240]
    each = 10 * _MIB // len(document)
    for file in range(megabytes // 10):
        records = [Record(document[:-12] + b"%012d" % (file * each + at)) for at in range(each)]
        store.produce("s", f"segment {file % 10}", records)
        store.archive("s")


def _step(name: str, url: str, count: int) -> None:
    match name:
        case "idle":
            import deltalake  # noqa: F401
            import pyarrow.parquet  # noqa: F401

            list(_open(url).get_spaces())
        case "segments":
            _segments(url, count)
        case "documents":
            _documents(url, count)
        case "archive":
            done = _open(url).archive("s")
            print(f"   {done.entries:,} entries, and {done.removed:,} transactions left the log", end="")
        case "compact":
            report = _open(url).compact("s")
            print(f"   {report.before} files to {report.after}", end="")
        case "consume_space":
            print(f"   {sum(1 for _ in _open(url).consume_space('s')):,} entries", end="")
        case "to_arrow":
            print(f"   {sum(batch.num_rows for batch in _open(url).to_arrow('s')):,} entries", end="")
    # Of the kernel in KiB.
    print(f"   {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def main(segments: int = 1_000_000, megabytes: int = 10_000) -> None:
    for made, count, steps in (
        ("segments", segments, ("idle", "archive")),
        ("documents", megabytes, ("idle", "compact", "consume_space", "to_arrow")),
    ):
        with tempfile.TemporaryDirectory() as path:
            for step in (made, *steps):
                print(f"{step:<14}{count if step == made else '':>10}", end="", flush=True)
                command = [sys.executable, "-m", "benchmarks.archive_memory", step, Path(path).as_uri(), str(count)]
                print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip(), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 4 and not sys.argv[1].isdecimal():
        _step(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main(*map(int, sys.argv[1:]))
