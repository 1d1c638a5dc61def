"""Restoring: a space's transactions from another store, or from its archive without its log, into this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ..clock import SYSTEM_CLOCK
from ..errors import CorruptData, PermanentError
from ..log.read import Batch, Bounds, partition_batches
from ..log.rows import Head, Settings
from ..model import Entry, Record
from ..store import inner
from .errors import mapped
from .place import Place
from .report import RestoreReport
from .table import check_installed, space_of

if TYPE_CHECKING:
    from ..store import Store
    from .read import Archive

__all__ = ["archived_spaces", "read_archived", "restore_space"]


def archived_spaces(store: Store) -> list[str]:
    """The names of the spaces of a store that have an archive."""
    check_installed()
    import pyarrow.fs as fs

    place = Place(*inner(store).archive_root())
    url = place.store(store.id)
    if url.startswith("file://"):
        system: Any = fs.LocalFileSystem()
        base = unquote(url.removeprefix("file://"))
    else:
        from deltalake.fs import DeltaStorageHandler

        system, base = fs.PyFileSystem(DeltaStorageHandler(url, place.options)), ""
    with mapped(url, place.options):
        entries = system.get_file_info(fs.FileSelector(base, allow_not_found=True))
    names = [entry.base_name for entry in entries if entry.type == fs.FileType.Directory]
    return sorted(name for name in (space_of(place, f"{url}/{path}") for path in names) if name is not None)


class _Lost:
    """What the archive's reader must know of a partition whose log is not there."""

    def __init__(self, space: str, partition: int, partitions: int, archived: int) -> None:
        self.space = space
        self.partition = partition
        self.settings = Settings(partitions)
        self.head = Head(self.settings, archived=archived)
        self.clock = SYSTEM_CLOCK


def read_archived(archive: Archive, bounds: Bounds) -> list[Iterator[Batch]]:
    """For each partition of a space, its archived transactions."""
    table = archive.table.load()
    snapshot = archive.table.snapshot()
    if table is None or snapshot is None:
        return []
    partitions = archive.table.partitions(table)
    if snapshot.archived and max(snapshot.archived) >= partitions:
        raise CorruptData(f"{archive.table.url} has more partitions than the {partitions} that it says")
    lost: list[Any] = [
        _Lost(archive.space, partition, partitions, snapshot.archived.get(partition, 0))
        for partition in range(partitions)
    ]
    return [archive.transactions(one, (1, 0), one.head.archived, bounds) for one in lost]


def restore_space(
    source: Store,
    target: Store,
    space: str,
    until: int = 0,
    cold: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RestoreReport:
    """Copy a space, up to timestamp `until` (ms; 0: all); from the archive alone if `cold`.

    What is there already is compared and skipped, so that it may be called again. CorruptData if the target has
    something else.
    """
    bounds = Bounds(max_timestamp=until)
    if cold:
        logs = read_archived(inner(source).archive(space), bounds)
    else:
        known = inner(source).look_up(space)[0]
        partitions = known.partitions if known else []
        logs = [partition_batches(one, (1, 0), one.refresh(), bounds) for one in partitions]
    if not logs:
        what = "archive of a space" if cold else "space"
        raise PermanentError(f"the store {source.id} has no {what} {space!r}")
    transactions = entries = present = 0
    target.create_space(space, len(logs))
    for log in logs:
        for transaction in _transactions(log):
            if _is_there(target, space, transaction):
                present += 1
                continue
            with target.transaction(space) as trx:
                for batch in transaction:
                    records = [Record(entry.payload, entry.metadata or None, entry.sequence) for entry in batch.entries]
                    trx.produce(batch.entries[0].segment, records)
            count = sum(len(batch.entries) for batch in transaction)
            transactions, entries = transactions + 1, entries + count
            if progress is not None:
                progress(1, count)
    return RestoreReport(space, transactions, entries, present)


def _is_there(target: Store, space: str, transaction: Sequence[Batch]) -> bool:
    """Whether the target has the transaction. CorruptData if it has a part of it, or something else in its place."""
    number = transaction[0].number
    there = []
    for batch in transaction:
        first, last = batch.entries[0], batch.entries[-1]
        found: list[Entry] = []
        if target.segment_status(space, first.segment).last_sequence >= first.sequence:
            found = list(
                target.consume_segment(space, first.segment, min_sequence=first.sequence, max_sequence=last.sequence)
            )
        there.append(len(found) == len(batch.entries))
        for mine, theirs in zip(batch.entries, found, strict=False):
            if (mine.payload, dict(mine.metadata)) != (theirs.payload, dict(theirs.metadata)):
                raise CorruptData(
                    f"the target's space {space!r} has something else than transaction {number} at sequence "
                    f"{theirs.sequence} of segment {theirs.segment!r}: restore into a store of its own"
                )
        if found and len(found) < len(batch.entries):
            raise CorruptData(f"the target's space {space!r} holds a part of transaction {number} only")
    if any(there) and not all(there):
        raise CorruptData(f"the target's space {space!r} holds a part of transaction {number} only")
    return all(there)


def _transactions(log: Iterator[Batch]) -> Iterator[list[Batch]]:
    gathered: list[Batch] = []
    for batch in log:
        if gathered and batch.number != gathered[0].number:
            yield gathered
            gathered = []
        gathered.append(batch)
    if gathered:
        yield gathered
