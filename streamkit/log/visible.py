"""The readable part of a partition: its floors, and the limits of its retention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from msgspec.structs import replace

from ..errors import CorruptData, EntriesRemoved
from ..gaps import Gap
from .first_at import first_at
from .floors import Floor, Removal
from .rows import Piece, Place, SegmentRow
from .view import LogView

__all__ = [
    "archived_before",
    "counted",
    "first_where",
    "first_with",
    "floor_at",
    "floor_of",
    "hides",
    "last_of",
    "missing_error",
    "number_gap",
    "place_of",
    "raises",
    "row_of",
    "sequence_gaps",
    "shown",
    "size_before",
    "size_of_floor",
    "trimmed_row",
]


def cutoff(view: LogView) -> int:
    """The timestamp from which on entries are kept by the retention; 0 if it does not tell by age."""
    retention = view.retention
    if retention is None or not retention.max_age:
        return 0
    return max(0, view.log.clock.now() - int(retention.max_age * 1000))


def row_of(view: LogView, segment: str) -> SegmentRow:
    """A segment's status with the first entry that can still be read."""
    row = trimmed_row(view, segment)
    if view.retention is None:
        return row
    try:
        return _retained(view, segment, row)
    except CorruptData:
        view.look_again()  # it may have been trimmed meanwhile
        raise


def last_of(view: LogView, segment: str) -> SegmentRow:
    """Like `row_of`, but only the last entry is valid: the first is not searched for if a retention by space hides
    it."""
    row, retention = view.status(segment), view.retention
    if (
        retention is None
        or retention.per != "space"
        or row.empty
        or row.last_number < floor_of(view).number
        or row.last_timestamp < cutoff(view)
    ):
        return row_of(view, segment)
    return row


def counted(view: LogView, rows: dict[str, SegmentRow]) -> dict[str, SegmentRow]:
    """The statuses `rows` without entries that were trimmed from the space, if a retention refuses entries that a
    segment has no room for."""
    retention = view.retention
    if retention is None or retention.when_full != "reject" or retention.per != "segment":
        return rows
    floor = view.floor.number
    return {
        name: row if row.empty or row.first_number >= floor else trimmed_row(view, name) for name, row in rows.items()
    }


def trimmed_row(view: LogView, segment: str) -> SegmentRow:
    """A segment's status without trimmed entries; the retention is not applied."""
    row = view.status(segment)
    found = _past_floor(view, segment, row, view.floor)
    if found is not row:
        view.log.resolved(segment, row, found)
    return found


def shown(view: LogView, row: SegmentRow) -> bool:
    """True if a segment has entries, by its status alone."""
    if row.empty or (row.last_number and row.last_number < view.floor.number):
        return False
    return view.retention is None or row.last_timestamp >= cutoff(view)


def _past_floor(view: LogView, segment: str, row: SegmentRow, floor: Floor) -> SegmentRow:
    if row.empty or row.first_number >= floor.number:
        return row
    if row.last_number and row.last_number < floor.number:
        return row.without(Removal(segment, row.last_sequence, floor.reason))
    place = view.searches.first(segment, floor.number)
    if place is None:
        place = first_where(view, segment, row, lambda at: at.number >= floor.number)
        if place is not None:
            if place.number <= view.cold_until:
                place = replace(place, before=archived_before(view, segment, place.sequence))
            view.searches.keep_first(segment, floor.number, place)
    return _from(row, segment, floor.reason, place)


def _from(row: SegmentRow, segment: str, reason: str, place: Place | None) -> SegmentRow:
    """`row` without the entries before `place`; None: without any entry."""
    if place is None:
        return row.without(Removal(segment, row.last_sequence, reason))
    return row.without(Removal(segment, place.sequence - 1, reason, place.timestamp, place.number, place.before))


