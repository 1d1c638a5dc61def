"""One appended row in a log file: a checked header, the key, the value.

    magic u32 · header crc u32 · position u64 · value length u32 · value crc u32 · key length u16 · 0 u16 · key · value

All little endian. The header crc covers what follows it up to the value, and starts from the crc of the partition, so
that a record found at another place, or in another partition's file, is not taken for one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple
from zlib import crc32

__all__ = ["HEADER", "Parsed", "Ref", "checked", "pack_header", "parse", "value_of"]

HEADER: Final = struct.Struct("<IIQIIHH")
_TAIL: Final = struct.Struct("<QIIHH")
_MAGIC: Final = 0x31525353
_CHUNK: Final = 1 << 20

Ref = tuple[int, int]
"""Where an appended row is: logical position of its record, bytes of its value."""


def pack_header(position: int, key: bytes, value: bytes, seed: int) -> bytes:
    """Header and key of the record that goes to `position`."""
    tail = _TAIL.pack(position, len(value), crc32(value), len(key), 0) + key
    return _MAGIC.to_bytes(4, "little") + crc32(tail, seed).to_bytes(4, "little") + tail


def checked(head: bytes, key: bytes, ref: Ref, seed: int, value: bytes | None = None) -> bool:
    """`head` starts with header and key of this row's record, and `value`, if given, is its whole value."""
    body = 28 + len(key)
    if len(head) < body:
        return False
    _, crc, position, length, value_crc, _, _ = HEADER.unpack_from(head)
    return (
        position == ref[0]
        and length == ref[1]
        and head[28:body] == key
        and crc32(head[8:body], seed) == crc
        and (value is None or (len(value) == length and crc32(value) == value_crc))
    )


def value_of(buffer: bytes, at: int, key: bytes, ref: Ref, seed: int) -> bytes | None:
    """The value of the record at buffer[at:], or None if it is not whole, or not this row's record."""
    body = at + 28 + len(key)
    head = buffer[at + 8 : body]
    if len(head) < 20 + len(key):
        return None
    value = buffer[body : body + ref[1]]
    _, crc, position, length, value_crc, _, _ = HEADER.unpack_from(buffer, at)
    if (
        position == ref[0]
        and length == len(value) == ref[1]
        and head[20:] == key
        and crc32(head, seed) == crc
        and crc32(value) == value_crc
    ):
        return value
    return None


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
        if at + 28 > len(buffer):
            buffer, base, at = read(position, _CHUNK), position, 0
            if len(buffer) < 28:
                break
        magic, crc, where, length, value_crc, klen, _ = HEADER.unpack_from(buffer, at)
        if magic != _MAGIC or where != position:
            break
        body = at + 28 + klen
        if body > len(buffer):
            buffer, base, at = read(position, _CHUNK), position, 0
            body = 28 + klen
        head = buffer[at + 8 : body]
        key = head[20:]
        if crc32(head, seed) != crc or len(key) != klen or (last is not None and key <= last):
            break
        end = position + 28 + klen + length
        if end > stop:
            break
        if values:
            value = buffer[body : body + length]
            if len(value) != length:
                value = read(position + 28 + klen, length)
            if len(value) != length or crc32(value) != value_crc:
                break
        keys.append(key)
        refs.append((position, length))
        last, position = key, end
    return Parsed(keys, refs, position)
