"""The LMDB environment of a store: opened once a process, grown when full, closed across a fork."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import lmdb

from streamkit.errors import CorruptData, StoreClosed, Unavailable

from .faults import index_fault, system_fault
from .place import Place

__all__ = ["Environment"]

T = TypeVar("T")

_START = 256 << 20
_READERS = 1024
_LOCK_SIZE = 128 + 64 * (_READERS + 2)
_PAGE, _META = struct.Struct("<QHHHH"), struct.Struct("<IIQQ")


class Environment:
    """Reads are `begin` … `end` with nothing slow between; writes are functions, so that they can be run again.

    `set_mapsize` and `fork` must not meet an open transaction of this process: `_active` counts the read transactions
    (a list, because its append and pop are atomic) and `_shut` keeps new ones out.
    """

    def __init__(self, place: Place, timeout: float) -> None:
        self.path = os.path.join(place.path, "index")
        self._place = place
        self._timeout = timeout
        self._active: list[None] = []
        self._shut = False
        self._gate = threading.Lock()
        self._held = False
        self._env: lmdb.Environment | None = None
        with place.locked(timeout):
            self._env = self._open()

    def _open(self) -> lmdb.Environment:
        try:
            data = os.path.join(self.path, "data.mdb")
            self._reserve_lock_file(data)
            size = self._check(data)
            env = lmdb.open(self.path, map_size=max(_START, size * 2), max_readers=_READERS, lib_version=0)
            env.reader_check()
            return env
        except lmdb.Error as error:
            raise index_fault(error, self.path) from error
        except OSError as error:
            raise system_fault(error, self.path) from error

    def _reserve_lock_file(self, data: str) -> None:
        """LMDB maps its lock file sparse: on a full disk, touching it would end the process."""
        path = os.path.join(self.path, "lock.mdb")
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            state = os.fstat(fd)
            if state.st_blocks * 512 < _LOCK_SIZE and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, max(_LOCK_SIZE, state.st_size))
        finally:
            os.close(fd)

    def _check(self, data: str) -> int:
        """The file's size. CorruptData if pages are missing at its end, where a mapped read would end the process."""
        try:
            fd = os.open(data, os.O_RDWR)
        except FileNotFoundError:
            if os.listdir(os.path.join(self._place.path, "log")):
                raise CorruptData(f"{data} is missing: restore the store from a backup") from None
            return 0
        try:
            size = os.fstat(fd).st_size
            if size == 0:
                return 0
            last, page = self._meta(os.pread(fd, 4096, 0))
            last = max(last, self._meta(os.pread(fd, 4096, page))[0])
            if size < last:
                # pages that were freed in the transaction that made them are never written: only a walk can tell
                from lmdb import verify

                try:
                    findings = verify.verify(self.path)  # type: ignore[no-untyped-call]
                except Exception as error:
                    raise CorruptData(f"{data} is damaged ({error}): restore the store from a backup") from error
                if findings:
                    raise CorruptData(f"{data} is cut short ({findings[0]}): restore the store from a backup")
                os.ftruncate(fd, last)
            return max(size, last)
        finally:
            os.close(fd)

    def _meta(self, page: bytes) -> tuple[int, int]:
        """Where the last page ends that this meta page knows of, and the size of a page."""
        at = _PAGE.size
        if len(page) < at + 136:
            raise CorruptData(f"{self.path}/data.mdb is cut short: restore the store from a backup")
        magic, version, _, _ = _META.unpack_from(page, at)
        size: int = struct.unpack_from("<I", page, at + 24)[0]
        if magic != 0xBEEFC0DE or version != 1 or size < 512:
            raise CorruptData(f"{self.path}/data.mdb has a damaged first page: restore the store from a backup")
        number: int = struct.unpack_from("<Q", page, at + 24 + 96)[0]
        return (number + 1) * size, size

    def begin(self) -> lmdb.Transaction[bytes]:
        """A read transaction; give it back to `end` at once. While it is open, nothing may wait."""
        active = self._active
        while True:
            active.append(None)
            try:
                if self._shut or self._env is None:
                    raise _Shut
                return self._env.begin()
            except _Shut:
                active.pop()
                with self._gate:
                    if self._env is None:
                        raise StoreClosed(f"the store {self._place.path} was closed") from None
            except lmdb.MapResizedError:
                active.pop()
                with self._place.locked(self._timeout):
                    self._resize(0)
            except lmdb.Error as error:
                active.pop()
                raise index_fault(error, self.path) from error
            except BaseException:
                active.pop()
                raise

    def end(self, txn: lmdb.Transaction[bytes]) -> None:
        txn.abort()
        self._active.pop()

    def write(self, work: Callable[[lmdb.Transaction[bytes]], T]) -> T:
        """Run `work` in a write transaction and commit it to stable storage. It is run again if the map had to grow.

        What `work` raises undoes the transaction.
        """
        with self._place.locked(self._timeout):
            while True:
                if self._env is None:
                    raise StoreClosed(f"the store {self._place.path} was closed")
                committing = False
                try:
                    txn = self._env.begin(write=True)
                    try:
                        result = work(txn)
                        committing = True
                        txn.commit()
                        return result
                    except BaseException:
                        txn.abort()
                        raise
                except lmdb.MapFullError:
                    self._resize(self._env.info()["map_size"] * 2)
                except lmdb.MapResizedError:
                    self._resize(0)
                except lmdb.PanicError as error:
                    self._reopen()
                    raise index_fault(error, self.path, committing=committing) from error
                except lmdb.Error as error:
                    raise index_fault(error, self.path, committing=committing) from error

    def _resize(self, size: int) -> None:
        """Called with the store's lock held and no write transaction open."""
        with self.quiet():
            assert self._env is not None
            try:
                self._env.set_mapsize(size)
            except lmdb.Error as error:
                raise index_fault(error, self.path) from error

    def _reopen(self) -> None:
        with self.quiet():
            assert self._env is not None
            self._env.close()
            self._env = None
            self._env = self._open()

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """No read transaction is open in this process inside."""
        with self._gate:
            self._shut = True
            try:
                deadline = time.monotonic() + self._timeout
                while self._active:
                    time.sleep(2e-5)
                    if time.monotonic() > deadline:
                        raise Unavailable(f"reads of {self.path} did not end within {self._timeout:g} s")
                yield
            finally:
                self._shut = False

    def hold(self) -> None:
        """Before a fork: wait until no transaction is open, so that the child inherits none."""
        self._held = self._place.mutex.acquire(timeout=self._timeout)
        self._gate.acquire()
        self._shut = True
        deadline = time.monotonic() + self._timeout
        while self._active and time.monotonic() < deadline:
            time.sleep(2e-5)

    def go_on(self) -> None:
        """After a fork, in the parent."""
        self._shut = False
        self._gate.release()
        if self._held:
            self._place.mutex.release()

    def abandon(self) -> None:
        """After a fork, in the child: close the copy. Without a transaction in it, this does not touch the parent's."""
        if self._env is not None and not self._active:
            self._env.close()
        self._env = None

    def close(self) -> None:
        with self.quiet():
            if self._env is not None:
                self._env.close()
                self._env = None


class _Shut(Exception):
    pass
