"""`python -m benchmarks.memory WORK PATH SPACE SEGMENTS`: the most memory that the work takes in its own process.

    write    ten rounds over all segments, in each one entry more for every one of them; merges are a part of it
    read     all of them, in commit order
    maintain   what upkeep is due

Prints the highest resident size in bytes, with the interpreter and all libraries.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .contenders import Streamkit, fill

__all__ = ["TIMES", "peak"]

TIMES = 10
_TOGETHER = 1000


def peak(work: str, path: Path, space: str, segments: int) -> float:
    """MB, at most, of a process that does `work`."""
    command = [sys.executable, "-m", "benchmarks.memory", work, str(path), space, str(segments)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout) / 1e6


def _high_water() -> int:
    """The peak of memory, without getrusage, which begins with the parent's."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status does not tell the highest resident size")


def main(work: str, path: str, space: str, segments: str) -> None:
    count = int(segments)
    store = Streamkit(Path(path), space)
    if work == "write":
        fill(store, count, 1, TIMES, _TOGETHER, lambda _: None)
    elif work == "maintain":
        store.store.maintain()
    else:
        found = store.read_all()
        if found != count * TIMES:
            raise AssertionError(f"{found} instead of {count * TIMES}: this run measures nothing")
    store.close()
    print(_high_water())


if __name__ == "__main__":
    main(*sys.argv[1:])
