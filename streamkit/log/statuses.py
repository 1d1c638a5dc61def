"""Statuses of segments, as callers get them: with the place in the log after which they hold."""

from __future__ import annotations

from collections.abc import Mapping

from ..model import TRX, Position, SegmentStatus
from .partition import Partition
from .rows import SegmentRow

__all__ = ["present", "written"]


def present(
    partition: Partition, rows: Mapping[str, SegmentRow], end: tuple[int, int, int]
) -> dict[str, SegmentStatus]:
    """The statuses of rows that were read when the partition ended at `end`."""
    return _statuses(partition, rows, *end, None)


def written(partition: Partition, rows: Mapping[str, SegmentRow], trx: TRX, count: int) -> dict[str, SegmentStatus]:
    """The statuses that a transaction of `count` entries left; 0 if the number is not known."""
    timestamp = 0
    for row in rows.values():
        if row.last_timestamp > timestamp:
            timestamp = row.last_timestamp
    return _statuses(partition, rows, trx.number if count else trx.number + 1, count, timestamp, trx)


def _statuses(
    partition: Partition, rows: Mapping[str, SegmentRow], number: int, index: int, timestamp: int, trx: TRX | None
) -> dict[str, SegmentStatus]:
    space, settings = partition.space, partition.settings
    partitions, incarnation = settings.partitions, settings.incarnation
    others = partition.ends() if partitions > 1 else None
    place = Position(partition.partition, partitions, timestamp, number, index, incarnation, others)
    statuses = {}
    for segment, row in rows.items():
        first, last = row.first_sequence, row.last_sequence
        statuses[segment] = SegmentStatus(
            space, segment, first, row.first_timestamp, last, row.last_timestamp, trx, place
        )
    return statuses
