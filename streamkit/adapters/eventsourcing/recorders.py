"""Recorders for aggregates and processes: an aggregate is a segment, and a notification is an entry of another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from threading import Lock
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    ListenNotifySubscription,
    Notification,
    ProcessRecorder,
    StoredEvent,
    Tracking,
    TrackingRecorder,
)

from ...errors import InvalidOffset, SequenceMismatch
from ...lexkey import LexKey
from ...model import Entry, Record
from ...store import Store
from .errors import translated
from .library import HAS_METADATA, DataError, IntegrityError
from .watching import Watching

__all__ = [
    "StreamkitAggregateRecorder",
    "StreamkitApplicationRecorder",
    "StreamkitProcessRecorder",
    "StreamkitTrackingRecorder",
]

NOTIFICATIONS = "::notifications"
TRACKING = "::tracking/"
# Keys of an entry's metadata. The library's metadata of an event, if it has some, stands beside them.
TOPIC, VERSION, PLACE, EVENT_ID = "es:topic", "es:version", "es:place", "es:uuid"
_SAVE = 16
"""Hexadecimal digits that tell the saves of one commit apart."""
_REMEMBERED = 10_000


class _Last(NamedTuple):
    """The last entry of a segment: its sequence, and the version or notification id that it carries."""

    sequence: int
    number: int


_NEW = _Last(0, -1)


class _Recorder:
    """The shared state of all recorders: the store, the space, and the last seen ends of segments."""

    def __init__(self, store: Store, space: str, id_type: str = "uuid") -> None:
        self._store = store
        self._space = space
        self._is_text = id_type == "text" or HAS_METADATA
        self._seen: dict[str, _Last] = {}
        self._lock = Lock()

    def _remember(self, segment: str, last: _Last) -> None:
        with self._lock:
            self._seen.pop(segment, None)
            self._seen[segment] = last
            if len(self._seen) > _REMEMBERED:
                del self._seen[next(iter(self._seen))]

    def _look(self, segment: str) -> _Last:
        """The end of a segment, from the store."""
        sequence = self._store.segment_status(self._space, segment).last_sequence
        if not sequence:
            return _NEW
        entry = self._store.peek(self._space, segment)
        # Entries after it were removed, or all were. Each had a number of its own, and that of the first is mostly 1.
        removed = max(sequence - entry.sequence, 0)
        return _Last(entry.sequence + removed, _number(entry) + removed)

    def _end(self, segment: str, first: int) -> _Last:
        """The end of a segment whose next number is `first`. No request if this process knows it."""
        seen = self._seen.get(segment)
        if seen is not None and seen.number < first:
            return seen
        # The space may have been deleted since this process read it.
        return _NEW if seen is None and first <= 1 else self._look(segment)

    def _write(
        self, numbers: dict[str, list[int]], records: dict[str, list[Record]], notifications: Sequence[Record] = ()
    ) -> list[int]:
        """Append to segments whose numbers must grow, and add notifications; return the ids of the notifications.

        Nothing is written if a segment has one of the numbers already, or a later one.
        """
        last = {segment: self._end(segment, new[0]) for segment, new in numbers.items()}
        while True:
            for segment, new in numbers.items():
                _check_growth(segment, [last[segment].number, *new])
            try:
                ids = self._commit(last, records, notifications)
            except SequenceMismatch:
                # Another process has written to one of them.
                last = {segment: self._look(segment) for segment in numbers}
                continue
            for segment, new in numbers.items():
                self._remember(segment, _Last(last[segment].sequence + len(new), new[-1]))
            return ids

    def _commit(
        self, last: dict[str, _Last], records: dict[str, list[Record]], notifications: Sequence[Record]
    ) -> list[int]:
        count = len(notifications)
        with self._store.transaction(self._space) as trx:
            if count:
                # First: a reader that starts at a notification finds the events behind it.
                trx.produce(NOTIFICATIONS, notifications)
            for segment, new in records.items():
                trx.produce(segment, new, expected_sequence=last[segment].sequence if segment in last else None)
        if not count:
            return []
        end = trx.statuses[NOTIFICATIONS].last_sequence
        return list(range(end - count + 1, end + 1))


class StreamkitAggregateRecorder(_Recorder, AggregateRecorder):
    """Events of aggregates, without notifications: the library keeps snapshots in one."""

    _notifies = False

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Record events in one commit. IntegrityError if a version exists already, or a later one does."""
        with translated():
            ids = self._insert(stored_events, {}, {})
        return ids if self._notifies else None

    def _insert(
        self, events: Sequence[StoredEvent], numbers: dict[str, list[int]], records: dict[str, list[Record]]
    ) -> list[int]:
        save = uuid4().hex[:_SAVE] if self._notifies else ""
        notifications = []
        for at, event in enumerate(events):
            segment = _segment(event.originator_id)
            new = records.setdefault(segment, [])
            numbers.setdefault(segment, []).append(event.originator_version)
            metadata = _metadata(event)
            if self._notifies:
                place = metadata[PLACE] = f"{at}@{save}"
                notifications.append(Record(b"", {PLACE: place}))
            new.append(Record(event.state, metadata))
        return self._write(numbers, records, notifications) if records else []

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """The events of an aggregate, by version: above `gt`, up to `lte`."""
        with translated():
            return self._select(originator_id, -1 if gt is None else gt, lte, desc, limit)

    def _select(
        self, originator_id: UUID | str, gt: int, lte: int | None, desc: bool, limit: int | None
    ) -> list[StoredEvent]:
        segment = _segment(originator_id)
        if limit == 0 or (lte is not None and lte < 0):
            return []
        entries = self._newest(segment, gt, lte) if desc else self._oldest(segment, gt, lte)
        return [_event(entry, originator_id) for entry in islice(entries, limit)]

    def _newest(self, segment: str, gt: int, lte: int | None) -> Iterator[Entry]:
        # Versions grow and begin with 0 or later: the version of an entry is at least its sequence less 1.
        stop = 0 if lte is None else lte + 1
        entries = self._store.consume_segment(self._space, segment, max_sequence=stop, reverse=True, gaps="skip")
        for place, entry in enumerate(entries):
            version = _number(entry)
            if place == 0 and lte is None:
                self._remember(segment, _Last(entry.sequence, version))
            if version <= gt:
                return
            if lte is None or version <= lte:
                yield entry

    def _oldest(self, segment: str, gt: int, lte: int | None) -> Iterator[Entry]:
        entry = None
        for entry in self._from(segment, gt):
            version = _number(entry)
            if lte is not None and version > lte:
                return
            if version > gt:
                yield entry
        if entry is not None:
            self._remember(segment, _Last(entry.sequence, _number(entry)))

    def _from(self, segment: str, gt: int) -> Iterator[Entry]:
        """All entries above the version `gt`, after some that are not."""
        if gt > 0:
            entries = self._store.consume_segment(self._space, segment, min_sequence=gt, gaps="skip")
            first = next(entries, None)
            if first is not None and first.sequence == gt and _number(first) <= gt:
                yield first
                yield from entries
                return
            # The versions of this segment are ahead of its sequences.
        yield from self._store.consume_segment(self._space, segment, gaps="skip")


