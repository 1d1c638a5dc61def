"""The entries that log and archive still store, also those that the index no longer knows.

The index loses the rows of entries that were archived, trimmed, expired or deleted. Their bytes stay for longer: in a
pack that also holds transactions which are still needed, in rows of the log until the grace is over, in Parquet files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..index.upkeep import gone_up_to
from ..log.floors import overlapping
from ..log.index_rows import decode_index_row
from ..log.keys import data_range, transaction_number
from ..log.partition import Partition
from ..log.record_format import decode_entries, decode_header, frames_with
from ..log.records import all_records
from ..log.rows import DataRow, Head, Piece
from .ranges import Ranges

__all__ = ["has_pairs", "hidden_up_to", "stored_in", "stored_with"]


def stored_in(partition: Partition, head: Head, ranges: Ranges) -> list[int]:
    """The transactions of the log that hold entries of `ranges`, in order. RunGone if others merge a pack meanwhile.

    The index names most of them. The log itself is searched for the others, where the index may have lost rows.
    """
    found: set[int] = set()
    lost: dict[str, list[tuple[int, int]]] = {}
    limit = 0
    for segment, parts in ranges.by_segment.items():
        for first, last in parts:
            expected = first
            for piece in _pieces(partition, segment, first, last):
                found.add(piece.number)
                if piece.first_sequence > expected:
                    lost.setdefault(segment, []).append((expected, piece.first_sequence - 1))
                expected = piece.last_sequence + 1
            if expected <= last:
                lost.setdefault(segment, []).append((expected, last))
        if segment in lost:
            limit = max(limit, gone_up_to(head), _trimmed_up_to(partition, head, segment))
    if limit:
        for number, record in _records(partition, limit):
            if any(
                overlapping(lost.get(frame.segment, ()), frame.first_sequence, frame.first_sequence + frame.count - 1)
                for frame in decode_header(record, partition.seed).frames
            ):
                found.add(number)
    return sorted(found)


def _records(partition: Partition, last: int) -> Iterator[tuple[int, bytes]]:
    """Yield (number, record) of all that the log holds up to `last`. A number may come twice, with different entries.

    A row that waits for its deletion, beside its packed transaction, may hold entries that the pack has dropped.
    """
    yield from all_records(partition, partition.packs, 1, last)
    start, end = partition.transaction_key(1), partition.transaction_key(last + 1)
    for row in partition.backend.scan(partition.key, start, end):
        yield transaction_number(row.key), row.data


def _pieces(partition: Partition, segment: str, first: int, last: int) -> Iterator[Piece]:
    index = partition.index
    for key, data in index.scan(*data_range(segment, first), segment.encode()):
        for piece in decode_index_row(DataRow, key, data).pieces:
            if piece.first_sequence > last:
                return
            if piece.last_sequence >= first:
                yield piece


def _trimmed_up_to(partition: Partition, head: Head, segment: str) -> int:
    """No later transaction holds an entry that was removed from the segment; 0 if none was removed."""
    row = partition.status(segment)
    if not row.gaps:
        return 0
    return head.thinned if row.empty or not row.first_number else min(head.thinned, row.first_number)


def hidden_up_to(partition: Partition) -> int:
    """No later transaction holds an entry that was trimmed, expired or deleted."""
    return max(partition.floor.number - 1, partition.thinned)


def stored_with(
    partition: Partition, wanted: Mapping[str, str], accepts: Callable[[str], bool], last: int
) -> Iterator[tuple[str, int]]:
    """Yield (segment, sequence) of the entries in the log that have all pairs of `wanted`, up to transaction `last`, in
    segments that `accepts` takes. RunGone if others merge a pack meanwhile."""
    required = [text.encode() for pair in wanted.items() for text in pair]
    settings, seed = partition.settings, partition.seed
    for _, record in _records(partition, last):
        for frame in frames_with(record, seed, required):
            head, _, entries = decode_entries(partition.space, partition.partition, settings.partitions, frame, seed)
            if accepts(head.segment):
                for entry in entries:
                    if type(entry.payload) is bytes and has_pairs(entry.metadata, wanted):
                        yield entry.segment, entry.sequence


def has_pairs(metadata: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """True if an entry has all pairs of `wanted`."""
    return all(metadata.get(name) == value for name, value in wanted.items())
