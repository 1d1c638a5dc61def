"""Reading backwards: the same batches as forwards, the newest first. Chunks of the log are bounded in bytes.

The entries within a batch stay in their order: who hands them out turns them round.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from msgspec.structs import force_setattr

from ..errors import CorruptData, UnsupportedVersion
from .first_at import first_at
from .offsets import Offset
from .partition import Partition
from .read import (
    Batch,
    Bounds,
    NotLogged,
    is_named,
    load,
    pieces_of,
    position_of,
    told,
    without_erased,
    without_hidden,
)
from .record_format import decode_transaction
from .records import records
from .rows import Piece, SegmentRow
from .visible import floor_of, hides, number_gap, row_of, sequence_gaps, still_there

__all__ = ["logged_backwards", "segment_backwards", "space_backwards"]

_BYTES = 4 << 20
_TRANSACTIONS = 1024
_SEQUENCES = 4096
_FIRST = 16
"""Transactions, and sequences, of the first chunk: who asks for the last few reads little."""


def space_backwards(
    partitions: Sequence[Partition], offset: Offset | None, bounds: Bounds, since: int | None
) -> Iterator[Batch]:
    """What is there after `offset`, in the reverse of the order in which a Cursor gives it."""
    if bounds.empty:
        return
    ends = [partition.refresh((), since) for partition in partitions]
    starts = [position_of(partition, offset, end) for partition, end in zip(partitions, ends, strict=True)]
    gaps: list[Batch] = []
    for at, partition in enumerate(partitions):
        floor = floor_of(partition)
        if starts[at][0] < floor.number:
            named = is_named(partition, offset, starts[at])
            gap = number_gap(partition, starts[at], floor) if named else None
            if gap is not None and (batch := told(gap, bounds.gaps)) is not None:
                gaps.append(batch)
            starts[at] = (floor.number, 0)
    yield from _space_backwards(partitions, starts, ends, offset.timestamp if offset else 0, bounds)
    yield from gaps


def _space_backwards(
    partitions: Sequence[Partition],
    starts: Sequence[tuple[int, int]],
    ends: Sequence[int],
    watermark: int,
    bounds: Bounds,
) -> Iterator[Batch]:
    parts = zip(partitions, starts, ends, strict=True)
    logs = [_partition(partition, start, end, bounds) for partition, start, end in parts]
    if len(logs) == 1:
        yield from logs[0]
        return
    heads: dict[int, Batch] = {}
    for at, log in enumerate(logs):
        if (head := next(log, None)) is not None:
            heads[at] = head
    while heads:
        at = max(heads, key=lambda at: (heads[at].timestamp, at))
        batch = heads.pop(at)
        if batch.gap is not None:
            yield batch
            if (head := next(logs[at], None)) is not None:
                heads[at] = head
            continue
        # What a reader that goes forwards from here has passed in the others: all that is still to come.
        others = tuple(_after(heads[other]) if other in heads else starts[other] for other in range(len(logs)))
        force_setattr(batch.origin, "others", others)
        force_setattr(batch.origin, "whole", True)
        force_setattr(batch.origin, "watermark", max(watermark, batch.timestamp))
        yield batch
        if (head := next(logs[at], None)) is not None:
            heads[at] = head


def _after(batch: Batch) -> tuple[int, int]:
    origin = batch.origin
    return batch.number, origin.index + batch.entries[-1].sequence - origin.first_sequence + 1


def _partition(partition: Partition, start: tuple[int, int], end: int, bounds: Bounds) -> Iterator[Batch]:
    batches = _shown(partition, start, end, bounds)
    return without_hidden(partition, batches, bounds.gaps) if hides(partition) else batches


def _shown(partition: Partition, start: tuple[int, int], end: int, bounds: Bounds) -> Iterator[Batch]:
    number, skip = start
    if bounds.max_timestamp and number <= end:
        end = first_at(partition, bounds.max_timestamp + 1, number, end) - 1
    if bounds.min_timestamp and number <= end:
        found = first_at(partition, bounds.min_timestamp, number, end)
        if found > number:
            number, skip = found, 0
    while end >= number:
        archived = min(partition.head.archived, end)
        if archived == end:
            least = 0
            for batch in partition.archive().transactions_backwards(partition, (number, skip), end):
                least = batch.number
                yield batch
            if least != number and not still_there(partition, number):
                yield from _overtaken(partition, number, bounds)
            return
        begin = (number, skip) if number > archived else (archived + 1, 0)
        end, missing = yield from logged_backwards(partition, begin, end)
        if missing and not partition.archived_since(missing):
            if not still_there(partition, missing):
                yield from _overtaken(partition, number, bounds)
                number, skip = floor_of(partition).number, 0
                continue
            raise partition.missing(missing)


def _overtaken(partition: Partition, number: int, bounds: Bounds) -> Iterator[Batch]:
    """What a reader that goes back to transaction `number` is told where that was trimmed meanwhile."""
    gap = number_gap(partition, (number, 0), floor_of(partition))
    if gap is not None and (batch := told(gap, bounds.gaps)) is not None:
        yield batch


def logged_backwards(partition: Partition, start: tuple[int, int], end: int) -> Generator[Batch, None, tuple[int, int]]:
    """What the log itself holds from `start` up to transaction `end`, the last first.

    Returns the transaction that would be next, and the number of one that is missing from there on, or 0.
    """
    number, skip = start
    size = _FIRST
    while end >= number:
        begin = max(number, end - size + 1)
        records, length = _records(partition, begin, end)
        if len(records) <= end - begin:
            if length <= _BYTES:
                return end, begin + len(records)
            size = max(1, len(records) // 2)
            continue
        while records:
            yield from _decoded(partition, end, records.pop(), skip if end == number else 0)
            end -= 1
        size = min(size * 2, _TRANSACTIONS) if length * 2 <= _BYTES else size
    return end, 0


def _records(partition: Partition, begin: int, end: int) -> tuple[list[bytes], int]:
    """The records of begin..end, and their bytes; fewer if they are large, or one is not there."""
    found: list[bytes] = []
    length = 0
    for _, record in records(partition, begin, end):
        if length > _BYTES:
            break
        found.append(record)
        length += len(record)
    return found, length


def _decoded(partition: Partition, number: int, record: bytes, skip: int) -> Iterator[Batch]:
    settings = partition.settings
    try:
        frames = decode_transaction(
            partition.space, partition.partition, settings.partitions, record, partition.seed, settings.incarnation
        )
    except (CorruptData, UnsupportedVersion) as error:
        raise partition.with_location(error, number) from error
    for head, origin, entries in reversed(frames):
        if head.number != number:
            raise CorruptData(f"{partition.where(number)}: a frame of transaction {head.number} is in its place")
        entries = entries[max(0, skip - head.index) :]
        if entries:
            yield Batch(head.timestamp, number, origin, entries)


def segment_backwards(partition: Partition, segment: str, bounds: Bounds, since: int | None) -> Iterator[Batch]:
    """One segment's entries, the last sequence first."""
    if bounds.empty:
        return
    partition.refresh((segment,), since, load=True)
    row = row_of(partition, segment)
    batches = _segment_backwards(partition, segment, bounds, row)
    gaps: list[Batch] = []
    if bounds.min_sequence and bounds.min_sequence < row.first_sequence:
        until = bounds.max_sequence or row.last_sequence
        for gap in reversed(sequence_gaps(partition, segment, row, bounds.min_sequence, until)):
            if (batch := told(gap, bounds.gaps)) is not None:
                gaps.append(batch)
    yield from without_erased(partition, batches) if partition.erasing else batches
    yield from gaps


