"""The repository for asyncio: the same methods, awaited."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

from ..aio.store import AsyncStore
from ..arguments import check_type
from ..leases import Lease
from ..model import Entry, SegmentStatus
from .aggregate import Aggregate
from .executed import Executed
from .repository import Repository

__all__ = ["AsyncRepository"]

A = TypeVar("A", bound=Aggregate)
R = TypeVar("R")


class AsyncRepository(Generic[A]):
    """A `Repository` of an AsyncStore. Its calls run in threads. So do commands: a command is a plain function that
    decides by the aggregate alone.

    `options`: those of Repository. `sync` is the repository itself, for a process manager or a projection.
    """

    def __init__(self, store: AsyncStore, space: str, aggregate: type[A], **options: Any) -> None:
        check_type(store, AsyncStore, "an AsyncRepository is of an AsyncStore")
        self.store = store
        self.sync: Repository[A] = Repository(store.sync, space, aggregate, **options)

    async def load(self, id: str, *, at: int | datetime | None = None, must_exist: bool = False) -> A:
        """See Repository.load."""
        return await self.store.calls.call(partial(self.sync.load, id, at=at, must_exist=must_exist))

    async def save(
        self,
        aggregate: A,
        *,
        metadata: dict[str, str] | None = None,
        idempotency_key: str | None = None,
        lease: Lease | None = None,
    ) -> SegmentStatus:
        """See Repository.save."""
        save = partial(self.sync.save, aggregate, metadata=metadata, idempotency_key=idempotency_key, lease=lease)
        return await self.store.calls.call(save)

    async def execute(
        self,
        id: str,
        command: Callable[[A], R],
        *,
        retries: int = 5,
        idempotency_key: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> R:
        """See Repository.execute. Cancelled while the command is saved, it may be executed or not: repeat it with the
        same idempotency key."""
        execute = partial(
            self.sync.execute, id, command, retries=retries, idempotency_key=idempotency_key, metadata=metadata
        )
        return await self.store.calls.call(execute)

    async def perform(
        self,
        id: str,
        command: Callable[[A], R],
        *,
        retries: int = 5,
        idempotency_key: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> Executed[R]:
        """See Repository.perform."""
        perform = partial(
            self.sync.perform, id, command, retries=retries, idempotency_key=idempotency_key, metadata=metadata
        )
        return await self.store.calls.call(perform)

    async def events(self, id: str) -> list[tuple[str, dict[str, Any]]]:
        """Return (name, arguments) of each event, in the order in which they happened."""
        return await self.store.calls.call(lambda: list(self.sync.events(id)))

    async def exists(self, id: str) -> bool:
        """True if the aggregate has an event: `id in repository` of a Repository."""
        return await self.store.calls.call(lambda: id in self.sync)

    async def snapshot(self, id: str) -> None:
        """See Repository.snapshot."""
        await self.store.calls.call(self.sync.snapshot, id)

    def event(self, entry: Entry) -> tuple[str, dict[str, Any]]:
        """See Repository.event."""
        return self.sync.event(entry)
