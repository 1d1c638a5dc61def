"""A transport for kombu, and so a broker for Celery: `streamkit.adapters.kombu:Transport`.

A queue is a queue of the store (`store.queue`), in a space named `kombu.` and the queue's name. The bindings of an
exchange are a segment of the space `kombu`, so all processes see them. The transport extends the deadline of a message
while its task runs. A message of a process that was killed is delivered again when its deadline has passed.

`transport_options`: `url` and `store` (else STREAMKIT_URL and STREAMKIT_STORE), `ack_timeout` in seconds (60),
`max_deliveries` (5), `polling_interval` in seconds (0.1 on this machine, 1.0 on a service), `abandoned_after` in
seconds (a day).
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty
from threading import Event, Lock, Thread
from typing import Any
from uuid import uuid4

import msgspec
from kombu.exceptions import OperationalError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads

from ..client import Client, connect
from ..errors import DeliveryLost, OutcomeUnknown, StreamkitError, TransientError
from ..groups import Consumer, Delivery, Queue
from ..model import Record
from ..store import Store

__all__ = ["Channel", "Transport"]

_log = logging.getLogger(__name__)
_SPACE = "kombu"
_EXPIRES = "kombu:expires"
_PAGE = 10
"""Messages that one look takes at most."""
_FRESH = 1.0
"""Seconds for which bindings are taken to be as they were read."""

Binding = tuple[str, str, str]
"""Routing key, pattern, queue."""


class _Held:
    """Deliveries that are not settled. A thread extends their deadlines."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = Lock()
        self._held: dict[str, tuple[Consumer, Delivery]] = {}
        self._closed = Event()
        self._thread: Thread | None = None
        self._process = os.getpid()

    def add(self, tag: str, consumer: Consumer, delivery: Delivery) -> None:
        with self._lock:
            self._held[tag] = consumer, delivery
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
        self._closed.set()

    def _extend(self) -> None:
        while not self._closed.wait(self._seconds / 3):
            for tag in list(self._held):
                with self._lock:
                    held = self._held.get(tag)
                    if held is None:
                        continue
                    try:
                        self._held[tag] = held[0], held[0].extend(held[1], self._seconds)
                    except DeliveryLost as error:
                        del self._held[tag]
                        _log.warning("a message was delivered to another consumer as well: %s", error)
                    except StreamkitError as error:
                        _log.warning("the deadline of a message could not be extended: %s", error)


class _QoS(virtual.QoS):
    """Settles messages in the store."""

    def ack(self, delivery_tag: str) -> None:
        self.channel.held.settle(delivery_tag, lambda consumer, delivery: consumer.ack(delivery))
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give the message back, or else make it a dead letter."""
        if requeue:
            self.channel.held.settle(delivery_tag, lambda consumer, delivery: consumer.release(delivery))
        else:
            self.channel.held.settle(delivery_tag, lambda consumer, delivery: consumer.reject(delivery))
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Give back what is not settled."""
        self._flush()
        for tag in list(self._delivered):
            self.channel.held.settle(tag, lambda consumer, delivery: consumer.release(delivery))
        self._delivered.clear()
        return []


