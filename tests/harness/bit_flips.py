"""Flipping single bits of the stored bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["flipped", "places"]

EXHAUSTIVE = bool(os.environ.get("STREAMKIT_EXHAUSTIVE"))


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << at % 8
    return bytes(changed)


def places(size: int, step: int) -> Iterator[int]:
    """Positions in `size` bytes: all in an exhaustive run, else one in `step`."""
    return iter(range(0, size, 1 if EXHAUSTIVE else step))


def files_of(root: Path) -> Iterator[tuple[Path, bytes]]:
    """The files below a directory, without the room at their ends that is not written yet."""
    for path in sorted(root.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            yield path, data[: len(data.rstrip(b"\0")) + 8]
