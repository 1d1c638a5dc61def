"""Writing an archive run: the log's transactions into files, the files into the table, then the watermarks.

One commit to the table takes files of several partitions: a table of few versions is opened with few requests.
A file that no commit names does not count. Readers read transactions above the watermark from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from ..errors import CorruptData, LeaseLost, StreamkitError, UnsupportedVersion, repair_for
from ..index.head_change import change_head
from ..log.partition import Partition
from ..log.rows import Head
from .file_builder import FileBuilder
from .parquet import write_file
from .snapshot import File
from .spread import Spread, Work, Wrote
from .table import PartitionCommit, Table

if TYPE_CHECKING:
    from ..leases import Lease
    from .delta_log import LogState
    from .read import Archive

__all__ = ["Archived", "Growing", "archive_partitions", "files_of", "move_watermark"]

_ROWS = 1_000_000
_FRAMES = 250_000
"""A file ends at this many frames. With single entries, the place of a frame takes more memory than its content."""
_FILES = 64
"""The number of collected files from which on a commit to the table is made."""


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

    @classmethod
    def begin(cls, partition: Partition, table: Table, state: LogState | None) -> Growing:
        """The part that follows on the table. A commit that the head does not know yet is taken over."""
        reached = table.archived(state, partition.partition)
        last, archived = partition.watermark, partition.head.archived
        if not archived <= reached <= last:
            raise CorruptData(
                f"{table.url} ends at transaction {reached} of partition {partition.partition}; the log says that "
                f"{archived} are archived and {last} are there: table and log do not belong together, restore one of "
                "them"
            )
        if reached > archived:
            # An archiver stopped between its commit and the watermark.
            found = table.snapshot_of(state).files if state is not None else ()
            table.sync(
                file.path for file in found if file.partition == partition.partition and file.numbers[1] > archived
            )
            move_watermark(partition, reached)
        return cls(partition, reached, table.entries(state, partition.partition))

    @property
    def share(self) -> PartitionCommit:
        rows = sum(file.rows for file in self.files)
        return PartitionCommit(self.partition.partition, self.files, self.number, self.entries + rows)

    @property
    def was_trimmed(self) -> bool:
        """True if a trim removed the next transactions while these were archived, and later ones remain."""
        return self.number + 1 < self.partition.floor.number <= self.partition.watermark

    def committed(self) -> None:
        """The table holds `files`: say so in the head, and begin the next part."""
        self.entries = self.share.entries
        move_watermark(self.partition, self.number)
        self.reached, self.files = self.number, []


class Archived(NamedTuple):
    transactions: int = 0
    entries: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0


def archive_partitions(
    growing: Sequence[Growing],
    lease: Lease,
    archive: Archive,
    until: int,
    target_bytes: int,
    progress: Callable[[int, int], None] | None = None,
    spread: Spread | None = None,
) -> Archived:
    """Archive the planned transactions that are not younger than `until` (ms), under the lease of their partitions.

    `spread` has the files written elsewhere. LeaseLost if another archiver took over.
    """
    table = archive.table
    total = Archived()
    try:
        for _ in _filled(growing, _written(growing, table, until, target_bytes, spread)):
            total = _commit(table, lease, growing, total, progress)
        return total
    except LeaseLost:
        # They may hold entries that were erased meanwhile, and no later erasure will look for those.
        table.discard(file for part in growing for file in part.files)
        raise
    except StreamkitError:
        partition = growing[0].partition
        with suppress(StreamkitError):
            if partition.look_for_end() or partition.find_end():
                # The deletion of the space may have removed the archive before these files were written.
                table.discard(file for part in growing for file in part.files)
                lease.check()
                table.delete(partition.settings)
        raise


def _filled(growing: Sequence[Growing], written: Iterable[tuple[Growing, File | None, int]]) -> Iterator[None]:
    """Collect the files in their parts. It pauses when there are enough for a commit, and after the last one."""
    for part, file, number in written:
        part.number = number
        if file is not None:
            part.files.append(file)
        if sum(len(other.files) for other in growing) >= _FILES:
            yield
    yield


def _written(
    growing: Sequence[Growing], table: Table, until: int, target_bytes: int, spread: Spread | None
) -> Iterator[tuple[Growing, File | None, int]]:
    """Yield each file when it is written, with the last transaction that its partition's files then hold."""
    if spread is None:
        for part in growing:
            for file, number in files_of(
                part.partition, table, part.reached, part.partition.watermark, until, target_bytes
            ):
                yield part, file, number
        return
    works = [
        Work(table.store, partition.space, partition.partition, reached, partition.watermark, until, target_bytes)
        for partition, reached in ((part.partition, part.reached) for part in growing)
        if partition.watermark > reached
    ]
    if not works:
        return
    # The processes that write the files open the table.
    table.create(growing[0].partition.settings)
    by_partition = {part.partition.partition: part for part in growing}
    for wrote in spread(works):
        assert isinstance(wrote, Wrote)
        for file, number in wrote.files:
            yield by_partition[wrote.partition], file, number


