"""The LMDB environment of a store: opened once a process, grown when it is full, not shared across a fork."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Final, TypeVar, cast

import lmdb

from streamkit.backend import Ambiguous
from streamkit.errors import CorruptData, StoreClosed, Unavailable
from streamkit.reentry import Mutex, refused

from .checked import CheckedTransaction
from .faults import index_fault, system_fault
from .meta import read_metas
from .pages import Pages
from .place import INDEXED, OpenFile, Place, create_file, sync_directory

__all__ = ["Environment"]

T = TypeVar("T")

_START: Final = 256 << 20
_READERS: Final = 1024
_LOCK_SIZE: Final = 128 + 64 * (_READERS + 2)
_DATA: Final = "data.mdb"
_PATIENCE: Final = 1000
"""Looks, 20 µs apart and more, for a writer that has committed and is about to say so."""
_STOPPED: Final = 1.0
"""Seconds after which such a writer, which still holds the lock, is taken to be stopped."""


class Environment:
    """Reads are `begin` and `end` with nothing slow between; writes are functions, so that they can be run again.

    Where this user may only read, nobody is told which state is being read. So no one may write meanwhile: a read
    transaction holds the store's lock.

    The map must not be replaced, and the process not forked, while a transaction is open here: `_active` counts the
    read transactions by their threads (it is a list because its append and remove are atomic), and `_shut` keeps new
    ones out.
    """

    def __init__(self, place: Place, timeout: float) -> None:
        self.path = os.path.join(place.path, "index")
        self._place = place
        self._timeout = timeout
        self._active: list[int] = []
        self._shut = False
        self._gate = Mutex()
        self._held = self._gated = False
        self._lock = contextlib.ExitStack()
        """Of the read transaction, where this user may only read."""
        self._unchecked = 0
        """A state that is read without its checksums, because the process that is to note them is stopped."""
        self._data: OpenFile | None = None
        self._env: lmdb.Environment | None = None
        with place.locked(timeout):
            self._env = self._open()

    def _open(self) -> lmdb.Environment:
        try:
            if self._place.readonly:
                return self._open_readonly()
            self._reserve_lock_file()
            size = self._check_data()
            env = lmdb.open(self.path, map_size=max(_START, size * 2), max_readers=_READERS, lib_version=0)
            env.reader_check()
            if self._data is None:
                path = os.path.join(self.path, _DATA)
                self._data = OpenFile(os.open(path, os.O_RDWR))
                self._pages = Pages(self._place, self._data, path)
                sync_directory(self.path)
            return env
        except lmdb.Error as error:
            raise index_fault(error, self.path) from error
        except OSError as error:
            if self._place.readonly and isinstance(error, FileNotFoundError):
                raise
            raise system_fault(error, self.path) from error

    def _open_readonly(self) -> lmdb.Environment:
        """FileNotFoundError if there is nothing yet."""
        path = os.path.join(self.path, _DATA)
        if self._data is None:
            data = OpenFile(os.open(path, os.O_RDONLY))
            if not os.fstat(data.fd).st_size:
                raise FileNotFoundError(path)
            self._pages = Pages(self._place, data, path)
            self._data = data
        size = os.fstat(self._data.fd).st_size
        return lmdb.open(
            self.path, map_size=max(_START, size * 2), readonly=True, lock=False, create=False, lib_version=0
        )

    def _reserve_lock_file(self) -> None:
        """LMDB maps its lock file sparse: to touch it on a full disk would end the process."""
        fd = create_file(os.path.join(self.path, "lock.mdb"))
        try:
            state = os.fstat(fd)
            if state.st_blocks * 512 < _LOCK_SIZE and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, max(_LOCK_SIZE, state.st_size))
        finally:
            os.close(fd)

    def _check_data(self) -> int:
        """The size of the data file, which is made as long as its meta pages say.

        LMDB does not write pages that were freed in the transaction that made them, so a file may end early; but if it
        was cut, to touch what is missing would end the process. A page of zeros is an error instead.
        """
        path = os.path.join(self.path, _DATA)
        try:
            self._data = OpenFile(os.open(path, os.O_RDWR))
        except FileNotFoundError:
            if self._place.words[INDEXED] or os.listdir(os.path.join(self._place.path, "log")):
                raise CorruptData(f"{path} is missing: restore the store from a backup") from None
            os.close(create_file(path))
            return 0
        size = os.fstat(self._data.fd).st_size
        if size == 0 and not self._place.words[INDEXED]:
            self._data = None
            return 0
        self._pages = Pages(self._place, self._data, path)
        end = read_metas(self._data.fd, path)[0].end
        if size < end:
            os.ftruncate(self._data.fd, end)
        return max(size, end)

    def begin(self) -> lmdb.Transaction[bytes]:
        """A read transaction; give it back to `end` at once. While it is open, nothing may wait."""
        if self._place.readonly:
            return self._begin_locked()
        resized, number = False, 0
        thread = get_ident()
        self._active.append(thread)
        try:
            if not self._shut and self._env is not None:
                txn = self._env.begin()
                number = txn.id()
                if number == self._pages.sound or self._unchecked == number > self._place.words[INDEXED]:
                    return txn
                checked = self._watch(txn)
                if checked is not None:
                    return checked
        except lmdb.MapResizedError:
            resized = True
        except lmdb.Error as error:
            self._active.remove(thread)
            raise index_fault(error, self.path) from error
        except BaseException:
            self._active.remove(thread)
            raise
        self._active.remove(thread)
        with self._gate():
            if self._env is None:
                raise StoreClosed(f"the store {self._place.path} was closed: open it again")
        if resized:
            with self._place.locked(self._timeout):
                self._resize(0)
        self._await(number)
        return self.begin()

    def _begin_locked(self) -> lmdb.Transaction[bytes]:
        with contextlib.ExitStack() as lock:
            lock.enter_context(self._place.locked(self._timeout))
            if self._env is None:
                raise StoreClosed(f"the store {self._place.path} was closed: open it again")
            try:
                try:
                    txn = self._env.begin()
                except lmdb.MapResizedError:
                    self._env.set_mapsize(0)
                    txn = self._env.begin()
                lock.callback(txn.abort)
                number, pages, checked = txn.id(), self._pages, txn
                if number not in (pages.sound, self._unchecked):
                    meta = pages.meta(number)
                    if meta is None:
                        self._unchecked = number  # whoever wrote it ended before its checksums were noted
                    elif not pages.look(meta):
                        checked = cast("lmdb.Transaction[bytes]", CheckedTransaction(txn, pages, meta))
            except lmdb.Error as error:
                raise index_fault(error, self.path) from error
            except OSError as error:
                raise system_fault(error, self.path) from error
            self._lock = lock.pop_all()
            return checked

    def _watch(self, txn: lmdb.Transaction[bytes]) -> lmdb.Transaction[bytes] | None:
        """`txn` if all that it can read is known to be whole, or one that checks it; None if it is to begin again."""
        pages, number = self._pages, txn.id()
        try:
            if number <= self._place.words[INDEXED]:
                meta = pages.meta(number)
                if meta is not None:
                    if pages.look(meta):
                        return txn
                    return cast("lmdb.Transaction[bytes]", CheckedTransaction(txn, pages, meta))
        except OSError as error:
            txn.abort()
            raise system_fault(error, self.path) from error
        except BaseException:
            txn.abort()
            raise
        txn.abort()
        return None

    def _await(self, number: int) -> None:
        """Wait until what transaction `number` wrote may be read: its writer is about to say so, or has ended."""
        words = self._place.words
        for _ in range(_PATIENCE):
            if words[INDEXED] >= number:
                return
            time.sleep(2e-5)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._place.locked(min(self._timeout, _STOPPED)))
            except Unavailable:
                self._unchecked = number
                return
            self._settle()

    def _settle(self) -> None:
        try:
            self._pages.settle()
        except OSError as error:
            raise system_fault(error, self.path) from error

    def end(self, txn: lmdb.Transaction[bytes]) -> None:
        """Close a read transaction."""
        if self._place.readonly:
            self._lock.close()
            return
        txn.abort()
        with contextlib.suppress(ValueError):
            self._active.remove(get_ident())

    def write(self, work: Callable[[lmdb.Transaction[bytes]], T]) -> T:
        """Run `work` in a write transaction and commit it to stable storage. It is run again if the map had to grow.

        What `work` raises undoes the transaction.
        """
        self._place.check_writable()
        with self._place.locked(self._timeout):
            while True:
                env = self._env
                if env is None:
                    raise StoreClosed(f"the store {self._place.path} was closed: open it again")
                number, committing = 0, False
                try:
                    pages = self._pages
                    before = pages.prepare()
                    with env.begin(write=True) as txn:
                        number = txn.id()
                        if pages.look(before):
                            result = work(txn)
                        else:
                            result = work(cast("lmdb.Transaction[bytes]", CheckedTransaction(txn, pages, before)))
                        committing = True
                    pages.committed(before)
                    return result
                except OSError as error:
                    if committing:
                        raise Ambiguous(f"a commit to {self.path} may have been applied: {error.strerror}") from error
                    raise system_fault(error, self.path) from error
                except lmdb.MapFullError:
                    # pages that dead readers held are free again, if there were any: then less has to be grown
                    env.reader_check()
                    self._resize(env.info()["map_size"] * 2)
                except lmdb.MapResizedError:
                    self._resize(0)
                except lmdb.PanicError as error:
                    self._reopen()
                    raise index_fault(error, self.path, committing=committing) from error
                except lmdb.Error as error:
                    applied = committing and self._applied(number)
                    raise index_fault(error, self.path, committing=applied) from error

    def _applied(self, number: int) -> bool:
        """Transaction `number` was committed."""
        assert self._data is not None
        try:
            return read_metas(self._data.fd, self.path)[0].transaction >= number
        except OSError as error:
            raise system_fault(error, self.path) from error

    def _resize(self, size: int) -> None:
        """Replace the map; 0: as large as other processes made it. The store's lock is held."""
        with self._quiet():
            assert self._env is not None
            try:
                self._env.set_mapsize(size)
            except lmdb.Error as error:
                raise index_fault(error, self.path) from error

    def _reopen(self) -> None:
        """After an error that LMDB cannot go on from."""
        with self._quiet():
            if self._env is not None:
                self._env.close()
                self._env = None
            self._env = self._open()

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Inside, no read transaction is open in this process."""
        with self._gate():
            self._shut = True
            try:
                self._drain()
                yield
            finally:
                self._shut = False

    def _drain(self) -> None:
        if get_ident() in self._active:
            raise refused()
        deadline = time.monotonic() + self._timeout
        while self._active:
            time.sleep(2e-5)
            if time.monotonic() > deadline:
                # reads are short: what is left was counted by a thread that was interrupted, or ended
                self._active.clear()

    def close(self) -> None:
        with self._quiet(), self._place.mutex() if self._place.readonly else contextlib.nullcontext():
            if self._env is not None:
                self._env.close()
                self._env = None

    # Across a fork

    def hold(self) -> None:
        """Before: wait until no transaction is open, so that the child inherits none."""
        mutex, gate = self._place.mutex, self._gate
        self._held = not mutex.mine and mutex.acquire(timeout=self._timeout)
        self._gated = not gate.mine and gate.acquire()
        self._shut = True
        if get_ident() not in self._active:
            self._drain()

    def go_on(self) -> None:
        """After, in the parent."""
        if self._gated:
            self._shut = False
            self._gate.release()
        if self._held:
            self._place.mutex.release()

    def abandon(self) -> None:
        """After, in the child: close the copy. As no transaction is in it, that leaves the parent's alone."""
        if self._env is not None and not self._active:
            self._env.close()
        self._env = None
