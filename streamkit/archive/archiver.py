"""Archiving a space: some partitions at a time, each under its lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ..backend import Ambiguous
from ..errors import LeaseNotAcquired, TransientError
from ..leases import Lease
from ..log.partition import Partition
from .location import path_name
from .read import Archive
from .remove import note_archived, remove_archived
from .report import ArchiveReport
from .trim import trim_archive
from .write import Archived, archive_partitions

__all__ = ["archive_space", "remove_space"]

MakeLease = Callable[[str], Lease]
Progress = Callable[[int, int], None]
_TOGETHER = 16
"""Partitions whose leases are held, and that one commit to the table takes."""


def lease_name(space: str, partition: int) -> str:
    return f"archive/{path_name(space)}/{partition}"


def archive_space(
    partitions: Sequence[Partition],
    archive: Archive,
    lease: MakeLease,
    until: int,
    target_bytes: int,
    progress: Progress | None,
) -> ArchiveReport:
    """Archive what is not younger than `until` (ms), then remove from the log what has been archived long enough.

    LeaseNotAcquired if other archivers are at all of the partitions.
    """
    space = partitions[0].space
    total, removed, busy = Archived(), 0, list[int]()
    for at in range(0, len(partitions), _TOGETHER):
        with ExitStack() as leases:
            held: list[tuple[Partition, Lease]] = []
            for partition in partitions[at : at + _TOGETHER]:
                try:
                    held.append((partition, leases.enter_context(lease(lease_name(space, partition.partition)))))
                except LeaseNotAcquired:
                    busy.append(partition.partition)
                    if len(busy) == len(partitions):
                        raise
            if not held:
                continue
            archive.check_location([partition for partition, _ in held])
            done = archive_partitions(held, archive.table, until, target_bytes, progress)
            for partition, mine in held:
                row = note_archived(partition)
                mine.check()
                removed += remove_archived(partition, archive, row)
        total = Archived(*(one + other for one, other in zip(total, done, strict=True)))
    archived = tuple(partition.head.archived for partition in partitions)
    return ArchiveReport(space, *total, removed, archived, tuple(busy))


def remove_space(partitions: Sequence[Partition], archive: Archive, lease: MakeLease) -> int:
    """Remove what has been archived for longer than the grace, where nobody else is at it; how many transactions."""
    removed = 0
    for partition in partitions:
        if not partition.head.archived:
            continue
        try:
            with lease(lease_name(partition.space, partition.partition)) as held:
                row = note_archived(partition)
                held.check()
                trim_archive(archive, partition)
                removed += remove_archived(partition, archive, row)
        except (LeaseNotAcquired, TransientError, Ambiguous):
            continue
    return removed
