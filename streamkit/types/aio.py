"""The typed store for coroutines."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from ..arguments import check_type
from ..gaps import Gap
from ..leases import Lease, LeaseGrant
from ..lexkey import LexKey
from ..model import TRX, Entry, SegmentStatus
from .registry import Policy, Registry, Typed, check_policy

if TYPE_CHECKING:
    from ..aio import AsyncStore
    from ..aio.clients import AsyncRoute, AsyncView
    from ..aio.leases import AsyncLease
    from ..aio.transaction import AsyncTransaction
    from ..groups import GroupOptions, QueueOptions
    from ..store import Store
    from .aio_groups import AsyncTypedGroup, AsyncTypedQueue
    from .view import TypedView

__all__ = ["AsyncTypedStore", "AsyncTypedTransaction"]

W = TypeVar("W")
R = TypeVar("R")
AnyOffset = LexKey | bytes | str
Quiet = Literal["raise", "skip"]


class AsyncTypedTransaction(Generic[W]):
    """A transaction over several segments, which is committed at the end of its `async with` block."""

    def __init__(self, transaction: AsyncTransaction, registry: Registry[W]) -> None:
        self.transaction = transaction
        self._registry = registry

    def produce(
        self,
        segment: str,
        values: Iterable[W],
        *,
        metadata: Mapping[str, str] | None = None,
        expected_sequence: int | None = None,
    ) -> Awaitable[None]:
        """Add objects, with `metadata` on each. It need not be awaited. See `AsyncTransaction.produce`."""
        records = self._registry.records(values, metadata)
        return self.transaction.produce(segment, records, expected_sequence=expected_sequence)

    @property
    def statuses(self) -> dict[str, SegmentStatus]:
        """Return each segment's status after the commit; empty before it."""
        return self.transaction.statuses

    @property
    def trx(self) -> TRX | None:
        """Return the transaction's id after the commit; None before it."""
        return self.transaction.trx

    async def __aenter__(self) -> AsyncTypedTransaction[W]:
        await self.transaction.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.transaction.__aexit__(kind, error, trace)