class Channel(virtual.Channel):
    """What kombu asks of queues and exchanges."""

    QoS = _QoS
    supports_fanout = True
    ack_timeout = 60.0
    max_deliveries = 5
    abandoned_after = 86_400.0
    """Seconds. If a message waits so long in a queue that has x-expires, and a binding, the queue is removed."""
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
        self._unacked_queues: set[str] = set()
        self._tables: dict[str, tuple[float, list[Binding]]] = {}
        self._lifetimes: dict[str, str] = {}
        """The x-expires of queues that were declared here, in milliseconds."""
        self._swept: dict[str, float] = {}

    # -- queues -------------------------------------------------------------------------------------------------------

    def _queue(self, name: str) -> Queue:
        if name not in self._opened:
            self._opened[name] = self._store.queue(
                f"{_SPACE}.{name}", ack_timeout=self.ack_timeout, max_deliveries=self.max_deliveries
            )
        return self._opened[name]

    def _consumer(self, name: str) -> Consumer:
        if name not in self._consuming:
            self._consuming[name] = self._queue(name).consumer(f"kombu-{uuid4().hex[:12]}", linger=0.0)
        return self._consuming[name]

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        return dict(to_rabbitmq_queue_arguments(arguments, **options))

    def _new_queue(self, queue: str, arguments: dict[str, Any] | None = None, **options: Any) -> None:
        if lifetime := (arguments or {}).get("x-expires"):
            self._lifetimes[queue] = str(int(lifetime))
        self._queue(queue)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return self._store.space_settings(f"{_SPACE}.{queue}") is not None

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        lifetime = message["properties"].get("expiration")
        metadata = {_EXPIRES: str(int(time.time() * 1000) + int(lifetime))} if lifetime else None
        priority = self._get_message_priority(message)
        self._queue(queue).put(dumps(message).encode(), metadata=metadata, priority=priority)

    def _messages(self, queue: str, limit: int, no_ack: bool) -> Iterator[dict[str, Any]]:
        consumer = self._consumer(queue)
        found = False
        while not found and (deliveries := consumer.receive(limit=limit, auto_ack=no_ack)):
            for message in self._fresh(consumer, deliveries, no_ack):
                found = True
                yield message

    def _fresh(self, consumer: Consumer, deliveries: list[Delivery], no_ack: bool) -> Iterator[dict[str, Any]]:
        """The messages that have not expired."""
        for delivery in deliveries:
            expires = delivery.entry.metadata.get(_EXPIRES)
            if expires is not None and int(expires) <= time.time() * 1000:
                if not no_ack:
                    consumer.ack(delivery)
                continue
            message = loads(delivery.entry.payload.decode())
            tag = message["properties"]["delivery_tag"] = str(uuid4())
            if delivery.attempt > 1:
                message["redelivered"] = message["properties"]["delivery_info"]["redelivered"] = True
            if not no_ack:
                self.held.add(tag, consumer, delivery)
            yield message

    def basic_consume(self, queue: str, no_ack: bool, *positional: Any, **options: Any) -> None:
        if no_ack:
            self._unacked_queues.add(queue)
        else:
            self._unacked_queues.discard(queue)
        super().basic_consume(queue, no_ack, *positional, **options)

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        for raw in self._messages(queue, 1, no_ack):
            message = self.Message(raw, channel=self)
            if not no_ack:
                self.qos.append(message, message.delivery_tag)
            return message
        return None

    def _get_many(self, queues: Sequence[str], timeout: float | None = None) -> None:
        """Deliver what is there, up to a page of each queue."""
        found = False
        for queue in list(queues):
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
        status = self._queue(queue).status()
        return status.lag - status.pending

    def _purge(self, queue: str) -> int:
        count = 0
        while dropped := self._consumer(queue).receive(limit=1000, auto_ack=True):
            count += len(dropped)
        return count

    def _delete(self, queue: str, exchange: str, *binding: str, **options: Any) -> None:
        self._change(exchange, "unbind", (binding[0] or "", binding[1] or "", queue))
        self._drop(queue)

    def _drop(self, queue: str) -> None:
        consumer = self._consuming.pop(queue, None)
        if consumer is not None:
            consumer.close()
        self._opened.pop(queue, None)
        self._store.delete_space(f"{_SPACE}.{queue}")

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        self.held.close()
        for consumer in self._consuming.values() if self.held.is_ours() else ():
            consumer.close()
        self._consuming.clear()

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def _queue_bind(self, exchange: str, routing_key: str | None, pattern: str | None, queue: str) -> None:
        binding = routing_key or "", pattern or "", queue
        if binding not in self._table(exchange, fresh=0.0):
            self._change(exchange, "bind", binding, self._lifetimes.get(queue, ""))

    def _change(self, exchange: str, verb: str, binding: Binding, lifetime: str = "") -> None:
        self._store.produce(_SPACE, _segment(exchange), [Record(msgspec.json.encode([verb, *binding, lifetime]))])
        self._tables.pop(exchange, None)

    def _table(self, exchange: str, fresh: float = _FRESH) -> list[Binding]:
        at, table = self._tables.get(exchange, (0.0, []))
        if not at or time.monotonic() - at > fresh:
            at, bindings = time.monotonic(), dict[Binding, str]()
            for entry in self._store.consume_segment(_SPACE, _segment(exchange), gaps="skip"):
                verb, *parts = msgspec.json.decode(entry.payload, type=list[str])
                binding = parts[0], parts[1], parts[2]
                if verb == "bind":
                    bindings[binding] = parts[3] if len(parts) > 3 else ""
                else:
                    bindings.pop(binding, None)
            if at - self._swept.get(exchange, -self.abandoned_after) > self.abandoned_after / 24:
                self._swept[exchange] = at
                self._sweep(exchange, bindings)
            table = list(bindings)
            self._tables[exchange] = at, table
        return table

    def _sweep(self, exchange: str, bindings: dict[Binding, str]) -> None:
        """Remove bindings of processes that were killed: else their queues would grow with each message for all."""
        for binding, lifetime in list(bindings.items()):
            queue = binding[2]
            if lifetime and queue not in self._lifetimes and self._is_abandoned(queue, int(lifetime) / 1000):
                _log.warning("queue %r is removed: nobody has taken its messages for long", queue)
                del bindings[binding]
                self._change(exchange, "unbind", binding)
                self._drop(queue)

    def _is_abandoned(self, queue: str, lifetime: float) -> bool:
        if not self._has_queue(queue):
            return False
        space, end = f"{_SPACE}.{queue}", (time.time() - max(lifetime, self.abandoned_after)) * 1000
        unread = self._queue(queue).status().unread
        first = next(self._store.consume_space(space, limit=1, gaps="skip"), None) if unread else None
        if first is None or first.timestamp > end:
            return False
        # Acknowledged messages may stand before it and between, so the oldest unread one is at least so far back.
        newest = self._store.consume_space(space, reverse=True, limit=unread, gaps="skip")
        return all(entry.timestamp <= end for entry in deque(newest, maxlen=1))

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

    def close_connection(self, connection: Any) -> None:
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
        return "1"


def _segment(exchange: str) -> str:
    return f"exchange/{exchange}"
