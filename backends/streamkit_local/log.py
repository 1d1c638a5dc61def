"""One partition's log as this process sees it: appends, what others appended, and recovery."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from streamkit.backend import Ambiguous
from streamkit.errors import CorruptData, PermanentError
from streamkit.reentry import Mutex

from .faults import system_fault
from .files import LogFiles
from .head import DIRTY, END, SUSPECT, SYNCED, UNKNOWN, Head, boot_id, seal
from .pending import Checkpoint, Pending
from .place import OpenFile, sync_data, sync_directory
from .record import HEADER, Ref, pack_header, parse

__all__ = ["PartitionLog", "Trimmed", "View"]

ROLL: Final = 64 << 20
"""A file is full at this size."""
_ROOM: Final = 1 << 20
"""The most space that is taken from the file system in advance."""
_COPIED: Final = 16 << 10
_LARGEST: Final = (1 << 32) - 1


class Trimmed(Exception):
    """The part of the log that comes next was taken into the index and removed: go on after it."""


class View(NamedTuple):
    """How far this process has read: the head's word that it saw, the end, and the last key."""

    word: int
    end: int
    last: bytes | None


class PartitionLog:
    """Whoever reads compares `view.word` with the head, and needs no lock while they are the same.

    `pending`, `view` and `low` (no appended row has a lower key) are replaced under the mutex, and read without it.
    Appending takes the mutex and then the head's lock, which is the partition's among processes.
    """

    def __init__(
        self,
        path: str,
        partition: bytes,
        head: Head,
        checkpoint: Checkpoint,
        txn: int,
        timeout: float,
        *,
        locked: bool = False,
    ) -> None:
        """Trimmed or CorruptData may mean that others changed it meanwhile; not with the head `locked`."""
        self.path = path
        self.words = head.words
        self.files = LogFiles(path, zlib.crc32(partition), readonly=head.readonly)
        self.low = checkpoint.low
        self.pending = Pending(checkpoint.position, txn, [], [])
        self.view = View(0, checkpoint.position, checkpoint.last)
        self.appended = False
        self.settled = True
        """Not if the log has to be recovered first, which only who may write it can do: then it is to be read anew."""
        self._head = head
        self._timeout = timeout
        self._mutex = Mutex()
        self._indexed = (0, 0)
        """What a reader has last seen to be in the index: below which position, as of which transaction of it."""
        boot = boot_id()
        # otherwise the machine was started since the head was written, or this is a copy of a store
        in_order = head.boot == boot != UNKNOWN and head.position(self.words[END]) >= checkpoint.position
        if in_order:
            end = head.position(self.words[END])
            self.files.check(checkpoint.first, end)
            self._follow(end)
        elif locked:
            self._recover(checkpoint, boot)
        else:
            raise Trimmed

    # Following what was appended

    def _recover(self, checkpoint: Checkpoint, boot: bytes) -> None:
        """Find the end: what was not synced may be torn, and the head may be older than the log."""
        head, files = self._head, self.files
        durable = max(head.position(self.words[SYNCED]), checkpoint.position)
        there = files.check(checkpoint.first, durable)
        found = parse(files.read, checkpoint.position, there, checkpoint.last, files.seed, values=True)
        if found.end < durable:
            raise self._damage(found.end)
        if head.readonly:
            self.settled = False
            self._follow(found.end)
            return
        files.cut(found.end)
        for base in files.since(checkpoint.position):
            file = files.open(base)
            if file is not None:
                sync_data(file.fd)
        head.settle(found.end, boot)
        self._follow(found.end)

    def _damage(self, position: int) -> CorruptData:
        return CorruptData(f"{self.path} has a damaged record at position {position}: restore the store from a backup")

    def catch_up(self, checkpoint: Checkpoint, txn: int) -> None:
        """Take in what others have appended, beside what the index has. Trimmed if more of it has gone there since."""
        with self._mutex():
            if checkpoint.position > self.view.end:
                self.files.refresh()
                self.pending = Pending(checkpoint.position, txn, [], [])
                if self.low is None:
                    self.low = checkpoint.low
                self.view = View(0, checkpoint.position, checkpoint.last)
            self._shorten()
            self._advance()

    def _advance(self) -> None:
        word = self.words[END]
        end = self._head.position(word)
        if end > self.view.end:
            self._follow(end)
        else:
            self.view = View(word, self.view.end, self.view.last)

    def _follow(self, end: int) -> None:
        _, start, last = self.view
        pending = self.pending
        if pending.refs and pending.refs[-1][0] >= start:
            pending = pending.before(start)  # an append was interrupted just before its end
        found = parse(self.files.read, start, end, last, self.files.seed, values=False)
        if found.end < end:
            self.files.refresh()
            found = parse(self.files.read, start, end, last, self.files.seed, values=False)
        if found.end < end:
            if self.files.bases and self.files.bases[0] > found.end:
                raise Trimmed
            raise self._damage(found.end)
        pending.refs.extend(found.refs)
        pending.keys.extend(found.keys)
        self.pending = pending
        if found.keys:
            last = found.keys[-1]
            if self.low is None:
                self.low = found.keys[0]
        self.view = View(seal(end), end, last)

    # Appending

    def append(self, rows: Sequence[tuple[bytes, bytes]], *, durable: bool) -> list[bytes]:
        """Append rows, keys ascending, and return the keys that were refused as not greater than the last.

        Trimmed if the log has to be read first, and nothing was written.
        """
        head = self._head
        with self._mutex():
            head.lock(self._timeout)
            try:
                head.check()
                self._shorten()
                words = self.words
                if words[END] != self.view.word:
                    self._advance()
                if words[DIRTY]:
                    self._drop_tail()
                return self._append(rows, durable)
            except OSError as error:
                raise system_fault(error, self.path) from error
            finally:
                head.unlock()

    def _append(self, rows: Sequence[tuple[bytes, bytes]], durable: bool) -> list[bytes]:
        _, end, last = self.view
        position, seed = end, self.files.seed
        parts: list[bytes] = []
        keys: list[bytes] = []
        refs: list[Ref] = []
        refused: list[bytes] = []
        for key, value in rows:
            if last is not None and key <= last:
                refused.append(key)
                continue
            size = len(value)
            if size > _LARGEST:
                raise PermanentError(f"a row of {size} bytes is larger than {_LARGEST} bytes: split it")
            parts += (pack_header(position, key, value, seed), value)
            keys.append(key)
            refs.append((position, size))
            position += HEADER + len(key) + size
            last = key
        if not keys:
            return refused
        words = self.words
        words[DIRTY] = 1
        file = self.files.holding(end)
        if file is None or end - file.base >= ROLL:
            file = self._next(end)
        self._write(file, parts, end, position - end, durable)
        word = seal(position)
        words[END] = word
        if durable:
            words[SYNCED] = word
        words[DIRTY] = 0
        pending = self.pending
        pending.refs += refs
        pending.keys += keys
        if self.low is None:
            self.low = keys[0]
        self.appended = True
        self.view = View(word, position, last)
        return refused

    def _next(self, end: int) -> OpenFile:
        """The file that an append at `end` goes to, as the last one is full; others may have made it."""
        self.files.refresh()
        file = self.files.holding(end)
        if file is not None:
            if end - file.base < ROLL:
                return file
            os.ftruncate(file.fd, end - file.base)
        created = self.files.open(end, create=True)
        assert created is not None
        sync_directory(self.path)
        self._head.check()
        return created

    def _write(self, file: OpenFile, parts: list[bytes], end: int, size: int, durable: bool) -> None:
        fd, at = file.fd, end - file.base
        try:
            if durable and at + size > file.room:
                self._make_room(file, at + size)
            written = os.pwrite(fd, b"".join(parts), at) if size <= _COPIED else os.pwritev(fd, parts[:1000], at)
            if written < size:
                rest = memoryview(b"".join(parts))
                while written < size:
                    written += os.pwrite(fd, rest[written:], at + written)
            if durable:
                self._sync(end, file)
        except OSError as error:
            try:
                os.ftruncate(fd, at)
            except OSError:
                raise Ambiguous(
                    f"an append to {self.path} failed ({os.strerror(error.errno or 0)}) and could not be taken back"
                ) from error
            file.room = 0
            self.words[DIRTY] = 0
            raise

    def _make_room(self, file: OpenFile, size: int) -> None:
        """Take space in advance: syncing a file that did not grow is one write to the disk less."""
        room = min(size * 2, size + _ROOM) + 4095 & ~4095
        try:
            os.posix_fallocate(file.fd, 0, room)
            file.room = room
        except (OSError, AttributeError):
            file.room = 1 << 62  # not possible here, or no space for it: then without

    def _sync(self, end: int, file: OpenFile) -> None:
        """Make all before `end`, and all in `file`, durable.

        After a sync that failed, all that is not known to be durable is written again first: the system may have
        dropped it and say nothing the next time.
        """
        words = self.words
        start = self._head.position(words[SYNCED])
        files = [file]
        if start < file.base:
            files = [held for held in map(self.files.open, self.files.since(start)) if held is not None]
        if words[SUSPECT]:
            for held in files:
                last = min(end, self.files.after(held.base))
                for at in range(max(start, held.base), last, _ROOM):
                    piece = os.pread(held.fd, min(_ROOM, last - at), at - held.base)
                    os.pwrite(held.fd, piece, at - held.base)
        try:
            for held in files:
                sync_data(held.fd)
        except OSError:
            words[SUSPECT] = 1
            raise
        if words[SUSPECT]:
            words[SUSPECT] = 0

    def _drop_tail(self) -> None:
        """A writer ended between writing and publishing: nobody was told of it, and nobody has seen it."""
        self.files.refresh()
        self.files.cut(self.view.end)
        self.words[DIRTY] = 0

    # Going into the index, and away

    def sync(self) -> int:
        """Make all rows durable that were published when this was called; the position up to which they are."""
        head, words = self._head, self.words
        end = self.view.end
        if head.position(words[SYNCED]) >= end:
            return end
        try:
            file = self.files.holding(end - 1)
            if file is not None and not words[SUSPECT]:
                self._sync(end, file)  # without the lock: others may append meanwhile
            with self._mutex():
                head.lock(self._timeout)
                try:
                    if file is not None and words[SUSPECT]:
                        self._sync(end, file)
                    if head.position(words[SYNCED]) < end:
                        words[SYNCED] = seal(end)
                finally:
                    head.unlock()
        except OSError as error:
            raise system_fault(error, self.path) from error
        return end

    def as_of(self, pending: Pending, base: int, txn: int) -> Pending:
        """What of `pending` is not in the index as of its transaction `txn`, which holds all below `base`.

        `pending` was taken before `txn` began: what left it since is in the index. Never waits.
        """
        self._indexed = (base, txn)
        return pending.since(base, txn)

    def _shorten(self) -> None:
        """Forget what others have indexed, as far as a reader has seen it. The caller holds the mutex."""
        if self._indexed[1] > self.pending.txn:
            self.pending = self.pending.since(*self._indexed)

    def indexed(self, base: int, txn: int) -> None:
        """The index now holds all rows below `base`, as of its transaction `txn`."""
        with self._mutex():
            if txn > self.pending.txn:
                self.pending = self.pending.since(base, txn)

    def trim(self, first: int) -> None:
        """Unlink files that only hold rows below `first`."""
        bases = self.files.bases
        if len(bases) < 2 or bases[1] > first:
            return
        with self._mutex():
            self._head.lock(self._timeout)
            try:
                self.files.refresh()
                for base, after in pairwise(self.files.bases):
                    if after > first:
                        break
                    self.files.remove(base)
            except OSError as error:
                raise system_fault(error, self.path) from error
            finally:
                self._head.unlock()