class AsyncTypedStore(Generic[W, R]):
    """A store of objects for asyncio, from `store.typed(registry)` of `streamkit.aio`: see `TypedStore`."""

    def __init__(self, store: AsyncStore, registry: Registry[W], unknown: Policy = "raise") -> None:
        check_type(registry, Registry, "a typed store takes a streamkit.types.Registry")
        self.store = store
        self.registry = registry
        self.unknown = check_policy(unknown)

    async def produce(
        self,
        space: str,
        segment: str,
        values: Iterable[W],
        *,
        metadata: Mapping[str, str] | None = None,
        **options: Any,
    ) -> SegmentStatus:
        """Append objects in one transaction. See `TypedStore.produce`."""
        return await self.store.produce(space, segment, self.registry.records(values, metadata), **options)

    def transaction(
        self, space: str, idempotency_key: str | None = None, lease: AsyncLease | Lease | LeaseGrant | None = None
    ) -> AsyncTypedTransaction[W]:
        """A transaction over several segments: `async with typed.transaction(space) as trx: trx.produce(…)`."""
        return AsyncTypedTransaction(self.store.transaction(space, idempotency_key, lease), self.registry)

    async def peek(self, space: str, segment: str) -> Typed[R] | None:
        """The latest entry of a segment; None if there is none, or if its type is unknown and skipped."""
        entry = await self.store.peek(space, segment)
        return self.registry.read_or(entry, self.unknown) if entry.sequence else None

    @overload
    def consume_segment(
        self, space: str, segment: str, *, gaps: Quiet = "raise", **bounds: Any
    ) -> AsyncGenerator[Typed[R], None]: ...
    @overload
    def consume_segment(
        self, space: str, segment: str, *, gaps: Literal["yield"], **bounds: Any
    ) -> AsyncGenerator[Typed[R] | Gap, None]: ...
    def consume_segment(self, space: str, segment: str, **bounds: Any) -> AsyncGenerator[Any, None]:
        """The objects of a segment, in sequence order. See `TypedStore.consume_segment`."""
        return self._reading(self.store.consume_segment(space, segment, **bounds))

    @overload
    def consume_space(
        self, space: str, *, offset: AnyOffset | None = None, gaps: Quiet = "raise", **bounds: Any
    ) -> AsyncGenerator[Typed[R], None]: ...
    @overload
    def consume_space(
        self, space: str, *, offset: AnyOffset | None = None, gaps: Literal["yield"], **bounds: Any
    ) -> AsyncGenerator[Typed[R] | Gap, None]: ...
    def consume_space(self, space: str, *, offset: AnyOffset | None = None, **bounds: Any) -> AsyncGenerator[Any, None]:
        """The objects of a space, in commit order. See `TypedStore.consume_space`."""
        return self._reading(self.store.consume_space(space, offset=offset, **bounds))

    @overload
    def consume(
        self, offsets: Mapping[str, AnyOffset | None], *, gaps: Quiet = "raise", **bounds: Any
    ) -> AsyncGenerator[Typed[R], None]: ...
    @overload
    def consume(
        self, offsets: Mapping[str, AnyOffset | None], *, gaps: Literal["yield"], **bounds: Any
    ) -> AsyncGenerator[Typed[R] | Gap, None]: ...
    def consume(self, offsets: Mapping[str, AnyOffset | None], **bounds: Any) -> AsyncGenerator[Any, None]:
        """The objects of several spaces, merged by timestamp. See `TypedStore.consume`."""
        return self._reading(self.store.consume(offsets, **bounds))

    @overload
    def follow_segment(
        self, space: str, segment: str, *, gaps: Quiet = "raise", **options: Any
    ) -> AsyncGenerator[Typed[R], None]: ...
    @overload
    def follow_segment(
        self, space: str, segment: str, *, gaps: Literal["yield"], **options: Any
    ) -> AsyncGenerator[Typed[R] | Gap, None]: ...
    def follow_segment(self, space: str, segment: str, **options: Any) -> AsyncGenerator[Any, None]:
        """The objects of a segment, then those that come. See `TypedStore.follow_segment`."""
        return self._reading(self.store.follow_segment(space, segment, **options))

    @overload
    def follow_space(self, space: str, *, gaps: Quiet = "raise", **options: Any) -> AsyncGenerator[Typed[R], None]: ...
    @overload
    def follow_space(
        self, space: str, *, gaps: Literal["yield"], **options: Any
    ) -> AsyncGenerator[Typed[R] | Gap, None]: ...
    def follow_space(self, space: str, **options: Any) -> AsyncGenerator[Any, None]:
        """The objects of a space, then those that come. See `TypedStore.follow_space`."""
        return self._reading(self.store.follow_space(space, **options))

    @overload
    def follow(
        self, offsets: Mapping[str, AnyOffset | None], *, gaps: Quiet = "raise", **options: Any
    ) -> AsyncGenerator[Typed[R], None]: ...
    @overload
    def follow(
        self, offsets: Mapping[str, AnyOffset | None], *, gaps: Literal["yield"], **options: Any
    ) -> AsyncGenerator[Typed[R] | Gap, None]: ...
    def follow(self, offsets: Mapping[str, AnyOffset | None], **options: Any) -> AsyncGenerator[Any, None]:
        """The objects of several spaces, then those that come. See `TypedStore.follow`."""
        return self._reading(self.store.follow(offsets, **options))

    async def _reading(self, entries: AsyncIterable[Entry | Gap]) -> AsyncGenerator[Any, None]:
        async for entry in entries:
            found = entry if isinstance(entry, Gap) else self.registry.read_or(entry, self.unknown)
            if found is not None:
                yield found

    # -- clients of the store -----------------------------------------------------------------------------------

    async def group(
        self,
        space: str,
        name: str,
        *,
        start: AnyOffset | Literal["beginning", "end"] = "beginning",
        **settings: Unpack[GroupOptions],
    ) -> AsyncTypedGroup[R]:
        """A group whose deliveries have objects. See `Store.group`."""
        from .aio_groups import AsyncTypedGroup

        return AsyncTypedGroup(
            await self.store.group(space, name, start=start, **settings), self.registry, self.unknown
        )

    async def queue(self, name: str, **settings: Unpack[QueueOptions]) -> AsyncTypedQueue[W, R]:
        """A queue of objects. See `Store.queue`."""
        from .aio_groups import AsyncTypedQueue

        return AsyncTypedQueue(await self.store.queue(name, **settings), self.registry, self.unknown)

    async def view(
        self,
        name: str,
        view: TypedView[R],
        spaces: Iterable[str],
        path: str | os.PathLike[str] | None = None,
        publish: bool = False,
        **options: Any,
    ) -> AsyncView:
        """A view whose `apply` gets objects. See `Store.view`."""
        from .view import applied

        made = applied(view, self.registry, self.unknown)
        return await self.store.view(name, made, spaces, path, publish, **options)

    async def route(
        self,
        name: str,
        source: str,
        target: str,
        where: Callable[[Typed[R]], bool] | None = None,
        segment: Callable[[Typed[R]], str] | str | None = None,
        transform: Callable[[Typed[R]], W | None] | None = None,
        target_store: AsyncStore | Store | None = None,
        start: AnyOffset | Literal["beginning", "end"] = "beginning",
    ) -> AsyncRoute:
        """A route whose functions get objects. See `TypedStore.route`."""
        from .route import routed

        functions = routed(self.registry, self.unknown, where, segment, transform)
        return await self.store.route(name, source, target, *functions, target_store, start)

    def __repr__(self) -> str:
        return f"<AsyncTypedStore {self.store.id} of {self.registry!r}>"
