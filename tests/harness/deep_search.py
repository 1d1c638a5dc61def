"""Searching for bytes in everything that is stored, compressed data included."""

from __future__ import annotations

import contextlib
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

import streamkit_memory

__all__ = ["expanded", "files_below", "found_in", "holds", "matches_in", "rows_in_memory"]

_MAGIC = b"\x28\xb5\x2f\xfd"
_PARQUET = b"PAR1"
_FRAME = struct.Struct("<4xHBxII")
_HEAD = b"\x99"
"""Begins the head of a segment's frame: an array of nine."""
_FITTED = 1 | 4 | 32
"""The flags of a frame that lacks entries and is compressed to fit its room: then it has no magic."""


def holds(data: bytes, needle: bytes) -> bool:
    """True if `needle` is in `data`, in a column of a Parquet file, or in a zstd frame, also one inside of another."""
    return any(needle in part for part in expanded(data))


def _columns(data: bytes) -> Iterator[bytes]:
    """The values of a Parquet file, decompressed and decoded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for column in pq.ParquetFile(pa.BufferReader(data)).read().columns:
        for chunk in column.chunks:
            yield from (buffer.to_pybytes() for buffer in chunk.buffers() if buffer is not None)


def files_below(*directories: Path) -> Iterator[tuple[str, bytes]]:
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                yield str(path), path.read_bytes()


def rows_in_memory(url: str) -> Iterator[tuple[str, bytes]]:
    """Yield the rows of all stores at a memory:// URL."""
    driver = streamkit_memory.connect(url, timeout=5.0)
    for store in driver.stores():
        backend = driver.open(store)
        for partition in list(driver._service.stores[store]):
            for row in backend.scan(partition, b"", b"\xff" * 300):
                yield f"{partition!r}/{row.key!r}", row.key + row.data


def found_in(stored: Iterable[tuple[str, bytes]], needle: bytes) -> list[str]:
    """The names of the items that contain the needle."""
    return [name for name, data in stored if holds(data, needle)]


def expanded(data: bytes, depth: int = 3) -> Iterator[bytes]:
    """Yield `data`, the columns of a Parquet file, and the contents of zstd frames, also of those without a magic."""
    yield data
    if data.startswith(_PARQUET):
        yield from _columns(data)
    at = data.find(_MAGIC) if depth else -1
    while at >= 0:
        try:
            inner = zstd.ZstdDecompressor().decompress(data[at:])
        except zstd.ZstdError:
            inner = b""
        if inner:
            yield from expanded(inner, depth - 1)
        at = data.find(_MAGIC, at + 1)
    at = data.find(_HEAD, _FRAME.size) if depth else -1
    while at >= 0:
        head, flags, _, used = _FRAME.unpack_from(data, at - _FRAME.size)
        if flags & _FITTED == _FITTED:
            with contextlib.suppress(zstd.ZstdError):
                begin = at + head
                yield from expanded(zstd.ZstdDecompressor().decompress(_MAGIC + data[begin : begin + used]), depth - 1)
        at = data.find(_HEAD, at + 1)


def matches_in(stored: Iterable[tuple[str, bytes]], pattern: re.Pattern[bytes]) -> dict[bytes, set[str]]:
    """Return the matches of the first group of `pattern`, and the names of the places that hold them."""
    found: dict[bytes, set[str]] = {}
    for name, data in stored:
        for part in expanded(data):
            for match in pattern.finditer(part):
                found.setdefault(match[1], set()).add(name)
    return found
