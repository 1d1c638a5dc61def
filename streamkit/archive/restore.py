"""Restoring: a space's transactions from another store, or from its archive without its log, into this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from ..errors import CorruptData, PermanentError, UnsupportedVersion, no_space
from ..log.batches import Batch, Bounds
from ..log.floors import Control, Removal, Removed
from ..log.idempotency import all_uses
from ..log.read_partition import partition_batches
from ..log.read_space import merge
from ..log.record_format import encode_body, encode_holes
from ..log.request import Part, Request
from ..log.rows import Settings
from ..log.segments import indexed_segments
from ..log.statuses import written
from ..log.visible import has_entries
from ..model import Record, SegmentStatus
from ..store import inner
from .errors import mapped
from .location import ArchiveLocation, space_name
from .lost import LostLog
from .report import RestoreReport
from .schema import check_installed
from .table import space_of

if TYPE_CHECKING:
    from ..log.partition import Partition
    from ..store import Store
    from .read import Archive

__all__ = ["archived_spaces", "restore_space"]

_TOGETHER = 1000
"""Segments that one transaction says to begin later."""


def archived_spaces(store: Store) -> list[str]:
    """The names of a store's spaces with an archive, even a damaged one: restoring that one raises its error."""
    check_installed()
    import pyarrow.fs as fs

    place = ArchiveLocation(*inner(store).archive_root())
    url = place.store(store.id)
    if url.startswith("file://"):
        system: Any = fs.LocalFileSystem()
        base = unquote(url.removeprefix("file://"))
    else:
        from deltalake.fs import DeltaStorageHandler

        system, base = fs.PyFileSystem(DeltaStorageHandler(url, place.options)), ""
    with mapped(url, place.options):
        entries = system.get_file_info(fs.FileSelector(base, allow_not_found=True))
    names: list[str] = []
    for path in [entry.base_name for entry in entries if entry.type == fs.FileType.Directory]:
        try:
            name = space_of(place, f"{url}/{path}")
        except (CorruptData, UnsupportedVersion):
            name = space_name(path) or path  # a damaged table tells no more of a long name
        if name is not None:
            names.append(name)
    return sorted(names)


def _read_archived(archive: Archive, bounds: Bounds) -> tuple[Settings, list[Iterator[Batch]]]:
    snapshot = archive.table.snapshot()
    if snapshot is None:
        return Settings(), []
    settings = archive.table.settings(snapshot.state)
    if snapshot.archived and max(snapshot.archived) >= settings.partitions:
        raise CorruptData(f"{archive.table.url} has more partitions than the {settings.partitions} that it says")
    lost: list[Any] = [
        LostLog(archive.space, partition, settings, snapshot.archived.get(partition, 0))
        for partition in range(settings.partitions)
    ]
    return settings, [archive.transactions(one, (1, 0), one.cold_until, bounds) for one in lost]


