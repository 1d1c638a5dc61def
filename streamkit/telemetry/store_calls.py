"""The calls of stores and transactions, each with a span around it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any

from .around import Around, In, current_hook, inside, with_carrier
from .hook import Call, Hook, Span

__all__ = [
    "CALLS",
    "READS",
    "added",
    "awaited",
    "called",
    "closing",
    "committed",
    "committed_async",
    "opened",
    "read",
    "timed",
]

_OF_A_STORE = ("outcome", "acquire_lease", "renew_lease", "release_lease", "backup", "backups", "restore_backup")
_OF_A_SEGMENT = {"produce", "peek", "segment_status", "consume_segment", "trim", "erase", "delete_segment"}
CALLS = (
    "produce",
    "create_space",
    "space_settings",
    "peek",
    "segment_status",
    "lookup",
    "end_offset",
    "trim",
    "delete_segment",
    "delete_space",
    "set_retention",
    "change_space",
    "size",
    "erase",
    "archive",
    "compact",
    "restore",
    "salvage",
    "verify",
    "repair",
    "maintain",
    *_OF_A_STORE,
)
"""Methods of a store that give one result."""
READS = ("consume_segment", "consume_space", "consume")


def _begin(name: str, store: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Hook, Call] | None:
    """The hook and the call; None for a call without a span: part of another one, or of an internal space."""
    hook = current_hook()
    if hook is None or inside():
        return None
    space = segment = ""
    if name not in _OF_A_STORE:
        space = _text(args[0] if args else options.get("space"))
        if "" < space < " ":
            return None
    if name in _OF_A_SEGMENT:
        segment = _text(args[1] if len(args) > 1 else options.get("segment"))
    return hook, Call("store", name, store.id, space, segment=segment, key=_text(options.get("idempotency_key")))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count_of(result: Any) -> int | None:
    """The entries of a result: 1 or 0 for an entry."""
    sequence = getattr(result, "sequence", None)
    return int(sequence > 0) if isinstance(sequence, int) else None


def _arguments(
    name: str, args: tuple[Any, ...], options: dict[str, Any], around: Around
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the call; for `produce` with the carrier in the records, which are counted."""
    if name != "produce":
        return args, options
    if len(args) > 2:
        records = with_carrier(args[2], around.span.carrier())
        args = (*args[:2], records, *args[3:])
    else:
        records = with_carrier(options.get("records"), around.span.carrier())
        options = {**options, "records": records} if "records" in options else options
    around.count = len(records) if isinstance(records, list) else None
    return args, options


def called(name: str, method: Any) -> Any:
    """A method of a store."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **options: Any) -> Any:
        begun = _begin(name, self, args, options)
        if begun is None:
            return method(self, *args, **options)
        with Around(begun[0].begin(begun[1])) as around:
            args, options = _arguments(name, args, options, around)
            result = method(self, *args, **options)
            if around.count is None:
                around.count = _count_of(result)
            return result

    return call


def awaited(name: str, method: Any) -> Any:
    """A method of a store for coroutines."""

    @wraps(method)
    async def call(self: Any, /, *args: Any, **options: Any) -> Any:
        begun = _begin(name, self, args, options)
        if begun is None:
            return await method(self, *args, **options)
        with Around(begun[0].begin(begun[1])) as around:
            args, options = _arguments(name, args, options, around)
            result = await method(self, *args, **options)
            if around.count is None:
                around.count = _count_of(result)
            return result

    return call


# -- reading ----------------------------------------------------------------------------------------------------


class _Reading:
    """One call of `consume_…`. Its span begins with the first batch and ends with the last."""

    def __init__(self, hook: Hook, call: Call) -> None:
        self._hook = hook
        self._call = call

    def time(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; measure the time in which they are read, without that of the caller's loop."""
        span = self._hook.begin(self._call)
        seconds, count, clock = 0.0, 0, time.perf_counter
        error: BaseException | None = None
        try:
            while True:
                began = clock()
                try:
                    with In():
                        batch = next(batches, None)
                finally:
                    seconds += clock() - began
                if batch is None:
                    return
                count += len(batch.entries)
                yield batch
        except GeneratorExit:
            raise
        except BaseException as failure:
            error = failure
            raise
        finally:
            span.end(error, count=count, seconds=seconds)


_reading: ContextVar[_Reading | None] = ContextVar("streamkit_telemetry_reading", default=None)


def read(name: str, method: Any) -> Any:
    """A method that gives an iterator of entries, for threads or coroutines."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **options: Any) -> Any:
        begun = _begin(name, self, args, options)
        if begun is None:
            return method(self, *args, **options)
        token = _reading.set(_Reading(*begun))
        try:
            return method(self, *args, **options)
        finally:
            _reading.reset(token)

    return call


def timed(name: str, method: Any) -> Any:
    """`entries` of a reader: it takes the batches that a call of `consume_…` reads."""

    @wraps(method)
    def call(self: Any, batches: Iterator[Any], /, *args: Any, **options: Any) -> Any:
        reading = _reading.get()
        return method(self, batches if reading is None else reading.time(batches), *args, **options)

    return call


# -- transactions -----------------------------------------------------------------------------------------------


def opened(name: str, method: Any) -> Any:
    """`transaction` of a store: the span names the store."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **options: Any) -> Any:
        transaction = method(self, *args, **options)
        transaction.__dict__["_telemetry_store"] = self.id
        return transaction

    return call


def _span_of(transaction: Any) -> Span | None:
    held = transaction.__dict__
    span: Span | None = held.get("_telemetry")
    hook = current_hook()
    if span is None and hook is not None and "_telemetry_store" in held:
        call = Call("store", "transaction", held["_telemetry_store"], transaction.space)
        span = held["_telemetry"] = hook.begin(call)
    return span


def added(name: str, method: Any) -> Any:
    """`produce` of a transaction: the span begins with it, so that its records can name it."""

    @wraps(method)
    def call(self: Any, /, segment: Any, records: Any, **options: Any) -> Any:
        if not inside() and not "" < self.space < " ":
            span = _span_of(self)
            if span is not None:
                records = with_carrier(records, span.carrier())
        return method(self, segment, records, **options)

    return call


def committed(name: str, method: Any) -> Any:
    """The end of a transaction's block."""

    @wraps(method)
    def call(self: Any, kind: Any, error: Any, trace: Any, /) -> Any:
        span = self.__dict__.pop("_telemetry", None)
        if span is None:
            return method(self, kind, error, trace)
        with Around(span) as around:
            around.error = error
            return method(self, kind, error, trace)

    return call


def committed_async(name: str, method: Any) -> Any:
    """The end of a transaction's block, for coroutines."""

    @wraps(method)
    async def call(self: Any, kind: Any, error: Any, trace: Any, /) -> Any:
        span = self.__dict__.pop("_telemetry", None)
        if span is None:
            return await method(self, kind, error, trace)
        with Around(span) as around:
            around.error = error
            return await method(self, kind, error, trace)

    return call


def closing(name: str, method: Any) -> Any:
    """`close` of an open store: its counts are kept."""

    @wraps(method)
    def call(self: Any, /) -> Any:
        hook = current_hook()
        if hook is not None and not self.closed:
            hook.closing(self)
        return method(self)

    return call
