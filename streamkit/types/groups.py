"""Groups and queues whose deliveries have objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..arguments import check_function
from ..groups import Consumer, Delivery, Group, GroupStatus, Queue, RunReport
from ..model import Entry, SegmentStatus
from .registry import Policy, Registry, Typed

__all__ = ["TypedConsumer", "TypedDelivery", "TypedGroup", "TypedQueue", "handling", "jobs", "sorted_out"]

W = TypeVar("W")
R = TypeVar("R")


class TypedDelivery(Generic[R]):
    """A delivery with the object of its entry, which is read when it is first asked for."""

    __slots__ = ("_policy", "_read", "_registry", "delivery")

    def __init__(self, delivery: Delivery, registry: Registry[Any], policy: Policy) -> None:
        self.delivery = delivery
        self._registry = registry
        self._policy = policy
        self._read: list[Typed[Any] | None] = []

    @property
    def is_skipped(self) -> bool:
        """True if the policy says that the consumer passes over it."""
        return self._policy == "skip" and self._found is None

    @property
    def _found(self) -> Typed[Any] | None:
        if not self._read:
            self._read.append(self._registry.read_or(self.delivery.entry, self._policy))
        return self._read[0]

    @property
    def value(self) -> R:
        """The object. UnknownType, UnsupportedVersion or CorruptData if the entry cannot be read."""
        found = self._found
        assert found is not None, "it is skipped"
        value: R = found.value
        return value

    @property
    def entry(self) -> Entry:
        """The entry as it is stored."""
        return self.delivery.entry

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self.delivery.attempt

    @property
    def deadline(self) -> int:
        """The deadline, in milliseconds since the epoch."""
        return self.delivery.deadline

    @property
    def receipt(self) -> str:
        """See `Delivery.receipt`."""
        return self.delivery.receipt

    def __repr__(self) -> str:
        return f"<TypedDelivery of {self.delivery!r}>"


class TypedConsumer(Generic[R]):
    """A consumer, to be used as `with group.consumer(name) as consumer`. `consumer` has the other methods."""

    def __init__(self, consumer: Consumer, registry: Registry[Any], policy: Policy) -> None:
        self.consumer = consumer
        self._registry = registry
        self._policy = policy

    def receive(self, limit: int = 10, wait: float = 0.0, *, auto_ack: bool = False) -> list[TypedDelivery[R]]:
        """See `Consumer.receive`. With the policy "skip" unknown entries are acknowledged and not handed out."""
        while deliveries := self.consumer.receive(limit, wait, auto_ack=auto_ack):
            found: list[TypedDelivery[R]]
            found, skipped = sorted_out(deliveries, self._registry, self._policy)
            for delivery in () if auto_ack else skipped:
                self.consumer.ack(delivery)
            if found:
                return found
        return []

    def __iter__(self) -> Iterator[TypedDelivery[R]]:
        while True:
            yield from self.receive(wait=float("inf"))

    def ack(self, delivery: TypedDelivery[R]) -> None:
        """See `Consumer.ack`."""
        self.consumer.ack(delivery.delivery)

    def nack(
        self, delivery: TypedDelivery[R], delay: float | None = None, *, error: BaseException | str | None = None
    ) -> bool:
        """See `Consumer.nack`."""
        return self.consumer.nack(delivery.delivery, delay, error=error)

    def reject(self, delivery: TypedDelivery[R], reason: str = "rejected") -> None:
        """See `Consumer.reject`."""
        self.consumer.reject(delivery.delivery, reason)

    def release(self, delivery: TypedDelivery[R]) -> None:
        """See `Consumer.release`."""
        self.consumer.release(delivery.delivery)

    def extend(self, delivery: TypedDelivery[R], seconds: float) -> TypedDelivery[R]:
        """See `Consumer.extend`."""
        return TypedDelivery(self.consumer.extend(delivery.delivery, seconds), self._registry, self._policy)

    def __enter__(self) -> TypedConsumer[R]:
        self.consumer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.consumer.__exit__(kind, error, trace)


def sorted_out(
    deliveries: Iterable[Delivery], registry: Registry[Any], policy: Policy
) -> tuple[list[TypedDelivery[Any]], list[Delivery]]:
    """The deliveries with their objects, and those that the policy passes over."""
    found, skipped = [], []
    for delivery in deliveries:
        typed: TypedDelivery[Any] = TypedDelivery(delivery, registry, policy)
        if _is_skipped(typed):
            skipped.append(delivery)
        else:
            found.append(typed)
    return found, skipped


def jobs(
    registry: Registry[Any], values: Iterable[Any], metadata: Mapping[str, str] | None
) -> tuple[list[bytes], Mapping[str, str] | None]:
    """The payloads of jobs, and the metadata that they share. ValueError for jobs of several types."""
    records = registry.records(values, metadata)
    marks = records[0].metadata if records else None
    if any(record.metadata != marks for record in records):
        raise ValueError("put_many takes jobs of one type: put those of each type by a call of its own")
    return [record.payload for record in records], marks


def _is_skipped(delivery: TypedDelivery[Any]) -> bool:
    """False if its payload is damaged: the handler meets the error, and the delivery is given up as any other."""
    try:
        return delivery.is_skipped
    except Exception:
        return False


def handling(
    handler: Callable[[TypedDelivery[R]], Any], registry: Registry[Any], policy: Policy
) -> Callable[[Delivery], Any]:
    """The handler of a group, from one for objects. An entry that cannot be read fails as a handler that raises."""

    def handle(delivery: Delivery) -> Any:
        typed: TypedDelivery[R] = TypedDelivery(delivery, registry, policy)
        if typed.is_skipped:
            return None
        typed.value  # noqa: B018 - raises what makes the delivery fail
        return handler(typed)

    return handle


class TypedGroup(Generic[R]):
    """A group of objects, from `typed.group(space, name)`. `group` has the other methods: pending, dead letters, seek
    and so on."""

    def __init__(self, group: Group, registry: Registry[Any], policy: Policy) -> None:
        self.group = group
        self._registry = registry
        self._policy = policy

    def consumer(self, name: str | None = None, *, linger: float = 0.1, prefetch: int = 1) -> TypedConsumer[R]:
        """See `Group.consumer`."""
        found = self.group.consumer(name, linger=linger, prefetch=prefetch)
        return TypedConsumer(found, self._registry, self._policy)

    def run(
        self,
        handler: Callable[[TypedDelivery[R]], Any],
        consumer: str | None = None,
        concurrency: int = 1,
        batch: int = 10,
        **options: Any,
    ) -> RunReport:
        """Call `handler` with each delivery. See `Group.run`. An entry that cannot be read becomes a dead letter."""
        check_function("handler", handler, "a delivery")
        handle = handling(handler, self._registry, self._policy)
        return self.group.run(handle, consumer, concurrency, batch, **options)

    def status(self) -> GroupStatus:
        """See `Group.status`."""
        return self.group.status()

    def __repr__(self) -> str:
        return f"<TypedGroup of {self.group!r}>"


class TypedQueue(TypedGroup[R], Generic[W, R]):
    """A queue of objects, from `typed.queue(name)`. `queue` has the other methods."""

    def __init__(self, queue: Queue, registry: Registry[W], policy: Policy) -> None:
        super().__init__(queue.group, registry, policy)
        self.queue = queue

    def put(self, value: W, *, metadata: Mapping[str, str] | None = None, **options: Any) -> SegmentStatus:
        """Add a job. Options: `key`, `delay`, `priority` and `idempotency_key`, as of `Queue.put`."""
        return self.put_many([value], metadata=metadata, **options)

    def put_many(
        self, values: Iterable[W], *, metadata: Mapping[str, str] | None = None, **options: Any
    ) -> SegmentStatus:
        """Add several jobs of one type in one transaction. See `Queue.put_many`."""
        payloads, marks = jobs(self._registry, values, metadata)
        return self.queue.put_many(payloads, metadata=marks, **options)
