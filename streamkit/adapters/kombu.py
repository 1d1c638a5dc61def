"""A transport for kombu, and so a broker for Celery: `streamkit.adapters.kombu:Transport`.

A queue is a queue of the store (`store.queue`), in a space named `kombu.` and the queue's name. The bindings of an
exchange are a segment of the space `kombu`, so all processes see them, and so is the last use of a queue with
x-expires or auto_delete: the sweep removes such a queue when its processes are gone. The transport extends the
deadline of a message while its task runs. A message of a process that was killed is delivered again when its deadline
has passed.

`transport_options`: `url` and `store` (else STREAMKIT_URL and STREAMKIT_STORE), `ack_timeout` in seconds (60),
`max_deliveries` (5), `polling_interval` in seconds (0.1 on this machine, 1.0 on a service), `abandoned_after` in
seconds (a day).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from queue import Empty
from threading import Event, Lock, Thread
from typing import Any, Literal, TypeVar
from uuid import uuid4

import msgspec

from ..decoders import json_decoder
from ..errors import MissingDependency

try:
    import_module("kombu")
except ImportError as error:
    raise MissingDependency(f"{__name__} needs kombu: pip install 'streamkit-store[kombu]'") from error

from kombu.exceptions import OperationalError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads

from ..client import Client, connect
from ..errors import (
    DeliveryLost,
    GroupExists,
    OutcomeUnknown,
    PermanentError,
    SequenceMismatch,
    StoreClosed,
    StreamkitError,
    TransientError,
)
from ..groups import Consumer, Delivery, Group, Queue, QueueOptions, Settlement
from ..groups.queue import forget_queue, job_records
from ..model import Record
from ..store import Store

__all__ = ["Channel", "Transport"]

_log = logging.getLogger(__name__)
_SPACE = "kombu"
_EXPIRES = "kombu:expires"
_SUBJECT = "subject"
"""The header of a message that becomes metadata, so that `store.erase(queue, metadata=…)` finds the message."""
_BATCH = 1000
"""Messages that one commit extends or releases at most."""
_PAGE = 10
"""Messages that one look takes at most."""
_MAX_PENDING = 100_000
"""Messages of a queue that a process holds in each lane, at most. A task with a countdown is held until its time."""
_OLD_CHANGES = 100
"""Outdated changes of an exchange's bindings that are kept."""
_REPLIED = 500
"""Queues of other processes that a channel keeps open to send to them, at most. Each caller of `rpc://` has one."""
_FRESH = 1.0
"""Seconds for which bindings are taken to be as they were read."""

_Result = TypeVar("_Result")
Binding = tuple[str, str, str]
"""Routing key, pattern, queue."""


class _Use(msgspec.Struct, frozen=True):
    """The time of a process's latest use of a queue, in seconds since the epoch, and the queue's x-expires in
    seconds."""

    lifetime: float
    at: float


class _Held:
    """Deliveries that are not settled. A thread extends their deadlines."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        """The shortest ack_timeout of their queues so far. Another process may change a queue's."""
        self._lock = Lock()
        self._held: dict[str, tuple[Consumer, Delivery]] = {}
        self._closed = False
        self._wake = Event()
        self._thread: Thread | None = None
        self._process = os.getpid()

    def add(self, tag: str, consumer: Consumer, delivery: Delivery) -> None:
        with self._lock:
            self._held[tag] = consumer, delivery
            self._timeout(consumer)
            if self._thread is None:
                self._thread = Thread(target=self._extend, name="streamkit-kombu", daemon=True)
                self._thread.start()

    def is_ours(self) -> bool:
        """False in a process that was forked: the deliveries are its parent's."""
        return os.getpid() == self._process

    def settle(self, tag: str, how: Callable[[Consumer, Delivery], object]) -> None:
        if not self.is_ours():
            return
        with self._lock:
            held = self._held.pop(tag, None)
            if held is None:
                return
            try:
                how(*held)
            except DeliveryLost as error:
                _log.warning("a message was delivered to another consumer as well: %s", error)

    def holds(self, tag: str) -> bool:
        return tag in self._held

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    def _timeout(self, consumer: Consumer) -> float:
        """The ack_timeout of a consumer's queue. The thread does not sleep longer than it allows."""
        seconds = consumer.group.settings.ack_timeout
        if seconds < self._seconds:
            self._seconds = seconds
            self._wake.set()
        return seconds

    def _extend(self) -> None:
        while True:
            self._wake.wait(self._seconds / 3)
            self._wake.clear()
            if self._closed:
                return
            self._settle_all(list(self._held), "extend")

    def release_all(self, tags: list[str]) -> None:
        """Return deliveries to their queues."""
        if self.is_ours():
            self._settle_all(tags, "release")

    def _settle_all(self, tags: list[str], action: Literal["extend", "release"]) -> None:
        """Settle many deliveries with few commits: thousands of tasks may wait for their time."""
        for start in range(0, len(tags), _BATCH):
            with self._lock:
                groups: dict[Group, dict[str, Settlement]] = {}
                for tag in tags[start : start + _BATCH]:
                    if tag in self._held:
                        consumer, delivery = self._held[tag]
                        seconds = self._timeout(consumer) if action == "extend" else None
                        settlement = Settlement(receipt=delivery.receipt, action=action, seconds=seconds)
                        groups.setdefault(consumer.group, {})[tag] = settlement
                        if action == "release":
                            del self._held[tag]
                for group, settlements in groups.items():
                    try:
                        settled = group.settle(settlements.values())
                    except StreamkitError as error:
                        _log.warning("%s of %d messages of %r failed: %s", action, len(settlements), group.space, error)
                        continue
                    for tag, result in zip(settlements, settled, strict=True):
                        if result.lost:
                            self._held.pop(tag, None)
                            _log.warning("a message of %r was delivered to another consumer as well", group.space)


