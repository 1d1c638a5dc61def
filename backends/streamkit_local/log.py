"""One partition's log as this process sees it: appends, what others appended, and recovery."""

from __future__ import annotations

import os
import threading
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from streamkit.backend import Ambiguous
from streamkit.errors import CorruptData, PermanentError

from .faults import system_fault
from .files import LogFiles
from .head import DIRTY, END, SYNCED, Head, boot_id, seal
from .place import OpenFile, sync_directory
from .record import Ref, checked, pack_header, parse, value_of

__all__ = ["Checkpoint", "PartitionLog", "Pending"]

ROLL: Final = 64 << 20
_RUN: Final = 1 << 20
_GAP: Final = 4096
_ALONE: Final = 16 << 10
_LARGEST: Final = (1 << 32) - 1


class Checkpoint(NamedTuple):
    """What the index knows of a log: it holds all rows below `position`, the last of which had key `last`.

    `first` is the position of the first row that was not deleted, or `position`; `low` is its key.
    """

    position: int = 0
    last: bytes | None = None
    first: int = 0
    low: bytes | None = None


class Pending:
    """Rows of the log that are not in the index: keys in order, and where each is.

    The lists only grow at their end, the refs first. `txn` is the index transaction that `base` was read in.
    """

    __slots__ = ("base", "keys", "refs", "txn")

    def __init__(self, base: int, txn: int, keys: list[bytes], refs: list[Ref]) -> None:
        self.base = base
        self.txn = txn
        self.keys = keys
        self.refs = refs

    def since(self, base: int, txn: int) -> Pending:
        """The same without what is below `base`, as of the index transaction `txn`."""
        index = bisect_left(self.refs, (base, 0))
        if index == 0:
            return Pending(base, txn, self.keys, self.refs)
        return Pending(base, txn, self.keys[index:], self.refs[index:])


class _View(NamedTuple):
    word: int
    end: int
    last: bytes | None


