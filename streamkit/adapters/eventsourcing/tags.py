"""The library's recorder for dynamic consistency boundaries, over `streamkit.dcb`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from ...dcb import Event, EventStore, QueryItem, SequencedEvent
from ...store import Store
from .errors import translated
from .library import (
    HAS_METADATA,
    DCBAppendCondition,
    DCBEvent,
    DCBListenNotifySubscription,
    DCBQuery,
    DCBReadResponse,
    DCBRecorder,
    DCBSequencedEvent,
    ProgrammingError,
)
from .recorders import EVENT_ID
from .watching import Watching

__all__ = ["StreamkitDCBRecorder"]


class StreamkitDCBRecorder(DCBRecorder):
    """Events with tags, in a space of their own."""

    def __init__(self, store: Store, space: str) -> None:
        self._events = EventStore(store, space)

    def head(self) -> int | None:
        """The position of the last event, or None if there is none."""
        with translated():
            return self._events.head() or None

    def read(
        self, query: DCBQuery | None = None, *, after: int | None = None, limit: int | None = None
    ) -> DCBReadResponse:
        """The events after a position. With a query, only those that match one of its items."""
        if limit == 0:
            return _Read(iter(()), None)
        with translated():
            head = self._events.head()
        events = self._events.read_to(head, _items(query), after=after or 0, limit=limit or 0)
        return _Read(events, head or None if limit is None else None)

    def append(self, events: Sequence[DCBEvent], condition: DCBAppendCondition | None = None) -> int:
        """Append events in one commit, unless the condition fails: IntegrityError. Returns the last one's position."""
        if not events:
            raise ProgrammingError("an append has at least one event")
        added = [Event(event.type, event.data, tuple(event.tags), _metadata(event)) for event in events]
        fail_if = None if condition is None else _items(condition.fail_if_events_match)
        with translated():
            return self._events.append(added, fail_if=fail_if, after=(condition and condition.after) or 0)

    def subscribe(self, query: DCBQuery | None = None, *, after: int | None = None) -> _Subscription:
        """The events after a position, and then those that any process adds."""
        return _Subscription(self, query=query, after=after)

    def changes(self, timeout: float) -> Iterator[object]:
        """Yield once for each change that is seen, until `timeout` seconds pass without one."""
        with translated():
            yield from self._events.follow(after=self._events.head(), timeout=timeout)


class _Read(DCBReadResponse):
    def __init__(self, events: Iterator[SequencedEvent], head: int | None) -> None:
        self._events = events
        self._is_given = head is not None
        self._head = head

    @property
    def head(self) -> int | None:
        """The last position of the log; that of the last event so far if the read has a limit."""
        return self._head

    def __next__(self) -> DCBSequencedEvent:
        with translated():
            read = next(self._events)
        if not self._is_given:
            self._head = read.position
        return DCBSequencedEvent(event=_event(read.event), position=read.position)


class _Subscription(Watching, DCBListenNotifySubscription[StreamkitDCBRecorder]):
    def __init__(self, recorder: StreamkitDCBRecorder, query: DCBQuery | None, after: int | None) -> None:
        super().__init__(recorder=recorder, query=query, after=after)
        self._watch(recorder.changes)


def _metadata(event: DCBEvent) -> dict[str, str]:
    added: Any = event
    return {**added.metadata, EVENT_ID: str(added.uuid)} if HAS_METADATA else {}


def _event(event: Event) -> DCBEvent:
    made: dict[str, Any] = {"type": event.type, "data": event.payload, "tags": list(event.tags)}
    if HAS_METADATA:
        metadata = dict(event.metadata)
        made["uuid"] = UUID(metadata.pop(EVENT_ID))
        made["metadata"] = metadata
    return DCBEvent(**made)


def _items(query: DCBQuery | None) -> list[QueryItem]:
    return [QueryItem(tuple(item.types), tuple(item.tags)) for item in query.items] if query is not None else []