def _segment_backwards(partition: Partition, segment: str, bounds: Bounds, row: SegmentRow) -> Iterator[Batch]:
    first = max(bounds.min_sequence, row.first_sequence, 1)
    last = min(row.last_sequence, bounds.max_sequence or row.last_sequence)
    low, high = bounds.min_timestamp, bounds.max_timestamp or 1 << 63
    size = _FIRST
    while first <= last:
        begin = max(first, last - size + 1)
        try:
            pieces = [piece for group in pieces_of(partition, segment, begin, last) for piece in group]
            archived = partition.head.archived
            if pieces[-1].number <= archived:
                raise NotLogged(f"sequence {last} of segment {segment!r} is archived")
            pieces = [piece for piece in pieces if piece.number > archived]
            for batch in _loaded(partition, segment, [piece for piece in pieces if low <= piece.timestamp <= high]):
                entries = batch.entries
                if entries[-1].sequence > last or entries[0].sequence < first:
                    at = entries[0].sequence
                    entries = entries[max(0, first - at) : last - at + 1]
                yield Batch(batch.timestamp, batch.number, batch.origin, entries)
                last = entries[0].sequence - 1
            if pieces[0].timestamp < low:
                return
            last = pieces[0].first_sequence - 1
            size = min(size * 2, _SEQUENCES)
        except NotLogged as error:
            if begin < last:
                # Part of it may be archived: find what is still in the log.
                size = max(1, (last - begin + 1) // 2)
                continue
            partition.read_head()
            reached = last
            if partition.head.archived:
                for batch in partition.archive().segment_backwards(partition, segment, first, last):
                    if batch.timestamp < low:
                        return
                    if batch.timestamp <= high:
                        yield batch
                    last = batch.entries[0].sequence - 1
            if last == reached:
                partition.refresh()
                row = row_of(partition, segment)
                if row.first_sequence <= first:
                    raise CorruptData(str(error)) from None
                for gap in reversed(sequence_gaps(partition, segment, row, first, last)):
                    if (told_of := told(gap, bounds.gaps)) is not None:
                        yield told_of
                first = row.first_sequence


def _loaded(partition: Partition, segment: str, pieces: Sequence[Piece]) -> Iterator[Batch]:
    """The pieces' entries, the last first, a few MiB at a time."""
    end = len(pieces)
    while end:
        begin, length = end - 1, pieces[end - 1].length
        while begin and length + pieces[begin - 1].length <= _BYTES:
            begin -= 1
            length += pieces[begin].length
        yield from reversed(list(load(partition, segment, pieces[begin:end])))
        end = begin