class PartitionLog:
    """Reads take no lock unless the log has grown. `pending` is replaced when the index has taken rows from it."""

    def __init__(
        self, path: str, partition: bytes, head: Head, checkpoint: Checkpoint, txn: int, timeout: float
    ) -> None:
        """Called with the head's lock held."""
        self.path = path
        self.seed = zlib.crc32(partition)
        self._head = head
        self.words = head.words
        self._timeout = timeout
        self._mutex = threading.Lock()
        self.files = LogFiles(path)
        self.low = checkpoint.low
        self.appended = False
        self.pending = Pending(checkpoint.position, txn, [], [])
        self._view = _View(0, checkpoint.position, checkpoint.last)
        self._recover(checkpoint)

    @property
    def end(self) -> int:
        return self._view.end

    @property
    def last(self) -> bytes | None:
        return self._view.last

    def _recover(self, checkpoint: Checkpoint) -> None:
        head, files, boot = self._head, self.files, boot_id()
        if head.boot == boot:
            end = head.position(self.words[END])
            files.check(checkpoint.first, end)
            self._follow(end)
            return
        durable = max(head.position(self.words[SYNCED]), checkpoint.position)
        there = files.check(checkpoint.first, durable)
        found = parse(files.read, checkpoint.position, there, checkpoint.last, self.seed, values=True)
        if found.end < durable:
            raise self._damage(found.end)
        for base in files.bases:
            file = files.open(base)
            if file is not None and files.end(base) > checkpoint.position:
                os.fdatasync(file.fd)
        files.cut(found.end)
        head.settle(found.end, boot)
        self._follow(found.end)

    def _damage(self, position: int) -> CorruptData:
        return CorruptData(f"{self.path} has a damaged record at position {position}: restore the store from a backup")

    def catch_up(self, checkpoint: Checkpoint | None = None, txn: int = 0) -> None:
        """Take in what others have appended. With `checkpoint`, skip what the index has."""
        with self._mutex:
            self._advance(checkpoint, txn)

    def _advance(self, checkpoint: Checkpoint | None = None, txn: int = 0) -> None:
        if checkpoint is not None and checkpoint.position > self._view.end:
            self.pending = Pending(checkpoint.position, txn, [], [])
            self._view = _View(0, checkpoint.position, checkpoint.last)
        end = self._head.position(self.words[END])
        if end > self._view.end:
            self._follow(end)
        else:
            self._view = _View(self.words[END], self._view.end, self._view.last)

    def _follow(self, end: int) -> None:
        view, pending = self._view, self.pending
        if pending.refs and pending.refs[-1][0] >= view.end:
            # an append was interrupted between noting its rows and finishing
            keep = bisect_left(pending.refs, (view.end, 0))
            pending = Pending(pending.base, pending.txn, pending.keys[:keep], pending.refs[:keep])
        found = parse(self.files.read, view.end, end, view.last, self.seed, values=False)
        if found.end < end:
            self.files.refresh()
            found = parse(self.files.read, view.end, end, view.last, self.seed, values=False)
            if found.end < end:
                raise self._damage(found.end)
        pending.refs.extend(found.refs)
        pending.keys.extend(found.keys)
        self.pending = pending
        if self.low is None and found.keys:
            self.low = found.keys[0]
        self._view = _View(seal(end), end, found.keys[-1] if found.keys else view.last)

    @property
    def stale(self) -> bool:
        """Others have appended since this view was taken."""
        return bool(self.words[END] != self._view.word)

    def append(self, rows: Sequence[tuple[bytes, bytes]], taken: set[bytes], *, durable: bool) -> list[bytes]:
        """Append rows, keys ascending, and return the keys that were refused: not greater than the last, or `taken`."""
        with self._mutex:
            self._head.lock(self._timeout)
            try:
                words = self.words
                if words[END] != self._view.word:
                    self._advance()
                if words[DIRTY]:
                    self._take_tail()
                return self._append(rows, taken, durable)
            finally:
                self._head.unlock()

    def _append(self, rows: Sequence[tuple[bytes, bytes]], taken: set[bytes], durable: bool) -> list[bytes]:
        _, end, last = self._view
        position, seed = end, self.seed
        parts: list[bytes] = []
        keys: list[bytes] = []
        refs: list[Ref] = []
        refused: list[bytes] = []
        for key, value in rows:
            if (last is not None and key <= last) or key in taken:
                refused.append(key)
                continue
            size = len(value)
            if size > _LARGEST:
                raise PermanentError(f"a row of {size} bytes is larger than {_LARGEST}: split it")
            parts.append(pack_header(position, key, value, seed))
            parts.append(value)
            keys.append(key)
            refs.append((position, size))
            position += 28 + len(key) + size
            last = key
        if not keys:
            return refused
        words = self.words
        words[DIRTY] = 1
        try:
            file = self._active(end)
            self._write(file, parts, end, position - end, durable)
        except OSError as error:
            raise system_fault(error, self.path) from error
        words[END] = word = seal(position)
        if durable:
            words[SYNCED] = word
        words[DIRTY] = 0
        self.appended = True
        pending = self.pending
        pending.refs.extend(refs)
        pending.keys.extend(keys)
        if self.low is None:
            self.low = keys[0]
        self._view = _View(word, position, last)
        return refused

    def _active(self, end: int) -> OpenFile:
        """The file that an append at `end` goes to; a new one if the last is full."""
        file = self.files.holding(end)
        if file is not None and end - file.base < ROLL:
            return file
        if file is not None:
            os.fdatasync(file.fd)
        created = self.files.open(end, create=True)
        assert created is not None
        sync_directory(self.path)
        return created

    def _write(self, file: OpenFile, parts: list[bytes], end: int, size: int, durable: bool) -> None:
        fd, at = file.fd, end - file.base
        try:
            small = size <= _ALONE
            written = os.pwrite(fd, b"".join(parts), at) if small else os.pwritev(fd, parts[:1000], at)
            if written < size:
                rest = memoryview(b"".join(parts))
                while written < size:
                    written += os.pwrite(fd, rest[written:], at + written)
            if durable:
                os.fdatasync(fd)
        except OSError as error:
            try:
                os.ftruncate(fd, at)
                self.words[DIRTY] = 0
            except OSError:
                raise Ambiguous(
                    f"an append to {self.path} failed ({os.strerror(error.errno or 0)}) and could not be taken back"
                ) from error
            raise

    def _take_tail(self) -> None:
        """A writer ended between writing and publishing: publish what is whole, remove the rest."""
        files = self.files
        files.refresh()
        end = self._view.end
        there = max((files.end(base) for base in files.bases), default=0)
        found = parse(files.read, end, there, self._view.last, self.seed, values=True)
        files.cut(found.end)
        if found.end > end:
            self.words[END] = seal(found.end)
            self._follow(found.end)
        self.words[DIRTY] = 0

    def sync(self) -> int:
        """Make all that is published durable; returns the position up to which it now is."""
        end = self._view.end
        if self._head.position(self.words[SYNCED]) >= end:
            return end
        file = self.files.holding(end - 1)
        try:
            if file is not None:
                os.fdatasync(file.fd)
        except OSError as error:
            raise system_fault(error, self.path) from error
        with self._mutex:
            self._head.lock(self._timeout)
            try:
                if self._head.position(self.words[SYNCED]) < end:
                    self.words[SYNCED] = seal(end)
            finally:
                self._head.unlock()
        return end

    def as_of(self, pending: Pending, base: int, txn: int) -> Pending:
        """What of `pending` is not in the index as of its transaction `txn`, which holds all below `base`.

        `pending` was taken before `txn` began: what left it since is in the index. Never waits.
        """
        if self._mutex.acquire(blocking=False):
            try:
                if self.pending is pending:
                    self.pending = pending = pending.since(base, txn)
                    return pending
            finally:
                self._mutex.release()
        return pending.since(base, txn)

    def indexed(self, base: int, txn: int) -> None:
        """The index now holds all rows below `base`, as of its transaction `txn`."""
        with self._mutex:
            if txn > self.pending.txn:
                self.pending = self.pending.since(base, txn)

    def trim(self, first: int) -> None:
        """Unlink files that only hold rows below `first`."""
        with self._mutex:
            self._head.lock(self._timeout)
            try:
                self.files.refresh()
                bases = self.files.bases
                for base, after in pairwise(bases):
                    if after > first:
                        break
                    self.files.remove(base)
            finally:
                self._head.unlock()

    def load(self, rows: Sequence[tuple[bytes, Ref]], *, again: bool) -> list[bytes] | None:
        """The values of rows in order of position.

        None if one was not where its ref says: look into the index again. Not if this is done `again`: CorruptData.
        """
        out: list[bytes] = []
        index, count, files, seed = 0, len(rows), self.files, self.seed
        while index < count:
            key, ref = rows[index]
            start = ref[0]
            file = files.holding(start)
            if file is None:
                self._lost(key, ref, again)
                return None
            stop, after = start + 28 + len(key) + ref[1], index + 1
            if ref[1] >= _ALONE:
                head = os.pread(file.fd, 28 + len(key), start - file.base)
                value = os.pread(file.fd, ref[1], start - file.base + len(head))
                if not checked(head, key, ref, seed, value):
                    self._lost(key, ref, again)
                    return None
                out.append(value)
                index = after
                continue
            limit = files.after(file.base)
            while after < count:
                next_key, next_ref = rows[after]
                where = next_ref[0]
                reach = where + 28 + len(next_key) + next_ref[1]
                if where - stop > _GAP or reach - start > _RUN or where >= limit:
                    break
                stop, after = reach, after + 1
            buffer = os.pread(file.fd, stop - start, start - file.base)
            for key, ref in rows[index:after]:
                part = value_of(buffer, ref[0] - start, key, ref, seed)
                if part is None:
                    self._lost(key, ref, again)
                    return None
                out.append(part)
            index = after
        return out

    def load_part(self, key: bytes, ref: Ref, start: int, length: int, *, again: bool) -> bytes | None:
        """A part of one value, like `load`. The record's header is checked, the value is not."""
        position, size = ref
        file = self.files.holding(position)
        if file is None:
            self._lost(key, ref, again)
            return None
        length = max(min(length, size - start), 0)
        prefix, at = 28 + len(key), position - file.base
        if start <= _GAP:
            head = os.pread(file.fd, prefix + start + length, at)
            part = head[prefix + start :]
        else:
            head = os.pread(file.fd, prefix, at)
            part = os.pread(file.fd, length, at + prefix + start)
        if len(part) != length or not checked(head, key, ref, self.seed):
            self._lost(key, ref, again)
            return None
        return part

    def _lost(self, key: bytes, ref: Ref, again: bool) -> None:
        if again:
            raise CorruptData(
                f"the row {key!r} is not whole at position {ref[0]} of {self.path}: restore the store from a backup"
            )
        self.files.refresh()
