"""Archiving one partition: the log's transactions into files, the files into the table, then the watermark.

Stopped anywhere, it goes on from what the table says: a file that no commit names is not there, a commit that the
watermark does not know yet is taken over, and what is above the watermark is read from the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..backend import Ambiguous, Conflict, Put
from ..errors import CorruptData, LeaseLost, Unavailable, UnsupportedVersion
from ..index.upkeep import bring_forward
from ..log.keys import HEAD, transaction_number
from ..log.partition import Partition
from ..log.rows import Head, decode_row, encode_row
from .draft import Draft
from .parquet import write_file
from .table import File, Table

if TYPE_CHECKING:
    from ..leases import Lease

__all__ = ["Archived", "archive_partition", "move_watermark"]

_ROWS = 1_000_000
_FRAMES = 600_000
"""Of single entries: more memory is needed for where a frame is than for what is in it."""
_FILES = 32
"""In one commit to the table."""
_TRIES = 1000


class Archived(NamedTuple):
    transactions: int = 0
    entries: int = 0
    files: int = 0
    bytes: int = 0
    commits: int = 0


def archive_partition(
    partition: Partition, table: Table, lease: Lease, until: int, target_bytes: int, progress: Any = None
) -> Archived:
    """Archive what is committed now and not younger than `until` (ms). LeaseLost if another archiver took over."""
    _index_all(partition)
    last, archived = partition.watermark, partition.head.archived
    there = table.load()
    reached = table.archived(there, partition.partition)
    if not archived <= reached <= last:
        raise CorruptData(
            f"{table.url} ends at transaction {reached} of partition {partition.partition}; the log says that "
            f"{archived} are archived and {last} are there: table and log do not belong together, restore one of them"
        )
    if reached > archived:
        # An archiver stopped between its commit and the watermark.
        snapshot = table.snapshot()
        found = snapshot.files if snapshot is not None else ()
        table.sync(file.path for file in found if file.partition == partition.partition and file.numbers[1] > archived)
        move_watermark(partition, reached)
    total = Archived()
    for files, number in _files(partition, table, reached, last, until, target_bytes):
        lease.check()
        there = table.create(partition.settings.partitions)
        if table.archived(there, partition.partition) != reached:
            raise LeaseLost(f"{table.url}: another archiver has gone on from transaction {reached}; stop this one")
        before = table.entries(there, partition.partition)
        entries = sum(file.rows for file in files)
        while not table.commit(there, partition.partition, files, number, before + entries):
            # Another partition's archiver, or a compaction, was faster; or another archiver of this one.
            lease.check()
            there = table.create(partition.settings.partitions)
            if table.archived(there, partition.partition) != reached:
                raise LeaseLost(f"{table.url}: another archiver has gone on from transaction {reached}; stop this one")
        # Its files are synced; what the commit is built on may be another engine's.
        table.sync()
        move_watermark(partition, number)
        size = sum(file.size for file in files)
        total = Archived(
            total.transactions + number - reached,
            total.entries + entries,
            total.files + len(files),
            total.bytes + size,
            total.commits + 1,
        )
        if progress is not None:
            progress(number - reached, entries)
        reached = number
    return total


def _index_all(partition: Partition) -> None:
    for _ in range(_TRIES):
        partition.refresh()
        partition.look_at_head()  # a store that was deleted and made again gets no rows of the old one
        if bring_forward(partition):
            return
    raise Unavailable(f"space {partition.space!r}: others bring its index forward all the time, archive again later")


def _files(
    partition: Partition, table: Table, reached: int, last: int, until: int, target_bytes: int
) -> Iterator[tuple[list[File], int]]:
    """(files, the transaction that they go up to), as much as one commit to the table holds."""
    files: list[File] = []
    number = reached
    draft = Draft(partition)
    start, end = partition.transaction_key(reached + 1), partition.transaction_key(last + 1)
    for row in partition.backend.scan(partition.key, start, end):
        if transaction_number(row.key) != number + 1:
            break
        try:
            if not draft.add(number + 1, row.data, until):
                last = number
                break
        except (CorruptData, UnsupportedVersion) as error:
            raise partition.located(error, number + 1) from error
        number += 1
        if draft.bytes >= target_bytes or draft.rows >= _ROWS or draft.frames >= _FRAMES:
            files.append(write_file(table, draft.sorted()))
            draft = Draft(partition)
            if len(files) >= _FILES:
                yield files, number
                files = []
    if number < last:
        raise CorruptData(f"{partition.where(number + 1)} is missing from the log")
    if draft.rows:
        files.append(write_file(table, draft.sorted()))
    if number > reached and files:
        yield files, number


def move_watermark(partition: Partition, number: int) -> None:
    """Say in the head that the archive holds everything up to `number`. It never goes back."""
    backend = partition.backend
    for _ in range(_TRIES):
        value = backend.get(partition.key, [bytes(HEAD)])[0]
        if value is None:
            raise partition.gone()
        head = decode_row(Head, HEAD, value.data)
        if head.archived >= number:
            break
        if head.watermark < number:
            raise CorruptData(f"{partition.where(number)} is archived, but not in the index")
        data = encode_row(HEAD, msgspec.structs.replace(head, archived=number))
        try:
            backend.write(partition.key, [Put(bytes(HEAD), data, value.etag)])
            break
        except (Conflict, Ambiguous):
            continue
    else:
        raise LeaseLost(f"space {partition.space!r}: the head is written to all the time, archive again later")
    partition.look_at_head()
