"""Archiving a space: many partitions at a time, under one lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby

from ..backend import Ambiguous
from ..errors import LeaseNotAcquired, TransientError
from ..leases import Lease
from ..log.partition import Partition
from ..log.still_in_log import TOGETHER
from .location import path_name
from .read import Archive
from .remove import remove_all
from .report import ArchiveReport
from .spread import Spread
from .trim import trim_archive
from .trimmed_rows import remove_trimmed_rows
from .write import Archived, Growing, archive_partitions

__all__ = ["archive_space", "lease_name", "remove_space"]

MakeLease = Callable[[str], Lease]
Progress = Callable[[int, int], None]


def lease_name(space: str, partition: int) -> str:
    """The name of the lease under which the partition is archived; neighbouring partitions share a lease."""
    return f"archive/{path_name(space)}/{partition // TOGETHER}"


def _groups(partitions: Sequence[Partition]) -> Iterator[tuple[str, list[Partition]]]:
    """The name of each lease that is needed, and which partitions it is for."""
    for name, group in groupby(partitions, lambda one: lease_name(one.space, one.partition)):
        yield name, list(group)


def archive_space(
    partitions: Sequence[Partition],
    archive: Archive,
    lease: MakeLease,
    index: Callable[[Partition], None],
    until: int,
    target_bytes: int,
    progress: Progress | None,
    spread: Spread | None = None,
) -> ArchiveReport:
    """Archive the known transactions not younger than `until` (ms), then remove those past the grace from the log.

    `index` brings the index of a partition up to them. It is called under the lease: it moves the head that is known,
    so no erasure has rewritten those transactions since they were seen.

    LeaseNotAcquired if other archivers are at all of the partitions.
    """
    total, removed, busy = Archived(), 0, list[int]()
    for name, group in _groups(partitions):
        with ExitStack() as leases:
            try:
                held = leases.enter_context(lease(name))
            except LeaseNotAcquired:
                busy += [partition.partition for partition in group]
                if len(busy) == len(partitions):
                    raise
                continue
            group[0].check_space()  # a store that was deleted and created again gets no rows of the old one
            heads = [partition.head for partition in group]
            for partition in group:
                index(partition)
            unmoved = [partition for partition, head in zip(group, heads, strict=True) if partition.head is head]
            while True:
                planned = _planned(group, unmoved, held, archive)
                done = archive_partitions(planned, held, archive, until, target_bytes, progress, spread)
                total = Archived(*(one + other for one, other in zip(total, done, strict=True)))
                if not any(part.was_trimmed for part in planned):
                    break
            for partition in group:
                remove_trimmed_rows(archive, partition, held)
            removed += remove_all(group, archive, held)
    archived = tuple(partition.head.archived for partition in partitions)
    return ArchiveReport(partitions[0].space, *total, removed, archived, tuple(busy))


def _planned(
    partitions: Sequence[Partition], unmoved: Sequence[Partition], lease: Lease, archive: Archive
) -> list[Growing]:
    """The place in the table of each partition, under their lease. The heads of `unmoved` may be old.

    An archiver that was stopped is continued from the table. A commit that the head does not know yet is taken over.
    PermanentError if the log says that something is archived, and here is no table.
    """
    table = archive.table
    state = table.state()
    for partition in partitions:
        reached = table.archived(state, partition.partition)
        if reached > partition.watermark or (reached < partition.watermark and partition in unmoved):
            partition.read_head()  # another process may have archived, or erased, since this one looked
    archived = max(partition.head.archived for partition in partitions)
    if state is None and archived:
        raise archive.missing(archived)
    if state is not None:
        table.check_incarnation(state, partitions[0].settings)
        for partition in partitions:
            if partition.head.floor.number > table.archived(state, partition.partition) + 1:
                # The next transactions do not follow on the archived ones. Another engine may put both into one file,
                # and deleted rows could not be noticed then. (A file of several partitions stays.)
                lease.check()
                trim_archive(archive, partition)
                state = table.state() or state
    return [Growing.begin(partition, table, state) for partition in partitions]


def remove_space(partitions: Sequence[Partition], archive: Archive, lease: MakeLease) -> int:
    """Remove transactions whose grace is over, and return their count. Partitions of another running archiver are left
    out."""
    removed = 0
    for name, group in _groups([partition for partition in partitions if partition.head.archived]):
        try:
            with lease(name) as held:
                for partition in group:
                    held.check()
                    trim_archive(archive, partition)
                for partition in group:
                    remove_trimmed_rows(archive, partition, held)
                removed += remove_all(group, archive, held)
        except (LeaseNotAcquired, TransientError, Ambiguous):
            continue
    return removed
