"""The calls of groups and queues, each with a span around it; and the lags of groups, views and routes."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Mapping
from functools import wraps
from typing import Any, Literal

from ..groups import Consumer, Delivery, Group
from ..model import Record
from ..views.open_view import OpenView
from .around import Around, In, carrying, current_hook, inside
from .hook import Call, Hook

__all__ = [
    "SETTLEMENTS",
    "handled",
    "handled_async",
    "quiet",
    "received",
    "received_async",
    "sent",
    "sent_async",
    "settled",
    "settled_async",
]

SETTLEMENTS = ("ack", "nack", "reject", "release", "extend")
_LINKS = 128
"""Links of one span: OpenTelemetry's own limit."""
_Kind = Literal["send", "receive", "process", "settle"]


def _hook() -> Hook | None:
    return None if inside() else current_hook()


def _group_of(part: Any) -> Group:
    """The group of a consumer, a group or a queue, for threads or coroutines."""
    found = getattr(part, "sync", part)
    group: Group = found if isinstance(found, Group) else found.group
    return group


def _call(kind: _Kind, name: str, part: Any, delivery: Delivery | None = None) -> Call:
    found, group = getattr(part, "sync", part), _group_of(part)
    if delivery is None:
        consumer = found.name if isinstance(found, Consumer) else ""
        return Call(kind, name, group.store.id, group.space, group.name, consumer)
    entry = delivery.entry
    payload = entry.payload if kind == "process" else None
    place = group.store.id, group.space, group.name, delivery.consumer, entry.segment
    return Call(kind, name, *place, payload=payload, attempt=delivery.attempt)


def _links(deliveries: Iterable[Delivery]) -> list[Mapping[str, str]]:
    found = [delivery.entry.metadata for delivery in deliveries if "traceparent" in delivery.entry.metadata]
    return list(found[:_LINKS])


def _size(given: object) -> int | None:
    return len(given) if isinstance(given, (list, tuple)) else None


# -- sending ----------------------------------------------------------------------------------------------------


def _with_metadata(options: dict[str, Any], carrier: Mapping[str, str]) -> dict[str, Any]:
    metadata = options.get("metadata")
    if carrier and (metadata is None or isinstance(metadata, Mapping)):
        return {**options, "metadata": carrying(Record(b"", metadata), carrier).metadata}
    return options


def sent(name: str, method: Any) -> Any:
    """`put_many` of a queue, which `put` calls."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **options: Any) -> Any:
        hook = _hook()
        if hook is None:
            return method(self, *args, **options)
        with Around(hook.begin(_call("send", "put", self))) as around:
            around.count = _size(args[0] if args else options.get("payloads"))
            return method(self, *args, **_with_metadata(options, around.span.carrier()))

    return call


def sent_async(name: str, method: Any) -> Any:
    """`put` or `put_many` of a queue for coroutines."""

    @wraps(method)
    async def call(self: Any, /, *args: Any, **options: Any) -> Any:
        hook = _hook()
        if hook is None:
            return await method(self, *args, **options)
        with Around(hook.begin(_call("send", "put", self))) as around:
            around.count = 1 if name == "put" else _size(args[0] if args else options.get("payloads"))
            return await method(self, *args, **_with_metadata(options, around.span.carrier()))

    return call


# -- receiving --------------------------------------------------------------------------------------------------


class _Receipt:
    """A span for deliveries that were received. A look that finds nothing has none."""

    def __init__(self, hook: Hook, part: Any) -> None:
        self._hook = hook
        self._part = part
        self._started = time.time_ns()
        self._began = time.perf_counter()

    def failed(self, error: BaseException) -> None:
        self._hook.begin(_call("receive", "receive", self._part), started=self._started).end(error)

    def done(self, found: list[Delivery]) -> list[Delivery]:
        self._hook.lagging("group", _group_of(self._part))
        if found:
            call = _call("receive", "receive", self._part)
            span = self._hook.begin(call, links=_links(found), started=self._started)
            span.end(count=len(found), seconds=time.perf_counter() - self._began)
        return found


def received(name: str, method: Any) -> Any:
    """`receive` of a consumer or a group."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **options: Any) -> Any:
        hook = _hook()
        if hook is None:
            return method(self, *args, **options)
        receipt = _Receipt(hook, self)
        try:
            with In():
                found = method(self, *args, **options)
        except Exception as error:
            receipt.failed(error)
            raise
        return receipt.done(found)

    return call


