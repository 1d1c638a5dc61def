"""A process that posts its requests, and actions of others at a moment that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

from harness.passing import PassingBackend, PassingDriver
from streamkit import Client, Record, Store
from streamkit.backend import ANY, Backend, Driver, Etag, Expect, Value
from streamkit.lexkey import LexKey
from streamkit.log.inbox import Inbox
from streamkit.log.partition import Partition
from streamkit.testing import ManualClock
from streamkit_memory.driver import MemoryDriver

__all__ = ["Hooks", "Shared", "inbox_of", "partition_of"]

_INBOX = b"\x00" + bytes(LexKey.encode("INB"))
Hook = Callable[[], None]


class Hooks:
    """Hooks at the calls of one process; a hook for one call removes itself."""

    posted: Hook | None = None
    """A function that is called after a message was put."""
    committing: Hook | None = None
    """A function that is called before a transaction is put."""
    looking: Hook | None = None
    """A function that is called before single transactions are read."""


class Shared:
    """A remote store that several processes have open, on a clock of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._name = f"posted-{uuid4()}"
        self.id: UUID = uuid4()

    def driver(self) -> MemoryDriver:
        return MemoryDriver(self._name, remote=True, clock=self.clock, sleep=self.clock.sleep)

    def process(self, hooks: Hooks | None = None, around: Callable[[Driver], Driver] | None = None) -> Store:
        driver: Any = self.driver()
        if hooks is not None:
            driver = _HookedDriver(driver, hooks)
        return Client("memory://", around(driver) if around else driver, 5.0, None, 64 << 20, self.clock).store(self.id)

    def write(self, store: Store, segment: str, payload: bytes = b"x", **more: Any) -> Any:
        return store.produce("s", segment, [Record(payload)], **more)

    def stored(self) -> Iterator[tuple[str, bytes]]:
        """All that is stored, keys too."""
        driver = self.driver()
        backend = driver.open(self.id)
        for partition in list(driver._service.stores[self.id]):
            for row in backend.scan(partition, b"", b"\xff" * 300):
                yield f"{partition!r} key", row.key
                yield f"{partition!r}/{row.key!r}", row.data

    def letters(self) -> list[bytes]:
        """Key and value of each letter."""
        driver = self.driver()
        backend = driver.open(self.id)
        inboxes = [name for name in list(driver._service.stores[self.id]) if name.endswith(_INBOX)]
        return [row.key + row.data for inbox in inboxes for row in backend.scan(inbox, b"", b"\xff" * 300)]

    def payloads(self, segment: str) -> list[bytes]:
        return [entry.payload for entry in self.process().consume_segment("s", segment)]


def partition_of(store: Store, number: int = 0) -> Partition:
    known = store._handle.look_up("s")[0]
    assert known is not None
    return known.partitions[number]


def inbox_of(store: Store) -> Inbox:
    """The inbox of the first partition, as this process uses it."""
    known = store._handle.look_up("s")[0]
    assert known is not None
    inbox = known.committers[0].inbox
    assert inbox is not None
    return inbox


class _HookedDriver(PassingDriver):
    def __init__(self, inner: MemoryDriver, hooks: Hooks) -> None:
        super().__init__(inner)
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(self, store: UUID) -> Backend:
        return _HookedBackend(self.inner.open(store), self._hooks)


class _HookedBackend(PassingBackend):
    def __init__(self, inner: Backend, hooks: Hooks) -> None:
        super().__init__(inner)
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        if self._hooks.looking is not None and keys[0].startswith(b"TXN"):
            self._hooks.looking()
        return super().get(partition, keys)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        if self._hooks.committing is not None and key.startswith(b"TXN"):
            self._hooks.committing()
        etag = super().put(partition, key, value, expect, durable=durable)
        if self._hooks.posted is not None and partition.endswith(_INBOX):
            self._hooks.posted()
        return etag
