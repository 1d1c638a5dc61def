"""A hook whose exceptions are logged: telemetry never decides whether a call succeeds.

An exporter may raise when a span ends. A caller that saw this exception would take a committed write for a failed one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, TypeVar

from ..warn import warn_of
from .hook import Call, Hook, Span

__all__ = ["GuardedHook"]

_QUIET = 60.0
"""Seconds after a warning in which no other one is logged."""

_T = TypeVar("_T")


class GuardedHook:
    """`hook`, for the calls that it watches. An exception of a method is logged, at most once a minute."""

    __slots__ = ("_warned", "hook")

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self._warned = -_QUIET

    def begin(self, call: Call, *, links: Sequence[Mapping[str, str]] = (), started: int | None = None) -> Span:
        """Begin a span. If that fails, the call has none."""
        span = self.attempt(None, lambda: self.hook.begin(call, links=links, started=started))
        return _Span(self, span)

    def lagging(self, kind: Literal["group", "view", "route"], part: Any) -> None:
        """Tell the hook of a part that works here."""
        self.attempt(None, lambda: self.hook.lagging(kind, part))

    def closing(self, store: Any) -> None:
        """Tell the hook that a store is closed."""
        self.attempt(None, lambda: self.hook.closing(store))

    def stop(self) -> None:
        """Tell the hook that it was removed."""
        self.attempt(None, self.hook.stop)

    def attempt(self, otherwise: _T, call: Callable[[], _T]) -> _T:
        """The result of `call`, or `otherwise` if it raises an exception."""
        try:
            return call()
        except Exception as error:
            now = time.monotonic()
            if now - self._warned >= _QUIET:
                self._warned = now
                name = type(self.hook).__qualname__
                warn_of(error, "the telemetry hook %s failed; the call continues without it", name)
            return otherwise


class _Span:
    """A span of a guarded hook; None if it could not begin."""

    __slots__ = ("_hook", "_span")

    def __init__(self, hook: GuardedHook, span: Span | None) -> None:
        self._hook = hook
        self._span = span

    def current(self) -> AbstractContextManager[Any]:
        return _Current(self._hook, self._span)

    def carrier(self) -> Mapping[str, str]:
        span = self._span
        return {} if span is None else self._hook.attempt({}, span.carrier)

    def end(
        self, error: BaseException | None = None, *, count: int | None = None, seconds: float | None = None
    ) -> None:
        span = self._span
        if span is not None:
            self._hook.attempt(None, lambda: span.end(error, count=count, seconds=seconds))


class _Current(AbstractContextManager[None]):
    """The block in which a span is the current one."""

    __slots__ = ("_context", "_hook", "_span")

    def __init__(self, hook: GuardedHook, span: Span | None) -> None:
        self._hook = hook
        self._span = span
        self._context: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        span = self._span
        if span is not None:
            self._context = self._hook.attempt(None, lambda: _entered(span))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        context, self._context = self._context, None
        if context is not None:
            self._hook.attempt(None, lambda: _left(context, kind, error, trace))


def _entered(span: Span) -> AbstractContextManager[Any]:
    context = span.current()
    context.__enter__()
    return context


def _left(
    context: AbstractContextManager[Any],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    try:
        context.__exit__(kind, error, trace)
    except Exception as raised:
        if raised is not error:  # the error of the call itself is none of the hook's
            raise
