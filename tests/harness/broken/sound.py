"""The sound backend that broken ones derive from, and their maker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, ClassVar
from uuid import UUID, uuid4

from harness.passing import PassingBackend, PassingDriver
from streamkit.backend import Backend, Driver
from streamkit_memory import MemoryDriver

__all__ = ["Sound", "broken_driver"]


class Sound(PassingBackend):
    """A correct backend, the base of the broken ones: it passes every call to memory. `shared` belongs to all backends
    of one root."""

    caught_by: ClassVar[str] = ""
    remote: ClassVar[bool] = False
    """True if the memory behind it behaves as a network service."""
    reopen: Callable[[], Backend]
    """The store's inner backend as who opens it now has it."""

    def __init__(self, inner: Backend, store: UUID, shared: dict[Any, Any]) -> None:
        super().__init__(inner)
        self.store = store
        self.shared = shared

    @staticmethod
    def stores(driver: Driver) -> Iterator[UUID]:
        """Do the work of the driver's `stores`."""
        return driver.stores()

    @staticmethod
    def delete_store(driver: Driver, store: UUID, keep: Collection[tuple[bytes, bytes]]) -> None:
        """Do the work of the driver's `delete`."""
        driver.delete(store, keep)


class _Driver(PassingDriver):
    def __init__(self, kind: type[Sound], inner: Driver, shared: dict[Any, Any]) -> None:
        super().__init__(inner)
        self._kind = kind
        self._shared = shared

    def stores(self) -> Iterator[UUID]:
        return self._kind.stores(self.inner)

    def open(self, store: UUID) -> Backend:
        backend = self._kind(self.inner.open(store), store, self._shared)
        backend.reopen = partial(self.inner.open, store)
        return backend

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        self._kind.delete_store(self.inner, store, keep)


def broken_driver(kind: type[Sound], **options: Any) -> Callable[[], Driver]:
    """A maker of drivers of one new root, whose backends are of `kind`; `options` are those of MemoryDriver."""
    name = f"broken-{uuid4()}"
    shared: dict[Any, Any] = {}
    return lambda: _Driver(kind, MemoryDriver(name, remote=kind.remote, **options), shared)
