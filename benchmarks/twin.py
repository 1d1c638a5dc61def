"""The compiled twin against the Python functions: microseconds of CPU an operation, in alternating processes.

    python -m benchmarks.twin --dir build --rounds 5

CPU time, not wall time, so that other jobs on the machine disturb it less. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from streamkit import Record, speed

from .contenders import Streamkit, fill

SPACE = "buffered"
WORK = {
    "load a segment of 20 entries of 20 commits": ("load", 1_000),
    "read a space, 1 entry a commit": ("space-1", 1),
    "read a segment, 1 entry a commit": ("segment-1", 1),
    "read a space, 1,000 entries a commit": ("space-1000", 1),
    "read a segment, 1,000 entries a commit": ("segment-1000", 1),
    "peek": ("peek", 5_000),
    "append 1, buffered": ("append", 5_000),
}
"""The measurements by name: the work of the child process, and its repetitions."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin", description=__doc__)
    parser.add_argument("--dir", type=Path, default=None, help="where to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--segments", type=int, default=10_000, help="of 20 entries each; 100,000 entries in the others"
    )
    parser.add_argument("--measure", default="", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(measure(given.measure, given.dir, given.segments, given.count))
        return
    if speed.twin is None:
        parser.error(f"the codec is {speed.codec()}: make speed")
    with tempfile.TemporaryDirectory(dir=given.dir) as made:
        path = Path(made)
        prepare(path, given.segments)
        print("| µs of CPU | Python | compiled | times |\n|---|---|---|---|")
        for name, (what, count) in WORK.items():
            found: dict[str, list[float]] = {"1": [], "0": []}
            for turn in range(2 * given.rounds):
                # Python, compiled, compiled, Python: a load that grows meets both.
                pure = "1" if turn % 4 in (0, 3) else "0"
                found[pure].append(child(what, path, given.segments, count, pure))
            python, compiled = statistics.median(found["1"]), statistics.median(found["0"])
            print(f"| {name} | {python:.3g} | {compiled:.3g} | {python / compiled:.2f} |", flush=True)


def child(what: str, path: Path, segments: int, count: int, pure: str) -> float:
    command = [sys.executable, "-m", "benchmarks.twin", "--measure", what, "--dir", str(path)]
    command += ["--segments", str(segments), "--count", str(count)]
    environment = {**os.environ, "STREAMKIT_PURE": pure}
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def prepare(path: Path, segments: int) -> None:
    fill(Streamkit(path / "gradual", SPACE), segments, 1, 20, 10, lambda text: None)
    for together in (1, 1000):
        written = Streamkit(path / f"by-{together}", SPACE)
        payload = random.Random(together).randbytes(1 << 16)
        for at in range(0, 100_000, together):
            places = [(at + number) * 31 % (len(payload) - 128) for number in range(together)]
            written.store.produce(SPACE, "segment-1", [Record(payload[place : place + 128]) for place in places])
        written.close()


def measure(what: str, path: Path, segments: int, count: int) -> float:
    """Microseconds of this process's CPU for one operation."""
    name, _, together = what.partition("-")
    dice = random.Random(os.getpid())
    some = [dice.randrange(segments) for _ in range(count + 200)]
    folder = {"load": "gradual", "peek": "gradual"}.get(name, f"by-{together}" if together else f"own-{os.getpid()}")
    opened = Streamkit(path / folder, SPACE)
    read: Callable[[], object]
    if together:
        read = opened.read_all if name == "space" else lambda: opened.read_segment(1)
        read()
        return cpu(read) / 100_000
    one: Callable[[int], object] = opened.peek if name == "peek" else opened.read_segment
    if name == "append":
        one = partial(append, opened)
    for segment in some[:200]:
        one(segment)
    return cpu(lambda: [one(segment) for segment in some[200:]]) / count


def append(opened: Streamkit, segment: int) -> None:
    opened.store.produce(SPACE, f"segment-{segment % 100}", [Record(b"x" * 128)])


def cpu(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1e6


if __name__ == "__main__":
    main()
