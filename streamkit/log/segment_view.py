"""A segment in a view: its status, its pieces, and the first entry that can still be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from ..errors import CorruptData
from ..gaps import Gap
from .floors import Floor, Removal
from .index_rows import decode_index_row
from .keys import data_range, segment_key
from .rows import NOTHING, DataRow, EntryPlace, Piece, SegmentRow
from .view import LogView
from .visible import cutoff, floor_of

__all__ = [
    "archived_before",
    "counted",
    "first_where",
    "hot_pieces",
    "last_of",
    "last_piece",
    "piece_groups",
    "row_of",
    "sequence_gaps",
    "status_of",
]

_PIECES = 512
_BYTES = 4 << 20
"""The most pieces, and about the most bytes of them, that are read together."""


# -- the status -----------------------------------------------------------------------------------------------------


def status_of(view: LogView, segment: str) -> SegmentRow:
    """A segment's status. Removals since the view was taken may show in it."""
    row = view.known(segment)
    if row is not None:
        return row
    key = segment_key(segment)
    value = view.indexed(key)
    return view.with_tail(segment, NOTHING if value is None else decode_index_row(SegmentRow, key, value))


def row_of(view: LogView, segment: str) -> SegmentRow:
    """A segment's status with the first entry that can still be read."""
    row = status_of(view, segment)
    row = _past_floor(view, segment, row, view.floor)
    if view.retention is None:
        return row
    try:
        return _retained(view, segment, row)
    except CorruptData:
        view.look_again()  # it may have been trimmed meanwhile
        raise


def last_of(view: LogView, segment: str) -> SegmentRow:
    """The row of a segment with a valid last entry. Unlike `row_of`, it does not search for the first retained
    entry."""
    row, retention = status_of(view, segment), view.retention
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
    return {name: _past_floor(view, name, row, view.floor) for name, row in rows.items()}


def sequence_gaps(view: LogView, segment: str, row: SegmentRow, first: int, until: int) -> list[Gap]:
    """The gaps of a segment from sequence `first` up to its first entry, or to `until`."""
    gaps: list[Gap] = []
    until = min(until, row.first_sequence - 1)
    for last, reason in row.gaps:
        if first <= min(last, until):
            gaps.append(Gap(view.log.space, segment, first, min(last, until), reason))
            first = last + 1
    return gaps


def _past_floor(view: LogView, segment: str, row: SegmentRow, floor: Floor) -> SegmentRow:
    if row.empty or row.first_number >= floor.number:
        return row
    place: EntryPlace | None = None
    if not row.last_number or row.last_number >= floor.number:
        place = view.searches.first(segment, floor.number)
        if place is None:
            place = first_where(view, segment, row, lambda at: at.number >= floor.number)
            if place is not None:
                if place.number <= view.cold_until:
                    place = replace(place, before=archived_before(view, segment, place.sequence))
                view.searches.keep_first(segment, floor.number, place)
    return _from(row, segment, floor.reason, place)


def _retained(view: LogView, segment: str, row: SegmentRow) -> SegmentRow:
    retention = view.retention
    assert retention is not None
    if row.empty:
        return row
    oldest = cutoff(view)
    if row.first_timestamp < oldest:
        place = None
        if row.last_timestamp >= oldest:
            place = first_where(view, segment, row, lambda at: at.timestamp >= oldest)
        row = _from(row, segment, "expired", place)
    if retention.when_full == "reject" or row.empty:
        return row
    if retention.per == "space":
        return _past_floor(view, segment, row, floor_of(view)) if retention.max_entries or retention.max_bytes else row
    full = row
    least = row.last_sequence - retention.max_entries + 1
    if retention.max_entries and row.first_sequence < least:
        row = _from(row, segment, "expired", first_where(view, segment, row, lambda at: at.sequence >= least, least))
    least = row.size - retention.max_bytes
    if retention.max_bytes and not row.empty and full.first_size < least:
        # Whole transactions are kept, also if the other bound is in the middle of one.
        place = _from_bytes(view, segment, full, least)
        if place is None or place.sequence > row.first_sequence:
            row = _from(row, segment, "expired", place)
    return row


def _from(row: SegmentRow, segment: str, reason: str, place: EntryPlace | None) -> SegmentRow:
    """`row` without the entries before `place`; None: without any entry."""
    if place is None:
        removal = Removal(segment, row.last_sequence, reason)
    else:
        removal = Removal(segment, place.sequence - 1, reason, place.timestamp, place.number, place.before)
    return row.without(removal)


def _from_bytes(view: LogView, segment: str, row: SegmentRow, least: int) -> EntryPlace | None:
    """The first frame of a segment that was given so many bytes of payload before it; None if none was."""
    hot = hot_pieces(view, segment, row.first_sequence)
    first = next(hot, None)
    if view.cold_until and (first is None or first.before >= least):
        return _from_archived_bytes(view, segment, row, least, first)
    return _place(_first_of_transaction(first, hot, least))


def _first_of_transaction(piece: Piece | None, rest: Iterator[Piece], least: int) -> Piece | None:
    """The first piece with so many bytes before it that is the first of its transaction."""
    number = 0
    while piece is not None and (piece.before < least or piece.number == number):
        number, piece = piece.number, next(rest, None)
    return piece