def restore_space(
    source: Store,
    target: Store,
    space: str,
    until: int = 0,
    cold: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RestoreReport:
    """Copy a space, up to timestamp `until` (ms; 0: all); from the archive alone if `cold`.

    The target must hold a beginning of it, or nothing: that is compared, entry by entry, and skipped, so that this may
    be called again. CorruptData if it holds anything else.
    """
    bounds = Bounds(max_timestamp=until)
    keys: dict[tuple[int, int], _UsedKey | None] = {}
    if cold:
        settings, logs = _read_archived(inner(source).archive(space), bounds)
    else:
        known = inner(source).look_up(space)[0]
        partitions = known.partitions if known else []
        logs = [partition_batches(partition, (1, 0), partition.refresh(), bounds) for partition in partitions]
        settings = partitions[0].settings if partitions else Settings()
        for partition in partitions:
            keys |= {(partition.partition, number): key for number, key in _keys_of(partition).items()}
    if not logs:
        if not cold:
            raise no_space(source.id, space)
        raise PermanentError(
            f"the store {source.id} has no archive of a space {space!r}: name the place of its archives with "
            "connect(archive=…), or leave out tier='cold'"
        )
    target.create_space(
        space,
        settings.partitions,
        settings.durability,
        idempotency_window=settings.idempotency_window,
        archive_grace=settings.archive_grace,
    )
    copy = _Copy(target, space)
    # In reading order: several partitions by timestamp.
    for transaction in _transactions(merge({f"{at:06}": log for at, log in enumerate(logs)})):
        if copy.holds(transaction):
            continue
        place = (transaction[0].origin.partition, transaction[0].number)
        copy.write(transaction, keys.get(place), place in keys)
        if progress is not None:
            progress(1, sum(len(batch.entries) for batch in transaction))
    copy.check_end()
    for partition in [] if cold else partitions:
        copy.go_on(partition)
    return RestoreReport(space, copy.transactions, copy.entries, copy.present, copy.keys, copy.keys_left)


class _UsedKey(NamedTuple):
    """An idempotency key as the log knows it: the digests of the key and of the content that was written with it."""

    digest: bytes
    content: bytes
    segments: frozenset[str]


def _keys_of(partition: Partition) -> dict[int, _UsedKey | None]:
    """The idempotency keys that still count, by transaction. None for a transaction with several keys, or a key of a
    part."""
    found: dict[int, dict[bytes, _UsedKey]] = {}
    oldest = partition.clock.now() - partition.settings.idempotency_window * 1000
    for digest, use in all_uses(partition):
        if use.timestamp >= oldest:
            segments = frozenset(segment for segment, _ in use.segments)
            found.setdefault(use.number, {})[digest] = _UsedKey(digest, use.content, segments)
    return {number: next(iter(some.values())) if len(some) == 1 else None for number, some in found.items()}


class _Copy:
    """The space in the target: its transactions at the start, and the ones that are written to it."""

    def __init__(self, target: Store, space: str) -> None:
        known = inner(target).look_up(space)[0]
        assert known is not None
        self._target = target
        self._known = known
        self._held = [
            _transactions(partition_batches(one, (1, 0), one.refresh(), Bounds())) for one in known.partitions
        ]
        self._last = (0, 0)
        """Timestamp and partition of the transaction that was written last."""
        self.transactions = self.entries = self.present = self.keys = self.keys_left = 0

    def holds(self, transaction: Sequence[Batch]) -> bool:
        """True if the target holds the transaction at its place. CorruptData if it holds another one there."""
        partition = transaction[0].origin.partition
        there = next(self._held[partition], None)
        if there is None:
            return False
        if not _same(transaction, there):
            raise CorruptData(
                f"the target's space {self._known.name!r} has something else than transaction {transaction[0].number} "
                f"of partition {partition}, at its own transaction {there[0].number}: restore into a store of its own"
            )
        self.present += 1
        return True

    def write(self, transaction: Sequence[Batch], key: _UsedKey | None, has_key: bool) -> None:
        partition = transaction[0].origin.partition
        self._wait_for(partition)
        whole = key is not None and key.segments == {batch.entries[0].segment for batch in transaction}
        # The target refuses a transaction that is too large, like every other write.
        whole = whole and sum(_size(batch) for batch in transaction) <= inner(self._target).most_bytes
        self._make_floors(transaction)
        statuses = self._written(transaction, key if whole else None)
        self._last = (max(status.last_timestamp for status in statuses.values()), partition)
        self.transactions += 1
        self.entries += sum(len(batch.entries) for batch in transaction)
        self.keys += whole
        self.keys_left += has_key and not whole

    def _make_floors(self, transaction: Sequence[Batch]) -> None:
        """Begin segments where the source's segments begin: earlier entries were removed there."""
        removals = []
        for batch in transaction:
            entry = batch.entries[0]
            partition = self._known.partition(entry.segment)
            first = min(other.entries[0].sequence for other in transaction if other.entries[0].segment == entry.segment)
            if partition.status(entry.segment).last_sequence < first - 1 and entry.sequence == first:
                removals.append(Removal(entry.segment, first - 1, "trimmed"))
        self._remove(transaction[0].origin.partition, removals)

    def _remove(self, partition: int, removals: Sequence[Removal]) -> None:
        if removals:
            self._known.committers[partition].commit(Request((), control=Control(tuple(removals))))

    def go_on(self, source: Partition) -> None:
        """Empty segments go on after their last sequence, as they do in the source."""
        removals: list[Removal] = []
        for name, stored in indexed_segments(source):
            row = source.view().with_tail(name, stored)
            there = self._known.partitions[source.partition].status(name).last_sequence
            if there < row.last_sequence and not has_entries(source.view(), row):
                removals.append(Removal(name, row.last_sequence, row.gaps[-1][1] if row.gaps else "trimmed"))
            if len(removals) >= _TOGETHER:
                self._remove(source.partition, removals)
                removals = []
        self._remove(source.partition, removals)

    def _written(self, transaction: Sequence[Batch], key: _UsedKey | None) -> dict[str, SegmentStatus]:
        """Write a transaction. Only the digest of its key is known, so the request gets the digest."""
        parts = []
        for batch in transaction:
            payloads, first = [entry.payload for entry in batch.entries], batch.entries[0]
            metadata = [dict(entry.metadata) or None for entry in batch.entries]
            encode = encode_holes if any(isinstance(payload, Removed) for payload in payloads) else encode_body
            body = encode(payloads, metadata if any(metadata) else None)
            parts.append(Part(first.segment, body, _size(batch), first.sequence - 1))
        request = Request(parts)
        if key is not None:
            request.key, request.content = key.digest, key.content
        if sum(part.size for part in parts) > inner(self._target).most_bytes:
            with self._target.transaction(self._known.name) as trx:  # its error names the remedy
                for batch in transaction:
                    trx.produce(batch.entries[0].segment, [Record(entry.payload) for entry in batch.entries])
        committer = self._known.committers[transaction[0].origin.partition]
        committer.commit(request)
        assert request.trx is not None
        return written(committer.partition, request.result, request.trx, request.count)

    def _wait_for(self, partition: int) -> None:
        """Wait for a later timestamp if `partition` is read before the last one at the same timestamp."""
        timestamp, last = self._last
        clock = self._known.partitions[partition].clock
        while partition < last and clock.now() <= timestamp:
            clock.sleep(0.001)

    def check_end(self) -> None:
        """Raise CorruptData if the target has more than was to be copied."""
        for partition, held in enumerate(self._held):
            there = next(held, None)
            if there is not None:
                raise CorruptData(
                    f"the target's space {self._known.name!r} continues at transaction {there[0].number} of partition "
                    f"{partition}, after the end of the restored entries: restore into another store"
                )


def _size(batch: Batch) -> int:
    return sum(len(entry.payload) for entry in batch.entries)


def _same(one: Sequence[Batch], other: Sequence[Batch]) -> bool:
    def contents(batches: Sequence[Batch]) -> list[tuple[str, int, bytes, dict[str, str]]]:
        entries = [entry for batch in batches for entry in batch.entries]
        return [(entry.segment, entry.sequence, entry.payload, dict(entry.metadata)) for entry in entries]

    return contents(one) == contents(other)


def _transactions(log: Iterator[Batch]) -> Iterator[list[Batch]]:
    gathered: list[Batch] = []
    for batch in log:
        place = (batch.origin.partition, batch.number)
        if gathered and place != (gathered[0].origin.partition, gathered[0].number):
            yield gathered
            gathered = []
        gathered.append(batch)
    if gathered:
        yield gathered