class _QoS(virtual.QoS):
    """Settles messages in the store."""

    def ack(self, delivery_tag: str) -> None:
        try:
            self.channel.held.settle(delivery_tag, lambda consumer, delivery: consumer.ack(delivery))
        finally:  # if that failed, the message comes back after its deadline: it must not take up the prefetch
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return the message to the queue, or make it a dead letter. A message that is returned has failed once more:
        its task may kill each worker."""

        def settle(consumer: Consumer, delivery: Delivery) -> None:
            if requeue:
                consumer.nack(delivery, delay=0.0, error="the message was requeued")
            else:
                consumer.reject(delivery)

        try:
            self.channel.held.settle(delivery_tag, settle)
        finally:
            super().ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Return unsettled messages to their queues."""
        self._flush()
        self.channel.held.release_all(list(self._delivered))
        self._delivered.clear()
        return []


class Channel(virtual.Channel):
    """The queues and exchanges of a kombu connection."""

    QoS = _QoS
    supports_fanout = True
    ack_timeout = 60.0
    max_deliveries = 5
    abandoned_after = 86_400.0
    """Seconds. A queue with x-expires or auto_delete is removed if no process has used it for so long, and for its
    x-expires."""
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "ack_timeout",
        "max_deliveries",
        "abandoned_after",
    )

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self.held = _Held(self.ack_timeout)
        self._store: Store = connection.store
        self._opened: dict[str, Queue] = {}
        self._consuming: dict[str, Consumer] = {}
        self._replied: dict[str, None] = {}
        """Queues of other processes to which this channel has sent, the latest last."""
        self._unacked_queues: set[str] = set()
        self._tables: dict[str, tuple[float, list[Binding]]] = {}
        self._lifetimes: dict[str, int] = {}
        """The x-expires of queues that were declared here, in milliseconds; 0: auto_delete alone."""
        self._auto_delete: set[str] = set()
        self._used: dict[str, float] = {}
        """The time at which this channel last noted its use of each queue in the store."""
        self._swept: float | None = None

    # -- queues -------------------------------------------------------------------------------------------------------

    def _queue(self, name: str) -> Queue:
        if name not in self._opened:
            options: QueueOptions = {
                "ack_timeout": self.ack_timeout,
                "max_deliveries": self.max_deliveries,
                "max_pending": _MAX_PENDING,
            }
            if name in self._auto_delete:
                options["lanes"] = 1  # one process receives, so one log is enough
            try:
                self._opened[name] = self._store.queue(_space(name), **options)
            except GroupExists:  # with other settings, which its next consumer changes
                found = self._store.find_queue(_space(name))
                if found is None:
                    raise
                self._opened[name] = found
        return self._opened[name]

    def _consumer(self, name: str) -> Consumer:
        if name not in self._consuming:
            queue = self._queue(name)
            queue.group.configure(
                ack_timeout=self.ack_timeout, max_deliveries=self.max_deliveries, max_pending=_MAX_PENDING
            )
            self._consuming[name] = queue.consumer(f"kombu-{uuid4().hex[:12]}", linger=0.0)
        return self._consuming[name]

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Return a queue's arguments under the names that RabbitMQ gives them, such as `x-expires`."""
        return dict(to_rabbitmq_queue_arguments(arguments, **options))

    def _new_queue(self, queue: str, arguments: dict[str, Any] | None = None, **options: Any) -> None:
        if options.get("auto_delete"):
            self._auto_delete.add(queue)
        lifetime = (arguments or {}).get("x-expires")
        if lifetime or options.get("auto_delete"):
            self._lifetimes[queue] = int(lifetime or 0)
            self._use(queue)
        self._reopening(queue, lambda: self._queue(queue))

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return self._reopening(queue, lambda: self._store.space_settings(_space(queue)) is not None)

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        lifetime = message["properties"].get("expiration")
        metadata = {_EXPIRES: str(int(time.time() * 1000) + int(lifetime))} if lifetime else {}
        if isinstance(subject := message.get("headers", {}).get(_SUBJECT), str):
            metadata[_SUBJECT] = subject
        priority = self._get_message_priority(message)
        # As `Queue.put`, but without the group: a worker that sends a reply needs no state of its reader.
        segment, records = job_records([Record(dumps(message).encode(), metadata)], priority=priority)
        self._reopening(queue, lambda: self._store.produce(_space(queue), segment, records))
        if queue not in self._opened:
            self._replied.pop(queue, None)
            self._replied[queue] = None
            if len(self._replied) > _REPLIED:
                self._forget(next(iter(self._replied)))

    def _messages(self, queue: str, limit: int, no_ack: bool) -> Iterator[dict[str, Any]]:
        def received() -> tuple[Consumer, list[Delivery]]:
            consumer = self._consumer(queue)
            return consumer, consumer.receive(limit=limit, auto_ack=no_ack)

        found = False
        while not found:
            consumer, deliveries = self._reopening(queue, received)
            if not deliveries:
                return
            for message in self._fresh(consumer, deliveries, no_ack):
                found = True
                yield message

    def _reopening(self, queue: str, action: Callable[[], _Result]) -> _Result:
        """The result of an action. If another process has deleted the queue, it is made again first."""
        try:
            return action()
        except PermanentError:
            # An open store keeps refusing a space that was deleted, and an open queue a group that was.
            self._forget(queue)
            self._store = self.connection.open_store()
            return action()

    def _forget(self, queue: str) -> None:
        """Forget what is known of a queue: it was deleted, or belongs to another process."""
        self._opened.pop(queue, None)
        self._consuming.pop(queue, None)
        self._replied.pop(queue, None)
        with suppress(StoreClosed):
            forget_queue(self._store, _space(queue))

    def _fresh(self, consumer: Consumer, deliveries: list[Delivery], no_ack: bool) -> Iterator[dict[str, Any]]:
        """The messages that have not expired. The deadlines of the later ones are extended while the first ones are
        handled."""
        tags = [str(uuid4()) for _ in deliveries]
        if not no_ack:
            for tag, delivery in zip(tags, deliveries, strict=True):
                self.held.add(tag, consumer, delivery)
        for tag, delivery in zip(tags, deliveries, strict=True):
            expires = delivery.entry.metadata.get(_EXPIRES)
            if expires is not None and int(expires) <= time.time() * 1000:
                self.held.settle(tag, lambda consumer, delivery: consumer.ack(delivery))
                continue
            message = loads(delivery.entry.payload.decode())
            message["properties"]["delivery_tag"] = tag
            if delivery.attempt > 1:
                message["redelivered"] = message["properties"]["delivery_info"]["redelivered"] = True
            yield message

    def basic_consume(self, queue: str, no_ack: bool, *positional: Any, **options: Any) -> None:
        if no_ack:
            self._unacked_queues.add(queue)
        else:
            self._unacked_queues.discard(queue)
        super().basic_consume(queue, no_ack, *positional, **options)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        self._use(queue)
        for raw in self._messages(queue, 1, no_ack):
            message = self.Message(raw, channel=self)
            if not no_ack:
                self.qos.append(message, message.delivery_tag)
            return message
        return None

    def _get_many(self, queues: Sequence[str], timeout: float | None = None) -> None:
        """Deliver waiting messages, up to a page from each queue."""
        found = False
        for queue in list(queues):
            self._use(queue)
            room = self.qos.can_consume_max_estimate()
            for message in (
                self._messages(queue, _PAGE if room is None else min(room, _PAGE), queue in self._unacked_queues)
                if room != 0
                else ()
            ):
                found = True
                tag = message["properties"]["delivery_tag"]
                if queue in self._active_queues or not self.held.holds(tag):
                    self.connection._deliver(message, queue)
                else:
                    # Its consumer was cancelled by a message of the same page.
                    self.held.settle(tag, lambda consumer, delivery: consumer.release(delivery))
        if not found:
            raise Empty

    def _size(self, queue: str) -> int:
        if not self._has_queue(queue):
            return 0
        status = self._reopening(queue, lambda: self._queue(queue).status())
        return status.lag - status.pending

    def _purge(self, queue: str) -> int:
        count = 0
        while dropped := self._consumer(queue).receive(limit=1000, auto_ack=True):
            count += len(dropped)
        return count

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        """Delete a queue and its bindings, whichever process declared them."""
        if not if_empty or not self._size(queue):
            self._remove(queue)
            self._store.delete_segment(_SPACE, _use_segment(queue))
            self.state.queue_bindings_delete(queue)

    def _remove(self, queue: str) -> None:
        for segment in list(self._store.get_segments(_SPACE, prefix=_segment(""))):
            exchange = segment.removeprefix(_segment(""))
            for binding in self._table(exchange, fresh=0.0):
                if binding[2] == queue:
                    self._change(exchange, "unbind", binding)
        self._drop(queue)

    def _drop(self, queue: str) -> None:
        consumer = self._consuming.pop(queue, None)
        if consumer is not None:
            consumer.close()
        self._used.pop(queue, None)
        self._store.delete_space(_space(queue))
        self._forget(queue)
        if queue not in self._active_queues:  # else the next message for its consumer makes it again
            self._lifetimes.pop(queue, None)
            self._auto_delete.discard(queue)
            self._unacked_queues.discard(queue)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self.held.close()
        if self.held.is_ours():
            for queue in self._auto_delete & self._consuming.keys():
                try:
                    self._remove(queue)
                except StreamkitError as error:
                    _log.warning("queue %r is left to expire, since it could not be deleted: %s", queue, error)
            for consumer in self._consuming.values():
                consumer.close()
        self._consuming.clear()

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def _queue_bind(self, exchange: str, routing_key: str | None, pattern: str | None, queue: str) -> None:
        binding = routing_key or "", pattern or "", queue
        if binding not in self._table(exchange, fresh=0.0):
            self._change(exchange, "bind", binding)

    def _change(self, exchange: str, verb: str, binding: Binding) -> None:
        self._store.produce(_SPACE, _segment(exchange), [Record(msgspec.json.encode([verb, *binding]))])
        self._tables.pop(exchange, None)

    def _table(self, exchange: str, fresh: float = _FRESH) -> list[Binding]:
        at, table = self._tables.get(exchange, (0.0, []))
        if not at or time.monotonic() - at > fresh:
            self._sweep()
            at, bindings, changes, last = time.monotonic(), dict[Binding, None](), 0, 0
            for entry in self._store.consume_segment(_SPACE, _segment(exchange), gaps="skip"):
                verb, *parts = json_decoder(list[str]).decode(entry.payload)
                binding = parts[0], parts[1], parts[2]
                if verb == "bind":
                    bindings[binding] = None
                else:
                    bindings.pop(binding, None)
                changes, last = changes + 1, entry.sequence
            table = list(bindings)
            if changes > 2 * len(table) + _OLD_CHANGES:
                self._shorten(exchange, table, last)
            self._tables[exchange] = at, table
        return table

    def _shorten(self, exchange: str, table: list[Binding], last: int) -> None:
        """Remove the changes up to `last`, which made the table. The caller of each remote control binds a queue."""
        segment = _segment(exchange)
        try:
            if table:
                records = [Record(msgspec.json.encode(["bind", *binding])) for binding in table]
                self._store.produce(_SPACE, segment, records, expected_sequence=last)
            self._store.trim(_SPACE, segment, before=last + 1)
        except SequenceMismatch:
            return  # another process changes it; the next look shortens it

    def queue_unbind(
        self, queue: str, exchange: str = "", routing_key: str = "", arguments: Any = None, **options: Any
    ) -> None:
        """Remove the binding for all processes."""
        self.state.binding_delete(queue, exchange, routing_key)
        for binding in self._table(exchange, fresh=0.0):
            if binding[0] == routing_key and binding[2] == queue:
                self._change(exchange, "unbind", binding)

    # -- queues of processes that are gone ----------------------------------------------------------------------------

    def _use(self, queue: str) -> None:
        """Tell the store now and then that a queue with x-expires or auto_delete is in use."""
        lifetime = self._lifetimes.get(queue)
        if lifetime is None:
            return
        now, used = time.monotonic(), self._used.get(queue)
        if used is None or now - used > self.abandoned_after / 4:
            self._used[queue] = now
            use = msgspec.json.encode(_Use(lifetime / 1000, time.time()))
            self._store.produce(_SPACE, _use_segment(queue), [Record(use)])

    def _sweep(self) -> None:
        """Remove the queues of killed processes. Otherwise the store would keep them for ever."""
        now = time.monotonic()
        if self._swept is not None and now - self._swept <= self.abandoned_after / 24:
            return
        self._swept = now
        for segment in list(self._store.get_segments(_SPACE, prefix=_use_segment(""))):
            queue, entry = segment.removeprefix(_use_segment("")), self._store.peek(_SPACE, segment)
            if not entry.sequence or queue in self._lifetimes:
                continue
            use = json_decoder(_Use).decode(entry.payload)
            idle, lifetime = time.time() - use.at, max(use.lifetime, self.abandoned_after)
            if idle >= lifetime and self._has_queue(queue):
                _log.warning("queue %r is removed: no process has used it for long", queue)
                self._remove(queue)
            elif idle >= 2 * lifetime:
                # Until now a late reply to its process could make the queue again.
                self._store.delete_segment(_SPACE, segment)

    def get_table(self, exchange: str) -> list[Binding]:
        return self._table(exchange)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Any:
        if exchange and not self.typeof(exchange).lookup(self._table(exchange), exchange, routing_key, default):
            # Another process may have bound a queue since the table was read.
            self._tables.pop(exchange, None)
        return super()._lookup(exchange, routing_key, default)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **options: Any) -> None:
        for _, _, queue in self._table(exchange):
            self._put(queue, message, **options)


