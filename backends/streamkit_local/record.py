"""One appended row in a log file: a checked header, the key, the value.

    magic u32 · header crc u32 · position u64 · value length u32 · value crc u32 · key length u16 · 0 u16 · key · value

All little endian. The header crc covers what follows it up to the value. Both crcs start from that of the partition's
name, so that a record found at another place, or in another partition's file, is not taken for one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple
from zlib import crc32

__all__ = ["HEADER", "Parsed", "Ref", "pack_header", "parse"]

HEADER: Final = 28
"""Bytes before the key."""

_FIELDS: Final = struct.Struct("<IIQIIHH")
_START: Final = struct.Struct("<II")
_REST: Final = struct.Struct("<QIIHH")
_MAGIC: Final = 0x31525353
_CHUNK: Final = 1 << 20

Ref = tuple[int, int]
"""Where an appended row is: logical position of its record, bytes of its value."""


def pack_header(position: int, key: bytes, value: bytes, seed: int) -> bytes:
    """Header and key of the record that goes to `position`."""
    rest = _REST.pack(position, len(value), crc32(value, seed), len(key), 0) + key
    return _START.pack(_MAGIC, crc32(rest, seed)) + rest


class Parsed(NamedTuple):
    """What a stretch of log holds: keys and places in order, and the position after the last whole record."""

    keys: list[bytes]
    refs: list[Ref]
    end: int


def parse(
    read: Callable[[int, int], bytes], position: int, stop: int, last: bytes | None, seed: int, *, values: bool
) -> Parsed:
    """Read records from `position` up to `stop`, and end early where one is not whole, valid and in order.

    `read(position, length)` gives bytes of one file, as many as there are. `values`: check the values too.
    """
    keys: list[bytes] = []
    refs: list[Ref] = []
    buffer, base = b"", position
    while position < stop:
        at = position - base
        if at + HEADER > len(buffer):
            buffer, base, at = read(position, min(_CHUNK, stop - position)), position, 0
            if len(buffer) < HEADER:
                break
        magic, crc, where, length, value_crc, key_length, _ = _FIELDS.unpack_from(buffer, at)
        body = at + HEADER + key_length
        end = position + HEADER + key_length + length
        if magic != _MAGIC or where != position or end > stop:
            break
        if body > len(buffer):
            buffer, base, at = read(position, min(_CHUNK, stop - position)), position, 0
            body = HEADER + key_length
        rest = buffer[at + 8 : body]
        key = rest[HEADER - 8 :]
        if crc32(rest, seed) != crc or len(key) != key_length or (last is not None and key <= last):
            break
        if values:
            value = buffer[body : body + length]
            if len(value) != length:
                value = read(position + HEADER + key_length, length)
            if len(value) != length or crc32(value, seed) != value_crc:
                break
        keys.append(key)
        refs.append((position, length))
        last, position = key, end
    return Parsed(keys, refs, position)
