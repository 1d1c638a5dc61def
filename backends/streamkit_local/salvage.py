"""Reading around damage: the intact records of a partition's files, with any bytes between them.

Normally a log is read from its beginning, and records after a damaged one are not trusted. Each record holds its
position, and its checksum starts with the partition's seed. So intact records are recognised.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from streamkit.backend import Salvaged
from streamkit.checksum import crc32
from streamkit.errors import CorruptData

from .errors import damage
from .head import identity_of
from .reading import Reader
from .record import (
    DROPPED,
    FIELDS,
    FILE,
    GONE,
    HEADER,
    MOVED,
    NEXT_ROW,
    ROW,
    SNAPSHOT,
    WHOLE,
    StoredRecord,
    parse,
    table_size,
)
from .recovery import bases_in
from .rewrite_journal import patched, read_note
from .rowfile import read_row
from .state import START, LogFile, Ranges, RowAt, State, log_name, unpack_file, unpack_ranges

__all__ = ["intact_rows"]

_POSITION: Final = struct.Struct("<Q")
_POSITION_AT: Final = 8
_LONGEST_KEY: Final = 308
"""The longest key, with the version before it that a copied row has."""


def intact_rows(path: str, partition: bytes) -> Salvaged:
    """The rows of the partition in the directory `path`."""
    try:
        bases = bases_in(path)
    except FileNotFoundError:
        return Salvaged({})
    identity = identity_of(os.path.join(path, "head"), partition)
    seed = crc32(identity) if identity is not None else _seed_of([_data(path, base) for base in bases], bases)
    if seed is None:
        raise damage(path, "has no record that is intact")
    reader = Reader(path, "", seed)
    reader.pending_rewrite = read_note(path)
    rows: dict[bytes, tuple[int, Callable[[], bytes]]] = {}
    dropped = Ranges()
    damaged: list[str] = []
    pieces: list[bytes] = []
    for base in bases:
        data = _data(path, base)
        if reader.pending_rewrite is not None:
            data = patched(reader.pending_rewrite, base, base, data)
        for found in _records(data, base, seed):
            if isinstance(found, _Damage):
                damaged.append(f"{os.path.join(path, log_name(base))} is damaged at byte {found.at}")
                pieces.append(found.data)
                if found.key:
                    rows.setdefault(found.key, (base + found.at, lambda value=found.value: value))  # type: ignore[misc]
                continue
            read = _value_reader(reader, LogFile(base), found._replace(buffer=b""))
            if found.kind in (NEXT_ROW, ROW):
                rows[found.key] = found.position, read
            elif found.kind == MOVED:
                rows[found.key[8:]] = found.position, read
            elif found.kind == FILE:
                rows[found.key] = found.position, _file_reader(reader, found.key, found.position, read)
            elif found.kind == GONE:
                rows.pop(found.key, None)
            else:
                for start, end in _dropped(found, base, read):
                    dropped = dropped.add(start, end)
    return Salvaged({key: read for key, (at, read) in rows.items() if not dropped.end(at)}, damaged, pieces)


def _data(path: str, base: int) -> bytes:
    with open(os.path.join(path, log_name(base)), "rb") as file:
        return file.read()


class _Damage(NamedTuple):
    """Bytes of a file that are no record."""

    at: int
    key: bytes
    """The key of a row that may have been put here with NEXT; b"" if it is unknown."""
    value: bytes
    """The value of that row."""
    data: bytes


def _records(data: bytes, base: int, seed: int) -> Iterator[StoredRecord | _Damage]:
    """The intact records of a file, in order, and the damaged places between them."""
    at, end = START, len(data.rstrip(b"\0"))  # a file that is written to has room for more
    while at < end:
        found = parse(data, at, base + at, seed)
        if isinstance(found, int):
            after = _next(data, base, at + 1, end)
            yield _damage(data, base, at, after)
            at = after
            continue
        yield found
        at = found.stop - base


def _damage(data: bytes, base: int, at: int, after: int) -> _Damage:
    """Read the fields of a damaged record, if its header makes sense."""
    if len(data) - at >= HEADER:
        _, size, place, length, kind = FIELDS.unpack_from(data, at)
        start = at + HEADER + length + table_size(size)
        if place == base + at and kind == NEXT_ROW and length <= _LONGEST_KEY and start + size <= len(data):
            return _Damage(at, data[at + HEADER : at + HEADER + length], data[start : start + size], data[at:after])
    return _Damage(at, b"", b"", data[at:after])


def _next(data: bytes, base: int, at: int, end: int) -> int:
    """The next place in a file where a record may begin: its bytes name this position."""
    unpack, end = _POSITION.unpack_from, min(end, len(data) - HEADER)
    while at < end:
        if unpack(data, at + _POSITION_AT)[0] == base + at:
            return at
        at += 1
    return len(data)


def _value_reader(reader: Reader, file: LogFile, found: StoredRecord) -> Callable[[], bytes]:
    def read() -> bytes:
        size = HEADER + len(found.key) + (table_size(found.size) or found.size)
        again = parse(reader.read(file, found.position, size), 0, found.position, reader.seed)
        if isinstance(again, int):
            raise reader.damaged(found.position, found.key)
        return reader.value(file, again)

    return read


def _file_reader(reader: Reader, key: bytes, position: int, read: Callable[[], bytes]) -> Callable[[], bytes]:
    """Reads a row whose value is in a file of its own."""

    def read_file() -> bytes:
        name, size = unpack_file(read())
        try:
            return read_row(reader.path, RowAt(position, position, size, name), key, reader.seed, 0, size)
        except FileNotFoundError:
            raise damage(reader.path, f"lacks a file, which holds the row {key!r}") from None

    return read_file


def _dropped(found: StoredRecord, base: int, read: Callable[[], bytes]) -> Iterable[tuple[int, int]]:
    """Ranges of positions whose rows were deleted, as far as a record tells of them."""
    try:
        if found.kind == DROPPED:
            return unpack_ranges(read())
        if found.kind == SNAPSHOT:
            return State.restore(read(), base, found.stop).view.dropped.all
    except (CorruptData, ValueError, struct.error):
        pass
    return ()


def _seed_of(files: list[bytes], bases: list[int]) -> int | None:
    """The seed of checksums, for the head that says it is damaged: the one under which most records are right."""
    best: tuple[int, int] | None = None
    for data, base in zip(files, bases, strict=True):
        at = START
        while at < len(data):
            seed = _seed_at(data, at, base + at)
            if seed is not None:
                right = sum(isinstance(found, StoredRecord) for found in _records(data, base, seed))
                best = max(best or (0, 0), (right, seed))
                if right > 2:
                    return seed
            at = _next(data, base, at + 1, len(data))
    return best[1] if best is not None and best[0] else None


def _seed_at(data: bytes, at: int, position: int) -> int | None:
    """The seed under which the record at an offset is right; None if it is none.

    A checksum is linear: the seed's bits change it by exclusive or, each in its own way.
    """
    if len(data) - at < HEADER:
        return None
    crc, size, place, length, _ = FIELDS.unpack_from(data, at)
    covered = at + HEADER + length + (size if size <= WHOLE else table_size(size))
    if place != position or covered > len(data) or length > _LONGEST_KEY:
        return None
    rest = data[at + 4 : covered]
    plain = crc32(rest)
    left, seed = crc ^ plain, 0
    pivots: dict[int, tuple[int, int]] = {}
    for bit in range(32):
        change, mask = crc32(rest, 1 << bit) ^ plain, 1 << bit
        while change and change.bit_length() in pivots:
            other, others = pivots[change.bit_length()]
            change, mask = change ^ other, mask ^ others
        if change:
            pivots[change.bit_length()] = change, mask
    while left and left.bit_length() in pivots:
        change, mask = pivots[left.bit_length()]
        left, seed = left ^ change, seed ^ mask
    return seed if not left else None
