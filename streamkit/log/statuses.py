"""Statuses of segments, as callers get them: with the place in the log after which they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..model import TRX, Position, SegmentStatus
from .partition import Partition
from .rows import SegmentRow

__all__ = ["present", "written", "written_later"]


def present(
    partition: Partition, rows: Mapping[str, SegmentRow], end: tuple[int, int, int]
) -> dict[str, SegmentStatus]:
    """The statuses of rows that were read when the partition ended at `end`."""
    return _statuses(partition.space, rows, _place(partition, *end), None)


def written(partition: Partition, rows: Mapping[str, SegmentRow], trx: TRX, count: int) -> dict[str, SegmentStatus]:
    """The statuses that a transaction of `count` entries left; 0 if the number is not known."""
    return written_later(partition, rows, trx, count)()


def written_later(
    partition: Partition, rows: Mapping[str, SegmentRow], trx: TRX, count: int
) -> Callable[[], dict[str, SegmentStatus]]:
    """Return a function that makes the statuses of `written` as of now, when it is called."""
    timestamp = 0
    for row in rows.values():
        if row.last_timestamp > timestamp:
            timestamp = row.last_timestamp
    place = _place(partition, trx.number if count else trx.number + 1, count, timestamp)
    space = partition.space
    return lambda: _statuses(space, rows, place, trx)


def _place(partition: Partition, number: int, index: int, timestamp: int) -> Position:
    settings = partition.settings
    partitions, incarnation = settings.partitions, settings.incarnation
    others = partition.ends() if partitions > 1 else None
    return Position(partition.partition, partitions, timestamp, number, index, incarnation, others)


def _statuses(space: str, rows: Mapping[str, SegmentRow], place: Position, trx: TRX | None) -> dict[str, SegmentStatus]:
    statuses = {}
    for segment, row in rows.items():
        first, last = row.first_sequence, row.last_sequence
        statuses[segment] = SegmentStatus(
            space, segment, first, row.first_timestamp, last, row.last_timestamp, trx, place
        )
    return statuses
