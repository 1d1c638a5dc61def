"""Planning an archive run: which transactions of each partition come next.

An archiver that was stopped continues from the table. A commit that the watermark does not know yet is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..errors import CorruptData
from ..index.head_change import change_head
from ..index.upkeep import index_all
from ..log.partition import Partition
from ..log.rows import Head
from .snapshot import File
from .table import Part, Table
from .trim import trim_archive

if TYPE_CHECKING:
    from ..leases import Lease
    from .delta_log import LogState
    from .read import Archive

__all__ = ["Growing", "move_watermark", "plan_archive"]


class Growing:
    """The part of the next commit that belongs to one partition."""

    def __init__(self, partition: Partition, reached: int, entries: int) -> None:
        self.partition = partition
        self.reached = reached
        """The last transaction that the table holds."""
        self.entries = entries
        """The entries that the table holds."""
        self.number = reached
        """The last transaction in `files`."""
        self.files: list[File] = []

    @property
    def part(self) -> Part:
        rows = sum(file.rows for file in self.files)
        return Part(self.partition.partition, self.files, self.number, self.entries + rows)

    def committed(self) -> None:
        self.entries = self.part.entries
        self.reached, self.files = self.number, []


def plan_archive(partitions: Sequence[Partition], lease: Lease, archive: Archive) -> list[Growing]:
    """The place in the table of each partition, under their lease. The index then holds all known transactions."""
    table = archive.table
    partitions[0].check_space()  # a store that was deleted and created again gets no rows of the old one
    for partition in partitions:
        index_all(partition, look=False)
    state = table.state()
    if state is not None:
        table.check_incarnation(state, partitions[0].settings)
        for partition in partitions:
            if partition.head.floor.number > table.archived(state, partition.partition) + 1:
                # The next transactions do not follow on the archived ones. Another engine may put both into one file,
                # and deleted rows could not be noticed then. (A file of several partitions stays.)
                lease.check()
                trim_archive(archive, partition)
                state = table.state() or state
    return [_begin(partition, table, state) for partition in partitions]


def _begin(partition: Partition, table: Table, state: LogState | None) -> Growing:
    last, archived = partition.watermark, partition.head.archived
    reached = table.archived(state, partition.partition)
    if not archived <= reached <= last:
        raise CorruptData(
            f"{table.url} ends at transaction {reached} of partition {partition.partition}; the log says that "
            f"{archived} are archived and {last} are there: table and log do not belong together, restore one of them"
        )
    if reached > archived:
        # An archiver stopped between its commit and the watermark.
        found = table.snapshot_of(state).files if state is not None else ()
        table.sync(file.path for file in found if file.partition == partition.partition and file.numbers[1] > archived)
        move_watermark(partition, reached)
    return Growing(partition, reached, table.entries(state, partition.partition))


def move_watermark(partition: Partition, number: int) -> None:
    """Say in the head that the archive holds everything up to `number`. It never goes back."""

    def archived(head: Head) -> Head:
        if head.archived >= number:
            return head
        if head.watermark < number:
            raise CorruptData(f"{partition.where(number)} is archived, but not in the index")
        return replace(head, archived=number)

    head, etag = partition.known_head()
    if etag is None or head.watermark < number:
        partition.read_head()  # the known head may be old
    change_head(partition, archived)
