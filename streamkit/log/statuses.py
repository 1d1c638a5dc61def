"""Statuses of segments, as callers get them: with the place in the log after which they hold."""

from __future__ import annotations

from collections.abc import Mapping

from ..model import TRX, Position, SegmentStatus
from .partition import Partition
from .rows import SegmentRow

__all__ = ["present", "written"]


def present(partition: Partition, rows: Mapping[str, SegmentRow]) -> dict[str, SegmentStatus]:
    """Of rows that were read: they hold at the end of the partition that is known after that."""
    return _statuses(partition, rows, *partition.known_end(), None)


def written(partition: Partition, rows: Mapping[str, SegmentRow], trx: TRX, count: int) -> dict[str, SegmentStatus]:
    """Of the rows that a transaction of `count` entries left; 0 if it is not known how many."""
    timestamp = max([row.last_timestamp for row in rows.values()], default=0)
    number, index = (trx.number, count) if count else (trx.number + 1, 0)
    return _statuses(partition, rows, number, index, timestamp, trx)


def _statuses(
    partition: Partition, rows: Mapping[str, SegmentRow], number: int, index: int, timestamp: int, trx: TRX | None
) -> dict[str, SegmentStatus]:
    space, settings = partition.space, partition.settings
    place = Position(partition.partition, settings.partitions, timestamp, number, index, settings.incarnation)
    return {
        segment: SegmentStatus(
            *(space, segment, row.first_sequence, row.first_timestamp, row.last_sequence, row.last_timestamp),
            trx,
            place,
        )
        for segment, row in rows.items()
    }
