"""A walk over all stored transactions of a log, also if some are missing."""

from __future__ import annotations

from collections.abc import Iterator

from .keys import transaction_number
from .packs import Packs
from .partition import Partition

__all__ = ["all_records"]

_LAST = 1 << 62


def all_records(partition: Partition, packs: Packs, first: int, last: int = _LAST) -> Iterator[tuple[int, bytes]]:
    """Yield (number, record) of the transactions first..last in `packs` and rows, in order; some may be missing.

    Nothing that is known of the partition is used. RunGone if a pack was merged into another one meanwhile.
    """
    number = first
    while number <= last:
        held = packs.next_held(number)
        if held == number:
            for at, record in packs.records(number, last):
                yield at, record
                number = at + 1
            continue
        # Not beyond the numbers of a pack: rows with its numbers count only if the pack lacks them.
        start, end = partition.transaction_key(number), partition.transaction_key(min(held, last + 1))
        for row in partition.backend.scan(partition.key, start, end):
            yield transaction_number(row.key), row.data
        number = held
