"""What the log still holds of what is archived: it lets go of it after the grace."""

from __future__ import annotations

from .keys import ARCHIVE, transaction_number
from .packs import Packs
from .partition import Partition
from .rows import ArchiveRow, decode_row

__all__ = ["archive_row", "held_from", "whole_from"]


def archive_row(partition: Partition) -> ArchiveRow:
    """What became of the partition's archived transactions. CorruptData for a damaged row."""
    value = partition.backend.get(partition.key, [bytes(ARCHIVE)])[0]
    return ArchiveRow() if value is None else decode_row(ArchiveRow, ARCHIVE, value.data)


def held_from(partition: Partition, first: int, last: int) -> int | None:
    """From which transaction on the log holds all of first..last; None if not even the last.

    What it holds up to where it was removed counts for nothing: a writer that slept may have left it.
    """
    return whole_from(partition, max(first, archive_row(partition).removed + 1), last)


def whole_from(partition: Partition, first: int, last: int) -> int | None:
    """From which transaction on all of first..last are in the log; None if not even the last."""
    return partition.ask_packs(lambda packs: _whole_from(partition, packs, first, last))


def _whole_from(partition: Partition, packs: Packs, first: int, last: int) -> int | None:
    start, end = partition.transaction_key(first), partition.transaction_key(last + 1)
    rows = {transaction_number(row.key) for row in partition.backend.scan(partition.key, start, end, values=False)}
    number = last
    while number >= first and (number in rows or packs.holds(number)):
        number -= 1
    return number + 1 if number < last else None
