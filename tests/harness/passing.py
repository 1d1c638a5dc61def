"""A driver and a backend that pass every call to another one: the bases of those that change some calls."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from uuid import UUID

from streamkit.backend import ANY, Backend, Driver, Etag, Expect, Grant, Limits, Range, Row, ServiceTime, Value

__all__ = ["PassingBackend", "PassingDriver"]


class PassingBackend:
    """A backend around `inner`, with the calls that every backend has."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def limits(self) -> Limits:
        return self.inner.limits

    @property
    def requests(self) -> Mapping[str, int]:
        return self.inner.requests

    def service_time(self) -> ServiceTime | None:
        return self.inner.service_time()

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        return self.inner.get(partition, keys)

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        return self.inner.read(partition, ranges)

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        return self.inner.scan(partition, start, end, limit=limit, values=values)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        return self.inner.put(partition, key, value, expect, durable=durable)

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        self.inner.delete(partition, keys)

    def acquire(self, name: str, ttl: float) -> Grant | None:
        return self.inner.acquire(name, ttl)

    def renew(self, grant: Grant) -> Grant:
        return self.inner.renew(grant)

    def release(self, grant: Grant) -> None:
        self.inner.release(grant)

    def close(self) -> None:
        self.inner.close()


class PassingDriver:
    """A driver around `inner`, with the calls that every driver has."""

    def __init__(self, inner: Driver) -> None:
        self.inner = inner

    def stores(self) -> Iterator[UUID]:
        return self.inner.stores()

    def open(self, store: UUID) -> Backend:
        return self.inner.open(store)

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        self.inner.delete(store, keep)

    def close(self) -> None:
        self.inner.close()
