"""Drivers of memory stores that write atomically, by rows or by keys: what sweeps and schedules run on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from uuid import UUID

from streamkit.backend import Backend, Driver
from streamkit.testing import ManualClock
from streamkit_memory.driver import MemoryDriver

MakeDriver = Callable[[ManualClock], Driver]


class Cramped:
    """A driver whose backends ask for upkeep after every other transaction, and have room for little in a row."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner

    def stores(self) -> Iterator[UUID]:
        return self._inner.stores()

    def open(self, store: UUID) -> Backend:
        backend = self._inner.open(store)
        cramped = backend.limits._replace(upkeep=2, row=200, inline=min(backend.limits.inline, 100))
        backend._limits = cramped  # type: ignore[attr-defined]
        return backend

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        self._inner.delete(store, keep)

    def close(self) -> None:
        self._inner.close()


def in_memory(atomic: str, *, page: int = 1000, latency: float = 0.0) -> MakeDriver:
    def make(clock: ManualClock) -> Driver:
        name = f"sweep-{atomic}-{page}-{latency}"
        return MemoryDriver(
            name,
            atomic=atomic,  # type: ignore[arg-type]
            page=page,
            latency=latency,
            clock=clock,
            sleep=clock.sleep,
        )

    return make


def cramped(atomic: str) -> MakeDriver:
    return lambda clock: Cramped(in_memory(atomic)(clock))


MEMORY: dict[str, MakeDriver] = {
    "batch": in_memory("batch"),
    "rows": in_memory("rows"),
    "key": in_memory("key"),
    "key, remote": in_memory("key", latency=0.001),
    "batch, remote": in_memory("batch", latency=0.001, page=1),
    "key, cramped": cramped("key"),
    "rows, cramped": cramped("rows"),
}
