"""One partition as this process sees it: reading the records of all processes, and writing."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from streamkit import speed
from streamkit.backend import ABSENT, ANY, Ambiguous, Conflict, Etag, Expect
from streamkit.checksum import crc32
from streamkit.errors import CorruptData, PermanentError, StreamkitError, Unavailable
from streamkit.reentry import Mutex

from .errors import damage, system_fault
from .files import (
    OpenFile,
    create_file,
    lock_file,
    moved,
    start_writing,
    sync_directory,
    unlink,
    write_all,
)
from .head import BASE, DIRTY, END, SYNCED, Head, seal
from .reading import LOGGED, Reader, etag_of, log_name
from .record import DROPPED, FILE, GONE, INDEX, MOVED, NEXT_ROW, REMOVED, ROW, WHOLE, StoredRecord, encode, pack
from .recovery import bases_in, begin_file, follow, open_state, outdated, recover
from .rewrite_journal import complete, drop_draft, is_noted, read_note, rewrite
from .rowfile import remove_orphans, row_path, write_row
from .state import START, LogFile, State, pack_file, pack_number, pack_ranges
from .syncing import claim_end, sync_log

__all__ = ["PartitionLog"]

ROLL: Final = 8 << 20
"""A file is full at this size."""
INLINE: Final = 64 << 10
"""Larger values of rows that are not put with NEXT go into files of their own."""
_SMALL: Final = 256 << 10
"""A file that is written to is given up when nothing in it is needed any more, if it has more than this."""
_SCRUBBED: Final = 64 << 10
"""A file with more than this is not written to after a scrub."""
_ROOM: Final = 1 << 20
"""The most bytes that are filled with zeros in advance."""
_ROOMY: Final = 256 << 10
"""The bytes of a value above which the zeros take longer than what they save."""
_ZEROS: Final = bytes(64 << 10)
_AHEAD: Final = 1 << 20
"""Buffered bytes that the system is asked to write to the disk at once, long before the file is full and synced."""
_TOGETHER: Final = 4 << 20
"""Records of so many bytes are overwritten at once."""
_LARGEST: Final = (1 << 32) - 1
_TRIES: Final = 100
_TORN: Final = 4
"""Reads of a damaged record before it is an error."""
_EXCLUSIVE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK: Final = fcntl.LOCK_UN
_twin: Any = speed.twin

T = TypeVar("T")


def _too_large(size: int) -> PermanentError:
    return PermanentError(f"a row of {size} bytes is larger than {_LARGEST} bytes: split it")


class PartitionLog:
    """`state` is applied up to `word`. While `word` equals the head's, no process has written more.

    Writing takes the mutex, and then the lock of the file that is written to, which is the partition's lock between
    processes. Records of other processes are read under the mutex; a reader whose `word` is current needs neither.
    """

    def __init__(self, path: str, partition: bytes, timeout: float, *, readonly: bool) -> None:
        """FileNotFoundError if there is none."""
        self.path = path
        self.head = Head(os.path.join(path, "head"), partition, readonly=readonly)
        self.words = self.head.words
        self.reader = Reader(path, self.head.identity.decode("latin-1"), crc32(self.head.identity))
        self.word = -1
        """No word is negative, so the head is read before anything else."""
        self._base = 0
        """The word that says where the file that is open begins."""
        self.state = State(0)
        self.mutex = Mutex()
        self._appender: Any = speed.twin and speed.twin.Appender(self.words, path, self.reader.seed, _AHEAD)
        self._readonly = readonly
        self._timeout = timeout
        self._file: OpenFile | None = None
        self._name = ""
        self._locked: list[OpenFile] = []
        self._logged: dict[int, int] = {}
        """The position of a row that was put with NEXT, by the beginning of the row's file. While that row exists, the
        file is needed, and need not be read to know that."""
        self.wrote = False
        """True if it wrote since it was opened. Its end is then claimed when it is closed."""

    # Following other writers

    def refresh(self) -> None:
        """Read the records that were written since."""
        with self.mutex():
            try:
                self._refresh()
            except OSError as error:
                raise system_fault(error, self.path) from error

    def _refresh(self) -> None:
        words, head, torn = self.words, self.head, 0
        for _ in range(_TRIES):
            word = words[END]
            base, end = head.position(words[BASE]), head.position(word)
            try:
                if self._file is None and not self._trusted(base, end):
                    self._recover(base)
                    if self._readonly:
                        return
                    continue
                if self._file is None or self._base != seal(base):
                    self._complete()
                    self._load(base)
                if end > self.state.end:
                    follow(self.reader, self.state, end)
            except (FileNotFoundError, CorruptData):
                if words[BASE] == seal(base) and words[END] == word:
                    if not os.path.exists(os.path.join(self.path, log_name(base))) and os.path.exists(self.head.path):
                        raise damage(os.path.join(self.path, log_name(base)), "is missing") from None
                    torn += 1
                    # As in LocalBackend._read_log: a record that is being rewritten in place; or a damaged one.
                    if torn < _TORN or self._complete():
                        continue
                    raise
                continue  # others went on to another file meanwhile
            self.word = word
            return
        raise Unavailable(f"{self.path} is written too fast to follow: try again")

    def complete(self) -> None:
        """Complete the rewrite of another process, which may have been stopped in the middle."""
        with self.mutex():
            try:
                self._complete()
            except OSError as error:
                raise system_fault(error, self.path) from error

    def _complete(self) -> bool:
        """Complete a rewrite that another process left half done. True if the files may have changed."""
        if self._locked or not is_noted(self.path):
            return False  # the holder of the lock has completed it
        if self._readonly:
            before, self.reader.pending_rewrite = self.reader.pending_rewrite, read_note(self.path)
            return self.reader.pending_rewrite != before
        base = self.words[BASE]
        file = OpenFile(os.open(os.path.join(self.path, log_name(self.head.position(base))), os.O_RDWR))
        try:
            lock_file(file.fd, self._timeout, self.path)
            if self.words[BASE] == base:
                complete(self.path)
        finally:
            file.close()
        return True

    def _load(self, base: int) -> None:
        name = os.path.join(self.path, log_name(base))
        file = OpenFile(os.open(name, os.O_RDONLY if self._readonly else os.O_RDWR))
        self.reader.current = base, file
        state = open_state(self.reader, base)
        self.state = state
        self._name, self._file, self._base = name, file, seal(base)

    def _trusted(self, base: int, end: int) -> bool:
        """True if the head's words agree with the files."""
        head = self.head
        return head.settled and not outdated(self.path, head, base, end, self.reader.seed)

    def _recover(self, base: int) -> None:
        if self._readonly:
            self.state, _ = recover(self.reader, self.head, readonly=True)
            return  # only a writer can record it for all processes; until then it is read again each time
        if not bases_in(self.path):
            raise damage(os.path.join(self.path, log_name(0)), "is missing")
        locks = [OpenFile(os.open(self.head.path, os.O_RDWR))]
        try:
            lock_file(locks[0].fd, self._timeout, self.path)
            if self.head.settled:  # others may trust the words, and write
                with contextlib.suppress(FileNotFoundError):
                    locks.append(OpenFile(os.open(os.path.join(self.path, log_name(base)), os.O_RDWR)))
                    lock_file(locks[1].fd, self._timeout, self.path)
            base, end = (self.head.position(self.words[number]) for number in (BASE, END))
            if not self._trusted(base, end):
                recover(self.reader, self.head, readonly=False)
        finally:
            for lock in locks:
                lock.close()

    # Writing

    def _lock(self) -> None:
        """Lock the file that is written to, and read the records that others have written."""
        words, file = self.words, self._file
        if file is not None and words[END] == self.word:  # as a rule, nobody else writes
            self._locked.append(file)
            try:
                fcntl.flock(file.fd, _EXCLUSIVE)
            except BlockingIOError:
                lock_file(file.fd, self._timeout, self.path)
            if (
                words[END] == self.word
                and words[BASE] == self._base
                and not words[DIRTY]
                and file.is_at(self.path, self._name)
            ):
                return
            self._unlock()
        for _ in range(_TRIES):
            if self._file is None or words[END] != self.word or words[BASE] != self._base:
                self._refresh()
            file = self._file
            assert file is not None
            self._locked.append(file)
            lock_file(file.fd, self._timeout, self.path)
            if words[BASE] == self._base:
                break
            self._unlock()
        else:
            raise Unavailable(f"{self.path} is written too fast to follow: try again")
        if not file.is_at(self.path, self._name):
            raise moved(self.path)
        if words[DIRTY]:
            complete(self.path)
        if words[END] != self.word:
            self._refresh()
        if words[DIRTY]:
            self._drop_tail()

    def _unlock(self) -> None:
        locked = self._locked
        while locked:
            fd = locked[-1].fd
            if fd >= 0:
                fcntl.flock(fd, _UNLOCK)
            locked.pop()

    def _drop_tail(self) -> None:
        """A writer ended between writing and publishing, so no caller got an answer and no reader saw the record. If it
        had published its new file, but not the end, the end is published now.
        """
        state, file = self.state, self._file
        assert file is not None
        for base in bases_in(self.path):
            if base > state.base:
                unlink(os.path.join(self.path, log_name(base)))
        os.ftruncate(file.fd, state.end - state.base)
        file.room = 0
        self.words[END] = self.word = seal(state.end)
        self.words[DIRTY] = 0

    def _replace_logged(self, key: bytes, value: bytes, expect: Expect | Etag) -> bool:
        """Rewrite a row that was put with NEXT in place, if it has the same length. The lock is held."""
        if expect != LOGGED or key in self.state.rows:
            return False
        there = self._find(key)
        if there is None or there[1].size != len(value):
            return False
        self._overwrite(there[0], [(there[1], value)])
        return True

    def _overwrite(self, file: LogFile, records: Sequence[tuple[StoredRecord, bytes]]) -> None:
        """Give records of a file other values of the same lengths."""
        seed = self.reader.seed
        rewritten = [(found.position, encode(*found[:3], value, seed)) for found, value in records]
        self.words[DIRTY] = 1  # if this is stopped, the next holder of the lock completes it
        rewrite(self.path, file.base, rewritten)
        self.words[DIRTY] = 0

    def scrub(self) -> None:
        """Overwrite replaced and deleted values that are still in the files with zeros.

        A large file is not written to after that: it goes with the last row in it.
        """
        with self.mutex():
            try:
                with contextlib.suppress(OSError):  # a full disk: the values are overwritten all the same
                    self._lock()
                    if self.state.end - self.state.base > _SCRUBBED:
                        self._roll()
                self._unlock()
                self._lock()
                self._clean()
                drop_draft(self.path)
                state = self.state
                dropped = state.view.dropped
                for file in state.files:
                    room = 0
                    dead: list[tuple[StoredRecord, bytes]] = []
                    for found in self.reader.walk(file, file.base + START, file.end or state.end):
                        name = found.key[8:] if found.kind == MOVED else found.key
                        row = state.rows.get(name)
                        is_dead = (found.kind == NEXT_ROW and dropped.end(found.position)) or (
                            found.kind in (ROW, MOVED) and (row is None or row.position != found.position)
                        )
                        if is_dead and any(self.reader.value(file, found)):
                            dead.append((found._replace(buffer=b""), bytes(found.size)))
                            room += found.size
                            if room > _TOGETHER:
                                self._overwrite(file, dead)
                                room, dead = 0, []
                    if dead:
                        self._overwrite(file, dead)
                current = self._file
                assert current is not None
                os.ftruncate(current.fd, state.end - state.base)
                current.room = 0
                sync_directory(self.path)  # files that are removed do not come back after a power cut
            except OSError as error:
                raise system_fault(error, self.path) from error
            finally:
                self._unlock()

    def append(self, key: bytes, value: bytes, durable: bool) -> Etag:
        """Put a row with NEXT: its key is greater than all that were put so before."""
        try:
            with self.mutex.enter():
                try:
                    if self._append_at_once(key, value, durable):
                        return LOGGED
                    if len(value) > _LARGEST:
                        raise _too_large(len(value))
                    self._lock()
                    state = self.state
                    last = state.last
                    if (last is not None and key <= last) or key in state.rows:
                        raise Conflict(key)
                    if state.end - state.base >= ROLL:
                        self._roll()
                    self._append(NEXT_ROW, key, value, durable)
                finally:
                    if self._locked:
                        self._unlock()
        except OSError as error:
            raise system_fault(error, self.path) from error
        return LOGGED

    def _append_at_once(self, key: bytes, value: bytes, durable: bool) -> bool:
        """Append a small row, as most are, in one step. False where that takes several: then nothing was done. The
        caller releases the lock after an error.

        Each call that frees the interpreter lets other threads run, and this one may wait for them.
        """
        file, state = self._file, self.state
        last = state.last
        if _twin is None or file is None or (last is not None and key <= last) or key in state.rows:
            return False
        self.wrote = True
        try:
            word: int = self._appender.append(
                os.pwrite,
                partial(self._sync, file) if durable else None,
                file.fd,
                file.place,
                ROLL,
                file.room,
                self.word,
                self._base,
                key,
                value,
            )
        except BaseException as error:
            self._locked.append(file)
            if isinstance(error, OSError):
                self._take_back(file, state.end - state.base, error)
            raise
        if word:
            state.appended(key, state.end, word >> 16)
            self.word = word
            return True
        return False

    def put(self, key: bytes, value: bytes, expect: Expect | Etag, *, durable: bool) -> Etag:
        """Set a row that is not put with NEXT, if its precondition holds."""
        size = len(value)
        if size > _LARGEST:
            raise _too_large(size)
        kind, file, name, end, unnamed = ROW, None, 0, 0, False
        try:
            if size > INLINE and expect != LOGGED:
                name, file = write_row(self.path, key, value, self.reader.seed)
                kind, value = FILE, pack_file(name, size)
            with self.mutex():
                try:
                    self._lock()
                    before = self.state.rows.get(key)
                    self._check(key, expect)
                    if self.state.end - self.state.base >= ROLL:
                        self._roll()
                    if self._replace_logged(key, value, expect):
                        return LOGGED
                    logged = self._find(key) if before is None else None
                    end = self.words[END]
                    self._append(kind, key, value, durable)
                    if logged is not None:
                        self._append(DROPPED, b"", pack_ranges([(logged[1].position, logged[1].stop)]), durable)
                    if before is not None and before.file:
                        if not durable:
                            self._sync_all()
                        with contextlib.suppress(OSError):  # the row is put; a remaining file goes with the orphans
                            unlink(row_path(self.path, before.file))
                    return etag_of(self.state.rows[key], self.reader.identity)
                finally:
                    # An interrupted writer may have published it, or left a record that is found after a power cut.
                    unnamed = not self.words[DIRTY] and (not end or self.words[END] == end)
                    self._unlock()
        except OSError as error:
            raise system_fault(error, self.path) from error
        finally:
            if file is not None:
                if unnamed:
                    unlink(row_path(self.path, name))
                file.close()

    def _find(self, key: bytes) -> tuple[LogFile, StoredRecord] | None:
        state = self.state
        first = state.files[0].first
        return self.reader.find(state, state.view, key) if first is not None and first <= key else None

    def _check(self, key: bytes, expect: Expect | Etag) -> None:
        if expect is ANY:
            return
        state = self.state
        row = state.rows.get(key)
        if expect is ABSENT:
            if row is None and self._find(key) is None:
                return
        elif row is not None:
            if etag_of(row, self.reader.identity) == expect:
                return
        elif expect == LOGGED and self._find(key) is not None:
            return
        raise Conflict(key)

    def _append(self, kind: int, key: bytes, value: bytes, durable: bool) -> None:
        """Write one record, publish it, and take it in."""
        words, state, file = self.words, self.state, self._file
        assert file is not None
        position, size, base = state.end, len(value), state.base
        head = pack(position, kind, key, value, self.reader.seed)
        stop, at = position + len(head) + (size if size > WHOLE else 0), position - base
        words[DIRTY] = 1
        self.wrote = True
        try:
            if durable and stop - base > file.room and size <= _ROOMY:
                self._make_room(file, at, stop - base)
            if size <= WHOLE:
                written = os.pwrite(file.fd, head, at)
                if written < len(head):
                    write_all(file.fd, head, at, written)
            else:
                write_all(file.fd, head, at)
                write_all(file.fd, value, at + len(head))
            if durable:
                self._sync(file)
            elif (begun := at & -_AHEAD) < (full := stop - base & -_AHEAD):
                start_writing(file.fd, begun, full)
        except OSError as error:
            self._take_back(file, at, error)
            raise
        word = seal(stop)
        words[END] = word
        if durable:
            words[SYNCED] = word
        words[DIRTY] = 0
        if kind == NEXT_ROW:
            state.appended(key, position, stop)
        else:
            state.apply(StoredRecord(position, kind, key, size, stop, b"", 0), value)
        self.word = word

    def _take_back(self, file: OpenFile, at: int, error: OSError) -> None:
        file.room = 0
        try:
            os.ftruncate(file.fd, at)
        except OSError:
            raise Ambiguous(
                f"a write to {self.path} failed ({os.strerror(error.errno or 0)}) and could not be taken back"
            ) from error
        self.words[DIRTY] = 0

    def _make_room(self, file: OpenFile, at: int, stop: int) -> None:
        """Fill with zeros in advance: syncing a file that did not grow is one write to the disk less."""
        room = stop + min(max(at, 16384), _ROOM) + 4095 & ~4095
        try:
            there = os.fstat(file.fd).st_size
            if there < room:
                for start in range(there, room, len(_ZEROS)):
                    write_all(file.fd, _ZEROS[: room - start], start)
            file.room = room
        except OSError:
            os.ftruncate(file.fd, at)
            file.room = 1 << 62  # no space for it: then without

    def _sync(self, file: OpenFile) -> None:
        try:
            sync_log(self.head, file, self.state.base, self.state.end)
        finally:
            if file.fd < 0:
                # A signal handler has forked, and this is the child. Only the parent may publish the record.
                raise Ambiguous(f"this process was forked in the middle of a write to {self.path}")

    def update(self, key: bytes, work: Callable[[bytes | None], tuple[bytes | None, T]], *, durable: bool) -> T:
        """Replace a small row by the first result of `work`; None leaves it. Returns the second result."""
        with self.mutex():
            try:
                self._lock()
                row = self.state.rows.get(key)
                value, result = work(self.reader.row(self.state.view, key, row) if row is not None else None)
                if value is not None:
                    if self.state.end - self.state.base >= ROLL:
                        self._roll()
                    self._append(ROW, key, value, durable)
                return result
            except OSError as error:
                raise system_fault(error, self.path) from error
            finally:
                self._unlock()

    # Going on to another file, and giving back space

    def _roll(self) -> None:
        """Begin the next file, and remove those that are not needed any more. The lock is held."""
        state, file, words = self.state, self._file, self.words
        assert file is not None
        full = state.files[-1]
        if full.samples:
            self._append(INDEX, b"", state.index(), False)
        else:
            full.first = b"" if state.last is None else state.last + b"\0"
        self._sync(file)
        base = state.end
        os.ftruncate(file.fd, base - state.base)
        file.room = 0
        name = os.path.join(self.path, log_name(base))
        words[DIRTY] = 1
        first = begin_file(state, base, self.reader.seed)
        unlink(name)  # of a writer that ended
        new = OpenFile(create_file(name))
        self._locked.append(new)
        fcntl.flock(new.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write_all(new.fd, first, 0)
        os.fsync(new.fd)
        sync_directory(self.path)
        if not file.is_at(self.path, self._name):
            raise moved(self.path)
        # A process that ends in between leaves valid words: the rows are the same before and after.
        words[BASE] = seal(base)
        words[END] = words[SYNCED] = seal(base + len(first))
        words[DIRTY] = 0
        self.head.flush()
        self._file = None
        self._load(base)
        self.word = words[END]
        self._clean()

    def _clean(self) -> None:
        """Remove files that are not needed any more. The lock is held."""
        state, removed = self.state, False
        for file in state.files[:-1]:
            end = file.end
            if self._has_logged(file, end):
                continue
            inside = [(key, row) for key, row in state.rows.items() if file.base <= row.position < end and not row.file]
            if sum(row.size for _, row in inside) * 2 > end - file.base:
                continue
            for key, row in inside:
                value = self.reader.row(state.view, key, row)
                self._append(MOVED, pack_number(row.version) + key, value, False)
            self._append(REMOVED, b"", pack_number(file.base), False)
            removed = True
        if removed:
            self._sync_all()
        names = os.listdir(self.path)
        bases = {file.base for file in state.files}
        self._logged = {base: position for base, position in self._logged.items() if base in bases}
        kept = {*map(log_name, bases)}
        for name in names:
            if name.endswith(".log") and name not in kept:
                unlink(os.path.join(self.path, name))
        remove_orphans(self.path, {row.file for row in state.rows.values()}, names)

    def _sync_all(self) -> None:
        """Make durable all that was put. The lock is held."""
        assert self._file is not None
        self._sync(self._file)
        self.words[SYNCED] = self.words[END]

    def _has_logged(self, file: LogFile, end: int) -> bool:
        """True if the file has a row that was put with NEXT and was not deleted."""
        if not file.samples and not file.index:
            return False
        position, dropped = file.base + START, self.state.view.dropped
        known = self._logged.get(file.base)
        if known is not None and not dropped.end(known):
            return True
        while position < end:
            position = dropped.end(position) or position
            if position >= end:
                return False
            for found in self.reader.walk(file, position, end, 65536):
                position = found.stop
                if found.kind == NEXT_ROW and not dropped.end(found.position):
                    self._logged[file.base] = found.position
                    return True
                if dropped.end(position):
                    break
        return False

    def delete(self, keys: Sequence[bytes], etag: Etag | None = None) -> None:
        """Remove rows; with `etag` one row, or Conflict if it has another etag."""
        with self.mutex():
            try:
                self._lock()
                if etag is not None:
                    self._check(keys[0], etag)
                self._delete(keys)
            except OSError as error:
                raise system_fault(error, self.path) from error
            finally:
                self._unlock()

    def _delete(self, keys: Sequence[bytes]) -> None:
        state = self.state
        files = []
        changed = False
        for key in keys:
            row = state.rows.get(key)
            if row is not None:
                self._append(GONE, key, b"", False)
                changed = True
                if row.file:
                    files.append(row.file)
        ranges = self.reader.positions(state, sorted(set(keys)))
        if ranges:
            self._append(DROPPED, b"", pack_ranges(ranges), False)
            changed = True
        if not changed:
            return
        self._sync_all()
        for name in files:
            unlink(row_path(self.path, name))
        if ranges:
            current = state.files[-1]
            with contextlib.suppress(OSError):  # they are deleted; space comes back when it can
                if state.end - state.base > _SMALL and not self._has_logged(current, state.end):
                    self._roll()
                else:
                    self._clean()

    def close(self) -> None:
        """Sync buffered records and note in the log that it ends here: a record that is missing later is damage.

        If that fails (because of the disk, or of another process that is stopped), the log is as a killed process
        leaves it.
        """
        if not self.wrote or self.mutex.mine:
            return
        with self.mutex(), contextlib.suppress(OSError, StreamkitError):
            file = self._file
            if file is None:
                return
            try:
                self._locked.append(file)
                lock_file(file.fd, self._timeout, self.path)
                claim_end(self.head, file, self.state.base)
            finally:
                self._unlock()