def _retained(view: LogView, segment: str, row: SegmentRow) -> SegmentRow:
    retention = view.retention
    assert retention is not None
    if row.empty:
        return row
    oldest = cutoff(view)
    if row.first_timestamp < oldest:
        if row.last_timestamp < oldest:
            return row.without(Removal(segment, row.last_sequence, "expired"))
        row = _from(row, segment, "expired", first_where(view, segment, row, lambda at: at.timestamp >= oldest))
    if retention.when_full == "reject":
        return row
    if retention.per == "space":
        if not row.empty and (retention.max_entries or retention.max_bytes):
            row = _past_floor(view, segment, row, floor_of(view))
        return row
    whole = row
    least = row.last_sequence - retention.max_entries + 1
    if retention.max_entries and row.first_sequence < least:
        row = _from(row, segment, "expired", first_where(view, segment, row, lambda at: at.sequence >= least, least))
    least = row.size - retention.max_bytes
    if retention.max_bytes and not row.empty and whole.first_size < least:
        # Whole transactions are kept, also if the other bound is in the middle of one.
        place = _from_bytes(view, segment, whole, least)
        if place is None or place.sequence > row.first_sequence:
            row = _from(row, segment, "expired", place)
    return row


def _from_bytes(view: LogView, segment: str, row: SegmentRow, least: int) -> Place | None:
    """The first frame of a segment that was given so many bytes of payload before it; None if none was."""
    hot = view.hot_pieces(segment, row.first_sequence)
    first = next(hot, None)
    if view.cold_until and (first is None or first.before >= least):
        return _from_archived_bytes(view, segment, row, least, first)
    return _place(_first_whole(first, hot, least))


def _first_whole(piece: Piece | None, rest: Iterator[Piece], least: int) -> Piece | None:
    """The first piece with so many bytes before it that is the first of its transaction."""
    number = 0
    while piece is not None and (piece.before < least or piece.number == number):
        number, piece = piece.number, next(rest, None)
    return piece


def archived_before(view: LogView, segment: str, sequence: int) -> int:
    """Bytes of payload that a segment was given before `sequence`, which is archived. The archive does not know how
    much was erased."""
    row = view.status(segment)
    first = next(view.hot_pieces(segment, row.first_sequence), None)
    end, size = (row.last_sequence + 1, row.size) if first is None else (first.first_sequence, first.before)
    begins = row.first_number >= view.floor.number and sequence - row.first_sequence <= end - sequence
    begin, end = (row.first_sequence, sequence) if begins else (sequence, end)
    entries, counted = view.archive().segment_bytes(view, segment, begin, end - 1)
    if entries != end - begin:
        view.look_again()  # they may have been trimmed meanwhile
    return row.first_size + counted if begins else size - counted


def _from_archived_bytes(view: LogView, segment: str, row: SegmentRow, least: int, hot: Piece | None) -> Place | None:
    """Like `_from_bytes`, if the frame must be archived. Bytes are counted from the end of the archive, because erased
    entries have none there. `hot`: the first frame that is not archived."""
    kept = begin = _place(hot)
    last, before = (row.last_sequence, row.size) if hot is None else (hot.first_sequence - 1, hot.before)
    number = 0
    for batch in view.archive().segment_backwards(view, segment, row.first_sequence, last):
        if batch.number != number:
            kept, number = begin, batch.number
        before -= sum(len(entry.payload) for entry in batch.entries)
        if before < least:
            return kept
        begin = Place(batch.entries[0].sequence, batch.timestamp, number, before)
    return begin


def _place(piece: Piece | None) -> Place | None:
    return None if piece is None else Place(piece.first_sequence, piece.timestamp, piece.number, piece.before)


