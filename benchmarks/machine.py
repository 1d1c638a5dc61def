"""The machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["describe", "filesystem"]

_LIBRARIES = ("streamkit-store", "streamkit-speed", "msgspec", "eventsourcing")


def describe(directory: Path) -> dict[str, str]:
    kind, device = filesystem(directory)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory / (1 << 30):.0f} GiB",
        "disk": f"{kind} on {device}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": ", ".join((*map(_version, _LIBRARIES), f"SQLite {sqlite3.sqlite_version}")),
        "load": f"{os.getloadavg()[0]:.1f} before the run",
    }


def filesystem(directory: Path) -> tuple[str, str]:
    """Kind and device of the file system that holds `directory`."""
    found, longest = ("unknown", "unknown"), -1
    path = directory.resolve()
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in mounts:
        device, point, kind = line.split()[:3]
        if path.is_relative_to(point) and len(point) > longest:
            found, longest = (kind, device), len(point)
    return found


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"no {name}"
