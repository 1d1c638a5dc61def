"""The service behind the application: the client, its open stores, the limits, and whether it drains."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from uuid import UUID

from ..aio import AsyncClient, AsyncStore, connect
from .limits import Limits
from .problems import Problem
from .rings import Rings
from .waiting import Ticker

__all__ = ["Service"]


class Service:
    """Holds the state of one process of the server: which stores are open, and whether it is draining."""

    def __init__(self, client: AsyncClient | str | None, store: UUID | str | None, limits: Limits) -> None:
        self.limits = limits
        self.headers: tuple[tuple[bytes, bytes], ...] = ((b"x-content-type-options", b"nosniff"),)
        """Of every answer."""
        self.own_store = None if store is None else UUID(str(store))
        """The store that `_` names."""
        self._given = client
        self._client: AsyncClient | None = None
        self._stores: OrderedDict[UUID, AsyncStore] = OrderedDict()
        self.is_draining = False
        """The process is to end: streams say goodbye, and long-polls answer with what they have."""
        self.on_start: list[Callable[[Service], object]] = []
        """What rooms of the server begin when the process starts."""
        self.on_close: list[Callable[[], object]] = []
        """What they end when it ends."""
        self.ticker = Ticker(limits.heartbeat_seconds, limits.write_seconds)
        self.rings = Rings(limits.ring_bytes)

    @property
    def client(self) -> AsyncClient:
        """The client; it is connected when it is first asked for."""
        if self._client is None:
            self._client = self._given if isinstance(self._given, AsyncClient) else connect(self._given)
        return self._client

    def store(self, text: str) -> AsyncStore:
        """The store that a path names: a UUID, or `_` for the server's own."""
        store_id = self.store_id(text)
        store = self._stores.get(store_id)
        if store is None:
            store = self._stores[store_id] = self.client.store(store_id)
            most = self.limits.stores
            if most and len(self._stores) > most:
                self._close_least_used()
        else:
            self._stores.move_to_end(store_id)
        return store

    def store_id(self, text: str) -> UUID:
        """The UUID of the store that a path names."""
        if text == "_":
            store_id = self.own_store
            if store_id is None:
                raise Problem(
                    "not-found", "the server has no store of its own, so a path names one by its UUID instead of '_'"
                )
            return store_id
        try:
            return UUID(text)
        except ValueError:
            raise Problem("not-found", "a store is named by its UUID, or by '_' for the server's own") from None

    def _close_least_used(self) -> None:
        for store_id, store in self._stores.items():
            if not self.rings.uses(store_id):
                del self._stores[store_id]
                closing = asyncio.ensure_future(store.close())
                closing.add_done_callback(lambda closing: closing.cancelled() or closing.exception())
                return

    def drain(self) -> None:
        """Have everything that waits end."""
        self.is_draining = True
        self.ticker.wake_all()
        self.rings.wake_all()

    async def close(self) -> None:
        """Close what the service has opened itself."""
        for end in self.on_close:
            end()
        await self.rings.close()
        stores = list(self._stores.values())
        self._stores.clear()
        if self._client is not None and self._client is not self._given:
            await self._client.close()
        else:
            await asyncio.gather(*[store.close() for store in stores])
        self._client = None
