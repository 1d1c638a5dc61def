"""What of a partition can still be read: floors that were set, and those that a retention draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from msgspec.structs import replace

from ..errors import CorruptData, EntriesRemoved
from ..gaps import Gap
from .first_at import first_at
from .floors import Floor, Removal
from .index_reader import RunGone
from .index_rows import decode_index_row
from .keys import data_range
from .partition import Partition
from .rows import DataRow, Piece, Place, SegmentRow

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
    "pieces_of",
    "place_of",
    "raises",
    "row_of",
    "sequence_gaps",
    "shown",
    "size_before",
    "size_of_floor",
    "still_there",
    "trimmed_row",
]


_FIRSTS = 4096
"""Segments of which it is remembered where they begin behind a floor."""


def cutoff(partition: Partition) -> int:
    """The timestamp from which on entries are kept by the retention; 0 if it does not tell by age."""
    retention = partition.retention
    if retention is None or not retention.max_age:
        return 0
    return max(0, partition.clock.now() - int(retention.max_age * 1000))


def row_of(partition: Partition, segment: str) -> SegmentRow:
    """A segment's status, with the first entry that can be read by now. As of the last refresh, or later."""
    while True:
        row = trimmed_row(partition, segment)
        if partition.retention is None:
            return row
        try:
            return _retained(partition, segment, row)
        except CorruptData:
            partition.refresh((segment,))
            if trimmed_row(partition, segment).first_sequence == row.first_sequence:
                raise  # it was not trimmed meanwhile


def last_of(partition: Partition, segment: str) -> SegmentRow:
    """As `row_of`, for who asks for the last entry alone: of what a retention by space leaves of the segment, the first
    is not looked for."""
    row, retention = partition.status(segment), partition.retention
    if (
        retention is None
        or retention.per != "space"
        or row.empty
        or row.last_number < floor_of(partition).number
        or row.last_timestamp < cutoff(partition)
    ):
        return row_of(partition, segment)
    return row


def counted(partition: Partition, rows: dict[str, SegmentRow]) -> dict[str, SegmentRow]:
    """`rows` of segments, by what was trimmed of the space too, where a retention rejects what a segment has no room
    for."""
    retention = partition.retention
    if retention is None or retention.when_full != "reject" or retention.per != "segment":
        return rows
    floor = partition.floor.number
    return {
        name: row if row.empty or row.first_number >= floor else trimmed_row(partition, name)
        for name, row in rows.items()
    }


def trimmed_row(partition: Partition, segment: str) -> SegmentRow:
    """A segment's status by what was trimmed, and not by what a retention says."""
    while True:
        row = partition.status(segment)
        resolved = _past_floor(partition, segment, row, partition.floor)
        if resolved is row or partition.resolved(segment, row, resolved):
            return resolved


def shown(partition: Partition, row: SegmentRow) -> bool:
    """Whether a segment has entries, by its status alone."""
    if row.empty or (row.last_number and row.last_number < partition.floor.number):
        return False
    return partition.retention is None or row.last_timestamp >= cutoff(partition)


def _past_floor(partition: Partition, segment: str, row: SegmentRow, floor: Floor) -> SegmentRow:
    if row.empty or row.first_number >= floor.number:
        return row
    if row.last_number and row.last_number < floor.number:
        return row.without(Removal(segment, row.last_sequence, floor.reason))
    known = partition.firsts.get(segment)
    if known is not None and known[0] <= floor.number <= known[1].number:
        return _from(row, segment, floor.reason, known[1])
    place = first_where(partition, segment, row, lambda at: at.number >= floor.number)
    if place is not None:
        if place.number <= partition.head.archived:
            place = place._replace(before=archived_before(partition, segment, place.sequence))
        if len(partition.firsts) >= _FIRSTS:
            partition.firsts.clear()
        partition.firsts[segment] = (floor.number, place)
    return _from(row, segment, floor.reason, place)


def _from(row: SegmentRow, segment: str, reason: str, place: Place | None) -> SegmentRow:
    """`row` without what is before `place`; None: without anything."""
    if place is None:
        return row.without(Removal(segment, row.last_sequence, reason))
    return row.without(Removal(segment, place.sequence - 1, reason, place.timestamp, place.number, place.before))


