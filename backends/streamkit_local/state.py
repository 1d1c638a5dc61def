"""The state of a partition: its rows and their places. It is made by applying the log's records in order."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from typing import Any, Final, NamedTuple

import msgspec

from streamkit import speed
from streamkit.checksum import crc32
from streamkit.decoders import msgpack_decoder

from .record import DROPPED, FIELDS, FILE, GONE, HEADER, INDEX, MOVED, NEXT_ROW, REMOVED, ROW, WHOLE, StoredRecord

__all__ = [
    "START",
    "LogFile",
    "Ranges",
    "RowAt",
    "State",
    "StateView",
    "log_name",
    "pack_file",
    "pack_ranges",
    "unpack_file",
    "unpack_ranges",
]

START: Final = 16
"""A file begins with so many bytes of its own; then comes the record of the state when it was begun."""
_STEP: Final = 4096
"""The distance between two sampled keys of a file, in bytes."""
_FAR: Final = 1 << 63
_PAIR: Final = struct.Struct("<QQ")
_VERSION: Final = struct.Struct(">Q")
_twin: Any = speed.twin


def log_name(base: int) -> str:
    return f"{base:016x}.log"


class RowAt(NamedTuple):
    """The place of a row that was not put with NEXT. `version` changes when the row is put."""

    version: int
    position: int
    size: int
    file: int
    """The name of the file that its value is in; 0: it is in the log."""


class LogFile:
    """One file of the log. `samples` are some of its keys, and the positions of their records."""

    __slots__ = ("base", "end", "first", "index", "samples")

    def __init__(self, base: int, end: int = 0, first: bytes | None = None, index: int = 0) -> None:
        self.base = base
        self.end = end
        """0 while it is written to."""
        self.first = first
        """The first key that was put with NEXT."""
        self.index = index
        """The position of the samples; 0 while the file is still written to."""
        self.samples: list[tuple[bytes, int]] = []


class Ranges:
    """Ranges of positions, in order, that do not touch. They are never changed."""

    def __init__(self, ranges: list[tuple[int, int]] | None = None) -> None:
        self.all = ranges or []

    def end(self, position: int) -> int:
        """The end of the range that holds a position; 0 if none does."""
        ranges = self.all
        if not ranges:
            return 0
        at = bisect_right(ranges, (position, _FAR)) - 1
        return ranges[at][1] if at >= 0 and position < ranges[at][1] else 0

    def next(self, position: int) -> tuple[int, int]:
        """The first range that ends after a position; one that is far away if there is none."""
        ranges = self.all
        at = bisect_right(ranges, (position, _FAR)) - 1
        if at >= 0 and position < ranges[at][1]:
            return ranges[at]
        return ranges[at + 1] if at + 1 < len(ranges) else (_FAR, _FAR)

    def add(self, start: int, end: int) -> Ranges:
        """The ranges with one more."""
        ranges = self.all
        at = bisect_right(ranges, (start, _FAR))
        if at and ranges[at - 1][1] >= start:
            at -= 1
            start, end = ranges[at][0], max(ranges[at][1], end)
        last = at
        while last < len(ranges) and ranges[last][0] <= end:
            end = max(ranges[last][1], end)
            last += 1
        return Ranges([*ranges[:at], (start, end), *ranges[last:]])

    def after(self, position: int) -> Ranges:
        """Return the ranges from `position` on."""
        return Ranges([(max(start, position), end) for start, end in self.all if end > position])


class StateView(NamedTuple):
    """The files of a log, and the positions in them whose NEXT rows were deleted, at one moment. It is never changed.

    A row that is found after the view was taken is in one of its files, though that may have been removed since.
    """

    files: tuple[LogFile, ...]
    dropped: Ranges

    def file_of(self, position: int) -> LogFile:
        """The file that holds a position."""
        files = self.files
        return files[max(bisect_right(files, position, key=_base) - 1, 0)]


def pack_ranges(ranges: list[tuple[int, int]]) -> bytes:
    return b"".join([_PAIR.pack(*each) for each in ranges])


def unpack_ranges(data: bytes) -> list[tuple[int, int]]:
    return [(start, end) for start, end in _PAIR.iter_unpack(data)]


def pack_number(number: int) -> bytes:
    return _VERSION.pack(number)


def pack_file(name: int, size: int) -> bytes:
    """The value of a record that says which file a row's value is in."""
    return _PAIR.pack(name, size)


def unpack_file(data: bytes) -> tuple[int, int]:
    """Return (name, size) of a row that `pack_file` made."""
    name, size = _PAIR.unpack(data)
    return name, size


