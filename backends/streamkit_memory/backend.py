"""One store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import UUID

from streamkit.backend import ANY, Etag, Expect, Grant, Limits, Range, Row, ServiceTime, Value
from streamkit.errors import LeaseLost, StoreClosed

from .rows import Rows
from .state import Service, tokens

__all__ = ["MemoryBackend"]

_LONGEST = 300


def _check_address(partition: bytes, keys: Sequence[bytes]) -> None:
    if len(partition) > _LONGEST:
        raise ValueError(f"a partition has at most {_LONGEST} bytes, not {len(partition)}")
    for key in keys:
        if len(key) > _LONGEST:
            raise ValueError(f"a key has at most {_LONGEST} bytes, not {len(key)}")


class MemoryBackend:
    """A store in memory, from `MemoryDriver.open`. Arguments that the contract forbids raise ValueError, so that tests
    find them."""

    def __init__(
        self,
        service: Service,
        store: UUID,
        limits: Limits,
        clock: Callable[[], float],
        request: Callable[[], None],
    ) -> None:
        self._service = service
        self._store = store
        self._limits = limits
        self._clock = clock
        self._send = request
        self._requests: Counter[str] = Counter()
        self._closed = False
        self._deleted = service.deleted[store]

    def __repr__(self) -> str:
        return f"<MemoryBackend {self._store} {'closed' if self._closed else 'open'}>"

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def requests(self) -> Mapping[str, int]:
        return dict(self._requests)

    def service_time(self) -> ServiceTime:
        """The driver's clock, now: this service can be asked without a request."""
        now = self._clock()
        return ServiceTime(now, now)

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        _check_address(partition, keys)
        self._request()
        with self._service.lock():
            rows = self._rows(partition)
            found = [rows.get(key) for key in keys]
            self._count("get", len(keys), read=sum(len(value.data) for value in found if value is not None))
        return found

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        _check_address(partition, [part.key for part in ranges])
        for part in ranges:
            if part.start < 0 or part.length < 0:
                raise ValueError(f"start and length of a range are zero or more: {part}")
        self._request()
        found: list[bytes | None] = []
        with self._service.lock():
            rows = self._rows(partition)
            for key, start, length, etag in ranges:
                value = rows.get(key)
                there = value is not None and etag in (None, value.etag)
                found.append(value.data[start : start + length] if value is not None and there else None)
            self._count("read", len(ranges), read=sum(len(data) for data in found if data is not None))
        return found

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        _check_address(partition, ())
        if limit < 0:
            raise ValueError(f"limit is zero (no limit) or more, not {limit}")
        self._check_open()
        return self._scan(partition, start, end, limit, values)

    def _scan(self, partition: bytes, start: bytes, end: bytes, limit: int, values: bool) -> Iterator[Row]:
        left = limit or (1 << 62)
        while left:
            size = min(left, self._limits.page)
            self._request()
            with self._service.lock():
                page = self._rows(partition).page(start, end, size)
                self._count("scan", 1, read=sum(len(row.data) for row in page) if values else 0)
            yield from page if values else (Row(row.key, b"", "") for row in page)
            if len(page) < size:
                return
            start = page[-1].key + b"\x00"
            left -= size

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        _check_address(partition, [key])
        self._request()
        with self._service.lock():
            self._count("put", 1, written=len(value))
            rows = self._rows(partition)
            etag = rows.put(key, value, expect, ordered=not self._limits.remote)
            self._keep(partition, rows)
        return etag

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        _check_address(partition, keys)
        self._request()
        # Backwards, because no caller may rely on an order; and one by one, so that others get in between.
        for key in reversed(keys):
            with self._service.lock():
                self._rows(partition).delete(key)
        with self._service.lock():
            self._count("delete", 1)

    def delete_if(self, partition: bytes, key: bytes, etag: Etag) -> None:
        """See `streamkit.backend.DeletesIf`."""
        _check_address(partition, [key])
        self._request()
        with self._service.lock():
            self._count("delete", 1)
            self._rows(partition).delete(key, etag)

    def acquire(self, name: str, ttl: float) -> Grant | None:
        if not ttl > 0:
            raise ValueError(f"ttl is more than 0 seconds, not {ttl}")
        self._request()
        with self._service.lock():
            self._count("lease", 1)
            now = self._clock()
            held = self._service.leases.get((self._store, name))
            if held is not None and now < held[1]:
                return None
            token = next(tokens)
            self._service.leases[self._store, name] = (token, now + ttl)
        return Grant(name, token, ttl, str(token))

    def renew(self, grant: Grant) -> Grant:
        self._request()
        with self._service.lock():
            self._count("lease", 1)
            held = self._service.leases.get((self._store, grant.name))
            if held is None or held[0] != grant.token:
                raise LeaseLost(f"the lease {grant.name!r} was taken or released; acquire it again")
            self._service.leases[self._store, grant.name] = (grant.token, self._clock() + grant.ttl)
        return grant

    def release(self, grant: Grant) -> None:
        self._request()
        with self._service.lock():
            self._count("lease", 1)
            held = self._service.leases.get((self._store, grant.name))
            if held is not None and held[0] == grant.token:
                del self._service.leases[self._store, grant.name]

    def is_held(self, name: str) -> bool:
        self._request()
        with self._service.lock():
            self._count("lease", 1)
            held = self._service.leases.get((self._store, name))
            return held is not None and self._clock() < held[1]

    def close(self) -> None:
        self._closed = True

    def has_ended(self) -> bool:
        """See `Ends`."""
        return not self._limits.remote and self._service.deleted[self._store] > self._deleted

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the store was closed; open it again")

    def _request(self) -> None:
        self._check_open()
        self._send()

    def _count(self, kind: str, requests: int, *, read: int = 0, written: int = 0) -> None:
        self._requests[kind] += requests
        if read:
            self._requests["bytes_read"] += read
        if written:
            self._requests["bytes_written"] += written

    def _rows(self, partition: bytes) -> Rows:
        """Return the partition's rows. A look at an empty store does not create it."""
        if self.has_ended():
            raise StoreClosed(f"the store {self._store} was deleted: open it again to start with an empty store")
        rows = self._service.stores.get(self._store, {}).get(partition)
        return Rows() if rows is None else rows

    def _keep(self, partition: bytes, rows: Rows) -> None:
        if not rows.empty:
            self._service.stores.setdefault(self._store, {})[partition] = rows
