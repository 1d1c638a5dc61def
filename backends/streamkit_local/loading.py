"""Reading appended rows from the files of a log: neighbours together, each checked against what the index says."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from streamkit.errors import CorruptData

from .files import LogFiles
from .record import HEADER, Ref

__all__ = ["Misplaced", "Part", "load", "load_one", "load_part", "load_parts"]

_RUN: Final = 1 << 20
"""The most bytes of one read, unless a single row is larger."""
_GAP: Final = 4096
"""Bytes that are rather read than skipped."""
_ALONE: Final = 16 << 10
"""From this size on, a value is read by itself, which saves a copy."""

_fields: Final = struct.Struct("<8xQII").unpack_from
"""Position, length and checksum of the value, from a header."""

Part = tuple[int, bytes, int, int, int]
"""Of one row: position, key, size of its value, start and length of what is wanted."""


class Misplaced(Exception):
    """A row is not where the index said: it was deleted since, or is damaged."""

    def __init__(self, files: LogFiles, key: bytes, position: int) -> None:
        self.files = files
        self.key = key
        self.position = position

    def fault(self) -> CorruptData:
        """What it means if the index says the same again."""
        file = self.files.holding(self.position)
        where = self.files.name(file.base) if file is not None else self.files.path
        return CorruptData(
            f"the row {self.key!r} is missing or damaged at position {self.position} of {where}: "
            "restore the store from a backup"
        )


def load_one(files: LogFiles, key: bytes, ref: Ref, end: int) -> bytes:
    """The value of one row, checked. Misplaced if it is not where `ref` says, before the `end` of the log."""
    start, size = ref
    file = files.holding(start)
    if file is None or start + size > end:
        raise Misplaced(files, key, start)
    at, body = start - file.base, HEADER + len(key)
    if size < _ALONE:
        head = os.pread(file.fd, body + size, at)
        value = head[body:]
    else:
        head = os.pread(file.fd, body, at)
        value = os.pread(file.fd, size, at + body)
    if len(value) == size and len(head) >= body:
        position, length, crc = _fields(head)
        if position == start and length == size and head[HEADER:body] == key and crc32(value, files.seed) == crc:
            return value
    raise Misplaced(files, key, start)


def load_part(files: LogFiles, part: Part, end: int) -> bytes:
    """A part of one value, of which only key and place are checked. Misplaced as above."""
    place, key, size, start, length = part
    file = files.holding(place)
    if file is None or place + size > end:
        raise Misplaced(files, key, place)
    at, body = place - file.base, HEADER + len(key)
    length = max(min(length, size - start), 0)
    if start <= _GAP:
        head = os.pread(file.fd, body + start + length, at)
        value = head[body + start :]
    else:
        head = os.pread(file.fd, body, at)
        value = os.pread(file.fd, length, at + body + start)
    if len(value) == length and len(head) >= body:
        position, whole, _ = _fields(head)
        if position == place and whole == size and head[HEADER:body] == key:
            return value
    raise Misplaced(files, key, place)


def load(files: LogFiles, rows: Sequence[tuple[bytes, Ref]], end: int) -> list[bytes]:
    """The values of rows in order of position."""
    out: list[bytes] = []
    add, seed = out.append, files.seed
    first, count = 0, len(rows)
    while first < count:
        key, (start, size) = rows[first]
        stop, last = start + HEADER + len(key) + size, first + 1
        if last < count and size < _ALONE:
            limit = min(files.after(start), start + _RUN, end)
            while last < count:
                key, (place, size) = rows[last]
                if not stop <= place <= stop + _GAP or place >= limit or size >= _ALONE:
                    break
                stop = place + HEADER + len(key) + size
                last += 1
        if last == first + 1:
            add(load_one(files, *rows[first], end))
            first = last
            continue
        buffer = files.read(start, stop - start)
        for key, (place, size) in rows[first:last]:
            at = place - start
            body = at + HEADER + len(key)
            stop = body + size
            if stop > len(buffer):
                raise Misplaced(files, key, place)
            position, length, crc = _fields(buffer, at)
            value = buffer[body:stop]
            if position != place or length != size or buffer[at + HEADER : body] != key or crc32(value, seed) != crc:
                raise Misplaced(files, key, place)
            add(value)
        first = last
    return out


def load_parts(files: LogFiles, parts: Sequence[Part], end: int) -> list[bytes]:
    """Parts of values, in order of position."""
    out: list[bytes] = []
    add = out.append
    first, count = 0, len(parts)
    while first < count:
        base, key, size, start, length = parts[first]
        stop, last = base + HEADER + len(key) + min(start + length, size), first + 1
        if last < count and start <= _GAP:
            limit = min(files.after(base), base + _RUN, end)
            while last < count:
                place, key, size, start, length = parts[last]
                if place > stop + _GAP or place >= limit or start > _GAP or length >= _ALONE:
                    break
                stop = max(stop, place + HEADER + len(key) + min(start + length, size))
                last += 1
        if last == first + 1:
            add(load_part(files, parts[first], end))
            first = last
            continue
        buffer = files.read(base, stop - base)
        for place, key, size, start, length in parts[first:last]:
            at = place - base
            body = at + HEADER + len(key)
            stop = body + min(start + length, size)
            if stop > len(buffer):
                raise Misplaced(files, key, place)
            position, whole, _ = _fields(buffer, at)
            if position != place or whole != size or buffer[at + HEADER : body] != key:
                raise Misplaced(files, key, place)
            add(buffer[body + start : stop])
        first = last
    return out
