"""One store that is open in this process: shared by all its backends here, and dropped when the process forks."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Final

import lmdb

from streamkit.errors import CorruptData, StoreClosed

from .environment import Environment
from .faults import system_fault
from .head import Head, boot_id
from .index import checkpoint, keys_of, put_pending
from .log import PartitionLog
from .place import LOGS, OpenFile, Place, sync_directory

__all__ = ["OpenStore"]

_LOGS: Final = 64
_FLUSH: Final = 16_384


class OpenStore:
    """The index and the logs of a store. `users` counts the backends that hold it."""

    def __init__(self, place: Place, timeout: float) -> None:
        self.place = place
        self.timeout = timeout
        self.env = Environment(place, timeout)
        self.users = 0
        self._logs: OrderedDict[bytes, PartitionLog] = OrderedDict()
        self._absent: dict[bytes, int] = {}
        self._mutex = threading.Lock()

    def log(self, partition: bytes) -> PartitionLog | None:
        """The partition's log, up to date; None if nothing was ever appended there."""
        log = self._logs.get(partition)
        if log is None:
            made = self.place.words[LOGS]
            if self._absent.get(partition) == made:
                return None
            log = self._attach(partition, create=False)
            if log is None:
                self._absent[partition] = made
                return None
        elif log.stale:
            self._catch_up(partition, log)
        return log

    def log_to_append(self, partition: bytes) -> PartitionLog:
        """The partition's log, made if need be; not necessarily up to date."""
        log = self._logs.get(partition)
        if log is None:
            log = self._attach(partition, create=True)
            assert log is not None
        return log

    def _catch_up(self, partition: bytes, log: PartitionLog) -> None:
        for attempt in range(3):
            txn = self.env.begin()
            try:
                known, number = checkpoint(txn, keys_of(partition)), txn.id()
            finally:
                self.env.end(txn)
            try:
                log.catch_up(known, number)
                return
            except (CorruptData, FileNotFoundError):
                # another process may have trimmed the files just read: the index then says so
                if attempt == 2:
                    raise

    def _attach(self, partition: bytes, *, create: bool) -> PartitionLog | None:
        keys = keys_of(partition)
        path = os.path.join(self.place.path, "log", keys.digest.hex())
        with self._mutex:
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
            self._logs[partition] = log
            while len(self._logs) > _LOGS:
                self._logs.popitem(last=False)
            return log

    def _open_log(self, path: str, partition: bytes) -> PartitionLog | None:
        name = os.path.join(path, "head")
        try:
            fd = os.open(name, os.O_RDWR)
        except FileNotFoundError:
            self._check_absent(path, name, partition)
            return None
        head = Head(OpenFile(fd), name, partition)
        head.lock(self.timeout)
        try:
            txn = self.env.begin()
            try:
                known, number = checkpoint(txn, keys_of(partition)), txn.id()
            finally:
                self.env.end(txn)
            return PartitionLog(path, partition, head, known, number, self.timeout)
        finally:
            head.unlock()

    def _check_absent(self, path: str, name: str, partition: bytes) -> None:
        """CorruptData if there is no head, but must be one."""
        txn = self.env.begin()
        try:
            known = checkpoint(txn, keys_of(partition))
        finally:
            self.env.end(txn)
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
            os.makedirs(path, exist_ok=True)
            draft = name + ".new"
            with open(draft, "wb") as file:
                file.write(Head.blank(partition, boot_id()))
                file.flush()
                os.fsync(file.fileno())
            os.rename(draft, name)
            sync_directory(path)
            sync_directory(os.path.dirname(path))
            self.place.words[LOGS] += 1

    def flush(self, partition: bytes, log: PartitionLog) -> None:
        """Bring the index forward to the end of the log."""
        keys = keys_of(partition)
        end = log.sync()
        pending = log.pending

        def work(txn: lmdb.Transaction[bytes]) -> tuple[int, int]:
            return put_pending(txn, keys, pending, end), txn.id()

        base, number = self.env.write(work)
        log.indexed(base, number)

    def flush_if_many(self, partition: bytes, log: PartitionLog) -> None:
        if len(log.pending.keys) >= _FLUSH:
            self.flush(partition, log)

    def close(self) -> None:
        """Leave the index as far as it goes, so that the next process has little to read."""
        try:
            for partition, log in list(self._logs.items()):
                if log.appended and log.pending.keys and not self.place.gone:
                    self.flush(partition, log)
        finally:
            self._logs.clear()
            self.env.close()
