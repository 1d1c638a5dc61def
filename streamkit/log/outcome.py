"""The outcome of a transaction whose answer was lost: committed, or absent for ever.

Absent is final only if another transaction has taken the only place that this one could have got. The writer knows that
place. Other processes use the id. It names the partition, so nothing is written to a partition that cannot hold the
transaction. It also holds the earliest possible timestamp, so the log is read from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal
from uuid import UUID

from ..errors import OutcomeUnknown
from .ids import TAG, is_posted, made_at
from .partition import Partition
from .record_format import VOID
from .still_in_log import archive_row

__all__ = ["Outcome", "outcome_of", "tag_of"]

Outcome = Literal["committed", "absent"]


def tag_of(partition: Partition) -> int:
    """24 bits that the ids of a partition's transactions carry in their middle."""
    return partition.seed & TAG


def _is_of(id: bytes, partition: Partition) -> bool:
    """True if `id` has this partition's tag. One in 16 million ids of other partitions has it, too."""
    return int.from_bytes(id[9:12], "big") == tag_of(partition)


def outcome_of(partition: Partition, id: bytes, number: int | None, take_place: Callable[[], None]) -> Outcome:
    """The outcome of transaction `id`, written for `number` (None: not by this process).

    `take_place` commits an empty transaction; it is called only if the transaction's place may still be free.
    CorruptData if the log lacks a transaction. OutcomeUnknown if the answer to a posted request may be in an archived
    transaction: the archive holds no answers. Safe in several threads at once.
    """
    partition.read_head()
    last = partition.refresh()
    posted = is_posted(id)
    if number is not None and not posted:
        if last < number:
            take_place()
        return "committed" if _is_at(partition, id, number) else "absent"
    removed = partition.head.archived
    if posted and removed:
        removed = archive_row(partition).removed
    first = _first_not_below(partition, made_at(id), last, removed)
    if _is_from(partition, id, first):
        return "committed"
    if _is_of(id, partition):
        if posted and removed and first == removed + 1:
            raise OutcomeUnknown(
                f"space {partition.space!r}: the log was removed after it was archived, and the archive does not have "
                "the outcome of a request; look for its entries",
                UUID(bytes=id),
            )
        _check_trimmed(partition, id, first)
        take_place()
        if _is_from(partition, id, last + 1):
            return "committed"
    return "absent"


def _check_trimmed(partition: Partition, id: bytes, first: int) -> None:
    """Raise OutcomeUnknown if transaction `id` may have been below `first`, where the log was trimmed."""
    if 1 < first <= partition.floor.number and not _is_sure(partition, first - 1):
        raise _trimmed(partition, id, first - 1)


def _is_sure(partition: Partition, number: int) -> bool:
    """True if the log's transaction `number` is the committed one. Where packs were trimmed, a row may be of a late
    writer."""
    return number >= partition.head.floor.number or partition.ask(lambda view: view.packs.holds(number))


def _trimmed(partition: Partition, id: bytes, last: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"space {partition.space!r}: the log was trimmed where it would be, up to transaction {last}; look for its "
        "entries",
        UUID(bytes=id),
    )


def _is_at(partition: Partition, id: bytes, number: int) -> bool:
    header = partition.header(number)
    if partition.archived_since(number):
        # A late write may be in the log at a number that was archived before. It does not count.
        return partition.archive().has(partition.view(), id, number, 0)
    if header is None:
        if partition.trimmed_since(number):
            _check_trimmed(partition, id, number + 1)
        raise partition.missing(number)
    if not _is_sure(partition, number):
        raise _trimmed(partition, id, number)
    return header.id == id


def _first_not_below(partition: Partition, timestamp: int, last: int, removed: int) -> int:
    """The first transaction above `removed` that is not older than `timestamp`; last + 1 if there is none."""
    first, after = removed + 1, last + 1
    while first < after:
        middle = (first + after) // 2
        header = partition.header(middle)
        if header is None:
            first = _after_removed(partition, middle)
        elif header.timestamp < timestamp:
            first = middle + 1
        else:
            after = middle
    return first


def _after_removed(partition: Partition, number: int) -> int:
    """The first remaining transaction, if `number` is missing. CorruptData if it was not removed."""
    if partition.archived_since(number):
        return partition.head.archived + 1
    if partition.trimmed_since(number):
        return partition.floor.number
    raise partition.missing(number)


def _is_from(partition: Partition, id: bytes, first: int) -> bool:
    """True if `id` was committed in the log from transaction `first` on, or is in the archive."""
    last = partition.refresh()
    number = first
    for number, record in partition.records(first, last):
        header = partition.decode_header(record, number)
        if header.id == id:
            if not _is_sure(partition, number):
                raise _trimmed(partition, id, number)
            return True
        for settled, frame in header.answers:
            if settled == id:
                return frame != VOID
        number += 1
    after = _after_removed(partition, number) if number <= last else number
    if (
        partition.head.archived
        and not is_posted(id)
        and partition.archive().has(partition.view(), id, None, made_at(id))
    ):
        return True
    # The rest was archived or trimmed, and removed, during the read: go on behind it.
    if number > last:
        return False
    if _is_from(partition, id, after):
        return True
    if _is_of(id, partition):
        _check_trimmed(partition, id, after)
    return False
