"""Looking rows up, in the index and in the log. No index transaction is open while a log is read.

Each function takes what is pending before its transaction begins: what left it until then, the transaction sees. Log
files may be removed between the two, because their rows were; a row that is not found in them is looked up again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import islice, repeat
from operator import itemgetter
from typing import Final

import lmdb

from streamkit.backend import Range, Row, Value

from .faults import index_fault, system_fault
from .index import KEY, check_neighbour, content, damage, indexed_end, keys_of, look_up, ref_of, seek
from .loading import Misplaced, Part, load, load_one, load_part, load_parts
from .log import PartitionLog
from .pending import Pending
from .record import Ref
from .store import OpenStore

__all__ = ["LOGGED", "get_one", "get_rows", "read_one", "read_parts", "scan_page"]

LOGGED: Final = "log"
"""The etag of every appended row: it is never replaced, and its key never comes again."""

_PAGE_BYTES: Final = 4 << 20
_ATTEMPTS: Final = range(3)

_row = partial(tuple.__new__, Row)
_value = partial(tuple.__new__, Value)
"""Row and Value from a tuple, in a third of the time."""


def get_one(store: OpenStore, partition: bytes, key: bytes) -> Value | None:
    """The row's value; None if it is not there."""
    for attempt in _ATTEMPTS:
        log, ref, data = _find(store, partition, key)
        if log is None or ref is None:
            return None if data is None else _value((data, data))
        try:
            return _value((load_one(log.files, key, ref, log.view.end), LOGGED))
        except (Misplaced, OSError) as error:
            _look_again(log, error, attempt)
    raise AssertionError


def read_one(store: OpenStore, partition: bytes, key: bytes, start: int, length: int) -> bytes | None:
    """A part of the row's value; None if it is not there."""
    for attempt in _ATTEMPTS:
        log, ref, data = _find(store, partition, key)
        if log is None or ref is None:
            return None if data is None else data[start : start + length]
        try:
            return load_part(log.files, (ref[0], key, ref[1], start, length), log.view.end)
        except (Misplaced, OSError) as error:
            _look_again(log, error, attempt)
    raise AssertionError


def _look_again(log: PartitionLog, error: Misplaced | OSError, attempt: int) -> None:
    """Raise what `error` means, or prepare for another attempt if it may mean that others removed rows."""
    if isinstance(error, OSError):
        raise system_fault(error, log.path) from error
    if attempt == _ATTEMPTS[-1]:
        raise error.fault() from None
    log.files.refresh()


def _find(store: OpenStore, partition: bytes, key: bytes) -> tuple[PartitionLog | None, Ref | None, bytes | None]:
    """Where the row is: in this log, at that place; or what the index holds for it; or nowhere."""
    _, rows, refs, _ = keys_of(partition)
    log = store.log(partition)
    pending = log.pending if log is not None else None
    txn = store.env.begin()
    try:
        if log is not None and pending is not None:
            low, last = log.low, log.view.last
            if low is not None and last is not None and low <= key <= last:
                ref = _find_ref(_settled(log, pending, partition, txn), txn, refs, key)
                if ref is not None:
                    return log, ref, None
        key = rows + key
        stored = txn.get(key) or look_up(txn, key)
    except lmdb.Error as error:
        raise index_fault(error, store.env.path) from error
    finally:
        store.env.end(txn)
    return None, None, None if stored is None else content(key, stored)


def _find_ref(pending: Pending, txn: lmdb.Transaction[bytes], prefix: bytes, key: bytes) -> Ref | None:
    keys = pending.keys
    if keys and key >= keys[0]:
        index = bisect_left(keys, key)
        return pending.refs[index] if index < len(keys) and keys[index] == key else None
    stored = look_up(txn, prefix + key)
    return ref_of(stored) if stored is not None else None


def _settled(log: PartitionLog, pending: Pending, partition: bytes, txn: lmdb.Transaction[bytes]) -> Pending:
    """What is not in the index as `txn` sees it."""
    number = txn.id()
    if number == pending.txn:
        return pending
    return log.as_of(pending, indexed_end(txn, keys_of(partition)), number)


def _find_all(
    store: OpenStore, partition: bytes, keys: Sequence[bytes]
) -> tuple[PartitionLog | None, list[Ref | None], list[bytes | None]]:
    """For each key, where it is in the log, or else what the index has stored for it."""
    log = store.log(partition)
    pending = log.pending if log is not None else None
    _, rows, prefix, _ = keys_of(partition)
    refs: list[Ref | None] = [None] * len(keys)
    txn = store.env.begin()
    try:
        get = txn.get
        if log is not None and pending is not None:
            low, last = log.low, log.view.last
            if low is not None and last is not None:
                settled = None
                for index, key in enumerate(keys):
                    if low <= key <= last:
                        if settled is None:
                            settled = _settled(log, pending, partition, txn)
                            first = settled.keys[0] if settled.keys else last + b"\0"
                        stored_ref = get(prefix + key) if key < first else None
                        refs[index] = ref_of(stored_ref) if stored_ref else _find_ref(settled, txn, prefix, key)
                if settled is not None:
                    pairs = zip(keys, refs, strict=True)
                    return log, refs, [look_up(txn, rows + key) if ref is None else None for key, ref in pairs]
        stored = [get(rows + key) for key in keys]
        if None in stored:
            for key, there in zip(keys, stored, strict=True):
                if there is None:
                    look_up(txn, rows + key)
        return log, refs, stored
    except lmdb.Error as error:
        raise index_fault(error, store.env.path) from error
    finally:
        store.env.end(txn)