class _Transaction(NamedTuple):
    first: int
    """The id of its first notification."""
    end: int
    """The id after its last one."""
    events: dict[int, Entry]
    last: Entry


class StreamkitApplicationRecorder(StreamkitAggregateRecorder, ApplicationRecorder):
    """Events of aggregates, each with a notification."""

    _notifies = True

    def __init__(self, store: Store, space: str, id_type: str = "uuid") -> None:
        super().__init__(store, space, id_type)
        self._next: tuple[int, LexKey | None] = (1, None)
        """A notification id, and the offset in the space before its transaction: there the last page ended."""

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Return notifications by id, from `start` to `stop`, at most `limit`, with one of the topics if some are
        given."""
        first = 1 if start is None else start if inclusive_of_start else start + 1
        with translated():
            try:
                return self._notifications(max(first, 1), limit, stop, topics)
            except InvalidOffset:
                # The space of the remembered offset was deleted.
                self._next = (1, None)
                return self._notifications(max(first, 1), limit, stop, topics)

    def _notifications(self, first: int, limit: int, stop: int | None, topics: Sequence[str]) -> list[Notification]:
        found: list[Notification] = []
        whole = None
        for transaction in self._transactions(first):
            if stop is not None and transaction.first > stop:
                break
            for id, entry in sorted(transaction.events.items()):
                if first <= id and (stop is None or id <= stop) and (not topics or entry.metadata[TOPIC] in topics):
                    found.append(self._notification(entry, id))
            if len(found) <= limit:
                whole = transaction
            if len(found) >= limit:
                break
        if whole is not None:
            self._next = (whole.end, whole.last.space_offset)
        return found[:limit]

    def _transactions(self, first: int) -> Iterator[_Transaction]:
        """Transactions with notifications, beginning with the transaction of notification `first`."""
        known, offset = self._next
        ids: dict[str, int] = {}
        """The ids of the transaction's notifications, by their places. One commit may hold several saves."""
        if first == 1:
            offset = None
        elif first != known:
            pointers = self._store.consume_segment(self._space, NOTIFICATIONS, min_sequence=first, limit=1, gaps="skip")
            pointer = next(pointers, None)
            if pointer is None:
                return
            offset = pointer.space_offset
            ids[_place_of(pointer)] = pointer.sequence
        entries = self._store.consume_space(self._space, offset=offset, gaps="skip")
        for _, members in groupby(entries, key=lambda entry: entry.trx.number):
            events: dict[int, Entry] = {}
            for entry in members:
                if entry.segment == NOTIFICATIONS:
                    ids[_place_of(entry)] = entry.sequence
                elif TOPIC in entry.metadata and (id := ids.get(_place_of(entry))) is not None:
                    events[id] = entry
            if ids:
                yield _Transaction(min(ids.values()), max(ids.values()) + 1, events, entry)
            ids = {}

    def _notification(self, entry: Entry, id: int) -> Notification:
        name = entry.segment
        return Notification(**_values(entry, name if self._is_text else UUID(name)), id=id)

    def max_notification_id(self) -> int | None:
        """The id of the last notification, or None if there is none."""
        with translated():
            return self._store.segment_status(self._space, NOTIFICATIONS).last_sequence or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> StreamkitSubscription:
        """Iterate over notifications after the id `gt`, and then over new ones of any process."""
        return StreamkitSubscription(recorder=self, gt=gt, topics=topics)

    def changes(self, timeout: float) -> Iterator[object]:
        """Yield after each change that is seen, until `timeout` seconds pass without one."""
        with translated():
            yield from self._store.subscribe_to_segment(self._space, NOTIFICATIONS, timeout=timeout)


