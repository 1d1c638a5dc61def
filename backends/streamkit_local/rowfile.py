"""A row with a large value is in a file of its own. The file is complete before a record of the log names it."""

from __future__ import annotations

import fcntl
import os
import re
import weakref
from collections.abc import Collection
from typing import Any, Final

from streamkit import speed
from streamkit.errors import CorruptData

from .errors import damage
from .files import OpenFile, cached_file, create_file, sync_directory, unlink, write_all
from .record import BLOCK, FILE, HEADER, blocks_are_right, pack, parse, table_size
from .state import RowAt

__all__ = ["OpenRow", "open_row", "read_row", "remove_orphans", "row_path", "write_row"]

_twin: Any = speed.twin
_NAME: Final = re.compile(r"([0-9a-f]{16})\.row(\.new)?")


def row_path(path: str, name: int) -> str:
    return f"{path}/{name:016x}.row"


def write_row(path: str, key: bytes, value: bytes, seed: int) -> tuple[int, OpenFile]:
    """Write a row's file, and make it durable. Returns its name, and the open file. While it is open, no process
    removes it as left behind."""
    name, file = _begin(path)
    final = row_path(path, name)
    try:
        head = pack(name, FILE, key, value, seed)
        write_all(file.fd, head, 0)
        write_all(file.fd, value, len(head))
        # A copy of the directory that is made meanwhile has the whole file, or none of this name. The file is synced
        # under its new name: then syncing the directory mostly finds nothing to do, which saves a commit of a journal.
        os.rename(final + ".new", final)
        os.fsync(file.fd)
        sync_directory(path)
    except OSError:
        unlink(final + ".new")
        unlink(final)
        raise
    return name, file


def _begin(path: str) -> tuple[int, OpenFile]:
    """An empty one, locked. Before it was, another process may have taken it for left behind: then another one."""
    while True:
        name = int.from_bytes(os.urandom(8)) >> 1 | 1
        file = OpenFile(create_file(row_path(path, name) + ".new"))
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        if os.fstat(file.fd).st_nlink:
            return name, file


def remove_orphans(path: str, rows: Collection[int], names: Collection[str]) -> None:
    """Remove files that no row names, now or soon. The caller holds the partition's lock."""
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or (int(match[1], 16) in rows and not match[2]):
            continue
        full = os.path.join(path, name)
        try:
            file = OpenFile(os.open(full, os.O_RDONLY))
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        unlink(full)
        file.close()


def read_row(path: str, row: RowAt, key: bytes, seed: int, start: int, length: int) -> bytes:
    """A part of the value of a row. FileNotFoundError if its file is gone."""
    file = cached_file(path, row.file, row_path)
    table = file.table or _table(file, row, key, seed)
    size = row.size
    if start >= size or not length:
        return b""
    if _twin is not None:
        part: bytes | None = _twin.read_part(file.fd, *table, size, start, length)
        if part is not None:
            return part
    first = start // BLOCK
    begin = first * BLOCK
    stop = min((start + length + BLOCK - 1) // BLOCK * BLOCK, size)
    data = os.pread(file.fd, stop - begin, table[0] + begin)
    if len(data) != stop - begin or not blocks_are_right(table[1], first, data):
        raise _damaged(file, key)
    return data if begin == start and stop - begin <= length else data[start - begin : start - begin + length]


class OpenRow:
    """See `OpenedRow`. The file is not kept open for it."""

    __slots__ = ("_at", "_file", "_requests", "_size", "compiled")

    def __init__(self, file: OpenFile, size: int, requests: dict[str, int], compiled: object | None) -> None:
        """`size`: bytes of the value."""
        assert file.table is not None
        self._file = weakref.ref(file)
        self._at = file.table[0]
        self._size = size
        self._requests = requests
        self.compiled = compiled

    def part(self, start: int, length: int) -> bytes:
        """See `OpenedRow`."""
        file = self._file()
        if file is None or start + length > self._size:
            return b""
        try:
            data = os.pread(file.fd, length, self._at + start)
        except OSError:
            return b""
        self._requests["read"] += 1
        self._requests["bytes_read"] += len(data)
        return data


def open_row(path: str, row: RowAt, key: bytes, seed: int) -> OpenFile:
    """The file of a row, with its table. FileNotFoundError if it is gone."""
    file = cached_file(path, row.file, row_path)
    if file.table is None:
        _table(file, row, key, seed)
    return file


def _table(file: OpenFile, row: RowAt, key: bytes, seed: int) -> tuple[int, bytes]:
    """The start of the value, and the checksums of its blocks. They are kept with the file."""
    size = HEADER + len(key) + table_size(row.size)
    found = parse(os.pread(file.fd, size, 0), 0, row.file, seed)
    if isinstance(found, int) or found.key != key or found.size != row.size:
        raise _damaged(file, key)
    file.table = table = found.at, found.buffer[HEADER + len(key) : found.at]
    return table


def _damaged(file: OpenFile, key: bytes) -> CorruptData:
    return damage(file.path, f"is damaged, which holds the row {key!r}")
