"""After the grace: what is archived leaves the log. Its rows leave the index when their runs are merged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..backend import Ambiguous
from ..errors import Unavailable
from ..index.upkeep import purge, release
from ..log.held import archive_row
from ..log.keys import ARCHIVE
from ..log.marks import reached, with_mark
from ..log.partition import Partition
from ..log.rows import ArchiveRow, encode_row
from .read import Archive

__all__ = ["note_archived", "remove_archived"]

_TRIES = 5
_KEYS = 1000
"""Rows that are removed by one call."""


def _keep(partition: Partition, row: ArchiveRow) -> None:
    _send(partition, partial(partition.backend.put, partition.key, bytes(ARCHIVE), encode_row(ARCHIVE, row)))


def note_archived(partition: Partition) -> ArchiveRow:
    """From now on the grace of what is archived runs, by the service's clock. The caller holds the archiver's lease.

    What is noted by then. Where the service does not tell the time nothing is, and so nothing is ever removed.
    """
    archived = partition.head.archived
    if not archived:
        return ArchiveRow()
    row = archive_row(partition)  # its answer is dated after the head was seen
    now = partition.freshness.now()
    if now is None or archived <= max([row.removed, *(number for number, _ in row.since)]):
        return row
    row = ArchiveRow(row.removed, with_mark(row.since, archived, now, partition.head.archive_grace))
    _keep(partition, row)
    return row


def remove_archived(partition: Partition, archive: Archive, row: ArchiveRow) -> int:
    """Remove what has been archived for longer than the grace; how many transactions.

    The caller holds the lease under which `row` was noted, so nobody else has written it since.
    """
    now = partition.freshness.now()
    if now is None:
        return 0
    number = reached(row.since, now - partition.head.archive_grace - partition.freshness.margin)
    if number <= row.removed:
        return 0
    # Table and watermark first: what is removed must be there.
    partition.read_head()
    if partition.head.archived < number:
        return 0
    snapshot = archive.newest(partition.partition, number)
    files = [file for cluster in snapshot.clusters(partition.partition) for file in cluster]
    # They may be another engine's by now, which syncs nothing.
    archive.table.sync(file.path for file in files if file.numbers[0] <= number and file.numbers[1] > row.removed)
    # The log is the only other copy.
    archive.check(partition, row.removed + 1, number)
    release(partition, number)
    _delete(partition, [partition.transaction_key(gone) for gone in range(row.removed + 1, number + 1)])
    _keep(partition, ArchiveRow(number, tuple(mark for mark in row.since if mark[0] > number)))
    purge(partition)
    return number - row.removed


def _delete(partition: Partition, keys: list[bytes]) -> None:
    for at in range(0, len(keys), _KEYS):
        _send(partition, partial(partition.backend.delete, partition.key, keys[at : at + _KEYS]))


def _send(partition: Partition, write: Callable[[], object]) -> None:
    """A write that may be applied twice: if the answer is lost, it is sent again."""
    for attempt in range(_TRIES):
        try:
            write()
            return
        except Ambiguous:
            partition.clock.sleep(0.05 * 2**attempt)
    raise Unavailable(f"space {partition.space!r}: the storage's answers are lost one after the other; try again")
