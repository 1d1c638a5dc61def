"""Trimming: the floor of a segment or of a space moves up. It is a transaction like any other."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import SequenceMismatch, Unavailable
from ..log.archive_reader import Amount
from ..log.batches import Bounds
from ..log.commit import Committer
from ..log.first_at import first_at
from ..log.floors import Control, Floor, Removal
from ..log.offsets import Offset
from ..log.partition import Partition
from ..log.read_segment import segment_batches
from ..log.read_space import position_of
from ..log.request import Part, Request
from ..log.rows import SegmentRow
from ..log.segment_view import archived_before, first_where, row_of
from ..log.view import LogView
from ..log.visible import first_with, floor_at, floor_of, place_of, size_of_floor
from ..retry import attempts
from .report import TrimReport

__all__ = ["Limit", "trim_segment", "trim_space"]


class Limit:
    """The limit of a trim: exactly one of its bounds is set."""

    def __init__(
        self, before: int | Offset | None, keep_entries: int | None, keep_bytes: int | None, max_age: float | None
    ) -> None:
        self.before = before
        self.keep_entries = keep_entries
        self.keep_bytes = keep_bytes
        self.max_age = max_age


def trim_segment(committer: Committer, segment: str, limit: Limit, reason: str, dry_run: bool) -> TrimReport:
    """Remove the first entries of a segment."""
    partition = committer.partition
    for _ in attempts(partition.clock):
        partition.refresh((segment,))
        row = partition.ask(row_of, segment)
        first = min(_first_kept(partition, segment, row, limit), row.last_sequence + 1)
        if row.empty or first <= row.first_sequence:
            return TrimReport(partition.space, segment, first_sequence=row.first_sequence, dry_run=dry_run)
        removal = _removal(partition, segment, row, first, reason)
        if removal is None:
            continue
        report = TrimReport(
            partition.space,
            segment,
            first - row.first_sequence,
            max(0, removal.size - row.first_size),
            first_sequence=first,
            dry_run=dry_run,
        )
        if dry_run:
            return report
        # If nothing remains, the next entry must be the one after the last.
        empties = first > row.last_sequence
        parts = [Part(segment, None, 0, row.last_sequence)] if empties else ()
        request = Request(parts, control=Control((removal,)))
        try:
            committer.commit(request)
            return report
        except SequenceMismatch:
            continue
    raise Unavailable(
        f"space {partition.space!r}: segment {segment!r} is written to, or trimmed, all the time: trim it again"
    )


def _first_kept(partition: Partition, segment: str, row: SegmentRow, limit: Limit) -> int:
    if isinstance(limit.before, int):
        return limit.before
    if limit.keep_entries is not None:
        return row.last_sequence - limit.keep_entries + 1
    if limit.max_age is not None:
        oldest = partition.clock.now() - int(limit.max_age * 1000)
        place = partition.ask(first_where, segment, row, lambda at: at.timestamp >= oldest)
        return row.last_sequence + 1 if place is None else place.sequence
    assert limit.keep_bytes is not None
    return _first_of_bytes(partition, segment, row, limit.keep_bytes)


def _first_of_bytes(partition: Partition, segment: str, row: SegmentRow, most: int) -> int:
    """The first of the last entries that have together at most so many bytes of payload."""
    first = row.last_sequence + 1
    for batch in segment_batches(partition, segment, Bounds(), reverse=True):
        for entry in reversed(batch.entries):
            most -= len(entry.payload)
            if most < 0:
                return first
            first = entry.sequence
    return row.first_sequence


def _removal(partition: Partition, segment: str, row: SegmentRow, first: int, reason: str) -> Removal | None:
    """None if the new first entry was removed meanwhile."""
    if first > row.last_sequence:
        return Removal(segment, first - 1, reason, 0, 0, row.size)
    place = partition.ask(first_where, segment, row, lambda at: at.sequence >= first, first)
    if place is None or place.sequence > first:
        return None
    if place.number <= partition.head.archived:
        size = partition.ask(archived_before, segment, first)
        return Removal(segment, first - 1, reason, place.timestamp, place.number, size)
    size = place.before
    for batch in segment_batches(partition, segment, Bounds(first, first)):
        begin = batch.origin.first_sequence
        if begin < first:  # the frame begins before it: the earlier entries of the frame are removed too
            for part in segment_batches(partition, segment, Bounds(max(begin, row.first_sequence), first - 1)):
                size += sum(len(entry.payload) for entry in part.entries)
    return Removal(segment, first - 1, reason, place.timestamp, place.number, size)


def trim_space(committers: list[Committer], limit: Limit, reason: str, dry_run: bool) -> TrimReport:
    """Remove the first transactions of a space."""
    partitions = [committer.partition for committer in committers]
    for partition in partitions:
        partition.refresh()
    numbers = _numbers_kept(partitions, limit)
    transactions = entries = size = 0
    for committer, number in zip(committers, numbers, strict=True):
        partition = committer.partition
        before = partition.ask(floor_of)
        if number <= before.number:
            continue
        floor = partition.ask(floor_at, number, reason)
        if number <= partition.floor.number:
            continue  # another process has trimmed as much meanwhile
        transactions += number - before.number
        entries += max(0, floor.position - before.position)
        size += max(0, floor.size - partition.ask(size_of_floor, before))
        if not dry_run:
            _set_floor(committer, floor)
    return TrimReport(partitions[0].space, "", entries, size, transactions, dry_run=dry_run)


def _set_floor(committer: Committer, floor: Floor) -> None:
    committer.commit(Request((), control=Control((), floor)))


def _numbers_kept(partitions: list[Partition], limit: Limit) -> list[int]:
    """Return the first transaction to keep in each partition."""
    if isinstance(limit.before, Offset):
        numbers = []
        for partition in partitions:
            number, index = position_of(partition, limit.before, partition.number)
            there = partition.ask(floor_of).number <= number <= partition.number
            passed = there and index >= partition.ask(place_of, number)[1]
            numbers.append(number + 1 if passed else number)
        return numbers
    if limit.max_age is not None:
        age = limit.max_age
        return [
            one.ask(first_at, one.clock.now() - int(age * 1000), one.ask(floor_of).number, one.number)
            for one in partitions
        ]
    if len(partitions) == 1:
        return [_least(partitions[0], limit)]
    return _merged(partitions, limit)


def _least(partition: Partition, limit: Limit) -> int:
    """The first transaction from which on no more is left than is to be kept."""
    entries = 0 if limit.keep_entries is None else partition.position - limit.keep_entries
    size = 0 if limit.keep_bytes is None else partition.size - limit.keep_bytes
    return partition.ask(first_with, partition.ask(floor_of).number, max(0, entries), max(0, size))


def _merged(partitions: list[Partition], limit: Limit) -> list[int]:
    """The numbers that `_numbers_kept` gives, for several partitions: the newest transactions by timestamp are kept."""
    sized = limit.keep_entries is None
    left = limit.keep_bytes if limit.keep_entries is None else limit.keep_entries
    assert left is not None
    numbers = [partition.number + 1 for partition in partitions]
    amounts = [_amounts_backwards(partition, sized) for partition in partitions]
    heads = {at: head for at, head in enumerate(next(one, None) for one in amounts) if head is not None}
    while heads:
        at = max(heads, key=lambda at: (heads[at].timestamp, at))  # as they are read
        amount = heads[at]
        left -= amount.size if sized else amount.entries
        if left < 0:
            return numbers
        numbers[at] = amount.number
        head = next(amounts[at], None)
        if head is None:
            del heads[at]
        else:
            heads[at] = head
    return numbers


def _amounts_backwards(partition: Partition, sized: bool) -> Iterator[Amount]:
    """Yield the amounts of a partition's readable transactions, the last transaction first."""
    number = partition.number

    def walk(view: LogView) -> Iterator[Amount]:
        nonlocal number
        least = floor_of(view).number
        while number >= least:
            if number > view.cold_until:
                header = view.header(number)
                yield Amount(number, header.timestamp, header.count, header.after - header.size)
                number -= 1
                continue
            for amount in view.archive().amounts_backwards(view, least, number, sized):
                yield amount
                number = amount.number - 1
            number = least - 1

    return partition.walk(walk)