def get_rows(store: OpenStore, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
    """The values of several rows, in the order of `keys`."""
    rows = keys_of(partition).rows
    for attempt in _ATTEMPTS:
        log, refs, stored = _find_all(store, partition, keys)
        out: list[Value | None] = []
        for key, data in zip(keys, stored, strict=True):
            if data is None:
                out.append(None)
            else:
                data = content(rows + key, data)
                out.append(_value((data, data)))
        wanted = [(ref, index) for index, ref in enumerate(refs) if ref is not None]
        if log is None or not wanted:
            return out
        wanted.sort()
        try:
            values = load(log.files, [(keys[index], ref) for ref, index in wanted], log.view.end)
        except (Misplaced, OSError) as error:
            _look_again(log, error, attempt)
            continue
        for (_, index), value in zip(wanted, values, strict=True):
            out[index] = _value((value, LOGGED))
        return out
    raise AssertionError


def read_parts(store: OpenStore, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
    """Parts of several rows' values, in the order of `ranges`."""
    rows = keys_of(partition).rows
    keys = [part[0] for part in ranges]
    for attempt in _ATTEMPTS:
        log, refs, stored = _find_all(store, partition, keys)
        out: list[bytes | None] = []
        for (key, start, length), data in zip(ranges, stored, strict=True):
            out.append(None if data is None else content(rows + key, data)[start : start + length])
        wanted = [(ref, index) for index, ref in enumerate(refs) if ref is not None]
        if log is None or not wanted:
            return out
        wanted.sort()
        parts: list[Part] = []
        for (position, size), index in wanted:
            key, start, length = ranges[index]
            parts.append((position, key, size, start, length))
        try:
            found = load_parts(log.files, parts, log.view.end)
        except (Misplaced, OSError) as error:
            _look_again(log, error, attempt)
            continue
        for (_, index), part in zip(wanted, found, strict=True):
            out[index] = part
        return out
    raise AssertionError


def scan_page(
    store: OpenStore, partition: bytes, start: bytes, end: bytes, count: int, values: bool
) -> tuple[list[Row], bool]:
    """The first rows from `start` on, at most `count` and about 4 MiB, and whether there may be more before `end`."""
    for attempt in _ATTEMPTS:
        log = store.log(partition)
        pending = log.pending if log is not None else None
        refs: list[tuple[bytes, Ref]] = []
        txn = store.env.begin()
        try:
            rows, more = _scan_rows(txn, keys_of(partition).rows, start, end, count, values)
            if log is not None and pending is not None:
                low, last = log.low, log.view.last
                if low is not None and last is not None and start <= last and end > low:
                    settled = _settled(log, pending, partition, txn)
                    refs, more_refs = _scan_refs(settled, txn, keys_of(partition).refs, start, end, count, values)
                    # beyond the last key of a list that was cut, the other one must be cut too
                    if more and (not more_refs or rows[-1].key < refs[-1][0]):
                        refs = refs[: bisect_left(refs, (rows[-1].key, (0, 0)))]
                    elif more_refs:
                        rows = rows[: bisect_left(rows, (refs[-1][0],))]
                    more = more or more_refs
        except lmdb.Error as error:
            raise index_fault(error, store.env.path) from error
        finally:
            store.env.end(txn)
        if log is None or not refs:
            return rows, more
        try:
            data = load(log.files, refs, log.view.end) if values else [b""] * len(refs)
        except (Misplaced, OSError) as error:
            _look_again(log, error, attempt)
            continue
        logged: list[Row] = list(map(_row, zip([key for key, _ in refs], data, repeat(LOGGED), strict=False)))
        if not rows:
            return logged, more
        rows = sorted(rows + logged, key=itemgetter(0))
        return rows[:count], more or len(rows) > count
    raise AssertionError


def _scan_rows(
    txn: lmdb.Transaction[bytes], prefix: bytes, start: bytes, end: bytes, count: int, values: bool
) -> tuple[list[Row], bool]:
    rows: list[Row] = []
    stop, size, before = prefix + end, 0, b""
    with txn.cursor() as cursor:
        if not seek(cursor, prefix + start):
            return rows, False
        for key, stored in cursor.iternext():
            if key >= stop:
                check_neighbour(cursor)
                return rows, False
            if len(rows) == count or size > _PAGE_BYTES:
                return rows, True
            if key <= before:
                raise damage(key)
            before = key
            data = content(key, stored)
            rows.append(_row((key[KEY:], data, data)))
            size += len(data)
    return rows, False


def _scan_refs(
    pending: Pending, txn: lmdb.Transaction[bytes], prefix: bytes, start: bytes, end: bytes, count: int, values: bool
) -> tuple[list[tuple[bytes, Ref]], bool]:
    refs: list[tuple[bytes, Ref]] = []
    if not pending.keys or start < pending.keys[0]:
        stop, before = prefix + end, b""
        with txn.cursor() as cursor:
            if seek(cursor, prefix + start):
                for key, stored in islice(cursor.iternext(), count + 1):
                    if key >= stop:
                        check_neighbour(cursor)
                        break
                    if key <= before:
                        raise damage(key)
                    before = key
                    if not values:
                        content(key, stored)
                    refs.append((key[KEY:], ref_of(stored)))
    if len(refs) <= count:
        first = bisect_left(pending.keys, start)
        last = min(bisect_left(pending.keys, end), first + count + 1 - len(refs))
        refs += zip(pending.keys[first:last], pending.refs[first:last], strict=True)
    more = len(refs) > count
    del refs[count:]
    if values:
        size = 0
        for index, (_, ref) in enumerate(refs, 1):
            size += ref[1]
            if size > _PAGE_BYTES and index < len(refs):
                return refs[:index], True
    return refs, more
