"""Walking the log: transaction records by number, wherever they are: in packs, in memory, or in rows of their own."""

from __future__ import annotations

from collections.abc import Iterator

from .keys import transaction_number
from .manifest import RunGone
from .packs import Packs
from .partition import Partition

__all__ = ["all_records", "records"]

_LAST = 1 << 62


def records(partition: Partition, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """(number, record) of transactions first..last in order, up to the first one that is not in the log.

    What a pack holds counts, and not a row of the same number: that may be of a writer that came too late.
    """
    number, archived, remote = first, partition.head.archived, partition.remote
    while number <= last:
        head, packs = partition.head, partition.packs
        reached = number
        if number <= packs.last:
            try:
                for at, record in packs.records(number, last):
                    yield at, record
                    number = at + 1
                until = min(last, packs.next_held(number) - 1)
            except RunGone as error:
                partition.check_moved(packs, error)
                continue
        else:
            until = last
        if number <= until:
            for at, record, kept in _rows(partition, number, until):
                if remote and not kept and not partition.is_current(head, at):
                    break
                yield at, record
                number = at + 1
        if partition.head is not head:
            if archived < number <= partition.head.archived:
                return
            continue
        if number == reached and not partition.packed_since(packs, number):
            return


def _rows(partition: Partition, first: int, last: int) -> Iterator[tuple[int, bytes, bool]]:
    """(number, record, whether it was in memory) of what is in rows of its own, and in memory."""
    number = first
    kept = partition.records
    while number <= last and (record := kept.get(number)) is not None:
        yield number, record, True
        number += 1
    if number > last:
        return
    start, after = partition.transaction_key(number), partition.transaction_key(last + 1)
    for row in partition.backend.scan(partition.key, start, after):
        if transaction_number(row.key) != number:
            return
        yield number, row.data, False
        number += 1


def all_records(partition: Partition, packs: Packs, first: int, last: int = _LAST) -> Iterator[tuple[int, bytes]]:
    """(number, record) of what `packs` and the rows hold of first..last, in order, whatever is missing in between.

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
        # Not beyond what a pack covers: rows of its numbers count only where it lacks them.
        start, end = partition.transaction_key(number), partition.transaction_key(min(held, last + 1))
        for row in partition.backend.scan(partition.key, start, end):
            yield transaction_number(row.key), row.data
        number = held
