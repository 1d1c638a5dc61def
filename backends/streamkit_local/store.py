"""One store that is open in this process: shared by all its backends here, and dropped when the process forks."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import lmdb

from streamkit.errors import CorruptData, StoreClosed, StreamkitError, Unavailable
from streamkit.reentry import Mutex

from .environment import Environment
from .faults import index_fault, system_fault
from .head import END, Head, boot_id
from .index import checkpoint, keys_of, put_pending
from .log import PartitionLog, Trimmed
from .pending import Checkpoint
from .place import LOGS, OpenFile, Place, create_file, make_directories, sync_directory

__all__ = ["OpenStore"]

_LOGS: Final = 64
_ABSENT: Final = 10_000
_FLUSH: Final = 16_384
"""The index takes rows of the log at the latest when this many are pending; if it cannot, again after _AGAIN more."""
_AGAIN: Final = 1024


class OpenStore:
    """The index and the logs of a store. `users` counts the backends that hold it."""

    def __init__(self, place: Place, timeout: float) -> None:
        self.place = place
        self.timeout = timeout
        self.env = Environment(place, timeout)
        self.users = 0
        self._logs: OrderedDict[bytes, PartitionLog] = OrderedDict()
        self._absent: dict[bytes, int] = {}
        self._mutex = Mutex()

    def log(self, partition: bytes) -> PartitionLog | None:
        """The partition's log, up to date; None if nothing was ever appended there."""
        log = self._logs.get(partition)
        if log is None:
            made = self.place.words[LOGS]
            if self._absent.get(partition) == made:
                return None
            log = self._attach(partition, create=False)
            if log is None:
                if made % 2 == 0:
                    if len(self._absent) > _ABSENT:
                        self._absent.clear()
                    self._absent[partition] = made
                return None
        elif log.words[END] != log.view.word:
            self._catch_up(partition, log)
        return log

    def append(self, partition: bytes, rows: Sequence[tuple[bytes, bytes]], *, durable: bool) -> list[bytes]:
        """Append rows, keys ascending, and return the keys that were refused as not greater than the last."""
        log = self._logs.get(partition) or self._attach(partition, create=True)
        for _ in range(3):
            assert log is not None
            try:
                refused = log.append(rows, durable=durable)
                break
            except Trimmed:
                log = self.log(partition)
        else:
            raise Unavailable(f"{self.place.path} is written and trimmed too fast to follow: try again")
        count = len(log.pending.keys)
        if count >= _FLUSH and count % _AGAIN < len(rows):
            with contextlib.suppress(StreamkitError):  # the rows are written; the index may follow later
                self.flush(partition, log)
        return refused

    def _catch_up(self, partition: bytes, log: PartitionLog) -> None:
        for _ in range(3):
            try:
                log.catch_up(*self._checkpoint(partition))
                return
            except Trimmed:
                continue  # what was to be read is in the index by now
            except OSError as error:
                raise system_fault(error, log.path) from error
        raise CorruptData(f"{log.path} lacks its first file: restore the store from a backup")

    def _checkpoint(self, partition: bytes) -> tuple[Checkpoint, int]:
        txn = self.env.begin()
        try:
            return checkpoint(txn, keys_of(partition)), txn.id()
        except lmdb.Error as error:
            raise index_fault(error, self.env.path) from error
        finally:
            self.env.end(txn)

    def _attach(self, partition: bytes, *, create: bool) -> PartitionLog | None:
        keys = keys_of(partition)
        path = os.path.join(self.place.path, "log", keys.digest.hex())
        with self._mutex():
            log = self._logs.get(partition)
            if log is not None:
                return log
            try:
                log = self._open_log(path, partition)
                if log is None:
                    if not create:
                        return None
                    self._create_log(path, partition)
                    log = self._open_log(path, partition)
                    if log is None:
                        raise StoreClosed(f"the store {self.place.path} was deleted")
            except OSError as error:
                raise system_fault(error, path) from error
            if not log.settled:
                return log
            self._logs[partition] = log
            while len(self._logs) > _LOGS:
                self._logs.popitem(last=False)
            return log

    def _open_log(self, path: str, partition: bytes) -> PartitionLog | None:
        name, readonly = os.path.join(path, "head"), self.place.readonly
        try:
            fd = os.open(name, os.O_RDONLY if readonly else os.O_RDWR)
        except FileNotFoundError:
            self._check_absent(path, name, partition)
            return None
        head = Head(OpenFile(fd), name, partition, readonly=readonly)
        with contextlib.suppress(Trimmed, CorruptData):
            return PartitionLog(path, partition, head, *self._checkpoint(partition), self.timeout)
        head.lock(self.timeout)
        try:
            return PartitionLog(path, partition, head, *self._checkpoint(partition), self.timeout, locked=True)
        except Trimmed:
            raise CorruptData(f"{path} lacks its first file: restore the store from a backup") from None
        finally:
            head.unlock()

    def _check_absent(self, path: str, name: str, partition: bytes) -> None:
        """CorruptData if there is no head, but must be one."""
        known, _ = self._checkpoint(partition)
        try:
            logs = any(file.endswith(".log") for file in os.listdir(path))
        except FileNotFoundError:
            logs = False
        if (known.position or logs) and not os.path.exists(name) and not self.place.gone:
            raise CorruptData(f"{name} is missing: restore the store from a backup")

    def _create_log(self, path: str, partition: bytes) -> None:
        with self.place.locked(self.timeout):
            name = os.path.join(path, "head")
            if os.path.exists(name):
                return
            make_directories(path)
            # Odd before it is there, even afterwards: whoever looked before will look again, also if this ends between.
            words = self.place.words
            words[LOGS] |= 1
            draft = name + ".new"
            with open(create_file(draft, truncate=True), "wb") as file:
                file.write(Head.blank(partition, boot_id()))
                file.flush()
                os.fsync(file.fileno())
            os.rename(draft, name)
            sync_directory(path)
            words[LOGS] += 1

    def flush(self, partition: bytes, log: PartitionLog) -> None:
        """Bring the index forward to the end of the log."""
        keys = keys_of(partition)
        end = log.sync()
        pending = log.pending

        def work(txn: lmdb.Transaction[bytes]) -> tuple[int, int]:
            return put_pending(txn, keys, pending, end), txn.id()

        base, number = self.env.write(work)
        log.indexed(base, number)

    def close(self) -> None:
        """Leave the index as far as it goes, so that the next process has little to read."""
        for partition, log in list(self._logs.items()):
            if log.appended and log.pending.keys and not self.place.gone:
                with contextlib.suppress(StreamkitError):
                    self.flush(partition, log)
        self._logs.clear()
        self.env.close()
