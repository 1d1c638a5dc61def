"""The sound backend that broken ones derive from, and their maker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from uuid import UUID, uuid4

from streamkit.backend import (
    ANY,
    Backend,
    Driver,
    Etag,
    Expect,
    Grant,
    Limits,
    Range,
    Row,
    ServiceTime,
    Value,
)
from streamkit_memory import MemoryDriver

__all__ = ["Sound", "broken_driver"]


class Sound:
    """A correct backend, the base of the broken ones: it passes every call to memory. `shared` belongs to all backends
    of one root."""

    caught_by: ClassVar[str] = ""
    remote: ClassVar[bool] = False
    """True if the memory behind it behaves as a network service."""
    reopen: Callable[[], Backend]
    """The store's inner backend as who opens it now has it."""

    def __init__(self, inner: Backend, store: UUID, shared: dict[Any, Any]) -> None:
        self.inner = inner
        self.store = store
        self.shared = shared

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

    @staticmethod
    def stores(driver: Driver) -> Iterator[UUID]:
        """Do the work of the driver's `stores`."""
        return driver.stores()

    @staticmethod
    def delete_store(driver: Driver, store: UUID, keep: Collection[tuple[bytes, bytes]]) -> None:
        """Do the work of the driver's `delete`."""
        driver.delete(store, keep)


class _Driver:
    def __init__(self, kind: type[Sound], inner: Driver, shared: dict[Any, Any]) -> None:
        self._kind = kind
        self._inner = inner
        self._shared = shared

    def stores(self) -> Iterator[UUID]:
        return self._kind.stores(self._inner)

    def open(self, store: UUID) -> Backend:
        backend = self._kind(self._inner.open(store), store, self._shared)
        backend.reopen = partial(self._inner.open, store)
        return backend

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        self._kind.delete_store(self._inner, store, keep)

    def close(self) -> None:
        self._inner.close()


def broken_driver(kind: type[Sound], **options: Any) -> Callable[[], Driver]:
    """A maker of drivers of one new root, whose backends are of `kind`; `options` are those of MemoryDriver."""
    name = f"broken-{uuid4()}"
    shared: dict[Any, Any] = {}
    return lambda: _Driver(kind, MemoryDriver(name, remote=kind.remote, **options), shared)
