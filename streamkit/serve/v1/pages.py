"""Pages: one read of a segment, of a space, or of several spaces. They run in a thread, on the store for threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from ...gaps import Gap
from ...lexkey import LexKey
from ...log.offsets import Offset
from ...model import Entry
from ...store import Store
from ..encoding import EntryOut, GapOut, TransactionName, entry_out, gap_out, name_of_transaction
from ..ring import place_of
from .parameters import Reading
from .values import Page

__all__ = ["Found", "joined", "places_past_gaps", "segment_page", "several_page", "space_page"]

_Item = TypeVar("_Item", Gap, Entry | Gap)


class Found:
    """The items of a page, their JSON, and True if there are no more by now.

    In a space the next page begins after the last entry, because a gap has no offset. So a full page has an entry, and
    ends with one: the next page begins with the gaps after it.
    """

    __slots__ = ("caught_up", "items", "last", "out")

    def __init__(self, entries: Iterator[Any], reading: Reading, line: bool, spaces: bool = False) -> None:
        self.items: list[Entry | Gap] = []
        self.out: list[EntryOut | GapOut] = []
        self.caught_up = False
        self.last: Entry | None = None
        size, limit, most = 0, reading.limit, reading.max_bytes
        trx, name = None, TransactionName("", "", 0)
        for entry in joined(entries):
            if self.last is not None and (len(self.items) >= limit or size >= most):
                self._end_with_entry()
                return
            self.items.append(entry)
            if type(entry) is Gap:
                self.out.append(gap_out(entry))
                continue
            size += len(entry.payload)
            if size > most and self.last is not None:
                self.items.pop()
                self._end_with_entry()
                return
            if entry.trx is not trx:
                trx = entry.trx
                name = name_of_transaction(trx)
            out = entry_out(entry, name, line)
            if spaces:
                out.space = entry.space
            self.out.append(out)
            self.last = entry
        self.caught_up = True

    def _end_with_entry(self) -> None:
        while type(self.items[-1]) is Gap:
            self.items.pop()
            self.out.pop()


def joined(entries: Iterable[_Item]) -> Iterator[_Item]:
    """`entries` with one gap in place of several that continue each other, as those of a thousand erased entries."""
    gap: Gap | None = None
    for entry in entries:
        if type(entry) is Gap:
            both = None if gap is None else _both(gap, entry)
            if gap is not None and both is None:
                yield gap
            gap = both or entry
            continue
        if gap is not None:
            yield gap
            gap = None
        yield entry
    if gap is not None:
        yield gap


def _both(before: Gap, gap: Gap) -> Gap | None:
    """Two gaps as one, if the second one continues the first one."""
    if (before.space, before.segment, before.reason) != (gap.space, gap.segment, gap.reason):
        return None
    if before.last_sequence + 1 == gap.first_sequence:
        return replace(before, last_sequence=gap.last_sequence)
    if gap.last_sequence + 1 == before.first_sequence:  # a reverse read
        return replace(before, first_sequence=gap.first_sequence)
    return None


def segment_page(
    store: Store, space: str, segment: str, after: int, before: int, reading: Reading, line: bool
) -> tuple[Page, Found]:
    """A page of a segment, after the sequence `after` and before `before`, 0 for no bound."""
    end = store.segment_status(space, segment).last_sequence
    if reading.from_end:
        after = end
    if before == 1:
        return Page([], 1, True, end, 0), Found(iter(()), reading, line)
    entries = store.consume_segment(
        space,
        segment,
        min_sequence=after + 1 if after else 0,
        max_sequence=max(before - 1, 0),
        min_timestamp=reading.min_timestamp,
        max_timestamp=reading.max_timestamp,
        reverse=reading.reverse,
        limit=reading.limit + 1,
        gaps=reading.gaps,  # type: ignore[arg-type]
    )
    found = Found(entries, reading, line)
    if reading.reverse:
        first = min((_first(item) for item in found.items), default=before)
        return Page(found.out, first or None, found.caught_up, end, 0), found
    following = max((_last(item) for item in found.items), default=after)
    end = max(end, following)
    if found.caught_up and not reading.max_timestamp and not before:
        following = max(following, end)
    return Page(found.out, following, found.caught_up, end, max(end - following, 0)), found


def _first(item: Entry | Gap) -> int:
    return item.first_sequence if type(item) is Gap else item.sequence  # type: ignore[union-attr]


def _last(item: Entry | Gap) -> int:
    return item.last_sequence if type(item) is Gap else item.sequence  # type: ignore[union-attr]


def space_page(
    store: Store, space: str, offset: LexKey | str | None, reading: Reading, line: bool
) -> tuple[Page, Found]:
    """A page of a space, after `offset`."""
    end = store.end_offset(space)
    if reading.from_end:
        offset = end
    entries = store.consume_space(
        space,
        offset=offset,
        min_timestamp=reading.min_timestamp,
        max_timestamp=reading.max_timestamp,
        reverse=reading.reverse,
        limit=reading.limit + 1,
        gaps=reading.gaps,  # type: ignore[arg-type]
    )
    found = Found(entries, reading, line)
    if reading.reverse:
        return Page(found.out, None, found.caught_up, end.hex(), 0), found
    following: LexKey | str
    if found.last is not None:
        following = found.last.space_offset
    elif reading.max_timestamp:
        following = offset if offset is not None else Offset.beginning(space).encode()
    elif offset is None or found.items or reading.min_timestamp:
        following = end
    else:
        following = offset
    return Page(found.out, _hex(following), found.caught_up, end.hex(), lag_of(space, following, end)), found


def _hex(offset: LexKey | str) -> str:
    return offset if isinstance(offset, str) else offset.hex()


def lag_of(space: str, offset: LexKey | str, end: LexKey) -> int:
    """The number of transactions after an offset, up to the offset `end`."""
    here, there = Offset.decode(offset, space), Offset.decode(end, space)
    if not there.positions:
        return 0
    lag = 0
    for at, end_place in enumerate(there.positions):
        place = here.position(at)
        if place < end_place:
            lag += max(end_place[0] - place[0] + (place[1] == 0), 1)
    return lag


def several_page(
    store: Store, offsets: Mapping[str, LexKey | None], reading: Reading, line: bool
) -> tuple[dict[str, LexKey | None], Found]:
    """A page of several spaces, and the cursor after it."""
    cursor = dict(offsets)
    if reading.from_end:
        cursor = {space: store.end_offset(space) for space in cursor}
    entries = store.consume(
        cursor,
        min_timestamp=reading.min_timestamp,
        max_timestamp=reading.max_timestamp,
        limit=reading.limit + 1,
        gaps=reading.gaps,  # type: ignore[arg-type]
    )
    found = Found(entries, reading, line, True)
    last = {item.space: item for item in found.items if type(item) is Entry}
    if not (found.caught_up and reading.max_timestamp):
        gaps, places = places_past_gaps(store, cursor, found.items, reading.min_timestamp)
        found.items += gaps
        found.out += map(gap_out, gaps)
        cursor.update(places)
    cursor.update({space: entry.space_offset for space, entry in last.items()})
    return cursor, found


def places_past_gaps(
    store: Store, offsets: Mapping[str, LexKey | None], items: Iterable[Entry | Gap], min_timestamp: int
) -> tuple[list[Gap], dict[str, LexKey]]:
    """Lead past the gaps of spaces that have no entry among `items`, which were read from `offsets`.

    Returns the further gaps before the next entry of each such space, and the place before that entry, or the end.
    Without it, each page would tell the same gaps again until the other spaces have no more entries.
    """
    items = list(items)
    told = {(item.space, item.segment): item.last_sequence for item in items if type(item) is Gap}
    gaps: list[Gap] = []
    places: dict[str, LexKey] = {}
    for space in {space for space, _ in told} - {item.space for item in items if type(item) is Entry}:
        places[space] = store.end_offset(space)  # before the read: later entries are after it
        for following in store.consume_space(
            space, offset=offsets[space], min_timestamp=min_timestamp, limit=1, gaps="yield"
        ):
            if isinstance(following, Entry):
                places[space] = _before(following)
            elif following.last_sequence > told.get((space, following.segment), 0):
                gaps.append(following)
    return list(joined(gaps)), places


def _before(entry: Entry) -> LexKey:
    """The offset before an entry that was read from its space."""
    offset = Offset.decode(entry.space_offset, entry.space)
    positions = list(offset.positions)
    positions[entry.origin.partition] = place_of(entry)
    return offset._replace(positions=tuple(positions)).encode()
