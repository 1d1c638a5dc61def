"""The readable part of a partition: its floors, and the limits of its retention."""

from __future__ import annotations

from operator import attrgetter

from msgspec.structs import replace

from ..errors import EntriesRemoved
from ..gaps import Gap
from .first_at import first_at
from .floors import Floor
from .rows import SegmentRow
from .view import LogView

__all__ = [
    "cutoff",
    "first_with",
    "floor_at",
    "floor_of",
    "has_entries",
    "may_hide_entries",
    "missing_error",
    "number_gap",
    "place_of",
    "size_before",
    "size_of_floor",
    "stops_readers",
]


def cutoff(view: LogView) -> int:
    """The timestamp from which on entries are kept by the retention; 0 if it does not tell by age."""
    retention = view.retention
    if retention is None or not retention.max_age:
        return 0
    return max(0, view.log.clock.now() - int(retention.max_age * 1000))


def has_entries(view: LogView, row: SegmentRow) -> bool:
    """True if a segment has entries, by its status alone."""
    if row.empty or (row.last_number and row.last_number < view.floor.number):
        return False
    return view.retention is None or row.last_timestamp >= cutoff(view)


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
    """The result of `_at` for the first transaction that is not archived. Its timestamp may be 0."""
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
    """Search as `first_with` does, in transactions that are not archived."""
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
    """Return (entries before a transaction, its own entries, its timestamp). For a trimmed one: (entries before the
    floor, 0, 0). The timestamp is also 0 if the archive has no entry of it."""
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


def stops_readers(gap: Gap) -> bool:
    """True if the gap stops a reader: a limit removed the entries, and no person erased or deleted them."""
    return gap.reason in ("trimmed", "expired")


def may_hide_entries(view: LogView) -> bool:
    """True if transactions may hold entries that readers no longer get."""
    retention = view.retention
    by_segment = retention is not None and retention.per == "segment" and retention.when_full != "reject"
    return bool(
        view.thinned >= view.floor.number
        or view.erasing
        or (by_segment and retention is not None and (retention.max_entries or retention.max_bytes))
    )
