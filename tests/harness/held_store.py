"""A store for coroutines whose next append is held back, so that others queue up behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from streamkit import Record
from streamkit.aio import AsyncStore
from streamkit.aio.client import AsyncClient
from streamkit.aio.threads import Threads
from streamkit.client import Client
from streamkit.testing import ManualClock

from .drivers import MEMORY
from .shared_commit import Held

__all__ = ["HeldStore", "held_store"]


class HeldStore:
    """A store whose next append is held back until `release`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.id = uuid4()
        self.driver = Held(MEMORY[kind](ManualClock()))
        client = Client("held://", self.driver, 5.0, None, 64 << 20, ManualClock())
        self.client = AsyncClient(client, Threads(4))
        self.store: AsyncStore = self.client.store(self.id)

    async def hold(self) -> None:
        """Something is written, and from now on the next append waits."""
        await self.store.produce("s", "a", [Record(b"begun")])
        self.driver.hold = True

    async def held(self) -> None:
        assert await asyncio.to_thread(self.driver.held.wait, 20)

    def release(self) -> None:
        self.driver.go.set()

    async def payloads(self) -> list[bytes]:
        return [entry.payload async for entry in self.store.consume_space("s")]


@asynccontextmanager
async def held_store(kind: str) -> AsyncIterator[HeldStore]:
    held = HeldStore(kind)
    try:
        async with held.client:
            yield held
            held.release()
    finally:
        held.release()
        MEMORY[kind](ManualClock()).delete(held.id)
