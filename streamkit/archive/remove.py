"""After the grace: what is archived leaves the log and the index. Statuses of segments and idempotency keys stay."""

from __future__ import annotations

from collections.abc import Iterator

from ..backend import Ambiguous, Delete, Op, Put
from ..errors import Unavailable
from ..log.held import archive_row
from ..log.keys import ARCHIVE, data_key, data_range
from ..log.partition import Partition
from ..log.rows import ArchiveRow, encode_row
from .read import Archive

__all__ = ["note_archived", "remove_archived"]

_MARKS = 8
_TRIES = 5
_SCAN_ALL = 512
"""Segments from which on the whole index is listed, instead of each segment's part."""


def _keep(partition: Partition, row: ArchiveRow) -> None:
    _write(partition, [Put(bytes(ARCHIVE), encode_row(ARCHIVE, row))])


def note_archived(partition: Partition) -> None:
    """From now on the grace of what is archived runs, by the service's clock. The caller holds the archiver's lease.

    Where the service does not tell the time nothing is noted, and so nothing is ever removed.
    """
    archived = partition.head.archived
    row = archive_row(partition)  # its answer is dated after the head was seen
    now = partition.freshness.now()
    if now is None or archived <= max([row.removed, *(number for number, _ in row.since)]):
        return
    since = row.since if len(row.since) < _MARKS else row.since[:-1]
    _keep(partition, ArchiveRow(row.removed, (*since, (archived, int(now * 1000)))))


def remove_archived(partition: Partition, archive: Archive) -> int:
    """Remove what has been archived for longer than the grace; how many transactions. The caller holds the lease."""
    row = archive_row(partition)
    now = partition.freshness.now()
    if now is None:
        return 0
    latest = (now - partition.settings.archive_grace - partition.freshness.margin) * 1000
    over = [number for number, since in row.since if since <= latest]
    if not over or over[-1] <= row.removed:
        return 0
    number = over[-1]
    # Table and watermark first: what is removed must be there.
    partition.look_at_head()
    if partition.head.archived < number:
        return 0
    snapshot = archive.snapshot(partition.partition, number)
    files = [file for cluster in snapshot.clusters(partition.partition) for file in cluster]
    # They may be another engine's by now, which syncs nothing.
    archive.table.sync(file.path for file in files if file.numbers[0] <= number and file.numbers[1] > row.removed)
    # The log is the only other copy.
    archive.check(partition, row.removed + 1, number)
    for spans in archive.spans(partition, row.removed + 1, number):
        _delete(partition, list(_data_keys(partition, spans)))
    _delete(partition, [partition.transaction_key(gone) for gone in range(row.removed + 1, number + 1)])
    _keep(partition, ArchiveRow(number, tuple(mark for mark in row.since if mark[0] > number)))
    return number - row.removed


def _data_keys(partition: Partition, spans: dict[str, tuple[int, int]]) -> Iterator[bytes]:
    """The rows that hold nothing beyond the last sequence of each span."""
    if len(spans) > _SCAN_ALL:
        for row in partition.backend.scan(partition.key, b"DAT\x00", b"DAT\x01", values=False):
            name, last = _split(row.key)
            if name in spans and last <= spans[name][1]:
                yield row.key
        return
    for name, (first, last) in spans.items():
        start, _ = data_range(name, first)
        for row in partition.backend.scan(partition.key, start, data_key(name, last) + b"\x00", values=False):
            yield row.key


def _split(key: bytes) -> tuple[str, int]:
    prefix = len(data_range("", 0)[0]) - 9
    return key[prefix:-9].decode(), int.from_bytes(key[-8:], "big")


def _delete(partition: Partition, keys: list[bytes]) -> None:
    limit = partition.limits.ops
    for at in range(0, len(keys), limit):
        _write(partition, [Delete(key) for key in keys[at : at + limit]])


def _write(partition: Partition, ops: list[Op]) -> None:
    """Operations that may be applied twice: if the answer is lost, they are sent again."""
    for attempt in range(_TRIES):
        try:
            partition.backend.write(partition.key, ops)
            return
        except Ambiguous:
            partition.clock.sleep(0.05 * 2**attempt)
    raise Unavailable(f"space {partition.space!r}: the storage's answers are lost one after the other; try again")
