"""Rewrite records in place. The new records are first written to a note, so that the next process can complete a
half-done rewrite.

Nothing else in a log is ever written over. A process that is killed in the middle, or a power cut, would leave an
unreadable record. The entries of other segments in it would be lost, and later records too if its end is unknown.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from streamkit.checksum import crc32
from streamkit.decoders import msgpack_decoder

from .files import OpenFile, create_file, sync_directory, unlink, write_all
from .record import HEADER
from .state import log_name

__all__ = ["Note", "complete", "drop_draft", "is_noted", "patched", "read_note", "rewrite"]

_SECTOR: Final = 512
"""A disk writes so many bytes, from such a position on, whole or not at all; and so does a process that is killed."""
_CRC: Final = 4
_DRAFT: Final = ".new"


class Note(NamedTuple):
    base: int
    """The base of the log file."""
    records: list[tuple[int, bytes]]
    """(position, the whole record)"""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(Note).decode


def _name(path: str) -> str:
    return os.path.join(path, "anew")


def is_noted(path: str) -> bool:
    """True if something may be half done, or is being done."""
    return os.path.exists(_name(path))


def read_note(path: str) -> Note | None:
    """Read the note in a partition's directory."""
    try:
        with open(_name(path), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    if len(data) <= _CRC or int.from_bytes(data[:_CRC], "little") != crc32(data[_CRC:]):
        return None
    return _decode(data[_CRC:])


def rewrite(path: str, base: int, records: Sequence[tuple[int, bytes]]) -> None:
    """Replace records of one file by others of the same lengths, durably. The partition's lock is held, and an earlier
    note is completed."""
    if len(records) == 1 and _is_in_one_sector(records[0][0] - base, len(records[0][1])):
        _write(path, base, records)
        return
    _write_note(path, Note(base, list(records)))
    _write(path, base, records)
    unlink(_name(path))


def complete(path: str) -> None:
    """Complete the noted rewrite, if there is one. The partition's lock is held."""
    if not is_noted(path):
        return
    note = read_note(path)
    if note is not None:
        with contextlib.suppress(FileNotFoundError):  # nothing in it was needed any more
            _write(path, note.base, note.records)
    unlink(_name(path))


def drop_draft(path: str) -> None:
    """Remove a note that a killed process had not finished. The partition's lock is held."""
    unlink(_name(path) + _DRAFT)


def _is_in_one_sector(at: int, size: int) -> bool:
    return at // _SECTOR == (at + size - 1) // _SECTOR


def _write_note(path: str, note: Note) -> None:
    data = _encode(note)
    final = _name(path)
    draft = final + _DRAFT
    try:
        file = OpenFile(create_file(draft, truncate=True))
        write_all(file.fd, crc32(data).to_bytes(_CRC, "little") + data, 0)
        os.fsync(file.fd)
        file.close()
        os.rename(draft, final)
        sync_directory(path)
    except OSError:
        unlink(draft)
        unlink(final)
        raise


def _write(path: str, base: int, records: Sequence[tuple[int, bytes]]) -> None:
    file = OpenFile(os.open(os.path.join(path, log_name(base)), os.O_RDWR))
    try:
        for position, data in records:
            # A copy that was made meanwhile may lack the record. So may a log that lost its end in a power cut.
            if os.pread(file.fd, HEADER, position - base)[_CRC:] == data[_CRC:HEADER]:
                write_all(file.fd, data, position - base)
        os.fsync(file.fd)
    finally:
        file.close()


def patched(note: Note, base: int, position: int, data: bytes) -> bytes:
    """Apply the note to data that was read from a file, from a position on."""
    if note.base != base:
        return data
    for at, record in note.records:
        low, high = max(at, position), min(at + len(record), position + len(data))
        if low < high:
            data = data[: low - position] + record[low - at : high - at] + data[high - position :]
    return data
