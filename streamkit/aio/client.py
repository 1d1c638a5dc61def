"""Connecting, for coroutines."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Generator, Iterable
from types import TracebackType
from typing import Any
from uuid import UUID

from .. import client
from ..arguments import check_count
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import StoreClosed
from .reading import items
from .store import AsyncStore
from .threads import Calls, Threads

__all__ = ["AsyncClient", "connect"]


def connect(
    url: str | None = None,
    *,
    timeout: float = 30.0,
    poll: tuple[float, float] | None = None,
    max_transaction_bytes: int = client.MOST_BYTES,
    archive: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    threads: int = 8,
) -> AsyncClient:
    """A client for the stores under `url`, for one event loop. Opens nothing remote; may be awaited, need not be.

    `threads`: how many threads at most wait for the storage, for reads and, apart from them, for commits. They do not
    limit how many coroutines read, follow and write. The rest is as in `streamkit.connect`.
    """
    check_count("threads", threads, most=1024)
    found = client.connect(
        url,
        timeout=timeout,
        poll=poll,
        max_transaction_bytes=max_transaction_bytes,
        archive=archive,
        clock=clock,
    )
    return AsyncClient(found, Threads(threads))


class AsyncClient:
    """A client for asyncio, from `streamkit.aio.connect`. Belongs to one event loop; `async with` closes it and its
    stores."""

    def __init__(self, sync: client.Client, threads: Threads) -> None:
        self._sync = sync
        self._threads = threads
        self._calls = Calls(threads, "client")
        self._stores: weakref.WeakSet[AsyncStore] = weakref.WeakSet()
        self._closing: asyncio.Task[None] | None = None

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        """Itself: nothing is opened before it is used."""
        return self
        yield

    def store(self, store_id: UUID | str) -> AsyncStore:
        """A handle of the store with this UUID. No I/O: the store comes into being with its first write."""
        if self._calls.closed:
            raise StoreClosed("the client is closed; connect again")
        store = AsyncStore(self._sync.store(store_id), self._threads)
        self._stores.add(store)
        return store

    def stores(self) -> AsyncGenerator[UUID, None]:
        """The stores that exist, in no particular order."""
        self._calls.check()

        def found() -> Iterable[UUID]:
            yield from self._sync.stores()

        return items(self._calls, iter(found()))

    async def delete_store(self, store_id: UUID | str) -> None:
        """Delete all of a store. A missing store is no error. Stop its writers first."""
        await self._calls.call(self._sync.delete_store, store_id)

    async def close(self) -> None:
        """Close the client and its stores, after their running calls. A second call does nothing."""
        if self._closing is None:
            self._threads.loop  # noqa: B018  (checks)
            self._calls.closed = True
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await asyncio.gather(*[store.close() for store in list(self._stores)])
        await self._calls.wait()
        await asyncio.wrap_future(self._calls.start(self._threads.long, self._sync.close))
        self._threads.close()

    async def __aenter__(self) -> AsyncClient:
        self._calls.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"