def _commit(
    table: Table,
    lease: Lease,
    growing: Sequence[Growing],
    total: Archived,
    progress: Callable[[int, int], None] | None,
) -> Archived:
    """Commit the files of all that have some, then move their watermarks."""
    some = [part for part in growing if part.files]
    if not some:
        return total
    shares = [part.share for part in some]
    while True:
        state = table.create(some[0].partition.settings)
        table.check_incarnation(state, some[0].partition.settings)
        for part in some:
            if table.archived(state, part.partition.partition) != part.reached:
                raise LeaseLost(
                    f"{table.url}: another archiver has gone on from transaction {part.reached} of partition "
                    f"{part.partition.partition}; stop this one"
                )
        # After the look: a later holder of the lease moves the table on, and then this commit fails.
        lease.check()
        if table.commit(state, shares):
            break
        # Another partition's archiver, or a compaction, was faster; or another archiver of one of these.
    # Its files are synced. The version before the commit may be another engine's.
    table.sync()
    transactions = sum(part.number - part.reached for part in some)
    files = [file for part in some for file in part.files]
    entries = sum(file.rows for file in files)
    for part in some:
        part.committed()
    if progress is not None:
        progress(transactions, entries)
    return Archived(
        total.transactions + transactions,
        total.entries + entries,
        total.files + len(files),
        total.bytes + sum(file.size for file in files),
        total.commits + 1,
    )


def files_of(
    partition: Partition, table: Table, reached: int, last: int, until: int, target_bytes: int
) -> Iterator[tuple[File | None, int]]:
    """Yield each file with the last transaction that the files then hold, and at the end (None, last transaction)."""
    number = max(reached, partition.floor.number - 1)  # transactions that were trimmed first are not archived
    records = partition.records(number + 1, last)
    builder = FileBuilder(partition)
    for _, record in records:
        try:
            if not builder.add(number + 1, record, until):
                last = number
                break
        except (CorruptData, UnsupportedVersion) as error:
            raise partition.with_location(error, number + 1) from error
        number += 1
        if builder.bytes >= target_bytes or builder.rows >= _ROWS or builder.frames >= _FRAMES:
            yield write_file(table, builder.sorted()), number
            builder = FileBuilder(partition)
    if number < last:
        partition.read_head()
        if partition.floor.number <= number + 1:
            raise partition.missing(number + 1)
        # The rest was trimmed meanwhile, up to the new floor. A file holds transactions without such a gap.
    yield write_file(table, builder.sorted()) if builder.rows else None, number


def move_watermark(partition: Partition, number: int) -> None:
    """Say in the head that the archive holds everything up to `number`. It never goes back."""

    def archived(head: Head) -> Head:
        if head.archived >= number:
            return head
        if head.watermark < number:
            raise CorruptData(
                f"{partition.where(number)} is archived, but not in the index: {repair_for(partition.space)}"
            )
        return replace(head, archived=number)

    head, etag = partition.known_head()
    if etag is None or head.watermark < number:
        partition.read_head()  # the known head may be old
    change_head(partition, archived)
