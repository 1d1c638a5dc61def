"""Reading rows: of the log, of its files that are full, and of files of their own."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from streamkit import speed
from streamkit.backend import Row, Value
from streamkit.checksum import crc32
from streamkit.errors import CorruptData

from .errors import damage
from .files import OpenFile, cached_file
from .record import (
    BLOCK,
    FIELDS,
    HEADER,
    INDEX,
    NEXT_ROW,
    WHOLE,
    StoredRecord,
    blocks_are_right,
    parse,
    table_size,
    walk,
)
from .rewrite_journal import Note, patched
from .rowfile import read_row
from .state import START, LogFile, RowAt, State, StateView, log_name

__all__ = ["LOGGED", "Reader", "etag_of", "log_name"]

LOGGED: Final = "logged"
"""The etag of all rows that were put with NEXT, as these never change."""
_NEAR: Final = 8192
_FIRST: Final = 64 << 10
"""Bytes that a scan reads at first."""
_CHUNK: Final = 256 << 10
"""Bytes that a scan reads at once after that."""
_PAGE_BYTES: Final = 4 << 20
"""Bytes after which a page of a scan ends."""
# glibc gives freed memory back to the system above a limit: twice the largest block that was mapped and freed. Until
# there is such a block, every page of rows gets its memory anew, which takes a sixth of a read's time.
bytes(_PAGE_BYTES)
_INDEXES: Final = 32
"""The number of full files whose sampled keys are kept in memory."""
_FAR: Final = 1 << 63
_twin: Any = speed.twin
_numbers: Final = count(1)


def etag_of(row: RowAt, identity: str) -> str:
    return f"{identity}-{row.version:x}"


class Reader:
    """Reads the records of a State. A FileNotFoundError means that the state is old: another process removed the file.
    `current` is the file that is written to.
    """

    def __init__(self, path: str, identity: str, seed: int) -> None:
        self.path = path
        self.identity = identity
        self.seed = seed
        self.current: tuple[int, OpenFile] | None = None
        self.pending_rewrite: Note | None = None
        """A rewrite that is half done, for readers that may not write."""
        self._number = next(_numbers)
        """The number of this reader's files: a store that is made again at the same path has logs of the same names."""
        self._indexed: list[LogFile] = []
        self._recent: tuple[int, bytes] = (-1, b"")
        """The small row that was read last, which is often read again; a position never has another record."""

    def read(self, file: LogFile, position: int, length: int) -> bytes:
        """Read `length` bytes of a file of the log, or fewer if it ends before."""
        current = self.current
        if current is not None and current[0] == file.base:
            opened = current[1]
        else:
            opened = cached_file(self.path, file.base, _log_path, self._number)
        data = os.pread(opened.fd, length, position - file.base)
        return data if self.pending_rewrite is None else patched(self.pending_rewrite, file.base, position, data)

    def damaged(self, position: int, key: bytes | None = None) -> CorruptData:
        """The error for damaged bytes."""
        row = f" of the row {key!r}" if key is not None else ""
        return damage(self.path, f"has a damaged record at position {position}{row}")

    def walk(self, file: LogFile, position: int, end: int, chunk: int = 256 << 10) -> Iterator[StoredRecord]:
        """The records between two positions of a file. CorruptData if one is missing."""
        reached = position
        for found in walk(lambda at, length: self.read(file, at, length), position, end, self.seed, chunk):
            yield found
            reached = found.stop
        if reached != end:
            raise self.damaged(reached)

    # Values

    def value(self, file: LogFile, found: StoredRecord) -> bytes:
        """The whole value of a record."""
        at, size = found.at, found.size
        if size <= WHOLE:
            return found.buffer[at : at + size]
        if at + size <= len(found.buffer):
            data = found.buffer[at : at + size]
        else:
            data = self.read(file, found.stop - size, size)
        if len(data) != size or not blocks_are_right(found.buffer[at - table_size(size) : at], 0, data):
            raise self.damaged(found.position, found.key)
        return data

    def part(self, file: LogFile, found: StoredRecord, start: int, length: int) -> bytes:
        """A part of the value of a record."""
        at, size = found.at, found.size
        if size <= WHOLE:
            return found.buffer[at : at + size][start : start + length]
        first = start // BLOCK
        stop = min((start + length + BLOCK - 1) // BLOCK * BLOCK, size)
        if start >= size or not length:
            return b""
        data = self.read(file, found.stop - size + first * BLOCK, stop - first * BLOCK)
        table = found.buffer[at - table_size(size) : at]
        if len(data) != stop - first * BLOCK or not blocks_are_right(table, first, data):
            raise self.damaged(found.position, found.key)
        return data[start - first * BLOCK : start - first * BLOCK + length]

    def row(self, view: StateView, key: bytes, row: RowAt) -> bytes:
        """The value of a row that was not put with NEXT."""
        if row.file:
            return read_row(self.path, row, key, self.seed, 0, row.size)
        position, data = self._recent
        if position != row.position:
            file, found = self._inline(view, key, row)
            data = self.value(file, found)
            self._recent = row.position, data
        return data

    def _inline(self, view: StateView, key: bytes, row: RowAt) -> tuple[LogFile, StoredRecord]:
        file = view.file_of(row.position)
        size = HEADER + 8 + len(key) + (table_size(row.size) or row.size)
        found = parse(self.read(file, row.position, size), 0, row.position, self.seed)
        if isinstance(found, int) or not found.key.endswith(key) or found.size != row.size:
            raise self.damaged(row.position, key)
        return file, found

    # Rows that were put with NEXT

    def samples(self, file: LogFile) -> list[tuple[bytes, int]]:
        """Sampled keys of a file, each with its position."""
        samples = file.samples  # another thread may forget them meanwhile
        if not samples and file.index:
            head = self.read(file, file.index, HEADER)
            need = parse(head, 0, file.index, self.seed)
            found = parse(self.read(file, file.index, need), 0, file.index, self.seed) if isinstance(need, int) else 0
            if isinstance(found, int) or found.kind != INDEX:
                raise self.damaged(file.index)
            if len(self._indexed) >= _INDEXES:
                self._indexed[0].samples = []
            self._indexed = [*self._indexed[1 - _INDEXES :], file]
            file.samples = samples = State.samples(self.value(file, found))
        return samples

    def seek(self, state: State, view: StateView, key: bytes) -> tuple[int, int]:
        """Return (number of a file, position): all records with this key or greater ones are there or after it."""
        files = view.files
        current = files[-1]
        number = len(files) - 1
        if current.first is None or key < current.first:
            number = max(bisect_right(files, key, 0, number, key=_first) - 1, 0)
        samples = self.samples(files[number])
        at = bisect_right(samples, (key, _FAR)) - 1
        if at >= 0:
            return number, samples[at][1]
        return number, samples[0][1] if samples else files[number].end or state.end

    def find(self, state: State, view: StateView, key: bytes) -> tuple[LogFile, StoredRecord] | None:
        """The record of a row that was put with NEXT."""
        if state.last is None or key > state.last:
            return None
        number, position = self.seek(state, view, key)
        file, seed = view.files[number], self.seed
        end = file.end or state.end
        buffer, start = b"", position
        while position < end:
            at = position - start
            need = HEADER
            if at + HEADER <= len(buffer):
                crc, size, place, length, kind = FIELDS.unpack_from(buffer, at)
                body = at + HEADER + length
                need = body - at + (size if size <= WHOLE else table_size(size))
                if at + need <= len(buffer):
                    if place != position or crc32(buffer[at + 4 : at + need], seed) != crc:
                        raise self.damaged(position, key)
                    if kind == NEXT_ROW:
                        name = buffer[at + HEADER : body]
                        if name >= key:
                            if name > key or view.dropped.end(position):
                                return None
                            value = at + need if size > WHOLE else body
                            stop = start + value + size
                            return file, StoredRecord(position, kind, name, size, stop, buffer, value)
                    position += need + size if size > WHOLE else need
                    continue
                if need > end - position:
                    raise self.damaged(position, key)
            start = position
            buffer = self.read(file, position, max(need, min(_NEAR, end - position)))
            if len(buffer) < need:
                raise self.damaged(position, key)
        return None

    def logged(self, state: State, view: StateView, start: bytes, end: bytes) -> Iterator[tuple[int, StoredRecord]]:
        """The records of rows with start <= key < end that were put with NEXT and are not deleted.

        Each with the number of its file.
        """
        if state.last is None or start > state.last:
            return
        number, position = self.seek(state, view, start)
        files, dropped = view
        while number < len(files):
            file = files[number]
            stop = file.end or state.end
            position = max(position, file.base + START)
            while position < stop:
                gone = dropped.end(position)
                if gone >= stop:
                    break
                position = max(position, gone)
                for found in self.walk(file, position, stop):
                    position = found.stop
                    if found.kind != NEXT_ROW or found.key < start:
                        continue
                    if found.key >= end:
                        return
                    if dropped.all and dropped.end(found.position):
                        break
                    yield number, found
                else:
                    break
            number += 1
            position = 0

    def positions(self, state: State, keys: list[bytes]) -> list[tuple[int, int]]:
        """Return the ranges of rows that were put with NEXT; neighbours share a range. The keys are in order."""
        ranges: list[tuple[int, int]] = []
        if not keys or state.last is None:
            return ranges
        at = 0
        while at < len(keys):
            steps = 0
            for _, found in self.logged(state, state.view, keys[at], keys[-1] + b"\0"):
                while at < len(keys) and keys[at] < found.key:
                    at += 1
                    steps = 0
                if at == len(keys):
                    break
                steps += 1
                if found.key == keys[at]:
                    at, steps = at + 1, 0
                    if ranges and ranges[-1][1] == found.position:
                        ranges[-1] = ranges[-1][0], found.stop
                    else:
                        ranges.append((found.position, found.stop))
                elif steps > 64:
                    break  # far away: better sought
            else:
                break
        return ranges

    # Scanning

    def page(self, state: State, start: bytes, end: bytes, limit: int, values: bool) -> tuple[list[Row], bool]:
        """Rows with start <= key < end in order, and whether there may be more."""
        view = state.view
        keys = state.keys()
        first, stop = bisect_left(keys, start), bisect_left(keys, end)
        rows: list[Row] = []
        room = _PAGE_BYTES
        at = first
        for number, found in self.logged(state, view, start, end):
            while at < stop and keys[at] <= found.key and len(rows) < limit:
                room -= self._add(state, view, rows, keys[at], values)
                at += 1
            if len(rows) >= limit or room < 0:
                return rows, True
            if at > first and keys[at - 1] == found.key:
                continue
            data = self.value(view.files[number], found) if values else b""
            room -= len(data)
            rows.append(Row(found.key, data, LOGGED))
            if at == stop and values:
                return rows, self._fill(state, view, rows, number, found.stop, end, limit, room)
        while at < stop:
            if len(rows) >= limit or room < 0:
                return rows, True
            room -= self._add(state, view, rows, keys[at], values)
            at += 1
        return rows, len(rows) >= limit

    def _fill(
        self,
        state: State,
        view: StateView,
        rows: list[Row],
        number: int,
        position: int,
        key: bytes,
        limit: int,
        room: int,
    ) -> bool:
        """Add rows of the log from a position on, up to `key`. Returns True if there may be more."""
        seed, unpack, make, add = self.seed, FIELDS.unpack_from, tuple.__new__, rows.append
        files, dropped = view
        chunk = _FIRST
        while number < len(files):
            file = files[number]
            end = file.end or state.end
            position = max(position, file.base + START)
            buffer, start = b"", position
            gone, back = dropped.next(position)
            while position < end:
                if position >= gone:
                    position = max(position, back)
                    gone, back = dropped.next(position)
                    continue
                at = position - start
                if _twin is not None and 0 <= at <= len(buffer) - HEADER:
                    begun, stop = position, min(gone, end)
                    position, room = _twin.add_rows(
                        rows, make, Row, LOGGED, buffer, at, begun, stop, key, limit, room, seed
                    )
                    if position > begun:
                        continue
                need = HEADER
                if 0 <= at <= len(buffer) - HEADER:
                    crc, size, place, length, kind = unpack(buffer, at)
                    body = at + HEADER + length
                    need = body - at + (size if size <= WHOLE else table_size(size))
                    if at + need <= len(buffer):
                        if place != position or crc32(buffer[at + 4 : at + need], seed) != crc:
                            raise self.damaged(position)
                        stop = position + need + (size if size > WHOLE else 0)
                        if kind == NEXT_ROW:
                            name = buffer[at + HEADER : body]
                            if name >= key:
                                return False
                            if len(rows) >= limit or room < 0:
                                return True
                            if size <= WHOLE:
                                add(make(Row, (name, buffer[body : body + size], LOGGED)))
                            else:
                                found = StoredRecord(position, kind, name, size, stop, buffer, at + need)
                                add(Row(name, self.value(file, found), LOGGED))
                            room -= size
                        position = stop
                        continue
                    if need > end - position:
                        raise self.damaged(position)
                start = position
                buffer = self.read(file, position, max(need, min(chunk, end - position)))
                chunk = _CHUNK
                if len(buffer) < need:
                    raise self.damaged(position)
            number += 1
            position = 0
        return False

    def _add(self, state: State, view: StateView, rows: list[Row], key: bytes, values: bool) -> int:
        row = state.rows.get(key)
        if row is None:
            return 0
        data = self.row(view, key, row) if values else b""
        rows.append(Row(key, data, etag_of(row, self.identity)))
        return len(data)

    def get(self, state: State, key: bytes) -> Value | None:
        """One row."""
        view = state.view
        row = state.rows.get(key)
        if row is not None:
            return Value(self.row(view, key, row), etag_of(row, self.identity))
        there = self.find(state, view, key)
        return Value(self.value(*there), LOGGED) if there is not None else None

    def get_part(self, state: State, key: bytes, start: int, length: int) -> bytes | None:
        """A part of one row's value."""
        view = state.view
        row = state.rows.get(key)
        if row is not None and row.file:
            return read_row(self.path, row, key, self.seed, start, length)
        there = self.find(state, view, key) if row is None else self._inline(view, key, row)
        return self.part(*there, start, length) if there is not None else None


def _log_path(path: str, base: int) -> str:
    return os.path.join(path, log_name(base))


def _first(file: LogFile) -> bytes:
    assert file.first is not None
    return file.first
