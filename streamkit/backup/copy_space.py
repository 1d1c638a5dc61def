"""Copying a space: its heads, the files that they name, and the transactions that are in no file.

The head of a partition names immutable files, so a copy of the head and of its files is a copy of the partition up to
the head's watermark. Writers go on meanwhile: they only add transactions after it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..errors import CorruptData, Unavailable, repair_for
from ..log.erased import erasures_of
from ..log.floors import Erasure
from ..log.keys import ARCHIVE, GRACE, HEAD, run_key, transaction_number
from ..log.partition import Partition
from ..log.rows import Head, decode_row
from ..store import Store, inner
from .chunks import Chunks, is_current, missing_from
from .copy_table import copy_table
from .format import FILE, Chunk, PartitionBackup
from .repository import Repository

__all__ = ["SpaceMoved", "add_tail", "copy_space"]

_TRIES = 100
_TOGETHER = 4
"""Transactions that are read at once: each may be of many MiB."""


class SpaceMoved(Exception):
    """Data to copy has moved: it was merged, archived or trimmed meanwhile."""


class Copied(NamedTuple):
    """The state of a space's copy."""

    incarnation: bytes
    watermarks: tuple[int, ...]
    timestamp: int
    """The latest of the heads."""
    archived: dict[int, int]
    """The last transaction of each partition in the copy of the table."""


def copy_space(store: Store, repository: Repository, space: str, number: int, previous: int) -> Copied | None:
    """Copy a space up to its watermarks, as parts of point `number`. Data of point `previous` is not copied again.
    None if the space is gone."""
    for _ in range(_TRIES):
        try:
            return _copy_space(store, repository, space, number, previous)
        except SpaceMoved:
            continue
    raise Unavailable(f"space {space!r} changes faster than it can be copied; back up again later")


def _copy_space(store: Store, repository: Repository, space: str, number: int, previous: int) -> Copied | None:
    parts: list[PartitionBackup] = []
    timestamp = 0
    is_archived = False
    for partition in inner(store).unread_partitions(space):
        before = repository.part(previous, space, partition.partition) if previous else None
        if before is not None and before.incarnation != partition.settings.incarnation:
            before = None
        part, head = _copy_partition(partition, repository, before)
        if partition.partition == 0 and part.head is None:
            return None
        timestamp = max(timestamp, head.timestamp)
        is_archived = is_archived or head.archived > 0
        repository.put_part(number, part)
        parts.append(part)
    if not parts:
        return None
    archived: dict[int, int] = {}
    if is_archived:
        # After the heads: the table holds all transactions that they name, or more.
        table, archived = copy_table(store, repository, space)
        repository.put_part(number, msgspec.structs.replace(parts[0], table=table))
    return Copied(parts[0].incarnation, tuple(part.watermark for part in parts), timestamp, archived)


def _copy_partition(
    partition: Partition, repository: Repository, before: PartitionBackup | None
) -> tuple[PartitionBackup, Head]:
    space, key, index = partition.space, partition.key, partition.partition
    there = repository.data_keys(space, index)
    head_row, head = _head(partition)
    ids = {file.id for file in head.manifest.files()} | {file.id for file in head.packs}
    for id in sorted(ids):
        if FILE + id not in there:
            value = partition.backend.get(key, [run_key(id)])[0]
            if value is None:
                if _head(partition)[0] == head_row:
                    raise CorruptData(
                        f"space {space!r}: the file {run_key(id)!r}, which the head names, is missing: "
                        f"{repair_for(space)}"
                    )
                raise SpaceMoved
            repository.put_file(space, index, id, value.data)
    chunks = _copy_rows(partition, repository, head, before)
    archive, grace = partition.backend.get(key, [bytes(ARCHIVE), bytes(GRACE)])
    _, after = _head(partition)
    if _removed(after) != _removed(head):
        raise SpaceMoved
    part = PartitionBackup(
        str(space),
        index,
        partition.settings.incarnation,
        head.watermark,
        head.watermark,
        head_row,
        None if archive is None else archive.data,
        None if grace is None else grace.data,
        sorted(id.hex() for id in ids),
        chunks,
        [],
    )
    return part, head


