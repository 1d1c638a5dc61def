"""The place of a moment in a partition."""

from __future__ import annotations

from .partition import Partition

__all__ = ["first_at"]


def first_at(partition: Partition, timestamp: int, first: int, end: int) -> int:
    """The first transaction from `first` on that is not older than `timestamp`; end + 1 if there is none."""
    first = max(first, partition.floor.number)
    hot = max(first, min(partition.head.archived, end) + 1)
    found, last = partition.ask_packs(lambda packs: packs.narrow(timestamp, hot, end))
    while found < last:
        middle = (found + last) // 2
        header = partition.header(middle)
        if header is None:
            if partition.archived_since(middle) or partition.trimmed_since(middle):
                return first_at(partition, timestamp, first, end)
            raise partition.missing(middle)
        if header.timestamp < timestamp:
            found = middle + 1
        else:
            last = middle
    if found > hot or hot == first:
        return found
    return partition.archive().first_at(partition, timestamp, first, hot - 1)