def archived_before(view: LogView, segment: str, sequence: int) -> int:
    """Bytes of payload that a segment was given before `sequence`, which is archived. The archive does not know how
    much was erased."""
    row = status_of(view, segment)
    first = next(hot_pieces(view, segment, row.first_sequence), None)
    end, size = (row.last_sequence + 1, row.size) if first is None else (first.first_sequence, first.before)
    begins = row.first_number >= view.floor.number and sequence - row.first_sequence <= end - sequence
    begin, end = (row.first_sequence, sequence) if begins else (sequence, end)
    entries, counted = view.archive().segment_bytes(view, segment, begin, end - 1)
    if entries != end - begin:
        view.look_again()  # they may have been trimmed meanwhile
    return row.first_size + counted if begins else size - counted


def _from_archived_bytes(
    view: LogView, segment: str, row: SegmentRow, least: int, hot: Piece | None
) -> EntryPlace | None:
    """Search as `_from_bytes` does, if the frame must be archived. Bytes are counted from the end of the archive,
    because erased entries have none there. `hot`: the first frame that is not archived."""
    kept = begin = _place(hot)
    last, before = (row.last_sequence, row.size) if hot is None else (hot.first_sequence - 1, hot.before)
    number = 0
    for batch in view.archive().segment_backwards(view, segment, row.first_sequence, last):
        if batch.number != number:
            kept, number = begin, batch.number
        before -= sum(len(entry.payload) for entry in batch.entries)
        if before < least:
            return kept
        begin = EntryPlace(batch.entries[0].sequence, batch.timestamp, number, before)
    return begin


def _place(piece: Piece | None) -> EntryPlace | None:
    return None if piece is None else EntryPlace(piece.first_sequence, piece.timestamp, piece.number, piece.before)


def first_where(
    view: LogView, segment: str, row: SegmentRow, holds: Callable[[EntryPlace], bool], least: int = 0
) -> EntryPlace | None:
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
            place = EntryPlace(batch.entries[0].sequence, batch.timestamp, batch.number, row.first_size)
            if batch.number >= view.floor.number and holds(place):
                return place
    for piece in hot_pieces(view, segment, max(row.first_sequence, least)):
        place = EntryPlace(max(piece.first_sequence, least), piece.timestamp, piece.number, piece.before)
        if holds(place):
            return place
    return None


# -- the pieces -------------------------------------------------------------------------------------------------------


def piece_groups(view: LogView, segment: str, first: int, last: int) -> Iterator[list[Piece]]:
    """The pieces that hold first..last, up to the first missing one, in groups that are worth one read.

    The last group is empty if a piece is missing before a later one.
    """
    expected, size, missing = first, 0, False
    group: list[Piece] = []
    for pieces in _rows_of(view, segment, first):
        for piece in pieces:
            begin = piece.first_sequence
            after = begin + piece.count
            if after <= expected:
                continue
            if expected > last:
                break
            if begin > expected:
                missing = True
                break
            expected = after
            group.append(piece)
            size += piece.length
            if len(group) >= _PIECES or size >= _BYTES:
                yield group
                group, size = [], 0
        if missing or expected > last:
            break
    if group:
        yield group
    if missing:
        yield []


def _pieces_after(view: LogView, segment: str, first: int) -> Iterator[Piece]:
    """All pieces that the log has of a segment, from the one that holds sequence `first` on."""
    for pieces in _rows_of(view, segment, first):
        for piece in pieces:
            if piece.last_sequence >= first:
                yield piece
                first = piece.last_sequence + 1


def hot_pieces(view: LogView, segment: str, first: int) -> Iterator[Piece]:
    """The pieces of `_pieces_after`, without those that are read from the archive."""
    return (piece for piece in _pieces_after(view, segment, first) if piece.number > view.cold_until)


def _rows_of(view: LogView, segment: str, first: int) -> Iterator[list[Piece]]:
    """The pieces of each row of the index, from the row that holds sequence `first` on; then those of the tail."""
    tail = view.tail.pieces_until(segment, view.end)
    if view.tail.watermark and (not tail or tail[0].first_sequence > first):
        for key, value in view.index.scan(*data_range(segment, first), segment.encode()):
            yield decode_index_row(DataRow, key, value).pieces
    yield tail


def last_piece(view: LogView, segment: str, last: int) -> Piece | None:
    """The piece that ends with sequence `last`; None if the log does not know it."""
    for piece in reversed(view.tail.pieces_until(segment, view.end)):
        if piece.first_sequence <= last:
            return piece if piece.last_sequence >= last else None
    if not view.tail.watermark:
        return None
    start, end = data_range(segment, last)
    # Most rows end with the last entry: then the key is known, and it is in the newest run that has the segment.
    value = view.index.get([start])[0]
    row = (start, value) if value else next(view.index.scan(start, end, segment.encode()), None)
    for piece in decode_index_row(DataRow, *row).pieces if row is not None else ():
        if piece.last_sequence == last:
            return piece
    return None