def _head(partition: Partition) -> tuple[bytes | None, Head]:
    """The partition's head, as bytes and decoded. One of another incarnation is none."""
    value = partition.backend.get(partition.key, [bytes(HEAD)])[0]
    if value is not None:
        head = decode_row(Head, HEAD, value.data)
        if head.settings.incarnation == partition.settings.incarnation:
            return value.data, head
    return None, Head(partition.settings)


def _removed(head: Head) -> tuple[int, ...]:
    """The values that must be equal before and after the rows were copied."""
    return head.floor.number, head.trimmed, head.released, head.archived, head.erased


def _copy_rows(partition: Partition, repository: Repository, head: Head, before: PartitionBackup | None) -> list[Chunk]:
    """The transactions up to the watermark that are rows of their own, and in no file."""
    first = max(1, min(head.floor.number, head.watermark + 1))
    if first > head.watermark:
        return []
    packs = partition.open_packs(msgspec.structs.replace(head, pack=b""))
    start, end = partition.transaction_key(first), partition.transaction_key(head.watermark + 1)
    rows = partition.backend.scan(partition.key, start, end, values=False)
    needed = [number for row in rows if not packs.holds(number := transaction_number(row.key))]
    left, used = missing_from(needed, _reusable(partition, head, before))
    chunks = Chunks(partition, repository, used)
    for at in range(0, len(left), _TOGETHER):
        numbers = left[at : at + _TOGETHER]
        values = partition.backend.get(partition.key, [partition.transaction_key(number) for number in numbers])
        for number, value in zip(numbers, values, strict=True):
            if value is None:
                raise SpaceMoved
            chunks.add(number, value.data)
    chunks.flush()
    return sorted(used + chunks.written, key=lambda chunk: chunk.first)


def _reusable(partition: Partition, head: Head, before: PartitionBackup | None) -> list[Chunk]:
    """The chunks of the point before, if nothing was erased since: an erasure rewrites transactions."""
    if before is None or before.head is None:
        return []
    old = decode_row(Head, HEAD, before.head)
    if head.erasing or old.erasing or head.erased != old.erased:
        return []
    return [chunk for chunk in before.chunks if chunk.last <= head.watermark and is_current(partition, chunk)]


def add_tail(
    partition: Partition, repository: Repository, part: PartitionBackup, end: int, before: PartitionBackup | None
) -> PartitionBackup:
    """The part with the transactions after its own end, up to `end`. SpaceMoved if they are not all there any more.
    `partition` is refreshed."""
    chunks = Chunks(partition, repository)
    erasures: list[Erasure] = []
    used: list[Chunk] = []
    number = part.end
    # An erasure is a later transaction than the erased entries, so the tail itself names its erased entries.
    for chunk in before.chunks if before is not None else ():
        if chunk.first == number + 1 and chunk.last <= end and len(chunk.runs) == 1:
            if not is_current(partition, chunk):
                break
            used.append(chunk)
            number = chunk.last
    for at, record in partition.records(number + 1, end):
        chunks.add(at, record)
        number = at
        control = partition.decode_header(record, at).control
        erasures += control.erasures if control is not None else ()
    if number != end:
        raise SpaceMoved
    chunks.flush()
    known = list(erasures_of(partition))
    erasures += [erasure for erasure in known if erasure.number <= end]
    if part.head is not None:
        erasures += decode_row(Head, HEAD, part.head).erasing
    named = {*part.erasures, *map(_range, erasures)}
    later = {_range(erasure) for erasure in known if erasure.number > end}
    return msgspec.structs.replace(
        part,
        end=end,
        chunks=part.chunks + used + chunks.written,
        erasures=sorted(named),
        later=sorted(later),
    )


def _range(erasure: Erasure) -> tuple[str, int, int]:
    return erasure.segment, erasure.first, erasure.last