class StreamkitSubscription(Watching, ListenNotifySubscription[StreamkitApplicationRecorder]):
    """Wakes when the store has new notifications, whichever process added them."""

    def __init__(
        self, recorder: StreamkitApplicationRecorder, gt: int | None = None, topics: Sequence[str] = ()
    ) -> None:
        super().__init__(recorder=recorder, gt=gt, topics=topics)
        self._watch(recorder.changes)


class StreamkitTrackingRecorder(_Recorder, TrackingRecorder):
    """The position of a projection in other applications, each in a segment of its own."""

    def insert_tracking(self, tracking: Tracking, entries: Mapping[str, Iterable[bytes]] | None = None) -> None:
        """Record a position. IntegrityError unless it is after all that were recorded for its application.

        `entries` are payloads to append in the same commit, by segment of the recorder's space: a view that keeps its
        data there changes them together with its position.
        """
        numbers, records = _tracking_part(tracking)
        for segment, payloads in (entries or {}).items():
            records[_checked(segment)] = [Record(payload) for payload in payloads]
        with translated():
            self._write(numbers, records)

    def max_tracking_id(self, application_name: str) -> int | None:
        """The last position that was recorded for an application, or None."""
        with translated():
            last = self._look(TRACKING + application_name)
        return None if last == _NEW else last.number


class StreamkitProcessRecorder(StreamkitTrackingRecorder, StreamkitApplicationRecorder, ProcessRecorder):
    """Events with notifications, and the position that they follow from, in one commit."""

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:
        """Record events, and the position of `tracking` if it is given. IntegrityError if either exists already."""
        tracking: Tracking | None = kwargs.get("tracking")
        numbers, records = _tracking_part(tracking) if tracking is not None else ({}, {})
        with translated():
            return self._insert(stored_events, numbers, records)


def _segment(originator_id: UUID | str) -> str:
    return _checked(str(originator_id))


def _checked(name: str) -> str:
    if name.startswith("::"):
        raise DataError(f"{name!r} must not begin with '::': such segments are internal")
    return name


def _place_of(entry: Entry) -> str:
    """The save of an event, and the event's place in it. The event and its notification share both."""
    return entry.metadata.get(PLACE, "0")


def _number(entry: Entry) -> int:
    return int(entry.metadata.get(VERSION, entry.sequence))


def _metadata(event: StoredEvent) -> dict[str, str]:
    metadata = {TOPIC: event.topic, VERSION: str(event.originator_version)}
    if HAS_METADATA:
        added: Any = event
        metadata = {**added.metadata, **metadata, EVENT_ID: str(added.uuid)}
    return metadata


def _event(entry: Entry, originator_id: UUID | str) -> StoredEvent:
    return StoredEvent(**_values(entry, originator_id))


def _values(entry: Entry, originator_id: UUID | str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "originator_id": originator_id,
        "originator_version": _number(entry),
        "topic": entry.metadata[TOPIC],
        "state": entry.payload,
    }
    if HAS_METADATA:
        own = (TOPIC, VERSION, PLACE, EVENT_ID)
        made["metadata"] = {key: value for key, value in entry.metadata.items() if key not in own}
        made["uuid"] = UUID(entry.metadata[EVENT_ID])
    return made


def _tracking_part(tracking: Tracking) -> tuple[dict[str, list[int]], dict[str, list[Record]]]:
    name = tracking.context_name if hasattr(tracking, "context_name") else tracking.application_name
    id = tracking.notification_id
    return {TRACKING + name: [id]}, {TRACKING + name: [Record(b"", {VERSION: str(id)})]}


def _check_growth(segment: str, numbers: list[int]) -> None:
    for before, number in pairwise(numbers):
        if number <= before:
            raise IntegrityError(
                f"{segment!r} is at {before} already, and {number} is not after it: another writer was faster. Get it "
                "again, and decide again. (If its last events were erased, it takes no more)"
            )
