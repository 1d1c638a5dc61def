"""One store on S3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from streamkit.backend import ABSENT, ANY, NEXT, Etag, Expect, Grant, Limits, Range, Row, ServiceTime, Value
from streamkit.errors import AccessDenied, PermanentError, StoreClosed

from .bucket import MOST, Bucket, Listed
from .connection import Connection
from .layout import check_address, decode, encode, label, listing
from .leases import Leases
from .marker import Marker

__all__ = ["S3Backend"]


_RATE = 3500.0
"""Writes a second of a prefix, and more reads: docs.aws.amazon.com, optimizing-performance."""


class _Entry(NamedTuple):
    key: bytes
    object: Listed


class S3Backend:
    """Made by `S3Driver.open`.

    NEXT is ABSENT: that a key is greater than all before it cannot be asked of one PUT.
    """

    def __init__(self, connection: Connection, store: UUID, path: str, page: int) -> None:
        self._connection = connection
        self._store = store
        self._path = path
        self._requests: Counter[str] = Counter()
        self._limits = Limits(remote=True, page=page, rate=_RATE)
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
        """The number of requests by HTTP verb. LIST is the GET of a list, and DELETE includes the POST that deletes
        many."""
        return dict(self._requests)

    def service_time(self) -> ServiceTime | None:
        return self._connection.process.counts.clock.time

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        self._check(partition, keys)
        folder = self._folder(partition)
        with self._marker.while_reading():
            return self._connection.together([partial(self._get, folder + encode(key)) for key in keys])

    def _get(self, name: str) -> Value | None:
        found = self._bucket.get(name)
        return None if found is None else Value(found.data, found.etag)

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        self._check(partition, [part.key for part in ranges])
        for part in ranges:
            if part.start < 0 or part.length < 0:
                raise ValueError(f"start and length of a range are zero or more: {part}")
        folder = self._folder(partition)
        read = self._bucket.get_range
        with self._marker.while_reading():
            return self._connection.together(
                [partial(read, folder + encode(key), start, length, etag) for key, start, length, etag in ranges]
            )

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        """Scan rows. Values are fetched ahead: up to 40 at once and 64 MiB, or one that is larger."""
        self._check(partition, ())
        if limit < 0:
            raise ValueError(f"limit is zero (no limit) or more, not {limit}")
        return self._scan(partition, start, end, limit, values)

    def _scan(self, partition: bytes, start: bytes, end: bytes, limit: int, values: bool) -> Iterator[Row]:
        if start >= end:
            return
        folder = self._folder(partition)
        entries = self._entries(folder, listing(start, end), limit)
        with self._marker.while_reading():
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
            # Objects that streamkit did not write are left alone.
            if key is not None:
                yield _Entry(key, item)
                found += 1
                if found == limit:
                    return

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        """One PUT. Always durable: S3 answers when the object is stored."""
        self._check(partition, [key])
        self._marker.ensure()
        etag = None if isinstance(expect, Expect) else expect
        name = self._folder(partition) + encode(key)
        return self._bucket.put(name, value, absent=expect in (ABSENT, NEXT), etag=etag, key=key)

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        """One request for 1000 rows, several at once."""
        self._check(partition, keys)
        self._marker.check()
        folder = self._folder(partition)
        names = list(dict.fromkeys(folder + encode(key) for key in keys))
        batches = [names[at : at + MOST] for at in range(0, len(names), MOST)]
        self._connection.together([partial(self._bucket.delete_all, batch) for batch in batches])

    def delete_if(self, partition: bytes, key: bytes, etag: Etag) -> None:
        """See `streamkit.backend.DeletesIf`. A service that has no conditional deletions deletes the row."""
        self._check(partition, [key])
        self._marker.check()
        name = self._folder(partition) + encode(key)
        try:
            self._bucket.delete(name, etag=etag, key=key)
        except AccessDenied:
            raise
        except PermanentError:
            self._bucket.delete(name)

    def kept_copies(self) -> str | None:
        """Needs the right s3:GetBucketVersioning."""
        self._check_open()
        state = self._bucket.versioning()
        if not state:
            return None
        archive = f"{self._path.removesuffix(f'{self._store}/')}archive/{self._store}/"
        return (
            f"the bucket {self._connection.target.bucket!r} keeps earlier versions of replaced and deleted objects "
            f"(versioning is {state.lower()}): delete the noncurrent versions under {self._path!r} and {archive!r}, or "
            "have a lifecycle rule do it (NoncurrentVersionExpiration). Object Lock keeps them until its retention ends"
        )

    def acquire(self, name: str, ttl: float) -> Grant | None:
        self._check_open()
        return self._leases.acquire(name, ttl)

    def renew(self, grant: Grant) -> Grant:
        self._check_open()
        return self._leases.renew(grant)

    def release(self, grant: Grant) -> None:
        self._check_open()
        self._leases.release(grant)

    def is_held(self, name: str) -> bool:
        self._check_open()
        return self._leases.is_held(name)

    def close(self) -> None:
        self._closed = True

    def _folder(self, partition: bytes) -> str:
        return f"{self._path}{label(partition)}/"

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self._store} was closed; open it again")
        self._connection.check_open()

    def _check(self, partition: bytes, keys: Sequence[bytes]) -> None:
        self._check_open()
        check_address(partition, keys)
