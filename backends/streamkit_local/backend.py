"""The Backend of a store on a local disk."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from operator import itemgetter
from typing import Final
from uuid import UUID

import lmdb

from streamkit.backend import (
    ABSENT,
    ANY,
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
from .faults import index_fault, system_fault
from .index import KEY, REF, checkpoint, indexed_end, keys_of, pack_row, put_pending, unpack_row
from .log import PartitionLog, Pending
from .record import Ref
from .sharing import enlist, enter, leave
from .store import OpenStore

__all__ = ["LocalBackend"]

LOGGED: Final = "log"
"""The etag of every appended row: it is never replaced, and its key never comes again."""

_PAGE: Final = 1000
_PAGE_BYTES: Final = 4 << 20
_KEY_LIMIT: Final = 300
_TRIES: Final = (False, False, True)
_LIMITS: Final = Limits(atomic=False, atomic_rows=True, ops=100_000, inline=0, row=1024, upkeep=1024, page=_PAGE)


class LocalBackend:
    """Rows are in LMDB, appended rows in log files. Rows of one write are applied all or none, after its appends."""

    def __init__(self, root: str, store: UUID, timeout: float) -> None:
        self._root = root
        self._id = store
        self._timeout = timeout
        self._open: OpenStore | None = None
        self._closed = False
        self._requests = dict.fromkeys(("get", "read", "scan", "write", "lease", "bytes_read", "bytes_written"), 0)
        enlist(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<LocalBackend {self._root}/{self._id} {state}>"

    @property
    def limits(self) -> Limits:
        return _LIMITS

    @property
    def requests(self) -> Mapping[str, int]:
        return dict(self._requests)

    def forget(self) -> None:
        """In a forked child: open anew when next used."""
        self._open = None

    def _store(self, *, create: bool = False) -> OpenStore | None:
        store = self._open
        if store is None:
            if self._closed:
                raise StoreClosed(f"the store {self._id} was closed: open it again")
            store = enter(self._root, self._id, self._timeout, create=create)
            if store is None:
                return None
            self._open = store
        if store.place.gone:
            raise StoreClosed(f"the store {self._id} was deleted")
        return store

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        requests = self._requests
        requests["get"] += 1
        out: list[Value | None] = [None] * len(keys)
        store = self._store()
        if store is None:
            return out
        prefix = keys_of(partition).rows
        for again in _TRIES:
            log = store.log(partition)
            pending = log.pending if log is not None else None
            logged: list[tuple[bytes, Ref, int]] = []
            txn = store.env.begin()
            try:
                locate = _locator(log, pending, partition, txn)
                for index, key in enumerate(keys):
                    ref = locate(key)
                    if ref is not None:
                        logged.append((key, ref, index))
                        continue
                    stored = txn.get(prefix + key)
                    if stored is not None:
                        data = unpack_row(prefix + key, stored)
                        out[index] = Value(data, data)
            except lmdb.Error as error:
                raise index_fault(error, store.env.path) from error
            finally:
                store.env.end(txn)
            if log is None or not logged:
                break
            logged.sort(key=_position)
            values = _load(log, [(key, ref) for key, ref, _ in logged], again)
            if values is not None:
                for (_, _, index), value in zip(logged, values, strict=True):
                    out[index] = Value(value, LOGGED)
                break
        requests["bytes_read"] += sum([len(value.data) for value in out if value is not None])
        return out

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        requests = self._requests
        requests["read"] += 1
        out: list[bytes | None] = [None] * len(ranges)
        store = self._store()
        if store is None:
            return out
        prefix = keys_of(partition).rows
        for again in _TRIES:
            log = store.log(partition)
            pending = log.pending if log is not None else None
            logged: list[tuple[Ref, int]] = []
            txn = store.env.begin()
            try:
                locate = _locator(log, pending, partition, txn)
                for index, (key, start, length) in enumerate(ranges):
                    ref = locate(key)
                    if ref is not None:
                        logged.append((ref, index))
                        continue
                    stored = txn.get(prefix + key)
                    if stored is not None:
                        out[index] = unpack_row(prefix + key, stored)[start : start + length]
            except lmdb.Error as error:
                raise index_fault(error, store.env.path) from error
            finally:
                store.env.end(txn)
            if log is None or _load_parts(log, logged, ranges, out, again):
                break
        requests["bytes_read"] += sum([len(part) for part in out if part is not None])
        return out

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        self._store()
        return self._scan(partition, start, end, limit, values)

    def _scan(self, partition: bytes, start: bytes, end: bytes, limit: int, values: bool) -> Iterator[Row]:
        left = limit if limit > 0 else 1 << 62
        while left and start < end:
            rows, more = self._page(partition, start, end, min(left, _PAGE), values)
            yield from rows
            left -= len(rows)
            if not more:
                return
            start = rows[-1].key + b"\0"

    def _page(self, partition: bytes, start: bytes, end: bytes, count: int, values: bool) -> tuple[list[Row], bool]:
        """The first rows from `start` on, at most `count`, and whether there may be more before `end`."""
        self._requests["scan"] += 1
        store = self._store()
        if store is None:
            return [], False
        for again in _TRIES:
            log = store.log(partition)
            pending = log.pending if log is not None else None
            txn = store.env.begin()
            try:
                rows, more = _rows(txn, keys_of(partition).rows, start, end, count, values)
                refs: list[tuple[bytes, Ref]] = []
                if log is not None and pending is not None:
                    refs, more_refs = _refs(log, pending, partition, txn, start, end, count, values)
                    if more and (not more_refs or rows[-1].key < refs[-1][0]):
                        refs = refs[: bisect_left(refs, (rows[-1].key, (0, 0)))]
                    elif more_refs:
                        rows = rows[: bisect_left(rows, (refs[-1][0], b"", b""))]
                    more = more or more_refs
            except lmdb.Error as error:
                raise index_fault(error, store.env.path) from error
            finally:
                store.env.end(txn)
            if log is not None and refs:
                data = _load(log, refs, again) if values else [b""] * len(refs)
                if data is None:
                    continue
                loaded = list(map(_new_row, zip([ref[0] for ref in refs], data, repeat(LOGGED))))
                if rows:
                    rows = sorted(rows + loaded, key=_key)
                    more = more or len(rows) > count
                    rows = rows[:count]
                else:
                    rows = loaded
            self._requests["bytes_read"] += sum([len(row[1]) for row in rows])
            return rows, more
        raise AssertionError

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        store = self._store(create=True)
        assert store is not None
        self._requests["write"] += 1
        first: StreamkitError | None = None
        appends: list[tuple[bytes, bytes]] = []
        rest: list[Put | Delete] = []
        etags: list[Etag | None] = []
        size = 0
        for op in ops:
            if len(op.key) > _KEY_LIMIT:
                raise ValueError(f"a key of {len(op.key)} bytes is longer than {_KEY_LIMIT}")
            if isinstance(op, Append):
                appends.append((op.key, op.value))
                etags.append(LOGGED)
                size += len(op.value)
            elif isinstance(op, Put):
                rest.append(op)
                etags.append(op.value)
                size += len(op.value)
            else:
                rest.append(op)
                etags.append(None)
        if appends:
            try:
                self._append(store, partition, appends, durable)
            except StreamkitError as error:
                first = error
        if rest:
            try:
                self._apply(store, partition, rest)
            except StreamkitError as error:
                first = first or error
        if first is not None:
            raise first
        self._requests["bytes_written"] += size
        return etags

    def _append(self, store: OpenStore, partition: bytes, rows: list[tuple[bytes, bytes]], durable: bool) -> None:
        if len(rows) > 1:
            rows.sort(key=_key)
        prefix = keys_of(partition).rows
        txn = store.env.begin()
        try:
            taken = {key for key, _ in rows if txn.get(prefix + key) is not None}
        except lmdb.Error as error:
            raise index_fault(error, store.env.path) from error
        finally:
            store.env.end(txn)
        log = store.log_to_append(partition)
        refused = log.append(rows, taken, durable=durable)
        store.flush_if_many(partition, log)
        if refused:
            raise Conflict(refused[0])

    def _apply(self, store: OpenStore, partition: bytes, ops: Sequence[Put | Delete]) -> None:
        keys = keys_of(partition)
        log = store.log(partition)
        end = log.sync() if log is not None else 0
        pending = log.pending if log is not None else None
        low, last = (log.low, log.last) if log is not None else (None, None)

        def work(txn: lmdb.Transaction[bytes]) -> tuple[int, int, int]:
            base, trimmed = 0, False
            if pending is not None:
                base = put_pending(txn, keys, pending, end)
            for op in ops:
                key, row = op.key, keys.rows + op.key
                logged = (
                    low is not None and last is not None and low <= key <= last and txn.get(keys.refs + key) is not None
                )
                expect = op.expect
                if expect is not ANY:
                    stored = txn.get(row)
                    if expect is ABSENT:
                        holds = stored is None and not logged
                    elif stored is not None:
                        holds = unpack_row(row, stored) == expect
                    else:
                        holds = logged and expect == LOGGED
                    if not holds:
                        raise Conflict(key)
                if isinstance(op, Put):
                    txn.put(row, pack_row(row, op.value))
                else:
                    txn.delete(row)
                if logged:
                    txn.delete(keys.refs + key)
                    trimmed = True
            return base, txn.id(), checkpoint(txn, keys).first if trimmed else 0

        base, number, first = store.env.write(work)
        if log is not None:
            log.indexed(base, number)
            if first:
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
        store, self._open = self._open, None
        if store is not None:
            leave(store)


_new_row = partial(tuple.__new__, Row)
"""Row from a tuple; makes them three times as fast as calling Row."""


def _position(found: tuple[bytes, Ref, int]) -> int:
    return found[1][0]


_key = itemgetter(0)


def _settled(log: PartitionLog, pending: Pending, partition: bytes, txn: lmdb.Transaction[bytes]) -> Pending:
    """What is not in the index as `txn` sees it. `pending` was taken before `txn` began."""
    number = txn.id()
    if number == pending.txn:
        return pending
    return log.as_of(pending, indexed_end(txn, keys_of(partition)), number)


def _locator(
    log: PartitionLog | None, pending: Pending | None, partition: bytes, txn: lmdb.Transaction[bytes]
) -> Callable[[bytes], Ref | None]:
    """A function that says where an appended row is."""
    if log is None or pending is None:
        return _nowhere
    low, last = log.low, log.last
    if low is None or last is None:
        return _nowhere
    pending = _settled(log, pending, partition, txn)
    keys, refs, prefix, get = pending.keys, pending.refs, keys_of(partition).refs, txn.get
    first = keys[0] if keys else None

    def locate(key: bytes) -> Ref | None:
        if not low <= key <= last:
            return None
        if first is not None and key >= first:
            index = bisect_left(keys, key)
            return refs[index] if index < len(keys) and keys[index] == key else None
        stored = get(prefix + key)
        return REF.unpack(stored) if stored is not None else None

    return locate


def _nowhere(key: bytes) -> None:
    return None


def _rows(
    txn: lmdb.Transaction[bytes], prefix: bytes, start: bytes, end: bytes, count: int, values: bool
) -> tuple[list[Row], bool]:
    """Rows of the index, and whether there may be more."""
    rows: list[Row] = []
    stop, size = prefix + end, 0
    with txn.cursor() as cursor:
        if not cursor.set_range(prefix + start):
            return rows, False
        for key, stored in cursor.iternext():
            if key >= stop:
                return rows, False
            if len(rows) == count or size > _PAGE_BYTES:
                return rows, True
            data = unpack_row(key, stored) if values else b""
            rows.append(Row(key[KEY:], data, data))
            size += len(data)
    return rows, False


def _refs(
    log: PartitionLog,
    pending: Pending,
    partition: bytes,
    txn: lmdb.Transaction[bytes],
    start: bytes,
    end: bytes,
    count: int,
    values: bool,
) -> tuple[list[tuple[bytes, Ref]], bool]:
    """Where the appended rows of a range are, and whether there may be more."""
    refs: list[tuple[bytes, Ref]] = []
    low, last = log.low, log.last
    if low is None or last is None or start > last or end <= low:
        return refs, False
    pending = _settled(log, pending, partition, txn)
    if not pending.keys or start < pending.keys[0]:
        prefix, unpack = keys_of(partition).refs, REF.unpack
        stop = prefix + end
        with txn.cursor() as cursor:
            if cursor.set_range(prefix + start):
                for key, stored in islice(cursor.iternext(), count + 1):
                    if key >= stop:
                        break
                    refs.append((key[KEY:], unpack(stored)))
    if len(refs) <= count:
        first = bisect_left(pending.keys, start)
        after = min(bisect_left(pending.keys, end), first + count + 1 - len(refs))
        refs += zip(pending.keys[first:after], pending.refs[first:after], strict=True)
    more = len(refs) > count
    del refs[count:]
    if values:
        size = 0
        for index, (_, ref) in enumerate(refs):
            size += ref[1]
            if size > _PAGE_BYTES and index + 1 < len(refs):
                return refs[: index + 1], True
    return refs, more


def _load(log: PartitionLog, rows: Sequence[tuple[bytes, Ref]], again: bool) -> list[bytes] | None:
    try:
        return log.load(rows, again=again)
    except OSError as error:
        raise system_fault(error, log.path) from error


def _load_parts(
    log: PartitionLog,
    logged: Sequence[tuple[Ref, int]],
    ranges: Sequence[Range],
    out: list[bytes | None],
    again: bool,
) -> bool:
    try:
        for ref, index in logged:
            key, start, length = ranges[index]
            part = log.load_part(key, ref, start, length, again=again)
            if part is None:
                return False
            out[index] = part
        return True
    except OSError as error:
        raise system_fault(error, log.path) from error
