"""The hook: a call begins, and a span ends. Other systems of telemetry implement these two classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol
from uuid import UUID

import msgspec

__all__ = ["Call", "Hook", "Span"]


class Call(msgspec.Struct, frozen=True):
    """A call of the public interface. Empty text: the call has no such thing, or does not name it."""

    kind: Literal["store", "send", "receive", "process", "settle"]
    """ "store" is a call of a store; the others are those of groups and queues."""
    operation: str
    """The method, such as "produce"."""
    store: UUID
    space: str = ""
    """The space, or the queue."""
    group: str = ""
    consumer: str = ""
    segment: str = ""
    key: str = ""
    """The idempotency key."""
    payload: bytes | None = None
    """The payload of a delivery that is processed."""
    attempt: int = 0
    """The attempt of that delivery, from 1."""


class Span(Protocol):
    """A call that has begun. It may end in another thread."""

    def current(self) -> AbstractContextManager[Any]:
        """Make it the parent of spans that begin meanwhile."""
        ...

    def carrier(self) -> Mapping[str, str]:
        """Return metadata for the records that the call writes; {} for none."""
        ...

    def end(
        self, error: BaseException | None = None, *, count: int | None = None, seconds: float | None = None
    ) -> None:
        """End the span; called once. `count`: entries or deliveries. `seconds`: the time in the store, if it is only a
        part."""
        ...


class Hook(Protocol):
    """A receiver of calls, for `streamkit.telemetry.install`.

    Its methods run inside the calls, so they must be quick. An exception is logged, at most once a minute, and the call
    continues without the hook.
    """

    def begin(self, call: Call, *, links: Sequence[Mapping[str, str]] = (), started: int | None = None) -> Span:
        """Begin a span. `links`: the metadata of the entries that the call is about. `started`: nanoseconds since the
        epoch, if the span began earlier."""
        ...

    def lagging(self, kind: Literal["group", "view", "route"], part: Any) -> None:
        """Learn of a group, queue, view or route that works in this process: it has a name and a `status()`."""
        ...

    def closing(self, store: Any) -> None:
        """Learn that a store is closed: its counts end."""
        ...

    def stop(self) -> None:
        """Learn that the hook was removed."""
        ...
