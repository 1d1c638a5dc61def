"""A queue: a space of jobs with one group, whose acknowledged entries are trimmed.

A job's segment encodes its priority, the bucket of its key, and whether it was delayed. So an urgent job is found
behind any number of others, and each segment is worked off from its front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..arguments import check_seconds, check_type
from ..checksum import crc32
from ..model import Record, SegmentStatus
from ..names import internal_name
from ..store import Store, inner
from .consumer import Consumer
from .group import Group, find_group, open_group, queue_names
from .run import RunReport, Stop
from .settling import Settled, Settlement
from .source import DELAY, KEY, segment_of
from .values import DeadLetter, Delivery, GroupStatus, Pending

__all__ = ["Queue", "find_queue", "forget_queue", "job_records", "open_queue", "queues_of"]

_BUCKETS = 32
_LONGEST_DELAY = 365 * 86_400.0
_PRIORITIES = range(-100, 101)
GROUP = "queue"


def open_queue(store: Store, name: str, options: Mapping[str, Any]) -> Queue:
    return Queue(store, open_group(store, name, GROUP, "beginning", options, queue=True))


def queues_of(store: Store) -> list[str]:
    """The names of the queues of a store, in order."""
    return queue_names(store, GROUP)


def job_records(
    jobs: Iterable[Record], *, key: str | None = None, delay: float = 0.0, priority: int = 0
) -> tuple[str, list[Record]]:
    """The segment of jobs of one kind, and their records as a queue stores them. See `Queue.put`."""
    check_type(priority, int, "priority is an int")
    if priority not in _PRIORITIES:
        raise ValueError(f"priority is {_PRIORITIES[0]} to {_PRIORITIES[-1]}, not {priority}")
    check_type(key, str, "key is str or None", optional=True)
    try:
        spread = 0 if key is None else 1 + crc32(key.encode()) % _BUCKETS
    except UnicodeEncodeError:
        raise ValueError("key has a lone surrogate, which has no UTF-8: give text that can be encoded") from None
    delay = check_seconds("delay", delay)
    if delay > _LONGEST_DELAY:
        raise ValueError(f"delay is at most a year, not {delay:g} seconds")
    more: dict[str, str] = {}
    if delay:
        more[DELAY] = str(int(delay * 1000))
    if key is not None:
        more[KEY] = key
    records = [Record(job.payload, {**(job.metadata or {}), **more} or None) for job in jobs] if more else list(jobs)
    return segment_of(priority, spread, bool(delay)), records


def forget_queue(store: Store, name: str) -> None:
    """Forget what this process knows of a queue, to free its memory. The next use opens the queue again."""
    shared, internal = inner(store), internal_name("group", name, GROUP)
    shared.attached.pop(("group", internal), None)
    shared.forget_space(internal)
    shared.forget_space(name)


def find_queue(store: Store, name: str) -> Queue | None:
    """The queue if it exists."""
    group = find_group(store, name, GROUP)
    return None if group is None or not group.settings.queue else Queue(store, group)


class Queue:
    """A queue of jobs, from `store.queue(name, …)`. Safe to share between threads."""

    def __init__(self, store: Store, group: Group) -> None:
        self.name = group.space
        self.group = group
        """The queue's only group, with pending, dead letters, redrive and the rest."""
        self._store = store

    def put(
        self,
        payload: bytes,
        *,
        metadata: Mapping[str, str] | None = None,
        key: str | None = None,
        delay: float = 0.0,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> SegmentStatus:
        """Add a job; returns when it is durable.

        `delay`: seconds until it may be delivered. `priority` (-100 to 100): higher ones are delivered first. `key`:
        keys are served in turn, so that one with many jobs does not hold up the others. `idempotency_key`: a second
        call with the same key and job adds nothing. Errors as `store.produce`.
        """
        return self.put_many(
            [payload], metadata=metadata, key=key, delay=delay, priority=priority, idempotency_key=idempotency_key
        )

    def put_many(
        self,
        payloads: Iterable[bytes],
        *,
        metadata: Mapping[str, str] | None = None,
        key: str | None = None,
        delay: float = 0.0,
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> SegmentStatus:
        """Add several jobs of one kind in one transaction, all or none. See `put`."""
        given = [Record(payload, metadata) for payload in payloads]
        segment, records = job_records(given, key=key, delay=delay, priority=priority)
        return self._store.produce(self.name, segment, records, idempotency_key=idempotency_key)

    @property
    def store(self) -> Store:
        """The store of the queue."""
        return self._store

    def consumer(self, name: str | None = None, *, linger: float = 0.1, prefetch: int = 1) -> Consumer:
        """See `Group.consumer`."""
        return self.group.consumer(name, linger=linger, prefetch=prefetch)

    def receive(
        self, limit: int = 10, wait: float = 0.0, *, consumer: str | None = None, auto_ack: bool = False
    ) -> list[Delivery]:
        """See `Group.receive`."""
        return self.group.receive(limit, wait, consumer=consumer, auto_ack=auto_ack)

    def settle(self, settlements: Iterable[Settlement]) -> list[Settled]:
        """See `Group.settle`."""
        return self.group.settle(settlements)

    def run(
        self,
        handler: Callable[[Delivery], Any],
        consumer: str | None = None,
        concurrency: int = 1,
        batch: int = 10,
        *,
        seconds: float | None = None,
        drain: bool = False,
        stop: Stop | None = None,
    ) -> RunReport:
        """See `Group.run`."""
        return self.group.run(handler, consumer, concurrency, batch, seconds=seconds, drain=drain, stop=stop)

    def status(self) -> GroupStatus:
        """See `Group.status`. Delayed jobs are `unread` until a consumer has looked, and `delayed` from then on."""
        return self.group.status()

    def pending(self, consumer: str | None = None, limit: int = 100) -> list[Pending]:
        """See `Group.pending`."""
        return self.group.pending(consumer, limit)

    def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """See `Group.dead_letters`. The log keeps dead letters, and all jobs after them."""
        return self.group.dead_letters(limit)

    def redrive(self, deliveries: Iterable[DeadLetter | str] | None = None) -> int:
        """Deliver dead letters again, all of them by default, and return their number. See `Group.redrive`."""
        return self.group.redrive(deliveries)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"
