"""Dynamic consistency boundaries: read events by tags and types, and append if no matching event came after them.

A space holds one log of events, whose positions are 1, 2, 3, … without gaps. Each event is in the segment `events`, and
again in the segment `tag/…` of each of its tags: a decision reads one segment for each tag that it asks for. One
transaction writes both, and expects the end of the log at which its condition was checked.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from threading import Lock

import msgspec

from .arguments import check_count, check_several, check_type
from .errors import InvalidName, PermanentError, SequenceMismatch
from .model import Entry, Record
from .names import check_name
from .store import Store

__all__ = ["ConditionFailed", "Event", "EventStore", "QueryItem", "SequencedEvent"]

EVENTS = "events"
TAG = "tag/"
_MOST_TAG = 251
"""Bytes of a tag: the name of its segment has at most 255."""
# Keys of an entry's metadata. An event has one key for each tag, so that `erase(metadata=…)` finds all with a tag.
_OURS = "dcb:"
_TYPE, _POSITION, _ORDER, _TAG = "dcb:type", "dcb:position", "dcb:order", "dcb:tag:"


class Event(msgspec.Struct, frozen=True):
    """An event: its type, its payload, and the tags of its subjects. `metadata` is yours."""

    type: str
    payload: bytes
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        _check_texts("tags", self.tags)


class SequencedEvent(msgspec.Struct, frozen=True):
    """An event that was recorded. `position` counts from 1; `timestamp` is in milliseconds since the epoch, UTC."""

    position: int
    event: Event
    timestamp: int


class QueryItem(msgspec.Struct, frozen=True):
    """Matches an event that has all of the tags, and one of the types if there are some."""

    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_texts("types", self.types)
        _check_texts("tags", self.tags)

    def matches(self, event: Event) -> bool:
        """True if the item matches an event."""
        return (not self.types or event.type in self.types) and set(self.tags) <= set(event.tags)


class ConditionFailed(PermanentError):
    """An event that the condition excludes came first, at `position`. Nothing was written: read, and decide again."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.position)


class EventStore:
    """The events of one space of a store. Safe to share between threads."""

    def __init__(self, store: Store, space: str) -> None:
        check_type(store, Store, "EventStore takes a Store, or the `sync` of an AsyncStore")
        self._store = store
        self._space = check_name(space, "space")
        self._appending = Lock()
        self._head = 0
        """The end of the log when this process last appended. A commit that expects this end fails if it is late."""

    def head(self) -> int:
        """The position of the last event, 0 if there is none."""
        return self._store.segment_status(self._space, EVENTS).last_sequence

    def read(self, query: Sequence[QueryItem] = (), *, after: int = 0, limit: int = 0) -> Iterator[SequencedEvent]:
        """The events after a position that match one item of the query (all events, if it has none), by position.

        `limit` 0 is no limit. The events are those of one moment: the head at the call, or later.
        """
        _check_query(query, after, limit)
        return self._read_to(self.head(), query, after, limit)

    def read_to(
        self, head: int, query: Sequence[QueryItem] = (), *, after: int = 0, limit: int = 0
    ) -> Iterator[SequencedEvent]:
        """Read matching events like `read`, up to the position `head`."""
        _check_query(query, after, limit)
        return self._read_to(head, query, after, limit)

    def _read_to(self, head: int, query: Sequence[QueryItem], after: int, limit: int) -> Iterator[SequencedEvent]:
        found = 0
        if after >= head:
            return
        for event in self._candidates(query, after):
            if event.position > head:
                return
            if not query or any(item.matches(event.event) for item in query):
                yield event
                found += 1
                if found == limit:
                    return

    def append(self, events: Iterable[Event], *, fail_if: Sequence[QueryItem] | None = None, after: int = 0) -> int:
        """Append events in one transaction, and return the position of the last one.

        ConditionFailed if `fail_if` is given and an event after the position `after` matches one of its items; an
        empty sequence matches every event. Nothing is written then. Without events it only checks the condition.
        """
        check_several("events", events, "[event]")
        _check_query(() if fail_if is None else fail_if, after)
        recorded = [_checked(event) for event in events]
        with self._appending:
            head = self._head or self.head()
            while True:
                if fail_if is not None:
                    self._check(head, fail_if, after)
                try:
                    self._head = self._write(recorded, head)
                except SequenceMismatch as error:
                    # Another process appended: the condition is checked again, against its events.
                    head = error.actual
                else:
                    return self._head

    def _check(self, head: int, fail_if: Sequence[QueryItem], after: int) -> None:
        for match in self._read_to(head, fail_if, after, 1):
            raise ConditionFailed(
                f"the event at position {match.position}, of type {match.event.type!r}, matches the condition, which "
                f"excludes such events after position {after}: read it, and decide again",
                match.position,
            )

    def follow(
        self, query: Sequence[QueryItem] = (), *, after: int = 0, timeout: float | None = None
    ) -> Iterator[SequencedEvent]:
        """The events after a position that match, and then those that any process adds.

        Ends after `timeout` seconds of silence.
        """
        _check_query(query, after)
        return self._follow(query, after, timeout)

    def _follow(self, query: Sequence[QueryItem], after: int, timeout: float | None) -> Iterator[SequencedEvent]:
        for entry in self._store.follow_segment(self._space, EVENTS, after=after, timeout=timeout, gaps="skip"):
            event = _event(entry)
            if not query or any(item.matches(event.event) for item in query):
                yield event

    def _write(self, events: list[Event], head: int) -> int:
        tagged: dict[str, list[Record]] = {}
        records = []
        for position, event in enumerate(events, start=head + 1):
            tags = list(dict.fromkeys(event.tags))
            metadata = {**event.metadata, _TYPE: event.type, _POSITION: str(position)}
            metadata.update((_TAG + tag, "") for tag in tags)
            if tags != sorted(tags):
                # Metadata is kept in the order of its keys.
                metadata[_ORDER] = ",".join(str(sorted(tags).index(tag)) for tag in tags)
            record = Record(event.payload, metadata)
            records.append(record)
            for tag in tags:
                tagged.setdefault(TAG + tag, []).append(record)
        with self._store.transaction(self._space) as trx:
            trx.produce(EVENTS, records, expected_sequence=head)
            for segment, copies in tagged.items():
                trx.produce(segment, copies)
        return head + len(events)

    def _candidates(self, query: Sequence[QueryItem], after: int) -> Iterator[SequencedEvent]:
        """Events after a position, by position: all that can match, and others."""
        if not query or not all(item.tags for item in query):
            entries = self._store.consume_segment(self._space, EVENTS, min_sequence=after + 1, gaps="skip")
            yield from map(_event, entries)
            return
        segments = {self._shortest(item.tags) for item in query}
        last = 0
        for event in heapq.merge(*(self._tagged(segment, after) for segment in segments), key=attrgetter("position")):
            if event.position > last:
                yield event
                last = event.position

    def _shortest(self, tags: Sequence[str]) -> str:
        segments = [TAG + tag for tag in tags]
        if len(segments) == 1:
            return segments[0]
        return min(segments, key=lambda segment: self._store.segment_status(self._space, segment).last_sequence)

    def _tagged(self, segment: str, after: int) -> Iterator[SequencedEvent]:
        if not after:
            yield from map(_event, self._store.consume_segment(self._space, segment, gaps="skip"))
            return
        newest = []
        for entry in self._store.consume_segment(self._space, segment, reverse=True, gaps="skip"):
            event = _event(entry)
            if event.position <= after:
                break
            newest.append(event)
        yield from reversed(newest)


