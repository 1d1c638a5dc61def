"""Archived transactions that are still in the log. They are removed from it after the grace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .keys import ARCHIVE, GRACE, partition_key, transaction_number
from .rows import ArchiveRow, GraceRow, decode_row, encode_row

if TYPE_CHECKING:
    from .partition import Partition
    from .view import LogView

__all__ = ["TOGETHER", "archive_row", "grace_row", "put_grace_row", "still_in_log_from", "whole_from"]

TOGETHER = 64
"""Partitions that share an archiver's lease, and a row with the times of archiving."""


def archive_row(partition: Partition) -> ArchiveRow:
    """The row about the partition's archived transactions. CorruptData for a damaged row."""
    value = partition.backend.get(partition.key, [bytes(ARCHIVE)])[0]
    return ArchiveRow() if value is None else decode_row(ArchiveRow, ARCHIVE, value.data)


def _grace_partition(partition: Partition) -> bytes:
    """The backend's partition of the row with the times of archiving, which several partitions share."""
    return bytes(partition_key(partition.space, partition.partition - partition.partition % TOGETHER))


def grace_row(partition: Partition) -> GraceRow:
    """The row with the times of archiving, of the partition's own incarnation. CorruptData for a damaged row."""
    value = partition.backend.get(_grace_partition(partition), [bytes(GRACE)])[0]
    incarnation = partition.settings.incarnation
    found = None if value is None else decode_row(GraceRow, GRACE, value.data)
    return found if found is not None and found.incarnation == incarnation else GraceRow(incarnation)


def put_grace_row(partition: Partition, row: GraceRow) -> None:
    """Write the row with the times of archiving. Twice is the same as once. The caller holds the archiver's lease, or
    repairs."""
    partition.backend.put(_grace_partition(partition), bytes(GRACE), encode_row(GRACE, row))


def still_in_log_from(view: LogView, last: int) -> int | None:
    """The first transaction from which on the log holds all up to `last`; None if it lacks the last one.

    Rows below the last removal do not count, because a late writer may have left them.
    """
    return whole_from(view, archive_row(view.log).removed + 1, last)


def whole_from(view: LogView, first: int, last: int) -> int | None:
    """The first transaction from which on the log has all rows up to `last`; None if it lacks the last one."""
    partition, packs = view.log, view.packs
    start, end = partition.transaction_key(first), partition.transaction_key(last + 1)
    rows = {transaction_number(row.key) for row in partition.backend.scan(partition.key, start, end, values=False)}
    number = last
    while number >= first and (number in rows or packs.holds(number)):
        number -= 1
    return number + 1 if number < last else None
