"""One store on S3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from streamkit.backend import (
    ABSENT,
    ANY,
    Append,
    Delete,
    Etag,
    Expect,
    Grant,
    Limits,
    Op,
    Put,
    Range,
    Row,
    ServiceTime,
    Value,
)
from streamkit.errors import PermanentError, StoreClosed

from .bucket import Bucket, Listed
from .connection import Connection
from .layout import check_address, decode, encode, is_long, label, listing
from .leases import Leases
from .marker import Marker

__all__ = ["S3Backend"]

_LIMITS = Limits(
    atomic=False,
    ops=1000,
    inline=256 << 10,
    row=1 << 20,
    upkeep=500,
    poll=(0.25, 5.0),
    remote=True,
)


class _Entry(NamedTuple):
    key: bytes
    object: Listed


class S3Backend:
    """Made by `S3Driver.open`.

    An Append is a Put with ABSENT: that its key is greater than all before it cannot be asked of one PUT, and the
    engine sees to it by writing number n + 1 only when it has seen n.
    """

    def __init__(self, connection: Connection, store: UUID, path: str, page: int) -> None:
        self._connection = connection
        self._store = store
        self._path = path
        self._requests: Counter[str] = Counter()
        self._limits = _LIMITS._replace(page=page)
        self._bucket = Bucket(connection, self._requests, page)
        self._marker = Marker(self._bucket, path)
        self._leases = Leases(self._bucket, path, self._marker)
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<S3Backend s3://{self._connection.target.bucket}/{self._path} {state}>"

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def requests(self) -> Mapping[str, int]:
        """By HTTP verb, with LIST for the GET of a list and DELETE for the POST that deletes many."""
        return dict(self._requests)

    def service_time(self) -> ServiceTime | None:
        return self._connection.process.clock.time

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        self._check(partition, keys)
        split = self._splits(partition, keys)
        folder = self._folder(partition, split)
        with self._marker.beside():
            return self._connection.together([partial(self._get, folder + encode(key, split)) for key in keys])

    def _get(self, name: str) -> Value | None:
        found = self._bucket.get(name)
        return None if found is None else Value(found.data, found.etag)

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        self._check(partition, [part.key for part in ranges])
        for part in ranges:
            if part.start < 0 or part.length < 0:
                raise ValueError(f"start and length of a range are zero or more: {part}")
        split = self._splits(partition, [part.key for part in ranges])
        folder = self._folder(partition, split)
        with self._marker.beside():
            return self._connection.together(
                [
                    partial(self._bucket.get_range, folder + encode(key, split), start, length)
                    for key, start, length in ranges
                ]
            )

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        """Values are fetched ahead: up to 32 at once and 64 MiB, or one that is larger."""
        self._check(partition, ())
        if limit < 0:
            raise ValueError(f"limit is zero (no limit) or more, not {limit}")
        return self._scan(partition, start, end, limit, values)

    def _scan(self, partition: bytes, start: bytes, end: bytes, limit: int, values: bool) -> Iterator[Row]:
        if start >= end:
            return
        split = self._splits(partition, (start, end))
        folder = self._folder(partition, split)
        entries = self._entries(folder, listing(start, end, split), limit)
        with self._marker.beside():
            first = next(entries, None)
        if first is None:
            return
        entries = chain((first,), entries)
        if not values:
            for entry in entries:
                self._check_open()
                yield Row(entry.key, b"", entry.object.etag)
            return
        key, listed, yielded = first.key, 0, 0
        with closing(self._connection.each(self._row, entries, lambda entry: entry.object.size)) as rows:
            for key, value in rows:
                self._check_open()
                listed += 1
                # One that was deleted after it was listed is none.
                if value is not None:
                    yielded += 1
                    yield Row(key, value.data, value.etag)
        if yielded < listed == limit:
            yield from self._scan(partition, key + b"\x00", end, limit - yielded, values)

    def _row(self, entry: _Entry) -> tuple[bytes, Value | None]:
        return entry.key, self._get(entry.object.name)

    def _entries(self, folder: str, between: tuple[str, str, str], limit: int) -> Iterator[_Entry]:
        prefix, after, stop = between
        listed = self._bucket.list(folder + prefix, after=after and folder + after, stop=folder + stop, limit=limit)
        found = 0
        for item in listed:
            key = decode(item.name[len(folder) :])
            # What streamkit did not write is left alone.
            if key is not None:
                yield _Entry(key, item)
                found += 1
                if found == limit:
                    return

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        """Always durable: S3 answers when the object is stored."""
        self._check(partition, [op.key for op in ops])
        if not 1 <= len(ops) <= _LIMITS.ops:
            raise ValueError(f"one write has 1 to {_LIMITS.ops} operations, not {len(ops)}")
        if len({op.key for op in ops}) < len(ops):
            raise ValueError("one write names each key once")
        marker = self._marker.ensure()
        conditional_deletes, split = marker.conditional_deletes, marker.split
        folder = self._folder(partition, split)
        etags: list[Etag | None] = [None] * len(ops)
        plain: list[str] = []
        calls: list[Callable[[], None]] = []

        def put(at: int, op: Put | Append) -> None:
            absent = isinstance(op, Append) or op.expect is ABSENT
            etag = None if isinstance(op, Append) or isinstance(op.expect, Expect) else str(op.expect)
            etags[at] = self._bucket.put(
                folder + encode(op.key, split), bytes(op.value), absent=absent, etag=etag, key=op.key
            )

        for at, op in enumerate(ops):
            if not isinstance(op, Delete):
                calls.append(partial(put, at, op))
            elif op.expect is ANY:
                plain.append(folder + encode(op.key, split))
            elif op.expect is ABSENT:
                raise ValueError("a Delete that expects nothing to be there does nothing; leave it out")
            elif conditional_deletes:
                name = folder + encode(op.key, split)
                calls.append(partial(self._bucket.delete, name, etag=str(op.expect), key=op.key))
            else:
                raise PermanentError(
                    f"the S3 service of {self!r} does not honour If-Match on DELETE, so this row cannot be removed "
                    "without the risk to remove another; use a service, or a version of it, that does"
                )
        if plain:
            calls.append(partial(self._bucket.delete_all, plain))
        self._connection.together(calls)
        return etags

    def acquire(self, name: str, ttl: float) -> Grant | None:
        self._check_open()
        return self._leases.acquire(name, ttl)

    def renew(self, grant: Grant) -> Grant:
        self._check_open()
        return self._leases.renew(grant)

    def release(self, grant: Grant) -> None:
        self._check_open()
        self._leases.release(grant)

    def close(self) -> None:
        self._closed = True

    def _folder(self, partition: bytes, split: bool) -> str:
        return f"{self._path}{label(partition, split)}/"

    def _splits(self, partition: bytes, keys: Sequence[bytes]) -> bool:
        """See `layout`. Only where it matters is the marker waited for."""
        return not is_long(partition, keys) or self._marker.splits()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self._store} was closed; open it again")
        self._connection.check_open()

    def _check(self, partition: bytes, keys: Sequence[bytes]) -> None:
        self._check_open()
        check_address(partition, keys)
