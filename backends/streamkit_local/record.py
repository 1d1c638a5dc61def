"""One record of a log: a checked header, a key, a value.

    crc u32 · value length u32 · position u64 · key length u16 · kind u8 · 0 u8 · key · checksums of blocks · value

All little endian. The crc starts from the partition's seed, so that a record at another place, or in another
partition's file, is not taken for one. It covers all that follows, where the value is small; of a larger value it
covers the checksums of its blocks, so that a part of it can be read and checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from streamkit import speed
from streamkit.checksum import crc32

__all__ = [
    "BLOCK",
    "DROPPED",
    "FIELDS",
    "FILE",
    "GONE",
    "HEADER",
    "INDEX",
    "MOVED",
    "NEXT_ROW",
    "REMOVED",
    "ROW",
    "SNAPSHOT",
    "WHOLE",
    "StoredRecord",
    "blocks_are_right",
    "encode",
    "pack",
    "parse",
    "table_size",
    "walk",
]

HEADER: Final = 20
"""Bytes before the key."""
WHOLE: Final = 16 << 10
"""Values up to this size are checked as a whole."""
BLOCK: Final = 4096
"""Larger ones in blocks of so many bytes."""
CHUNK: Final = 256 << 10
"""Bytes of one read."""

NEXT_ROW, ROW, FILE, GONE, DROPPED, SNAPSHOT, INDEX, MOVED, REMOVED = range(1, 10)
"""Kinds: a row put with NEXT; another row; one whose value is in a file of its own; a row of these two that was
deleted; ranges of positions whose NEXT rows were deleted; the state at the beginning of a file; where keys are in a
file that is full; a row that was copied from an older file (its key begins with its version); a file that is not
needed any more."""

FIELDS: Final = struct.Struct("<IIQHBx")
_REST: Final = struct.Struct("<IQHBx")
_CRC: Final = struct.Struct("<I")

_twin = speed.twin

Read = Callable[[int, int], bytes]
"""(position, length) to bytes; fewer at the end."""


class StoredRecord(NamedTuple):
    """A record with a checked small value. `buffer[at : at + size]` is the read part of its value."""

    position: int
    kind: int
    key: bytes
    size: int
    stop: int
    buffer: bytes
    at: int


def table_size(size: int) -> int:
    """Bytes of the checksums of a value's blocks."""
    return 0 if size <= WHOLE else (size + BLOCK - 1) // BLOCK * 4


def pack(position: int, kind: int, key: bytes, value: bytes, seed: int) -> bytes:
    """Encode the header of a record; a small value is part of it, a larger value follows it."""
    if _twin is not None:
        row: bytes | None = _twin.pack_row(position, kind, key, value, seed)
        if row is not None:
            return row
    size = len(value)
    rest = _REST.pack(size, position, len(key), kind) + key
    if size <= WHOLE:
        rest += value
    else:
        view = memoryview(value)
        checksums = [crc32(view[at : at + BLOCK]) for at in range(0, size, BLOCK)]
        rest += struct.pack(f"<{len(checksums)}I", *checksums)
    return _CRC.pack(crc32(rest, seed)) + rest


def encode(position: int, kind: int, key: bytes, value: bytes, seed: int) -> bytes:
    """A whole record."""
    head = pack(position, kind, key, value, seed)
    return head if len(value) <= WHOLE else head + value


def blocks_are_right(table: bytes, first: int, data: bytes) -> bool:
    """True if `data` equals the written blocks of a value, from the block numbered `first` on."""
    # Readers check each byte here, so it is a plain loop.
    view, at = memoryview(data), first * _CRC.size
    for begin in range(0, len(data), BLOCK):
        if crc32(view[begin : begin + BLOCK]) != _CRC.unpack_from(table, at)[0]:
            return False
        at += _CRC.size
    return True


def parse(buffer: bytes, at: int, position: int, seed: int) -> StoredRecord | int:
    """The record at an offset of a buffer; so many bytes are needed to tell; 0 if there is none."""
    if len(buffer) - at < HEADER:
        return HEADER
    crc: int
    size: int
    length: int
    crc, size, place, length, kind = FIELDS.unpack_from(buffer, at)
    if place != position:
        return 0
    body = at + HEADER + length
    table = table_size(size)
    covered = body + (size if size <= WHOLE else table)
    if covered > len(buffer):
        return covered - at
    if crc32(buffer[at + 4 : covered], seed) != crc:
        return 0
    value = body + table
    return StoredRecord(position, kind, buffer[at + HEADER : body], size, position + value + size - at, buffer, value)


def walk(read: Read, position: int, end: int, seed: int, chunk: int = CHUNK) -> Iterator[StoredRecord]:
    """The records from a position on, to `end` or to the first that is not one."""
    buffer, start = b"", position
    while position < end:
        found = parse(buffer, position - start, position, seed)
        if isinstance(found, int):
            if not found or found > end - position:
                return
            start = position
            buffer = read(position, max(found, min(chunk, end - position)))
            if len(buffer) < found:
                return
            continue
        if found.stop > end:
            return
        yield found
        position = found.stop
        if position - start > len(buffer):
            buffer, start = b"", position