def first_where(
    view: LogView, segment: str, row: SegmentRow, holds: Callable[[Place], bool], least: int = 0
) -> Place | None:
    """The first frame of a segment for which `holds` is true and remains true for all later frames; None if there is
    none. `least`: the place is that of this sequence in the frame that holds it. `before` is not counted in archived
    frames."""
    archived = view.cold_until
    if archived and (not row.first_number or row.first_number <= archived):
        # The log may have dropped these.
        archive, begin = view.archive(), max(row.first_sequence, least)
        there = archive.first_of(view, segment, view.floor.number)
        last = row.last_sequence if there is not None else 0
        for batch in archive.segment(view, segment, max(begin, there or 0), last):
            if batch.number > archived:
                break
            place = Place(batch.entries[0].sequence, batch.timestamp, batch.number, row.first_size)
            if batch.number >= view.floor.number and holds(place):
                return place
    for piece in view.hot_pieces(segment, max(row.first_sequence, least)):
        place = Place(max(piece.first_sequence, least), piece.timestamp, piece.number, piece.before)
        if holds(place):
            return place
    return None


# -- the space ------------------------------------------------------------------------------------------------------


def floor_of(view: LogView) -> Floor:
    """The first transaction that can still be read."""
    floor, retention = view.floor, view.retention
    if retention is None:
        return floor
    oldest = cutoff(view)
    known = view.searches.floor(retention)
    floor = known if (known.number, known.size) > (floor.number, floor.size) else floor
    entries = size = 0
    if retention.per == "space" and retention.when_full != "reject":
        share = view.log.settings.partitions
        entries = max(0, view.position - retention.max_entries // share) if retention.max_entries else 0
        size = max(0, view.size - retention.max_bytes // share) if retention.max_bytes else 0
    number, last = floor.number, view.end
    if number > last:
        return floor
    if floor.timestamp_at < oldest:
        number = first_at(view, oldest, number, last)
    if floor.position < entries or floor.size < size:
        number = first_with(view, number, entries, size)
    if number > floor.number:
        found = floor_at(view, number, "expired", sized=size > 0)
    elif floor.size < size:  # it was drawn when bytes did not matter
        found = replace(floor, size=size_before(view, number))
    else:
        return floor
    view.searches.keep_floor(retention, found)
    return found


def first_with(view: LogView, first: int, entries: int, size: int) -> int:
    """The first transaction from `first` on with at least so many entries and bytes of payload before it in the
    partition."""
    if entries <= 0 and size <= 0:
        return first
    archived, first = view.cold_until, max(first, view.floor.number)
    hot = _archive_end(view) if first <= archived else (0, 0, 0)
    if hot[0] < entries or hot[1] < size:
        return _first_hot(view, max(first, archived + 1), entries, size)
    archive, number = view.archive(), first
    if entries:
        number = max(number, (archive.number_of(view, entries - 1) or 0) + 1)
    if size and number <= archived:
        number = archive.first_within(view, number, archived, hot[1] - size)
    return number


def _archive_end(view: LogView) -> tuple[int, int, int]:
    """Like `_at` of the first transaction that is not archived; its timestamp may be 0."""
    archived = view.cold_until
    found = view.searches.archive_end(archived)
    if found is None:
        found = _at(view, archived + 1)
        if view.end >= archived:
            view.searches.keep_archive_end(archived, found)
    return found


def _at(view: LogView, number: int) -> tuple[int, int, int]:
    """Entries and bytes of payload before a transaction that is not archived, and its timestamp; 0 if it is still to be
    written."""
    if number > view.end:
        return view.position, view.size, 0
    header = view.header(number)
    return header.position, header.size, header.timestamp


def _first_hot(view: LogView, first: int, entries: int, size: int) -> int:
    """Like `first_with`, in transactions that are not archived."""
    low, high = first, view.end + 1
    step = 1
    while low < high:
        # Mostly few transactions are to go, near the floor.
        middle = min(low + step - 1, (low + high) // 2)
        found = _at(view, middle)
        if found[0] >= entries and found[1] >= size:
            high, step = middle, 1 << 62
        else:
            low, step = middle + 1, step * 2
    return low


def floor_at(view: LogView, number: int, reason: str, *, sized: bool = True) -> Floor:
    """The floor that begins with transaction `number`. Its `size` is 0 unless it is `sized` or not archived."""
    if number <= view.cold_until:
        position, _, timestamp_at = place_of(view, number)
        size = size_before(view, number) if sized else 0
    elif number < view.floor.number:
        return view.floor
    else:
        position, size, timestamp_at = _at(view, number)
    end, timestamp = (max(0, number - 1), 0), 0
    now = max(view.floor, view.searches.floor(view.retention), key=attrgetter("number"))
    for before in range(number - 1, max(0, number - _EMPTY), -1):
        if before < now.number:  # it may not be there any more
            end, timestamp = now.end, timestamp or now.timestamp
            break
        _, count, moment = place_of(view, before)
        timestamp = timestamp or moment
        end = (before, count)
        if count:
            break
    return Floor(number, reason, end, position, size, timestamp, timestamp_at)


def place_of(view: LogView, number: int) -> tuple[int, int, int]:
    """(entries before a transaction, its own entries, its timestamp). For a trimmed one: (entries before the floor, 0,
    0). The timestamp is also 0 if the archive has no entry of it."""
    floor = view.floor
    if number <= view.cold_until:
        position, count, timestamp = view.archive().place(view, number)
        # Entries that were trimmed before they were archived, or with their files, cannot be counted.
        return (max(position, floor.position) if number >= floor.number else position), count, timestamp
    if number < floor.number:
        return floor.position, 0, 0
    header = view.header(number)
    return header.position, header.count, header.timestamp


def size_of_floor(view: LogView, floor: Floor) -> int:
    """Bytes of payload before a floor, which may not tell them."""
    return floor.size or (size_before(view, floor.number) if floor.position else 0)


def size_before(view: LogView, number: int) -> int:
    """Bytes of payload before a transaction. The archive does not know the bytes of erased entries; they count as if
    they were before it."""
    if number < view.floor.number:
        return view.floor.size
    archived = view.cold_until
    if number > archived:
        return max(0, _at(view, number)[1])
    return max(0, _archive_end(view)[1] - view.archive().bytes_between(view, number, archived))


_EMPTY = 64
"""Transactions without entries that are passed to find the last entry before a floor."""


# -- gaps -----------------------------------------------------------------------------------------------------------


def sequence_gaps(view: LogView, segment: str, row: SegmentRow, first: int, until: int) -> list[Gap]:
    """The gaps of a segment from sequence `first` up to its first entry, or to `until`."""
    gaps: list[Gap] = []
    until = min(until, row.first_sequence - 1)
    for last, reason in row.gaps:
        if first <= min(last, until):
            gaps.append(Gap(view.log.space, segment, first, min(last, until), reason))
            first = last + 1
    return gaps


def number_gap(space: str, start: tuple[int, int], floor: Floor) -> Gap | None:
    """The gap of a partition after (number, index) `start`, or None."""
    if start[0] >= floor.number or start >= floor.end:
        return None
    return Gap(space, "", start[0], floor.number - 1, floor.reason)


def missing_error(gap: Gap) -> EntriesRemoved:
    return EntriesRemoved(
        f'{gap}: entries after the named position were removed. Read on with gaps="skip", or with gaps="yield" to get '
        "the gaps as well",
        gap,
    )


def raises(gap: Gap) -> bool:
    """True if the gap stops a reader: a limit removed the entries, and no person erased or deleted them."""
    return gap.reason in ("trimmed", "expired")


def hides(view: LogView) -> bool:
    """True if transactions may hold entries that readers no longer get."""
    retention = view.retention
    by_segment = retention is not None and retention.per == "segment" and retention.when_full != "reject"
    return bool(
        view.thinned >= view.floor.number
        or view.erasing
        or (by_segment and retention is not None and (retention.max_entries or retention.max_bytes))
    )
