"""The rings of a process: one for each space that has a follower."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import UUID

from ..aio import AsyncStore
from ..errors import Unavailable
from .access import Access
from .encoding import entry_line
from .gate import too_many
from .limits import Limits
from .ring import Ring

__all__ = ["Rings"]

_IDLE = 30.0
"""Seconds: a ring without a listener for one to two such periods is closed."""


class Rings:
    """The rings of a process. It makes them when they are needed, and closes unused ones."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rings: dict[tuple[UUID, str], Ring] = {}
        self._first: dict[tuple[UUID, str], str] = {}
        """The id of the caller that a ring was made for."""
        self._idle: set[tuple[UUID, str]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def of(self, store: AsyncStore, space: str, access: Access) -> Ring:
        """The ring of a space. It gets every entry that is committed from now on.

        A Problem if the process follows too many spaces, or too many that this caller was the first to follow.
        """
        key = store.id, space
        ring = self._rings.get(key)
        if ring is None or ring.error is not None:
            self._check(access)
            ring = self._rings[key] = Ring(store, space, self._limits.ring_bytes, entry_line)
            self._first[key] = access.id
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_IDLE, self._sweep)
        self._idle.discard(key)
        await ring.start()
        return ring

    def _check(self, access: Access) -> None:
        limits = self._limits
        if limits.spaces and len(self._rings) >= limits.spaces:
            raise too_many("followed spaces of the server", limits.spaces, int(_IDLE))
        if limits.spaces_per_key:
            count = sum([self._first.get(key) == access.id for key in self._rings])
            if count >= limits.spaces_per_key:
                raise too_many("followed spaces", limits.spaces_per_key, int(_IDLE))

    def end(self, store_id: UUID, error: Exception, space: str | None = None) -> None:
        """End the rings of a store, or of one space: their streams say `error` and end."""
        for key, ring in list(self._rings.items()):
            if key[0] == store_id and space in (None, key[1]):
                del self._rings[key]
                ring.stop()
                ring.end_with(error)

    def uses(self, store_id: UUID) -> bool:
        """True if a space of the store is followed."""
        return any(key[0] == store_id for key in self._rings)

    def _sweep(self) -> None:
        self._timer = None
        for key in self._idle:
            ring = self._rings.get(key)
            if ring is not None and not ring.listeners:
                del self._rings[key]
                ring.stop()
                # A connection whose first page takes this long listens only later: it must not wait for ever.
                ring.end_with(Unavailable("nobody followed the space for a while; connect again"))
        self._first = {key: id for key, id in self._first.items() if key in self._rings}
        self._idle = {key for key, ring in self._rings.items() if not ring.listeners}
        if self._rings:
            self._timer = asyncio.get_running_loop().call_later(_IDLE, self._sweep)

    def __iter__(self) -> Iterator[Ring]:
        return iter(self._rings.values())

    def __len__(self) -> int:
        return len(self._rings)

    @property
    def misses(self) -> int:
        """The number of times that a connection of a present ring had to read from the store again."""
        return sum([ring.misses for ring in self._rings.values()])

    def wake_all(self) -> None:
        """Make all listeners look at the service's state."""
        for ring in self._rings.values():
            ring.wake_all()

    async def close(self) -> None:
        """End all followers."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rings = list(self._rings.values())
        self._rings.clear()
        await asyncio.gather(*[ring.close() for ring in rings])
