"""Finding the end of a log that no head gives: after a start of the machine, and in a copy of a store."""

from __future__ import annotations

import contextlib
import os
import re
from itertools import islice
from typing import Final

import msgspec

from streamkit.errors import CorruptData

from .errors import damage
from .files import OpenFile, sync_data, unlink
from .head import BASE, DIRTY, END, SYNCED, Head, seal, unseal
from .reading import Reader, log_name
from .record import CHUNK, DROPPED, FILE, GONE, REMOVED, ROW, SNAPSHOT, WHOLE, encode, parse, walk
from .rewrite_journal import complete, read_note
from .rowfile import row_path
from .state import START, LogFile, State
from .syncing import CLAIM

__all__ = ["bases_in", "begin_file", "follow", "open_state", "outdated", "recover"]

_NAME: Final = re.compile(r"[0-9a-f]{16}\.log")
_MAGIC: Final = b"SKlog-3\n"
_KEPT: Final = {FILE, DROPPED, REMOVED}


def bases_in(path: str) -> list[int]:
    """The first positions of the files of a log that there are."""
    return sorted(int(name[:16], 16) for name in os.listdir(path) if _NAME.fullmatch(name))


def begin_file(state: State, base: int, seed: int) -> bytes:
    """Encode the first bytes of a log file: the state so far."""
    return _MAGIC + bytes(8) + encode(base + START, SNAPSHOT, b"", state.snapshot(base), seed)


def open_state(reader: Reader, base: int) -> State:
    """The state at the beginning of a file. CorruptData if it is not whole."""
    file = LogFile(base)
    start = reader.read(file, base, START + 65536)
    need = parse(start, START, base + START, reader.seed)
    if isinstance(need, int) and need > len(start) - START:
        start = reader.read(file, base, START + need)
        need = parse(start, START, base + START, reader.seed)
    if start[: len(_MAGIC)] != _MAGIC or isinstance(need, int) or need.kind != SNAPSHOT:
        raise reader.damaged(base)
    try:
        return State.restore(reader.value(file, need), base, need.stop)
    except (ValueError, msgspec.DecodeError):
        raise reader.damaged(base) from None


def follow(reader: Reader, state: State, end: int) -> None:
    """Apply the records up to `end`. CorruptData if they do not reach to there."""
    file, seed = state.files[-1], reader.seed
    buffer, start = b"", state.end
    while (position := state.end) < end:
        if state.follow_rows(buffer, position - start, seed):
            continue
        found = parse(buffer, position - start, position, seed)
        if isinstance(found, int):
            buffer, start = reader.read(file, position, max(found, min(CHUNK, end - position))), position
            if not found or found > end - position or len(buffer) < found:
                raise reader.damaged(position)
            continue
        if found.stop > end:
            raise reader.damaged(position)
        state.apply(found, reader.value(file, found) if found.kind in _KEPT else b"")


def outdated(path: str, head: Head, base: int, end: int, seed: int) -> bool:
    """True if the words do not belong to the present log, although head and boot are right. Needs no lock.

    A volume that was rolled back has the log up to the last sync, and a head that may be half a minute older. Then
    there is more after the end than one writer can have left: a writer leaves at most one record, or a file that it has
    begun. If the words stay unchanged, no writer has written it meanwhile. A log that ends early may also come from a
    rollback, without its last, unsynced records. But a damaged log looks the same, and damage must be reported.
    """
    words = head.words
    dirty = words[DIRTY]
    newer = [other for other in bases_in(path) if other > base]
    wrong = newer != ([end] if dirty and newer else [])
    with contextlib.suppress(FileNotFoundError):
        if end <= base:  # a writer had begun the file, and not published its end
            wrong = wrong or end < base or _has_more(path, base, base + START, seed, 1)
        else:
            wrong = wrong or _has_more(path, base, end, seed, 1 if dirty else 0)
            wrong = wrong or (bool(newer) and _has_more(path, end, end + START, seed, 1))
    return wrong and (words[DIRTY], words[END], words[BASE]) == (dirty, seal(end), seal(base))


def _has_more(path: str, base: int, position: int, seed: int, most: int) -> bool:
    """True if a file has more than `most` records from a position on."""
    file = OpenFile(os.open(os.path.join(path, log_name(base)), os.O_RDONLY))
    end = base + os.fstat(file.fd).st_size
    found = walk(lambda at, length: os.pread(file.fd, length, at - base), position, end, seed, 4096)
    return len(list(islice(found, most + 1))) > most


def recover(reader: Reader, head: Head, *, readonly: bool) -> tuple[State, OpenFile]:
    """The state at the end of the log; bytes after the end are cut off. The lock of the store is held, or the store is
    read-only.

    After a power cut, unsynced records may be torn. A copy of a store in use is from some moment of the copying. Its
    head may have been copied before the log or after it, so it proves nothing. The file of a row may have been created
    after the names were listed; then the log ends before its record.
    """
    path, words, copied = reader.path, head.words, not head.same_file
    published, synced = unseal(words[BASE]), unseal(words[SYNCED])
    if not copied and (published < 0 or synced < 0):
        raise damage(head.path, "is damaged")
    if copied:
        published = synced = 0
    if readonly:
        reader.pending_rewrite = read_note(path)
    else:
        complete(path)
    state: State | None = None
    file: OpenFile | None = None
    bases = bases_in(path)
    for base in reversed(bases):
        name = os.path.join(path, log_name(base))
        if base < published:
            break
        file = OpenFile(os.open(name, os.O_RDONLY if readonly else os.O_RDWR))
        reader.current = base, file
        claim = os.pread(file.fd, 8, CLAIM)
        try:
            state = open_state(reader, base)
        except CorruptData:
            if base == bases[0] or (base == published and not copied) or any(claim):
                raise
            continue  # it was begun, and not finished
        claimed = max(synced, state.end, unseal(int.from_bytes(claim, "little")) if any(claim) else 0)
        break
    if state is None or file is None:
        raise damage(os.path.join(path, log_name(published)), "is missing")
    base, start = state.base, state.end
    size = os.fstat(file.fd).st_size
    missing = _apply(reader, state, base + size, claimed, copied)
    if missing:
        state = open_state(reader, base)
        _apply(reader, state, missing, claimed, False)
    if state.end < claimed:
        raise reader.damaged(state.end)
    assert state.end >= start
    if not readonly:
        os.ftruncate(file.fd, state.end - base)
        sync_data(file.fd)
        for other in bases:
            if other > base:
                unlink(os.path.join(path, log_name(other)))
        head.settle(base, state.end)
    return state, file


def _apply(reader: Reader, state: State, end: int, claimed: int, copied: bool) -> int:
    """Apply all that is whole; the position from which on files of rows are missing, 0 if none is."""
    file = state.files[-1]
    named: dict[bytes, tuple[int, int]] = {}
    for found in walk(lambda at, length: reader.read(file, at, length), state.end, end, reader.seed):
        data = b""
        if found.kind in _KEPT or (found.size > WHOLE and found.position >= claimed):
            try:
                data = reader.value(file, found)
            except CorruptData:
                if found.position < claimed:
                    raise
                break
        state.apply(found, data)
        if found.kind in (ROW, GONE):
            named.pop(found.key, None)
        elif found.kind == FILE:
            named[found.key] = found.position, state.rows[found.key].file
    missing = 0
    if copied:
        for position, name in sorted(named.values(), reverse=True):
            if os.path.exists(row_path(reader.path, name)):
                break
            missing = position
    return missing
