"""What the log still holds of what is archived: it lets go of it after the grace."""

from __future__ import annotations

from .keys import ARCHIVE, GRACE, partition_key, transaction_number
from .partition import Partition
from .rows import ArchiveRow, GraceRow, decode_row, encode_row
from .view import LogView

__all__ = ["TOGETHER", "archive_row", "grace_row", "held_from", "put_grace_row", "whole_from"]

TOGETHER = 64
"""Partitions that one archiver's lease is for, and one row that tells since when what is archived has been so."""


def archive_row(partition: Partition) -> ArchiveRow:
    """What became of the partition's archived transactions. CorruptData for a damaged row."""
    value = partition.backend.get(partition.key, [bytes(ARCHIVE)])[0]
    return ArchiveRow() if value is None else decode_row(ArchiveRow, ARCHIVE, value.data)


def _grace_partition(partition: Partition) -> bytes:
    """Where the backend has the row that tells of the partition, and of others, since when what is archived is so."""
    return bytes(partition_key(partition.space, partition.partition - partition.partition % TOGETHER))


def grace_row(partition: Partition) -> GraceRow:
    """That row, of the partition's own incarnation. CorruptData for a damaged one."""
    value = partition.backend.get(_grace_partition(partition), [bytes(GRACE)])[0]
    incarnation = partition.settings.incarnation
    found = None if value is None else decode_row(GraceRow, GRACE, value.data)
    return found if found is not None and found.incarnation == incarnation else GraceRow(incarnation)


def put_grace_row(partition: Partition, row: GraceRow) -> None:
    """In its place; twice is as once. The caller holds the archiver's lease, or repairs."""
    partition.backend.put(_grace_partition(partition), bytes(GRACE), encode_row(GRACE, row))


def held_from(partition: Partition, first: int, last: int) -> int | None:
    """From which transaction on the log holds all of first..last; None if not even the last.

    What it holds up to where it was removed counts for nothing: a writer that slept may have left it.
    """
    return whole_from(partition, max(first, archive_row(partition).removed + 1), last)


def whole_from(partition: Partition, first: int, last: int) -> int | None:
    """From which transaction on all of first..last are in the log; None if not even the last."""
    return partition.ask(_whole_from, first, last)


def _whole_from(view: LogView, first: int, last: int) -> int | None:
    partition, packs = view.log, view.packs
    start, end = partition.transaction_key(first), partition.transaction_key(last + 1)
    rows = {transaction_number(row.key) for row in partition.backend.scan(partition.key, start, end, values=False)}
    number = last
    while number >= first and (number in rows or packs.holds(number)):
        number -= 1
    return number + 1 if number < last else None
