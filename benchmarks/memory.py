"""Private memory while 10 million entries are read, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .contenders import Streamkit
from .measure import Bench, Result, at_most
from .payloads import random_batches

__all__ = ["private_bytes", "run"]

_SAMPLES = 100


def run(bench: Bench) -> Iterator[Result]:
    entries = bench.size(10_000_000, 500_000)
    with bench.scratch("memory") as path:
        bench.say(f"memory: writing {entries:,} entries")
        store = Streamkit(path, "buffered")
        batches = random_batches(64, 1000)
        for turn in range(entries // 1000):
            store.append(0, 0, batches[turn % 64])
        store.close()
        setting = f"128 B random; written 1000 a commit; {entries:,} entries; smaps, private pages of no store's file"
        for work in ("consume_space", "consume_segment"):
            bench.say(f"memory: {work}")
            command = [sys.executable, "-m", "benchmarks.memory", str(path), work, str(entries)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            start, *samples = (size / 1e6 for size in json.loads(done.stdout))
            quarter = len(samples) // 4
            rounds = {
                "highest": [max(samples) - start],
                "in the first quarter": [max(samples[:quarter]) - start],
                "in the last quarter": [max(samples[-quarter:]) - start],
            }
            yield Result(f"memory above the start, {work}", "MB", setting, rounds, [at_most(60)])


def private_bytes(but: Path) -> int:
    """Bytes of this process's private pages, without those of files below `but`, which are the page cache's."""
    inside, size = True, 0
    with open("/proc/self/smaps", encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if not fields[0].endswith(":"):
                inside = len(fields) > 5 and fields[5].startswith(str(but))
            elif not inside and fields[0] in ("Private_Clean:", "Private_Dirty:"):
                size += int(fields[1]) * 1024
    return size


def _read(path: Path, work: str, entries: int) -> list[int]:
    sizes = [private_bytes(path)]
    store = Streamkit(path, "buffered")
    if work == "consume_space":
        found = store.store.consume_space(store.space)
    else:
        found = store.store.consume_segment(store.space, "segment-0")
    count, every = 0, entries // _SAMPLES
    for _ in found:
        count += 1
        if count % every == 0:
            sizes.append(private_bytes(path))
    if count != entries:
        raise AssertionError(f"{count} instead of {entries}: this run measures nothing")
    store.close()
    return sizes


if __name__ == "__main__":
    print(json.dumps(_read(Path(sys.argv[1]).resolve(), sys.argv[2], int(sys.argv[3]))))
