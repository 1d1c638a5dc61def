"""Searching for bytes in whatever is stored, also where it is compressed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

import streamkit_memory

__all__ = ["files_below", "found_in", "holds", "rows_in_memory"]

_MAGIC = b"\x28\xb5\x2f\xfd"
_PARQUET = b"PAR1"


def holds(data: bytes, needle: bytes, depth: int = 3) -> bool:
    """Whether `needle` is in `data`, in a column of it if it is a Parquet file, or in a zstd frame within it, of which
    there may be some in others."""
    if needle in data or (data.startswith(_PARQUET) and _is_in_columns(data, needle)):
        return True
    at = data.find(_MAGIC) if depth else -1
    while at >= 0:
        try:
            inner = zstd.ZstdDecompressor().decompress(data[at:])
        except zstd.ZstdError:
            inner = b""
        if inner and holds(inner, needle, depth - 1):
            return True
        at = data.find(_MAGIC, at + 1)
    return False


def _is_in_columns(data: bytes, needle: bytes) -> bool:
    """Whether `needle` is in a value of a Parquet file, as it is when it was decompressed and decoded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pq.ParquetFile(pa.BufferReader(data)).read()
    chunks = [chunk for column in rows.columns for chunk in column.chunks]
    return any(needle in buffer.to_pybytes() for chunk in chunks for buffer in chunk.buffers() if buffer is not None)


def files_below(*directories: Path) -> Iterator[tuple[str, bytes]]:
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                yield str(path), path.read_bytes()


def rows_in_memory(url: str) -> Iterator[tuple[str, bytes]]:
    """Of all stores at a memory:// URL."""
    driver = streamkit_memory.connect(url, timeout=5.0)
    for store in driver.stores():
        backend = driver.open(store)
        for partition in list(driver._service.stores[store]):
            for row in backend.scan(partition, b"", b"\xff" * 300):
                yield f"{partition!r}/{row.key!r}", row.key + row.data


def found_in(stored: Iterable[tuple[str, bytes]], needle: bytes) -> list[str]:
    """The names of what holds it."""
    return [name for name, data in stored if holds(data, needle)]
