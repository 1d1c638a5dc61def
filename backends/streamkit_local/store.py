"""One store that is open in this process: shared by all its backends here, and dropped when the process forks."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

from streamkit.digest import blake2b
from streamkit.errors import CorruptData, StreamkitError, Unavailable
from streamkit.reentry import Mutex

from .errors import damage, system_fault
from .files import forget_files, remove_directory, sync_directory
from .log import PartitionLog
from .partition import (
    ABANDONED,
    DRAFT,
    create_log,
    draft_in,
    is_lost,
    mark_log_deleted,
    mark_made,
    remove_drafts,
    unmark_made,
)
from .place import StoreDirectory
from .syncing import claim_end_of

__all__ = ["LEASES", "OpenStore", "directory_of", "mark_deleted"]

_LOGS: Final = 64
_TRIES: Final = 5
LEASES: Final = "leases"
"""The directory of the partition that leases are kept in."""


def directory_of(partition: bytes) -> str:
    """The name of a partition's directory."""
    return blake2b(partition, digest_size=16).hexdigest()


class OpenStore:
    """The partitions of a store. `users` counts the backends that hold it."""

    def __init__(self, place: StoreDirectory, timeout: float) -> None:
        self.place = place
        self.users = 0
        self.logs: dict[bytes, PartitionLog] = {}
        self._timeout = timeout
        self._leases: PartitionLog | None = None
        self._set_aside: set[bytes] = set()
        """Partitions that were written to and are not open any more: closing the store claims their ends."""
        self._looked_for_drafts = float("-inf")
        """By the monotonic clock. A look lists all partitions, so not every new one can have its own."""
        self._mutex = Mutex()

    def log(self, partition: bytes, *, create: bool = False) -> PartitionLog | None:
        """The partition; None if nothing was ever written to it, and it is not to be made."""
        log = self.logs.get(partition)
        if log is not None:
            return log
        with self._mutex():
            log = self.logs.get(partition) or self._open(directory_of(partition), partition, create)
            if log is not None:
                self.logs[partition] = log
                while len(self.logs) > _LOGS:
                    other = next(iter(self.logs))
                    if self.logs.pop(other).wrote:
                        self._set_aside.add(other)
            return log

    def leases(self, *, create: bool) -> PartitionLog | None:
        """The partition that leases are kept in."""
        if self._leases is None:
            with self._mutex():
                self._leases = self._open(LEASES, b"", create)
        return self._leases

    def _open(self, name: str, partition: bytes, create: bool) -> PartitionLog | None:
        path = os.path.join(self.place.path, name)
        for _ in range(_TRIES):
            try:
                return self._open_at(path, partition, create)
            except FileNotFoundError:
                self.place.check()  # else another process took the unfinished store for a leftover
        raise Unavailable(f"{path} is removed by others as soon as it is made: try again")

    def _open_at(self, path: str, partition: bytes, create: bool) -> PartitionLog | None:
        # Leases may be deleted by hand: the tokens of later ones are greater all the same.
        is_marked = not path.endswith(LEASES)
        try:
            try:
                log = PartitionLog(path, partition, self._timeout, readonly=self.place.readonly)
            except FileNotFoundError:
                self.place.check()
                if os.path.exists(path) and not os.path.exists(os.path.join(path, "head")):
                    raise damage(os.path.join(path, "head"), "is missing") from None
                if is_marked and is_lost(path):
                    raise damage(path, "is missing") from None
                if not create:
                    return None
                now = time.monotonic()
                if now - self._looked_for_drafts > ABANDONED:
                    remove_drafts(self.place.path)
                    self._looked_for_drafts = now
                create_log(path, partition)
                self.place.check()
                log = PartitionLog(path, partition, self._timeout, readonly=self.place.readonly)
            if is_marked and not self.place.readonly:
                mark_made(path)
            return log
        except FileNotFoundError:
            raise
        except OSError as error:
            raise system_fault(error, path) from error

    def discard(self, partition: bytes) -> None:
        """Remove the directory of a partition with all its content. Processes that have it open get StoreClosed."""
        path = os.path.join(self.place.path, directory_of(partition))
        hidden = draft_in(self.place.path)
        try:
            with self._mutex():
                log = self.logs.pop(partition, None)
                self._set_aside.discard(partition)
                if log is not None:
                    log.close()
                unmark_made(path)
                try:
                    os.rename(path, hidden)
                except FileNotFoundError:
                    sync_directory(self.place.path)
                    return
                unmark_made(path)  # another process may have opened it just before
            sync_directory(self.place.path)
            with contextlib.suppress(OSError, StreamkitError):  # the files may be damaged or missing
                mark_log_deleted(hidden, self._timeout)
            forget_files(path)
            remove_directory(hidden)
        except OSError as error:
            raise system_fault(error, path) from error

    def close(self) -> None:
        """Close the open files. Buffered records are synced, and the logs say where they end."""
        for log in [*self.logs.values(), self._leases]:
            if log is not None:
                log.close()
        for partition in self._set_aside:
            with contextlib.suppress(OSError, StreamkitError):
                claim_end_of(os.path.join(self.place.path, directory_of(partition)), partition, self._timeout)
        self._set_aside.clear()
        self.logs.clear()
        self._leases = None
        forget_files(self.place.path)


def mark_deleted(path: str, timeout: float) -> None:
    """Mark all partitions of a store as deleted for processes that have them open. Its directory has moved already."""
    for name in os.listdir(path):
        if name.startswith(DRAFT):
            # of a process that was killed while it made a partition: no process has it open, and it may be incomplete
            continue
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, CorruptData):
            mark_log_deleted(os.path.join(path, name), timeout)
