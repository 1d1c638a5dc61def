"""CPU seconds of this process and of all its children. A busy machine does not change them much."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["busy"]


def busy() -> float:
    """The CPU seconds of the living processes, and of the children that they have waited for. Use the difference of two
    readings."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        process = int(path.parent.name)
        parents[process] = int(fields[1])
        used[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return sum(seconds for process, seconds in used.items() if _below(process, parents))


def _below(process: int, parents: dict[int, int]) -> bool:
    while process > 1:
        if process == os.getpid():
            return True
        process = parents.get(process, 0)
    return False
