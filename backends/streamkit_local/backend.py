"""The Backend of a store on a local disk: rows from the index, appended rows from the logs, as if they were one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Final
from uuid import UUID

import lmdb

from streamkit.backend import (
    ABSENT,
    ANY,
    Ambiguous,
    Append,
    Conflict,
    Delete,
    Etag,
    Grant,
    Limits,
    Op,
    Put,
    Range,
    Row,
    Value,
)
from streamkit.errors import StoreClosed, StreamkitError

from . import leases
from .index import checkpoint, checksummed, content, keys_of, look_up, put_pending
from .place import GONE, PRIVATE
from .reading import LOGGED, get_one, get_rows, read_one, read_parts, scan_page
from .sharing import enlist, enter, leave
from .store import OpenStore

__all__ = ["LocalBackend"]

_KEY_LIMIT: Final = 300
_LOOK: Final = 0.5
"""Seconds after which a reader looks again whether the store is still at its path; a writer always does."""
_LIMITS: Final = Limits(atomic=False, atomic_rows=True, ops=100_000, inline=0, row=1024, upkeep=1024, page=1000)


class LocalBackend:
    """One store. The rows of one write are applied all or none, after its appends."""

    def __init__(self, root: str, store: UUID, timeout: float, mode: int = PRIVATE) -> None:
        self._root = root
        self._id = store
        self._timeout = timeout
        self._mode = mode
        self._shared: OpenStore | None = None
        self._closed = False
        self._look = 0.0
        kinds = ("get", "read", "scan", "write", "lease", "bytes_read", "bytes_written")
        self._requests = dict.fromkeys(kinds, 0)
        enlist(self)

    def __repr__(self) -> str:
        return f"<LocalBackend {self._root}/{self._id} {'closed' if self._closed else 'open'}>"

    @property
    def limits(self) -> Limits:
        return _LIMITS

    @property
    def requests(self) -> Mapping[str, int]:
        return dict(self._requests)

    def service_time(self) -> None:
        """All who use a directory share this machine's clock."""

    def _store(self, *, create: bool = False) -> OpenStore | None:
        """The open store; None if it does not exist and is not to be made."""
        store = self._shared
        if store is None:
            if self._closed:
                raise StoreClosed(f"the store {self._id} was closed: open it again")
            store = enter(self._root, self._id, self._timeout, self._mode, create=create)
            if store is None:
                return None
            self._shared = store
        if create:
            store.place.check_writable()
        now = monotonic()
        if store.place.words[GONE] or now > self._look:
            store.place.check()
            self._look = now + _LOOK
        return store

    def forget(self) -> None:
        """In a forked child: open anew when next used."""
        self._shared = None

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        requests = self._requests
        requests["get"] += 1
        store = self._store()
        if store is None:
            return [None] * len(keys)
        if len(keys) == 1:
            value = get_one(store, partition, keys[0])
            if value is not None:
                requests["bytes_read"] += len(value.data)
            return [value]
        found = get_rows(store, partition, keys)
        requests["bytes_read"] += sum([len(value.data) for value in found if value is not None])
        return found

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        requests = self._requests
        requests["read"] += 1
        store = self._store()
        if store is None:
            return [None] * len(ranges)
        if len(ranges) == 1:
            part = read_one(store, partition, *ranges[0])
            if part is not None:
                requests["bytes_read"] += len(part)
            return [part]
        found = read_parts(store, partition, ranges)
        requests["bytes_read"] += sum([len(part) for part in found if part is not None])
        return found

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        self._store()
        return self._scan(partition, start, end, limit, values)

    def _scan(self, partition: bytes, start: bytes, end: bytes, limit: int, values: bool) -> Iterator[Row]:
        requests = self._requests
        left = limit if limit > 0 else 1 << 62
        while left and start < end:
            requests["scan"] += 1
            store = self._store()
            if store is None:
                return
            rows, more = scan_page(store, partition, start, end, min(left, _LIMITS.page), values)
            requests["bytes_read"] += sum([len(row.data) for row in rows])
            yield from rows
            if not more:
                return
            left -= len(rows)
            start = rows[-1].key + b"\0"

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        store = self._store(create=True)
        assert store is not None
        self._requests["write"] += 1
        if len(ops) == 1 and isinstance(op := ops[0], Append) and len(op.key) <= _KEY_LIMIT:
            if store.append(partition, [op], durable=durable):
                raise Conflict(op.key)
            self._requests["bytes_written"] += len(op.value)
            return [LOGGED]
        appends: list[Append] = []
        rows: list[Put | Delete] = []
        etags: list[Etag | None] = []
        size = 0
        for op in ops:
            key = op.key
            if len(key) > _KEY_LIMIT:
                raise ValueError(f"a key of {len(key)} bytes is longer than {_KEY_LIMIT} bytes")
            if isinstance(op, Delete):
                rows.append(op)
                etags.append(None)
                continue
            size += len(op.value)
            if isinstance(op, Append):
                appends.append(op)
                etags.append(LOGGED)
            else:
                rows.append(op)
                etags.append(op.value)
        first: StreamkitError | None = None
        if appends:
            try:
                refused = store.append(partition, sorted(appends), durable=durable)
                if refused:
                    first = Conflict(refused[0])
            except StreamkitError as error:
                first = error
        if rows:
            try:
                self._apply(store, partition, rows)
            except StreamkitError as error:
                if first is None or (isinstance(error, Ambiguous) and not isinstance(first, Ambiguous)):
                    first = error
        if first is not None:
            raise first
        self._requests["bytes_written"] += size
        return etags

    def _apply(self, store: OpenStore, partition: bytes, ops: Sequence[Put | Delete]) -> None:
        """Write rows to the index, and with them those of the log that it does not have."""
        keys = keys_of(partition)
        log = store.log(partition)
        end = log.sync() if log is not None else 0
        pending = log.pending if log is not None else None
        low, last = (log.low, log.view.last) if log is not None else (None, None)

        def work(txn: lmdb.Transaction[bytes]) -> tuple[int, int, int]:
            base = put_pending(txn, keys, pending, end) if pending is not None else 0
            trimmed = False
            for op in ops:
                key, row, ref, expect = op.key, keys.rows + op.key, keys.refs + op.key, op.expect
                logged = low is not None and last is not None and low <= key <= last and look_up(txn, ref) is not None
                if expect is not ANY:
                    stored = None if logged else look_up(txn, row)
                    if logged:
                        holds = expect == LOGGED
                    elif expect is ABSENT or stored is None:
                        holds = expect is ABSENT and stored is None
                    else:
                        holds = content(row, stored) == expect
                    if not holds:
                        raise Conflict(key)
                if isinstance(op, Put):
                    txn.put(row, checksummed(row, op.value))
                else:
                    txn.delete(row)
                if logged:
                    txn.delete(ref)
                    trimmed = True
            return base, txn.id(), checkpoint(txn, keys).first if trimmed else 0

        base, number, first = store.env.write(work)
        if log is not None:
            log.indexed(base, number)
            log.trim(first)

    def acquire(self, name: str, ttl: float) -> Grant | None:
        self._requests["lease"] += 1
        store = self._store(create=True)
        assert store is not None
        return leases.acquire(store.env, name, ttl)

    def renew(self, grant: Grant) -> Grant:
        self._requests["lease"] += 1
        store = self._store(create=True)
        assert store is not None
        return leases.renew(store.env, grant)

    def release(self, grant: Grant) -> None:
        self._requests["lease"] += 1
        store = self._store()
        if store is not None:
            leases.release(store.env, grant)

    def close(self) -> None:
        self._closed = True
        store, self._shared = self._shared, None
        if store is not None:
            leave(store)