class Transport(virtual.Transport):
    """A connection to a store. Each kombu connection opens the store for itself."""

    Channel = Channel
    driver_type = driver_name = "streamkit"
    default_port = None
    connection_errors = (*virtual.Transport.connection_errors, OperationalError, StreamkitError)
    recoverable_connection_errors = (OperationalError, TransientError, OutcomeUnknown)
    implements = virtual.Transport.implements.extend(
        asynchronous=False, exchange_type=frozenset({"direct", "topic", "fanout"}), heartbeats=False
    )
    _client: Client | None = None
    store: Store

    def establish_connection(self) -> Transport:
        """Open the store of `transport_options`, else of `STREAMKIT_STORE`. OperationalError if that fails."""
        options = self.client.transport_options
        store = options.get("store") or os.environ.get("STREAMKIT_STORE")
        if not store:
            raise OperationalError("transport_options name no store: give 'store', or set STREAMKIT_STORE, to its UUID")
        if self._client is None:
            try:
                client = connect(options.get("url"))
                self.store = client.store(store)
                next(self.store.get_spaces(), None)
            except (StreamkitError, ValueError) as error:
                raise OperationalError(str(error)) from error
            self._client = client
            if "polling_interval" not in options:
                local = (options.get("url") or os.environ.get("STREAMKIT_URL") or "file:").startswith(
                    ("file:", "memory:")
                )
                self.polling_interval = 0.1 if local else 1.0
        established: Transport = super().establish_connection()
        return established

    def open_store(self) -> Store:
        """The store, opened again. It is closed with the connection."""
        if self._client is None:
            raise StoreClosed("the connection to the store is closed: connect again")
        return self._client.store(self.store.id)

    def close_connection(self, connection: Any) -> None:
        """Close the connection, and the store with it."""
        super().close_connection(connection)
        if self._client is not None:
            self._client.close()
            self._client = None

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """None: a store has no host, and kombu would warn that it is missing."""
        return {}

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Look for messages again and again."""

        def look() -> None:
            with suppress(Empty):
                self.cycle.get(self._deliver, timeout=0)

        loop.call_repeatedly(min(self.polling_interval, 0.05), look)

    def driver_version(self) -> str:
        """Return the version of the transport, as kombu reports it."""
        return "1"


def _space(queue: str) -> str:
    return f"{_SPACE}.{queue}"


def _segment(exchange: str) -> str:
    return f"exchange/{exchange}"


def _use_segment(queue: str) -> str:
    return f"queue/{queue}"
