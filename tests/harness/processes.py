"""Processes of one memory service, each with its own clock, and events while one of them is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

from harness.passing import PassingBackend, PassingDriver
from streamkit import Client
from streamkit.backend import ANY, Backend, Etag, Expect, Range, Row, ServiceTime, Value
from streamkit.errors import Unavailable
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver

__all__ = ["Process", "Service"]


class Process(PassingDriver):
    """A driver whose backends call back where the process may be stopped: a call back happens once."""

    def __init__(self, driver: MemoryDriver, *, dated: bool) -> None:
        super().__init__(driver)
        self._memory = driver
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

    def open(self, store: UUID) -> Backend:
        return _Stoppable(self.inner.open(store), self, self._dated)

    def archive_root(self) -> tuple[str, dict[str, str]]:
        return self._memory.archive_root()


class _Stoppable(PassingBackend):
    def __init__(self, inner: Backend, process: Process, dated: bool) -> None:
        super().__init__(inner)
        self._process = process
        self._dated = dated

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def service_time(self) -> ServiceTime | None:
        return super().service_time() if self._dated else None

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        if self._process.deaf:
            raise Unavailable("the service cannot be reached")
        return super().get(partition, keys)

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        self._process.take("before_read")
        return super().read(partition, ranges)

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        self._process.take("before_scan")
        return super().scan(partition, start, end, limit=limit, values=values)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        self._process.take("before_put")
        etag = super().put(partition, key, value, expect, durable=durable)
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
