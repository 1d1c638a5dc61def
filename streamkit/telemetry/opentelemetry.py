"""The hook for OpenTelemetry: spans, durations, and links between the writer of a record and its readers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..errors import MissingDependency
from . import names
from .hook import Call

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise MissingDependency(
        "telemetry needs OpenTelemetry's API, which is not installed: pip install 'streamkit-store[otel]'"
    ) from error

from .meters import Meters

__all__ = ["OpenTelemetry"]

_CONTENT = ("segments", "keys", "payloads")
_MOST_PAYLOAD = 1024
"""Bytes of a payload that a span holds, if it was asked to."""
_KINDS = {
    "store": trace.SpanKind.CLIENT,
    "send": trace.SpanKind.PRODUCER,
    "receive": trace.SpanKind.CLIENT,
    "process": trace.SpanKind.CONSUMER,
    "settle": trace.SpanKind.CLIENT,
}
_propagator = TraceContextTextMapPropagator()


class _Span:
    """A span of OpenTelemetry, and the duration of its call."""

    __slots__ = ("_attributes", "_began", "_call", "_hook", "_span")

    def __init__(self, hook: OpenTelemetry, call: Call, span: trace.Span, attributes: dict[str, Any]) -> None:
        self._hook = hook
        self._call = call
        self._span = span
        self._attributes = attributes
        self._began = time.perf_counter()

    def current(self) -> AbstractContextManager[Any]:
        return trace.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False)

    def carrier(self) -> Mapping[str, str]:
        if not self._hook.propagate:
            return {}
        found: dict[str, str] = {}
        _propagator.inject(found, trace.set_span_in_context(self._span, contexts.Context()))
        return found

    def end(
        self, error: BaseException | None = None, *, count: int | None = None, seconds: float | None = None
    ) -> None:
        span, call = self._span, self._call
        if seconds is None:
            seconds = time.perf_counter() - self._began
        if error is not None:
            # Only its type: a message may name segments and keys.
            self._attributes = {**self._attributes, names.ERROR: type(error).__qualname__}
            span.set_attribute(names.ERROR, type(error).__qualname__)
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        if count is not None and span.is_recording():
            counted = names.MESSAGING_BATCH
            if call.kind == "store":
                counted = names.DB_BATCH if call.operation == "produce" else names.DB_ROWS
            span.set_attribute(counted, count)
        span.end()
        self._hook.measure(call, self._attributes, seconds, 1 if count is None else count)


class OpenTelemetry:
    """A hook that makes spans and metrics. It reads no clock and no storage besides those of the calls themselves."""

    def __init__(
        self,
        *,
        capture: Iterable[str] = (),
        propagate: bool = True,
        tracer_provider: Any = None,
        meter_provider: Any = None,
    ) -> None:
        if isinstance(capture, str):
            raise TypeError(f"capture is several kinds of content, not a str: pass ({capture!r},)")
        self._capture = frozenset(capture)
        unknown = sorted(map(repr, self._capture - set(_CONTENT)))
        if unknown:
            raise ValueError(f"capture takes {', '.join(map(repr, _CONTENT))}, not {', '.join(unknown)}")
        self.propagate = propagate
        self._tracer = trace.get_tracer(names.LIBRARY, tracer_provider=tracer_provider)
        meter = metrics.get_meter(names.LIBRARY, meter_provider=meter_provider)
        self._meters = Meters(meter)

        def duration(name: str, description: str) -> metrics.Histogram:
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=names.BUCKETS)

        client = duration(names.CLIENT_DURATION, "Duration of calls that send, receive or settle")
        self._durations = {
            "store": duration(names.DB_DURATION, "Duration of calls of a store"),
            "send": client,
            "receive": client,
            "settle": client,
            "process": duration(names.PROCESS_DURATION, "Duration of a handler's call"),
        }
        self._sent = meter.create_counter(names.SENT, "{message}", "Jobs put into queues")
        self._consumed = meter.create_counter(names.CONSUMED, "{message}", "Deliveries received")

    def begin(self, call: Call, *, links: Sequence[Mapping[str, str]] = (), started: int | None = None) -> _Span:
        """Begin a span. See `Hook.begin`."""
        attributes = _attributes_of(call)
        linked = [found for carrier in links if (found := _link(carrier)) is not None]
        span = self._tracer.start_span(
            f"{call.operation} {call.space}" if call.space else call.operation,
            kind=_KINDS[call.kind],
            attributes={**attributes, **self._details(call)},
            links=linked,
            start_time=started,
        )
        return _Span(self, call, span, attributes)

    def _details(self, call: Call) -> dict[str, Any]:
        """Attributes of the span alone: metrics must not have them, because their values are many."""
        found: dict[str, Any] = {}
        if call.kind != "store" and call.consumer:
            found[names.MESSAGING_CLIENT] = call.consumer
        if call.attempt:
            found[names.ATTEMPT] = call.attempt
        if call.segment and "segments" in self._capture:
            found[names.SEGMENT] = call.segment
        if call.key and "keys" in self._capture:
            found[names.KEY] = call.key
        if call.payload is not None and "payloads" in self._capture:
            found[names.PAYLOAD] = call.payload[:_MOST_PAYLOAD].decode(errors="replace")
        return found

    def measure(self, call: Call, attributes: dict[str, Any], seconds: float, count: int) -> None:
        """Record the duration of a call, and the messages of it."""
        self._durations[call.kind].record(seconds, attributes)
        if call.kind == "send":
            self._sent.add(count, attributes)
        elif call.kind == "receive" and names.ERROR not in attributes:
            self._consumed.add(count, attributes)

    def lagging(self, kind: str, part: Any) -> None:
        """Observe the lag of a part. See `Hook.lagging`."""
        self._meters.observe(kind, part)

    def closing(self, store: Any) -> None:
        """Keep the counts of a store that is closed."""
        self._meters.keep(store)

    def stop(self) -> None:
        """Observe nothing any more."""
        self._meters.stop()


def _attributes_of(call: Call) -> dict[str, Any]:
    store = str(call.store)
    if call.kind == "store":
        found = {names.DB_SYSTEM: names.SYSTEM, names.DB_STORE: store, names.DB_OPERATION: call.operation}
        if call.space:
            found[names.DB_SPACE] = call.space
        return found
    found = {
        names.MESSAGING_SYSTEM: names.SYSTEM,
        names.STORE: store,
        names.MESSAGING_DESTINATION: call.space,
        names.MESSAGING_OPERATION: call.operation,
        names.MESSAGING_TYPE: call.kind,
    }
    if call.group and call.kind != "send":
        found[names.MESSAGING_GROUP] = call.group
    return found


def _link(carrier: Mapping[str, str]) -> trace.Link | None:
    """The link to the trace that wrote a record; None if its metadata names no valid one."""
    found = trace.get_current_span(_propagator.extract(carrier, contexts.Context())).get_span_context()
    return trace.Link(found) if found.is_valid else None
