"""Processes of one memory service, each with its own clock, and events while one of them is stopped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

from streamkit import Client
from streamkit.backend import ANY, Backend, Etag, Expect, Range, Row, ServiceTime, Value
from streamkit.errors import Unavailable
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver

__all__ = ["Process", "Service"]


class Process:
    """A driver whose backends call back where the process may be stopped: a call back happens once."""

    def __init__(self, driver: MemoryDriver, *, dated: bool) -> None:
        self._driver = driver
        self._dated = dated
        self.before_put: Callable[[], None] | None = None
        self.after_put: Callable[[], None] | None = None
        self.before_scan: Callable[[], None] | None = None
        self.before_read: Callable[[], None] | None = None
        self.deaf = False
        """Reads fail."""

    def take(self, name: str) -> None:
        call = getattr(self, name)
        setattr(self, name, None)
        if call is not None:
            call()

    def stores(self) -> Iterator[UUID]:
        return self._driver.stores()

    def open(self, store: UUID) -> Backend:
        return _Stoppable(self._driver.open(store), self, self._dated)

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        self._driver.delete(store, keep)

    def archive_root(self) -> tuple[str, dict[str, str]]:
        return self._driver.archive_root()

    def close(self) -> None:
        self._driver.close()


class _Stoppable:
    def __init__(self, inner: Backend, process: Process, dated: bool) -> None:
        self._inner = inner
        self._process = process
        self._dated = dated

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def service_time(self) -> ServiceTime | None:
        return self._inner.service_time() if self._dated else None

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        if self._process.deaf:
            raise Unavailable("the service cannot be reached")
        return self._inner.get(partition, keys)

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        self._process.take("before_read")
        return self._inner.read(partition, ranges)

    def scan(self, partition: bytes, start: bytes, end: bytes, **options: Any) -> Iterator[Row]:
        self._process.take("before_scan")
        return self._inner.scan(partition, start, end, **options)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        self._process.take("before_put")
        etag = self._inner.put(partition, key, value, expect, durable=durable)
        self._process.take("after_put")
        return etag


class Service:
    """A memory service with a clock of its own, and one store in it."""

    def __init__(self, kind: str, *, dated: bool = True) -> None:
        self.clock = ManualClock(5_000_000.0)
        self.id = uuid4()
        self._name = uuid4().hex
        self._remote = kind == "remote"
        self._dated = dated

    def process(self, clock: ManualClock | None = None) -> tuple[Process, Client]:
        """A process with its own clock; the service's if it is not given one."""
        driver = MemoryDriver(self._name, clock=self.clock, sleep=self.clock.sleep, remote=self._remote)
        process = Process(driver, dated=self._dated)
        return process, Client("memory://", process, 30.0, None, 64 << 20, clock or self.clock)