def _retained(partition: Partition, segment: str, row: SegmentRow) -> SegmentRow:
    retention = partition.retention
    assert retention is not None
    if row.empty:
        return row
    oldest = cutoff(partition)
    if row.first_timestamp < oldest:
        if row.last_timestamp < oldest:
            return row.without(Removal(segment, row.last_sequence, "expired"))
        row = _from(row, segment, "expired", first_where(partition, segment, row, lambda at: at.timestamp >= oldest))
    if retention.when_full == "reject":
        return row
    if retention.per == "space":
        if not row.empty and (retention.max_entries or retention.max_bytes):
            row = _past_floor(partition, segment, row, floor_of(partition))
        return row
    whole = row
    least = row.last_sequence - retention.max_entries + 1
    if retention.max_entries and row.first_sequence < least:
        place = first_where(partition, segment, row, lambda at: at.sequence >= least, least)
        row = _from(row, segment, "expired", place)
    least = row.size - retention.max_bytes
    if retention.max_bytes and not row.empty and whole.first_size < least:
        # Of whole transactions: also of one in whose middle the other bound is.
        place = _from_bytes(partition, segment, whole, least)
        if place is None or place.sequence > row.first_sequence:
            row = _from(row, segment, "expired", place)
    return row


def _from_bytes(partition: Partition, segment: str, row: SegmentRow, least: int) -> Place | None:
    """The first frame of a segment that was given so many bytes of payload before it; None if none was."""
    while True:
        archived, hot = _hot(partition, segment, row)
        first = next(hot, None)
        if archived and (first is None or first.before >= least):
            found = _from_archived_bytes(partition, segment, row, least, first)
        else:
            found = _place(_first_whole(first, hot, least))
        if partition.head.archived == archived:
            return found


def _first_whole(piece: Piece | None, rest: Iterator[Piece], least: int) -> Piece | None:
    """The first piece with so many bytes before it that is the first of its transaction."""
    number = 0
    while piece is not None and (piece.before < least or piece.number == number):
        number, piece = piece.number, next(rest, None)
    return piece


def _hot(partition: Partition, segment: str, row: SegmentRow) -> tuple[int, Iterator[Piece]]:
    """Up to where the log is archived, and the pieces behind it: all, if that is so still when they have come."""
    archived = partition.head.archived
    return archived, (piece for piece in pieces_of(partition, segment, row.first_sequence) if piece.number > archived)


def archived_before(partition: Partition, segment: str, sequence: int) -> int:
    """Bytes of payload that a segment was given before `sequence`, which is archived. How much was erased is not known
    there."""
    archive = partition.archive()
    while True:
        row, floor = partition.status(segment), partition.floor.number
        archived, hot = _hot(partition, segment, row)
        first = next(hot, None)
        end, size = (row.last_sequence + 1, row.size) if first is None else (first.first_sequence, first.before)
        begins = row.first_number >= floor and sequence - row.first_sequence <= end - sequence
        begin, end = (row.first_sequence, sequence) if begins else (sequence, end)
        entries, counted = archive.segment_bytes(partition, segment, begin, end - 1)
        if entries != end - begin:
            partition.refresh()  # they may have been trimmed meanwhile
        if (partition.head.archived, partition.floor.number) == (archived, floor):
            return row.first_size + counted if begins else size - counted


def _from_archived_bytes(
    partition: Partition, segment: str, row: SegmentRow, least: int, hot: Piece | None
) -> Place | None:
    """As `_from_bytes`, where all that is kept of the archive is behind it: counted from its end, as what was erased
    has no bytes there. `hot`: the first frame that is not archived."""
    kept = begin = _place(hot)
    last, before = (row.last_sequence, row.size) if hot is None else (hot.first_sequence - 1, hot.before)
    number = 0
    for batch in partition.archive().segment_backwards(partition, segment, row.first_sequence, last):
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
    partition: Partition, segment: str, row: SegmentRow, holds: Callable[[Place], bool], least: int = 0
) -> Place | None:
    """The first frame of a segment for which `holds` is true, as it stays for those that come later; None if there is
    none. `least`: where in the frame that holds this sequence the place is to be. Of a frame in the archive `before` is
    not counted."""
    while True:
        archived, floor = partition.head.archived, partition.floor.number
        found = _first_where(partition, segment, row, holds, least, archived)
        # Else the log may have let go of what was to come from there, or the archive of what was to come from here.
        if (partition.head.archived, partition.floor.number) == (archived, floor):
            return found


def _first_where(
    partition: Partition, segment: str, row: SegmentRow, holds: Callable[[Place], bool], least: int, archived: int
) -> Place | None:
    if archived and (not row.first_number or row.first_number <= archived):
        # The log may have let go of these.
        archive, begin = partition.archive(), max(row.first_sequence, least)
        there = archive.first_of(partition, segment, partition.floor.number)
        last = row.last_sequence if there is not None else 0
        for batch in archive.segment(partition, segment, max(begin, there or 0), last):
            if batch.number > archived:
                break
            place = Place(batch.entries[0].sequence, batch.timestamp, batch.number, row.first_size)
            if batch.number >= partition.floor.number and holds(place):
                return place
    for piece in pieces_of(partition, segment, max(row.first_sequence, least)):
        if piece.number > archived:
            place = Place(max(piece.first_sequence, least), piece.timestamp, piece.number, piece.before)
            if holds(place):
                return place
    return None


