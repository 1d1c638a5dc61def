"""A span around a call: the hook in use, and the state that tells outer calls from the calls they make."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from ..model import Record
from .guarded import GuardedHook
from .hook import Hook, Span

__all__ = ["Around", "In", "carrying", "current_hook", "inside", "installed_hook", "set_hook", "with_carrier"]

_MOST_METADATA = 15_000
"""Characters of metadata beyond which nothing is added: a record has room for 64 KiB."""
_hook: GuardedHook | None = None
_inside: ContextVar[bool] = ContextVar("streamkit_telemetry_inside", default=False)
"""True within a call that has a span: the calls that it makes have none."""


def current_hook() -> Hook | None:
    """Return the safe form of the installed hook, which raises nothing; or None."""
    return _hook


def installed_hook() -> Hook | None:
    """Return the hook that is installed, or None."""
    return None if _hook is None else _hook.hook


def set_hook(hook: Hook | None) -> Hook | None:
    """Replace the hook. Returns the one before."""
    global _hook
    before, _hook = installed_hook(), None if hook is None else GuardedHook(hook)
    return before


def inside() -> bool:
    """True if a call is part of one that has a span already."""
    return _inside.get()


class In:
    """Marks calls as part of an outer one: `with In(): …`, in a thread or a coroutine."""

    __slots__ = ("_token",)
    _token: Token[bool]

    def __enter__(self) -> In:
        self._token = _inside.set(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _inside.reset(self._token)


class Around:
    """Ends a span with its block: `with Around(span) as around: …; around.count = 3`.

    Within the block the span is the current one. `outer`: the calls in the block have no spans of their own.
    """

    __slots__ = ("_began", "_context", "_outer", "count", "error", "span")

    def __init__(self, span: Span, *, outer: bool = True) -> None:
        self.span = span
        self.count: int | None = None
        self.error: BaseException | None = None
        """The error of the call, if the block does not raise it."""
        self._outer = In() if outer else None
        self._context = span.current()

    def __enter__(self) -> Around:
        self._began = time.perf_counter()
        self._context.__enter__()
        if self._outer is not None:
            self._outer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outer is not None:
            self._outer.__exit__(kind, error, trace)
        self._context.__exit__(kind, error, trace)
        self.span.end(error or self.error, count=self.count, seconds=time.perf_counter() - self._began)


def with_carrier(records: Any, carrier: Mapping[str, str]) -> Any:
    """The records with the carrier in their metadata. Values that are no records are left for the checks of the
    call."""
    if not carrier or isinstance(records, (Record, bytes, str, Mapping)) or not isinstance(records, Iterable):
        return records
    return [carrying(record, carrier) for record in records]


def carrying(record: Any, carrier: Mapping[str, str]) -> Any:
    """A record with the carrier in its metadata, if there is room for it."""
    if type(record) is not Record:
        return record
    metadata: Any = record.metadata
    if metadata is None:
        return Record(record.payload, dict(carrier), record.sequence)
    try:
        if sum(map(len, metadata)) + sum(map(len, metadata.values())) > _MOST_METADATA:
            return record
        return Record(record.payload, {**metadata, **carrier}, record.sequence)
    except (AttributeError, TypeError):
        return record
