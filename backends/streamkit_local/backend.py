"""The Backend of a store on a local disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final, TypeVar, TypeVarTuple
from uuid import UUID

from streamkit import speed
from streamkit.backend import ANY, NEXT, Etag, Expect, Grant, Limits, Range, Row, Salvaged, Value
from streamkit.errors import CorruptData, LeaseLost, StoreClosed
from streamkit.reentry import Mutex

from . import leases
from .errors import damage, of_partition, system_fault
from .files import PRIVATE
from .head import END
from .log import PartitionLog
from .partition import is_lost
from .reading import Reader
from .rowfile import OpenRow, open_row
from .sharing import enter, leave, register
from .state import State
from .store import OpenStore, directory_of

__all__ = ["LocalBackend"]

T = TypeVar("T")
A = TypeVarTuple("A")

_twin: Any = speed.twin
_LONGEST: Final = 300
_LOOK: Final = 0.5
"""Seconds after which a reader looks again whether the store is still at its path; a writer always does."""
_LIMITS: Final = Limits(remote=False, page=1000)
_TRIES: Final = 100
_SCRUBBED: Final = bytes(8)
"""The first bytes of a value that was replaced and then overwritten while it was read. A value may also begin so by
itself."""


def _check_address(partition: bytes, keys: Sequence[bytes]) -> None:
    if len(partition) > _LONGEST:
        raise ValueError(f"a partition has at most {_LONGEST} bytes, not {len(partition)}")
    for key in keys:
        if len(key) > _LONGEST:
            raise ValueError(f"a key has at most {_LONGEST} bytes, not {len(key)}")


class LocalBackend:
    """One store."""

    def __init__(self, root: str, store: UUID, timeout: float, mode: int = PRIVATE) -> None:
        self._root = root
        self._id = store
        self._timeout = timeout
        self._mode = mode
        self._shared: OpenStore | None = None
        self._entering = Mutex()
        self._closed = False
        self._look = 0.0
        kinds = ("get", "read", "scan", "put", "delete", "lease", "bytes_read", "bytes_written")
        self._requests = dict.fromkeys(kinds, 0)
        self._direct: Any = _twin and _twin.Counts()
        """Counts the reads of the compiled codec."""
        register(self)

    def __repr__(self) -> str:
        return f"<LocalBackend {self._root}/{self._id} {'closed' if self._closed else 'open'}>"

    @property
    def limits(self) -> Limits:
        return _LIMITS

    @property
    def requests(self) -> Mapping[str, int]:
        requests, direct = dict(self._requests), self._direct
        if direct is not None:
            requests["read"] += direct.reads
            requests["bytes_read"] += direct.bytes
        return requests

    def service_time(self) -> None:
        """All processes that use a directory share this machine's clock."""

    def _store(self, *, create: bool = False) -> OpenStore | None:
        """The open store; None if it does not exist and is not to be made."""
        store = self._shared
        if store is None:
            if self._closed:
                raise StoreClosed(f"the store {self._id} was closed: open it again")
            with self._entering():  # a user that enters twice leaves once, and the store would stay open
                store = self._shared
                if store is None:
                    store = enter(self._root, self._id, self._timeout, self._mode, create=create)
                    if store is None:
                        return None
                    self._shared = store
            if self._closed:
                self.close()
                raise StoreClosed(f"the store {self._id} was closed: open it again")
        if create and store.place.readonly:
            store.place.check_writable()
        now = monotonic()
        if now > self._look:
            store.place.check()
            self._look = now + _LOOK
        return store

    def forget(self) -> None:
        """Forget the parent's open store, in a forked child; the next use opens it again."""
        self._shared = None
        self._entering = Mutex()

    def _log(self, partition: bytes) -> PartitionLog | None:
        store = self._store()
        if store is None:
            return None
        try:
            log = store.logs.get(partition) or store.log(partition)
            if log is not None and log.words[END] != log.word:
                log.refresh()
        except CorruptData as error:
            raise of_partition(error, partition) from error
        return log

    def _read(self, partition: bytes, log: PartitionLog, work: Callable[[Reader, State, *A], T], *asked: *A) -> T:
        try:
            return self._read_log(log, work, *asked)
        except CorruptData as error:
            raise of_partition(error, partition) from error

    def _read_log(self, log: PartitionLog, work: Callable[[Reader, State, *A], T], *asked: *A) -> T:
        for attempt in range(_TRIES):
            word = log.word
            try:
                return work(log.reader, log.state, *asked)
            except CorruptData:
                # A record that is being rewritten in place; or a damaged one.
                if attempt > 3:
                    raise
                if attempt == 3:
                    log.complete()
                continue
            except FileNotFoundError as error:
                missing = str(error.filename)
            except OSError as error:
                raise system_fault(error, log.path) from error
            if log.words[END] == word:
                store = self._shared
                if store is not None:
                    store.place.check()
                break
            log.refresh()  # others have removed it since
        raise damage(missing, "is missing")

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        _check_address(partition, keys)
        requests = self._requests
        requests["get"] += 1
        log = self._log(partition)
        if log is None:
            return [None] * len(keys)
        found = [self._read(partition, log, Reader.get, key) for key in keys]
        for value in found:
            if value is not None:
                requests["bytes_read"] += len(value.data)
        if any(value is not None and value.data[:8] == _SCRUBBED for value in found) and log.words[END] != log.word:
            return self.get(partition, keys)
        return found

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        requests = self._requests
        requests["read"] += 1
        if len(partition) > _LONGEST:
            _check_address(partition, ())
        for key, start, length, _ in ranges:
            if len(key) > _LONGEST:
                _check_address(partition, [key])
            if start < 0 or length < 0:
                raise ValueError(f"start and length of a range are zero or more: {start}, {length}")
        log = self._log(partition)
        if log is None:
            return [None] * len(ranges)
        found: list[bytes | None] = []
        word, size = log.word, 0
        for key, start, length, _ in ranges:
            try:
                part = log.reader.get_part(log.state, key, start, length)
            except (CorruptData, OSError):
                part = self._read(partition, log, Reader.get_part, key, start, length)
            found.append(part)
            if part is not None:
                size += len(part)
                if part[:8] == _SCRUBBED and log.words[END] != word:
                    return self.read(partition, ranges)
        requests["bytes_read"] += size
        return found

    def change(self, partition: bytes) -> int | None:
        """See `TellsChanges`."""
        store = self._shared
        if store is None or monotonic() > self._look:
            store = self._store()
        log = None if store is None else store.logs.get(partition)
        return None if log is None else log.words[END]

    def stored_bytes(self, partition: bytes) -> int:
        """See `TellsSize`."""
        log = self._log(partition)
        return 0 if log is None else log.state.stored_bytes()

    def open_row(self, partition: bytes, key: bytes) -> OpenRow | None:
        """See `OpensRows`."""
        log = self._log(partition)
        row = None if log is None else log.state.rows.get(key)
        if log is None or row is None or not row.file:
            return None
        try:
            file = open_row(log.path, row, key, log.reader.seed)
        except (CorruptData, OSError):
            return None
        return OpenRow(file, row.size, self._requests, _twin and _twin.OpenRow(file, row.size, self._direct))

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        if len(partition) > _LONGEST:
            _check_address(partition, ())
        if limit < 0:
            raise ValueError(f"limit is zero (no limit) or more, not {limit}")
        log = self._log(partition)
        if log is None or log.state.ends_before(start, end):
            self._requests["scan"] += 1
            return iter(())
        return self._scan(partition, start, end, limit, values)

    def _scan(self, partition: bytes, start: bytes, end: bytes, limit: int, values: bool) -> Iterator[Row]:
        left = limit or 1 << 62
        while left and start < end:
            self._requests["scan"] += 1
            log = self._log(partition)
            if log is None:
                return
            size = min(left, _LIMITS.page)
            rows, more = self._read(partition, log, Reader.page, start, end, size, values)
            self._requests["bytes_read"] += sum([len(row.data) for row in rows])
            yield from rows
            if not more:
                return
            left -= len(rows)
            start = rows[-1].key + b"\0"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        if len(partition) + len(key) > _LONGEST:
            _check_address(partition, [key])
        requests = self._requests
        requests["put"] += 1
        store = self._shared
        if store is None or monotonic() > self._look or store.place.readonly:
            store = self._store(create=True)
            assert store is not None
        try:
            log = store.logs.get(partition) or store.log(partition, create=True)
            assert log is not None
            etag = log.append(key, value, durable) if expect is NEXT else log.put(key, value, expect, durable=durable)
        except CorruptData as error:
            raise of_partition(error, partition) from error
        requests["bytes_written"] += len(value)
        return etag

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        self._delete(partition, keys)

    def delete_if(self, partition: bytes, key: bytes, etag: Etag) -> None:
        """See `streamkit.backend.DeletesIf`."""
        self._delete(partition, [key], etag)

    def _delete(self, partition: bytes, keys: Sequence[bytes], etag: Etag | None = None) -> None:
        _check_address(partition, keys)
        self._requests["delete"] += 1
        store = self._store()
        if store is None:
            return
        store.place.check_writable()
        try:
            log = store.log(partition)
            if log is not None:
                log.delete(keys, etag)
        except CorruptData as error:
            raise of_partition(error, partition) from error

    def scrub(self, partition: bytes) -> None:
        """Overwrite replaced and deleted values that are still in the files of a partition."""
        store = self._store()
        log = None if store is None else store.log(partition)
        if log is not None:
            log.scrub()

    def discard(self, partition: bytes) -> None:
        """See `Discards`."""
        _check_address(partition, ())
        self._requests["delete"] += 1
        store = self._store()
        if store is not None:
            store.place.check_writable()
            store.discard(partition)

    def has_ended(self) -> bool:
        """See `Ends`."""
        store = self._shared
        return store is not None and not store.place.current()

    def salvage(self, partition: bytes) -> Salvaged:
        """See `Salvages`. The files are read as they are, without the locks and the marker of the store."""
        from .salvage import intact_rows

        _check_address(partition, ())
        path = os.path.join(self._root, str(self._id), directory_of(partition))
        try:
            if is_lost(path):
                return Salvaged({}, [f"{path} is missing"])
            return intact_rows(path, partition)
        except OSError as error:
            raise system_fault(error, path) from error

    def _leases(self, *, create: bool) -> PartitionLog | None:
        self._requests["lease"] += 1
        store = self._store(create=create)
        if store is None:
            return None
        store.place.check_writable()
        store.place.check()
        return store.leases(create=create)

    def acquire(self, name: str, ttl: float) -> Grant | None:
        if not ttl > 0:
            raise ValueError(f"ttl is more than 0 seconds, not {ttl}")
        log = self._leases(create=True)
        assert log is not None
        return leases.acquire(log, name, ttl)

    def renew(self, grant: Grant) -> Grant:
        log = self._leases(create=False)
        if log is None:
            raise LeaseLost(f"the lease {grant.name!r} was taken or released: acquire it again")
        return leases.renew(log, grant)

    def release(self, grant: Grant) -> None:
        log = self._leases(create=False)
        if log is not None:
            leases.release(log, grant)

    def is_held(self, name: str) -> bool:
        self._requests["lease"] += 1
        store = self._store()
        log = None if store is None else store.leases(create=False)
        if log is None:
            return False
        if log.words[END] != log.word:
            log.refresh()
        return leases.is_held(log, name, lambda key: self._read(b"", log, Reader.get, key))

    def close(self) -> None:
        self._closed = True
        store, self._shared = self._shared, None
        if store is not None:
            leave(store)
