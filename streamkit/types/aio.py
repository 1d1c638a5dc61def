"""The typed store for coroutines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..gaps import Gap
from ..lexkey import LexKey
from ..model import Entry, SegmentStatus
from .registry import Policy, Registry, Typed, check_policy

if TYPE_CHECKING:
    from ..aio import AsyncStore

__all__ = ["AsyncTypedStore"]

W = TypeVar("W")
R = TypeVar("R")
AnyOffset = LexKey | bytes | str


class AsyncTypedStore(Generic[W, R]):
    """From `store.typed(registry)` of `streamkit.aio`: see `TypedStore`."""

    def __init__(self, store: AsyncStore, registry: Registry[W], unknown: Policy = "raise") -> None:
        if not isinstance(registry, Registry):
            raise TypeError(f"a typed store takes a streamkit.types.Registry, not {type(registry).__name__}")
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

    async def peek(self, space: str, segment: str) -> Typed[R] | None:
        """The latest entry of a segment; None if there is none, or if it is unknown and passed over."""
        entry = await self.store.peek(space, segment)
        return self.registry.read_or(entry, self.unknown) if entry.sequence else None

    def consume_segment(self, space: str, segment: str, **bounds: Any) -> AsyncGenerator[Typed[R], None]:
        """The objects of a segment, in sequence order. See `TypedStore.consume_segment`."""
        return self._reading(self.store.consume_segment(space, segment, **bounds))

    def consume_space(
        self, space: str, *, offset: AnyOffset | None = None, **bounds: Any
    ) -> AsyncGenerator[Typed[R], None]:
        """The objects of a space, in commit order. See `TypedStore.consume_space`."""
        return self._reading(self.store.consume_space(space, offset=offset, **bounds))

    def consume(self, offsets: Mapping[str, AnyOffset | None], **bounds: Any) -> AsyncGenerator[Typed[R], None]:
        """The objects of several spaces, merged by timestamp. See `TypedStore.consume`."""
        return self._reading(self.store.consume(offsets, **bounds))

    def follow_segment(self, space: str, segment: str, **options: Any) -> AsyncGenerator[Typed[R], None]:
        """The objects of a segment, then those that come. See `TypedStore.follow_segment`."""
        return self._reading(self.store.follow_segment(space, segment, **options))

    def follow_space(self, space: str, **options: Any) -> AsyncGenerator[Typed[R], None]:
        """The objects of a space, then those that come. See `TypedStore.follow_space`."""
        return self._reading(self.store.follow_space(space, **options))

    def follow(self, offsets: Mapping[str, AnyOffset | None], **options: Any) -> AsyncGenerator[Typed[R], None]:
        """The objects of several spaces, then those that come. See `TypedStore.follow`."""
        return self._reading(self.store.follow(offsets, **options))

    async def _reading(self, entries: AsyncIterable[Entry | Gap]) -> AsyncGenerator[Any, None]:
        async for entry in entries:
            for found in self.registry.reading((entry,), self.unknown):
                yield found

    def __repr__(self) -> str:
        return f"<AsyncTypedStore {self.store.id} of {self.registry!r}>"