class _Snapshot(msgspec.Struct, array_like=True):
    last: bytes | None
    dropped: list[tuple[int, int]]
    files: list[tuple[int, int, bytes | None, int]]
    rows: list[tuple[bytes, int, int, int, int]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(_Snapshot).decode
_decode_index = msgpack_decoder(list[tuple[bytes, int]]).decode


class State:
    """`end` is how far the log has been applied. To apply a record again changes nothing.

    Threads read it while another one applies records. A reader takes `view` once, before it looks for rows.
    """

    def __init__(self, base: int) -> None:
        self.base: Final = base
        """The first position of the file that is written to."""
        self.view = StateView((LogFile(base),), Ranges())
        self.rows: dict[bytes, RowAt] = {}
        self.last: bytes | None = None
        """The greatest key that was ever put with NEXT."""
        self.end = base + START
        self._changes = 0
        self._sorted: tuple[int, list[bytes]] = (0, [])
        """The number of changes at the latest sorting, and the sorted keys."""
        self._sample = 0

    @property
    def files(self) -> tuple[LogFile, ...]:
        return self.view.files

    def apply(self, found: StoredRecord, data: bytes) -> None:
        """Take in a record that begins at `end`; `data` is its value, which that of a row need not be."""
        position, kind, key, size, stop = found[:5]
        if kind == NEXT_ROW:
            self.appended(key, position, stop)
            return
        if kind == ROW:
            self._set(key, RowAt(position, position, size, 0))
        elif kind == MOVED:
            self._set(key[8:], RowAt(_VERSION.unpack_from(key)[0], position, size, 0))
        elif kind == FILE:
            name, length = unpack_file(data)
            self._set(key, RowAt(position, position, length, name))
        elif kind == GONE:
            self.rows.pop(key, None)
            self._changes += 1
        elif kind == DROPPED:
            files, dropped = self.view
            for start, end in unpack_ranges(data):
                dropped = dropped.add(start, end)
            self.view = StateView(files, dropped)
        elif kind == REMOVED:
            base = _VERSION.unpack(data)[0]
            files = tuple([file for file in self.files if file.base != base])
            self.view = StateView(files, self.view.dropped.after(files[0].base))
        elif kind == INDEX:
            self.files[-1].index = position
        self.end = stop

    def appended(self, key: bytes, position: int, stop: int) -> None:
        """Take in a row that was put with NEXT."""
        if position >= self._sample:
            file = self.view.files[-1]
            if file.first is None:
                file.first = key
            file.samples.append((key, position))
            self._sample = position + _STEP
        self.last = key
        self.end = stop

    def follow_rows(self, buffer: bytes, at: int, seed: int) -> bool:
        """Take in the small rows put with NEXT that follow each other from byte `at` of a buffer, where `end` is. False
        if there is none; a damaged one, or one that is cut short, is left to the caller."""
        if at >= len(buffer):
            return False
        if _twin is not None:
            found = _twin.next_rows(buffer, at, self.end, seed, self._sample, _STEP)
        else:
            found = _next_rows(buffer, at, self.end, seed, self._sample)
        if found is None:
            return False
        end, last, samples, sample = found
        file = self.view.files[-1]
        if file.first is None:
            file.first = samples[0][0]
        file.samples += samples
        self._sample, self.last, self.end = sample, last, end
        return True

    def _set(self, key: bytes, row: RowAt) -> None:
        self.rows[key] = row
        self._changes += 1

    def keys(self) -> list[bytes]:
        """The keys of rows that were not put with NEXT, in order."""
        changes = self._changes
        cached, found = self._sorted
        if cached != changes:
            found = sorted(self.rows)
            self._sorted = changes, found
        return found

    def stored_bytes(self) -> int:
        """The bytes of the log's records, and of the rows that have files of their own."""
        return self.end - self.files[0].base + sum(row.size for row in list(self.rows.values()) if row.file)

    def ends_before(self, start: bytes, end: bytes) -> bool:
        """True if no row has a key from `start` to `end`, as far as is known without reading files."""
        if self.last is not None and start <= self.last:
            return False
        keys = self.keys()
        at = bisect_left(keys, start)
        return at == len(keys) or keys[at] >= end

    # At the beginning of a file

    def snapshot(self, base: int) -> bytes:
        """The value of the first record of the file that begins at `base`."""
        files = [(file.base, file.end or base, file.first, file.index) for file in self.files]
        rows = [(key, *row) for key, row in self.rows.items()]
        return bytes(_encode(_Snapshot(self.last, self.view.dropped.all, [*files, (base, 0, None, 0)], rows)))

    def index(self) -> bytes:
        """The value of the last record of the file that is written to."""
        return bytes(_encode(self.files[-1].samples))

    @staticmethod
    def restore(data: bytes, base: int, end: int) -> State:
        """The state after the first record, which ends at `end`, of the file that begins at `base`; or ValueError."""
        found = _decode(data)
        state = State(base)
        state.view = StateView(tuple([LogFile(*file) for file in found.files]), Ranges(found.dropped))
        if not state.files or state.files[-1].base != base:
            raise ValueError
        state.rows = {key: RowAt(*row) for key, *row in found.rows}
        state._changes = 1
        state.last = found.last
        state.end = end
        return state

    @staticmethod
    def samples(data: bytes) -> list[tuple[bytes, int]]:
        """Decode the samples that `index` encoded."""
        return _decode_index(data)


def _next_rows(
    buffer: bytes, at: int, position: int, seed: int, sample: int
) -> tuple[int, bytes, list[tuple[bytes, int]], int] | None:
    """(the position after them, the last key, samples, the position of the next sample) of the rows put with NEXT that
    follow each other from `position` on, which is byte `at` of a buffer. None if there is none."""
    unpack, begun, key = FIELDS.unpack_from, position, b""
    samples: list[tuple[bytes, int]] = []
    last = len(buffer) - HEADER
    while at <= last:
        crc, size, place, length, kind = unpack(buffer, at)
        body = at + HEADER + length
        stop = body + size
        if kind != NEXT_ROW or place != position or size > WHOLE or stop > len(buffer):
            break
        if crc32(buffer[at + 4 : stop], seed) != crc:
            break
        key = buffer[at + HEADER : body]
        if position >= sample:
            samples.append((key, position))
            sample = position + _STEP
        position += stop - at
        at = stop
    return (position, key, samples, sample) if position > begun else None


def _base(file: LogFile) -> int:
    return file.base