def _check_texts(name: str, texts: object) -> None:
    if isinstance(texts, str):
        # Its letters would be taken for tags: the condition of an append would never fail.
        raise TypeError(f"{name} is a tuple of str, not the str {texts!r}: a tuple of one has a comma, ({texts!r},)")
    if not isinstance(texts, Collection) or not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{name} is a tuple of str, not {texts!r:.60}")


def _check_query(query: object, after: int, limit: int = 0) -> None:
    """Refuse a query that would match nothing: the condition of an append with it would never fail."""
    several = isinstance(query, Collection) and not isinstance(query, str)
    if not several or not all(isinstance(item, QueryItem) for item in query):  # type: ignore[attr-defined]
        raise TypeError(f"a query is several QueryItem, as in [QueryItem(tags=('a',))], not {query!r:.60}")
    check_count("after", after, 0)
    check_count("limit", limit, 0)


def _checked(event: Event) -> Event:
    check_type(event, Event, "an event is a streamkit.dcb.Event")
    check_type(event.type, str, "the type of an event is a str")
    for tag in event.tags:
        if (size := len(tag.encode(errors="surrogatepass"))) > _MOST_TAG:
            raise InvalidName(f"the tag {tag[:40]!r} has {size} bytes of UTF-8; a tag has at most {_MOST_TAG}")
    for key in event.metadata:
        if key.startswith(_OURS):
            raise ValueError(f"the metadata key {key!r} begins with {_OURS!r}, which is reserved: choose another one")
    return event


def _event(entry: Entry) -> SequencedEvent:
    metadata = dict(entry.metadata)
    type, position, order = metadata.pop(_TYPE), int(metadata.pop(_POSITION)), metadata.pop(_ORDER, "")
    keys = [key for key in metadata if key.startswith(_TAG)]
    for key in keys:
        del metadata[key]
    if order:
        keys = [keys[int(place)] for place in order.split(",")]
    event = Event(type, entry.payload, tuple(key.removeprefix(_TAG) for key in keys), metadata)
    return SequencedEvent(position, event, entry.timestamp)