def pieces_of(partition: Partition, segment: str, first: int) -> Iterator[Piece]:
    """The pieces from the one that holds `first`, in order, as far as the log has any."""
    while True:
        with partition.lock:
            tail, index = list(partition.tail.get(segment, ())), partition.index
            indexed = partition.watermark
        try:
            for key, data in index.scan(*data_range(segment, first), segment.encode()) if indexed else ():
                for piece in decode_index_row(DataRow, key, data).pieces:
                    if piece.last_sequence >= first:
                        yield piece
                        first = piece.last_sequence + 1
            for piece in tail:
                if piece.last_sequence >= first:
                    yield piece
                    first = piece.last_sequence + 1
            return
        except RunGone as error:
            partition.check_moved(index, error)


# -- the space ------------------------------------------------------------------------------------------------------


def floor_of(partition: Partition) -> Floor:
    """The first transaction that can be read by now."""
    floor, retention = partition.floor, partition.retention
    if retention is None:
        return floor
    oldest = cutoff(partition)
    known = partition.expired
    floor = known if (known.number, known.size) > (floor.number, floor.size) else floor
    entries = size = 0
    if retention.per == "space" and retention.when_full != "reject":
        share = partition.settings.partitions
        entries = max(0, partition.position - retention.max_entries // share) if retention.max_entries else 0
        size = max(0, partition.size - retention.max_bytes // share) if retention.max_bytes else 0
    number, last = floor.number, partition.number
    if number > last:
        return floor
    if floor.timestamp_at < oldest:
        number = first_at(partition, oldest, number, last)
    if floor.position < entries or floor.size < size:
        number = first_with(partition, number, entries, size)
    if number > floor.number:
        found = floor_at(partition, number, "expired", sized=size > 0)
    elif floor.size < size:  # it was drawn when bytes did not matter
        found = replace(floor, size=size_before(partition, number))
    else:
        return floor
    with partition.lock:
        if partition.retention is retention:  # or another one was set meanwhile, which may keep more
            partition.expired = found
    return found


def first_with(partition: Partition, first: int, entries: int, size: int) -> int:
    """The first transaction from `first` on with so many entries and bytes of payload before it in the partition, as
    those after it."""
    if entries <= 0 and size <= 0:
        return first
    while True:
        archived, first = partition.head.archived, max(first, partition.floor.number)
        hot = _hot_begin(partition, archived) if first <= archived else (0, 0, 0)
        if hot is None:
            continue
        if hot[0] < entries or hot[1] < size:
            found = _first_hot(partition, max(first, archived + 1), entries, size)
            if found is None:
                continue
            return found
        archive, number = partition.archive(), first
        if entries:
            number = max(number, (archive.number_of(partition, entries - 1) or 0) + 1)
        if size and number <= archived:
            number = archive.first_within(partition, number, archived, hot[1] - size)
        return number


def _hot_begin(partition: Partition, archived: int) -> tuple[int, int, int] | None:
    """As `_at` of the first transaction behind the archive, asked once; its timestamp may not be known."""
    known, at = partition.hot_begin
    if known == archived:
        return at
    found = _at(partition, archived + 1)
    if found is not None and partition.number >= archived:
        partition.hot_begin = (archived, found)
    return found


def _at(partition: Partition, number: int) -> tuple[int, int, int] | None:
    """Entries, and bytes of payload, before a transaction that is not archived, and its timestamp, 0 of one that is to
    come; None if it is, or trimmed, by now."""
    with partition.lock:
        end = (partition.position, partition.size, 0) if number > partition.number else None
    header = None if end is not None else partition.header(number)
    if header is not None:
        return header.position, header.size, header.timestamp
    if end is None and not partition.archived_since(number) and not partition.trimmed_since(number):
        raise partition.missing(number)
    return end


def _first_hot(partition: Partition, first: int, entries: int, size: int) -> int | None:
    """As `first_with`, of what is not archived; None where some of it is, or was trimmed, by now."""
    low, high = first, partition.number + 1
    step = 1
    while low < high:
        # What is to go is mostly little, and near the floor.
        middle = min(low + step - 1, (low + high) // 2)
        found = _at(partition, middle)
        if found is None:
            return None
        if found[0] >= entries and found[1] >= size:
            high, step = middle, 1 << 62
        else:
            low, step = middle + 1, step * 2
    return low


def floor_at(partition: Partition, number: int, reason: str, *, sized: bool = True) -> Floor:
    """The floor that begins with transaction `number`; its `size` is 0 unless it is `sized`, or in the log."""
    if number <= partition.head.archived:
        position, _, timestamp_at = place_of(partition, number)
        size = size_before(partition, number) if sized else 0
    else:
        at = _at(partition, number)
        if at is None:
            if number < partition.floor.number:
                return partition.floor
            return floor_at(partition, number, reason, sized=sized)
        position, size, timestamp_at = at
    end, timestamp = (max(0, number - 1), 0), 0
    now = max(partition.floor, partition.expired, key=attrgetter("number"))
    for before in range(number - 1, max(0, number - _EMPTY), -1):
        if before < now.number:  # it may not be there any more
            end, timestamp = now.end, timestamp or now.timestamp
            break
        _, count, moment = place_of(partition, before)
        timestamp = timestamp or moment
        end = (before, count)
        if count:
            break
    return Floor(number, reason, end, position, size, timestamp, timestamp_at)


def place_of(partition: Partition, number: int) -> tuple[int, int, int]:
    """Of a transaction: entries before it, those in it, its timestamp; of one that was trimmed: those before the floor,
    0 and 0. The timestamp is 0 also where the archive has none of its entries."""
    while True:
        archived, floor = partition.head.archived, partition.floor
        if number <= archived:
            position, count, timestamp = partition.archive().place(partition, number)
            # What was trimmed before it was archived, or with its files, is not there to be counted.
            return (max(position, floor.position) if number >= floor.number else position), count, timestamp
        header = partition.header(number)
        if header is not None:
            return header.position, header.count, header.timestamp
        if partition.trimmed_since(number):
            return partition.floor.position, 0, 0
        if not partition.archived_since(number):
            raise partition.missing(number)


def size_of_floor(partition: Partition, floor: Floor) -> int:
    """Bytes of payload before a floor, which may not tell them."""
    return floor.size or (size_before(partition, floor.number) if floor.position else 0)


def size_before(partition: Partition, number: int) -> int:
    """Bytes of payload before a transaction. Of what was erased the archive does not know how much it was: that counts
    as if it were before it."""
    while number >= partition.floor.number:
        archived = partition.head.archived
        if number > archived:
            hot = _at(partition, number)
            kept = 0
        else:
            hot = _hot_begin(partition, archived)
            kept = partition.archive().bytes_between(partition, number, archived)
        if hot is not None:
            return max(0, hot[1] - kept)
    return partition.floor.size


_EMPTY = 64
"""Transactions without entries that are passed to find the last entry before a floor."""


def still_there(partition: Partition, number: int) -> bool:
    """False if transaction `number`, which is not in the log, was trimmed meanwhile."""
    partition.refresh()
    return floor_of(partition).number <= number


# -- gaps -----------------------------------------------------------------------------------------------------------


def sequence_gaps(partition: Partition, segment: str, row: SegmentRow, first: int, until: int) -> list[Gap]:
    """What is missing of a segment from sequence `first` on up to its first entry, or to `until`."""
    gaps: list[Gap] = []
    until = min(until, row.first_sequence - 1)
    for last, reason in row.gaps:
        if first <= min(last, until):
            gaps.append(Gap(partition.space, segment, first, min(last, until), reason))
            first = last + 1
    return gaps


def number_gap(partition: Partition, start: tuple[int, int], floor: Floor) -> Gap | None:
    """What is missing of a partition from (number, index) `start` on; None if nothing is."""
    if start[0] >= floor.number or start >= floor.end:
        return None
    return Gap(partition.space, "", start[0], floor.number - 1, floor.reason)


def missing_error(gap: Gap) -> EntriesRemoved:
    return EntriesRemoved(
        f'{gap}: what comes after the place that was named is not all there. Read on with gaps="skip", or with '
        'gaps="yield" to be told where',
        gap,
    )


def raises(gap: Gap) -> bool:
    """Whether the reader is to be stopped: by what was lost to a limit, not by what somebody took back."""
    return gap.reason in ("trimmed", "expired")


def hides(partition: Partition) -> bool:
    """Whether transactions may hold entries that are not to be read any more."""
    retention = partition.retention
    by_segment = retention is not None and retention.per == "segment" and retention.when_full != "reject"
    return bool(
        partition.thinned >= partition.floor.number
        or partition.erasing
        or (by_segment and retention is not None and (retention.max_entries or retention.max_bytes))
    )
