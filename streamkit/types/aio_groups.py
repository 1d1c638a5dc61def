"""Groups and queues whose deliveries have objects, for coroutines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..aio.groups import AsyncConsumer, AsyncGroup, AsyncQueue
from ..arguments import check_function
from ..groups import GroupStatus, RunReport
from ..model import SegmentStatus
from .groups import TypedDelivery, handling, jobs, sorted_out
from .registry import Policy, Registry

__all__ = ["AsyncTypedConsumer", "AsyncTypedGroup", "AsyncTypedQueue"]

W = TypeVar("W")
R = TypeVar("R")


class AsyncTypedConsumer(Generic[R]):
    """A consumer, to be used with `async with`. See `TypedConsumer`."""

    def __init__(self, consumer: AsyncConsumer, registry: Registry[Any], policy: Policy) -> None:
        self.consumer = consumer
        self._registry = registry
        self._policy = policy

    async def receive(self, limit: int = 10, wait: float = 0.0, *, auto_ack: bool = False) -> list[TypedDelivery[R]]:
        """See `TypedConsumer.receive`."""
        while deliveries := await self.consumer.receive(limit, wait, auto_ack=auto_ack):
            found: list[TypedDelivery[R]]
            found, skipped = sorted_out(deliveries, self._registry, self._policy)
            for delivery in () if auto_ack else skipped:
                await self.consumer.ack(delivery)
            if found:
                return found
        return []

    async def __aiter__(self) -> AsyncGenerator[TypedDelivery[R], None]:
        while True:
            for delivery in await self.receive(1, wait=60.0):
                yield delivery

    async def ack(self, delivery: TypedDelivery[R]) -> None:
        """See `Consumer.ack`."""
        await self.consumer.ack(delivery.delivery)

    async def nack(
        self, delivery: TypedDelivery[R], delay: float | None = None, *, error: BaseException | str | None = None
    ) -> bool:
        """See `Consumer.nack`."""
        return await self.consumer.nack(delivery.delivery, delay, error=error)

    async def reject(self, delivery: TypedDelivery[R], reason: str = "rejected") -> None:
        """See `Consumer.reject`."""
        await self.consumer.reject(delivery.delivery, reason)

    async def release(self, delivery: TypedDelivery[R]) -> None:
        """See `Consumer.release`."""
        await self.consumer.release(delivery.delivery)

    async def extend(self, delivery: TypedDelivery[R], seconds: float) -> TypedDelivery[R]:
        """See `Consumer.extend`."""
        extended = await self.consumer.extend(delivery.delivery, seconds)
        return TypedDelivery(extended, self._registry, self._policy)

    async def __aenter__(self) -> AsyncTypedConsumer[R]:
        await self.consumer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.consumer.__aexit__(kind, error, trace)


class AsyncTypedGroup(Generic[R]):
    """A group of objects, from `await typed.group(space, name)`. `group` has the other methods."""

    def __init__(self, group: AsyncGroup, registry: Registry[Any], policy: Policy) -> None:
        self.group = group
        self._registry = registry
        self._policy = policy

    def consumer(self, name: str | None = None, *, linger: float = 0.1, prefetch: int = 1) -> AsyncTypedConsumer[R]:
        """See `Group.consumer`."""
        found = self.group.consumer(name, linger=linger, prefetch=prefetch)
        return AsyncTypedConsumer(found, self._registry, self._policy)

    async def run(
        self,
        handler: Callable[[TypedDelivery[R]], Awaitable[Any] | Any],
        consumer: str | None = None,
        concurrency: int = 1,
        batch: int = 10,
        **options: Any,
    ) -> RunReport:
        """Call `handler`, an async function or a plain one, with each delivery. See `AsyncGroup.run`."""
        check_function("handler", handler, "a delivery", awaited=True)
        handle = handling(handler, self._registry, self._policy)
        return await self.group.run(handle, consumer, concurrency, batch, **options)

    async def status(self) -> GroupStatus:
        """See `Group.status`."""
        return await self.group.status()

    def __repr__(self) -> str:
        return f"<AsyncTypedGroup of {self.group!r}>"


class AsyncTypedQueue(AsyncTypedGroup[R], Generic[W, R]):
    """A queue of objects, from `await typed.queue(name)`. `queue` has the other methods."""

    def __init__(self, queue: AsyncQueue, registry: Registry[W], policy: Policy) -> None:
        super().__init__(queue.group, registry, policy)
        self.queue = queue

    async def put(self, value: W, *, metadata: Mapping[str, str] | None = None, **options: Any) -> SegmentStatus:
        """Add a job. See `TypedQueue.put`."""
        return await self.put_many([value], metadata=metadata, **options)

    async def put_many(
        self, values: Iterable[W], *, metadata: Mapping[str, str] | None = None, **options: Any
    ) -> SegmentStatus:
        """Add several jobs of one type in one transaction. See `TypedQueue.put_many`."""
        payloads, marks = jobs(self._registry, values, metadata)
        return await self.queue.put_many(payloads, metadata=marks, **options)