def received_async(name: str, method: Any) -> Any:
    """`receive` of a consumer or a group for coroutines."""

    @wraps(method)
    async def call(self: Any, /, *args: Any, **options: Any) -> Any:
        hook = _hook()
        if hook is None:
            return await method(self, *args, **options)
        receipt = _Receipt(hook, self)
        try:
            with In():
                found = await method(self, *args, **options)
        except Exception as error:
            receipt.failed(error)
            raise
        return receipt.done(found)

    return call


# -- settling ---------------------------------------------------------------------------------------------------


def _settling(hook: Hook, name: str, part: Any, args: tuple[Any, ...]) -> Around:
    first = args[0] if args else None
    delivery = first if isinstance(first, Delivery) else None
    links = [] if delivery is None else _links([delivery])
    around = Around(hook.begin(_call("settle", name, part, delivery), links=links))
    around.count = _size(first)
    return around


def settled(name: str, method: Any) -> Any:
    """`ack` and its like of a consumer, `settle` of a group."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **options: Any) -> Any:
        hook = _hook()
        if hook is None:
            return method(self, *args, **options)
        with _settling(hook, name, self, args):
            return method(self, *args, **options)

    return call


def settled_async(name: str, method: Any) -> Any:
    """The same for coroutines."""

    @wraps(method)
    async def call(self: Any, /, *args: Any, **options: Any) -> Any:
        hook = _hook()
        if hook is None:
            return await method(self, *args, **options)
        with _settling(hook, name, self, args):
            return await method(self, *args, **options)

    return call


# -- handlers ---------------------------------------------------------------------------------------------------


def _processing(hook: Hook, part: Any, delivery: Delivery) -> Around:
    """A span around a handler's call. The calls that the handler makes have spans of their own below it."""
    return Around(hook.begin(_call("process", "process", part, delivery), links=_links([delivery])), outer=False)


def handled(name: str, method: Any) -> Any:
    """`run` of a group: a span around each call of the handler."""

    @wraps(method)
    def call(self: Any, /, handler: Any, *args: Any, **options: Any) -> Any:
        if not callable(handler) or inspect.iscoroutinefunction(handler):
            return method(self, handler, *args, **options)  # it is refused there

        def process(delivery: Delivery) -> Any:
            hook = current_hook()
            if hook is None:
                return handler(delivery)
            with _processing(hook, self, delivery):
                return handler(delivery)

        return method(self, process, *args, **options)

    return call


def handled_async(name: str, method: Any) -> Any:
    """`run` of a group for coroutines. The handler may be a plain function."""

    @wraps(method)
    async def call(self: Any, /, handler: Any, *args: Any, **options: Any) -> Any:
        if not callable(handler):
            return await method(self, handler, *args, **options)  # it is refused there

        async def process(delivery: Delivery) -> Any:
            hook = current_hook()
            if hook is None:
                result = handler(delivery)
                return await result if inspect.isawaitable(result) else result
            with _processing(hook, self, delivery):
                result = handler(delivery)
                return await result if inspect.isawaitable(result) else result

        return await method(self, process, *args, **options)

    return call


def quiet(name: str, method: Any) -> Any:
    """`run` or `catch_up` of a view or a route: it reads and copies all the time, so it has a lag and no spans."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **options: Any) -> Any:
        hook = current_hook()
        if hook is None:
            return method(self, *args, **options)
        hook.lagging("view" if isinstance(self, OpenView) else "route", self)
        with In():
            return method(self, *args, **options)

    return call
