"""Removes archived transactions from the log after the grace. Their index rows go when the index is purged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..index.head_change import change_head
from ..log.keys import ARCHIVE
from ..log.partition import Partition
from ..log.rows import ArchiveRow, GraceRow, Head, encode_row
from ..log.still_in_log import TOGETHER, archive_row, grace_row, put_grace_row
from ..log.watermarks import reached, with_watermark
from ..retry import send_until_answered
from .read import Archive

if TYPE_CHECKING:
    from ..leases import Lease

__all__ = ["remove_all"]

_KEYS = 1000
"""Rows that are removed by one call."""
_AGAIN = "archive() or maintain() again later"


def remove_all(partitions: Sequence[Partition], archive: Archive, lease: Lease) -> int:
    """Remove from the log the transactions that were archived longer ago than the grace. Returns their number.

    `lease`: the archiver's of all of them, which the caller holds.
    """
    known = _note_archived(partitions)
    rows, removed = list(known), 0
    for partition in partitions if known else ():
        lease.check()
        place = partition.partition % TOGETHER
        count, rows[place] = _remove(partition, archive, rows[place])
        removed += count
    if rows != known:
        lease.check()
        _keep_notes(partitions[0], rows)
    return removed


def _note_archived(partitions: Sequence[Partition]) -> list[ArchiveRow]:
    """Start the grace of the archived transactions of `partitions`, by the service's clock.

    The caller holds their archiver's lease. Returns the rows of all partitions of the lease, in order. If the service
    does not tell the time, nothing is noted, and so nothing is ever removed.
    """
    if not any(partition.head.archived for partition in partitions):
        return []
    known = list(grace_row(partitions[0]).partitions)  # its answer is dated after all heads were seen
    known += [ArchiveRow()] * (partitions[-1].partition % TOGETHER + 1 - len(known))
    now = partitions[0].freshness.now()
    if now is None:
        return known
    rows = list(known)
    for partition in partitions:
        place, archived = partition.partition % TOGETHER, partition.head.archived
        note = known[place]
        if archived > max([note.removed, *(number for number, _ in note.since)]):
            since = with_watermark(note.since, archived, now, partition.head.archive_grace)
            rows[place] = ArchiveRow(note.removed, since)
    if rows != known:
        _keep_notes(partitions[0], rows)
    return rows


def _keep_notes(partition: Partition, rows: Sequence[ArchiveRow]) -> None:
    row = GraceRow(partition.settings.incarnation, tuple(rows))
    send_until_answered(partition.clock, partial(put_grace_row, partition, row), _AGAIN)


def _remove(partition: Partition, archive: Archive, note: ArchiveRow) -> tuple[int, ArchiveRow]:
    """Remove transactions whose grace is over; return their count and the partition's new row.

    The caller holds the lease under which `note` was made, so no other process has written the partition's row since.
    """
    now = partition.freshness.now()
    if now is None:
        return 0, note
    number = reached(note.since, now - partition.head.archive_grace - partition.freshness.margin)
    if number <= note.removed:
        return 0, note
    # One that was stopped may have removed it, and not noted that.
    removed = archive_row(partition).removed
    after = ArchiveRow(max(number, removed), tuple(mark for mark in note.since if mark[0] > number))
    if number <= removed:
        return 0, after
    # Check table and watermark first: the archive must hold the transactions that are removed.
    partition.read_head()
    if partition.head.archived < number:
        return 0, note
    archive.check(partition.partition, removed + 1, number)  # the log is the only other copy
    partition.read_head()
    change_head(partition, partial(_released, number=number))
    keys = [partition.transaction_key(gone) for gone in range(removed + 1, number + 1)]
    for at in range(0, len(keys), _KEYS):
        delete = partial(partition.backend.delete, partition.key, keys[at : at + _KEYS])
        send_until_answered(partition.clock, delete, _AGAIN)
    row = encode_row(ARCHIVE, ArchiveRow(number))
    put = partial(partition.backend.put, partition.key, bytes(ARCHIVE), row)
    send_until_answered(partition.clock, put, _AGAIN)
    return number - removed, after


def _released(head: Head, number: int) -> Head:
    """`head` after only the archive holds transactions up to `number`: their packs go."""
    if head.released >= number:
        return head
    packs = tuple(file for file in head.packs if file.last > number)
    return replace(head, packs=packs, pack=head.pack if head.watermark > number else b"", released=number)
