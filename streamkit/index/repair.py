"""Repair: builds a space's index again, from its log and its archive.

Repair relies on the log, and on the archive for transactions that have left the log. Some facts about those are in the
index alone. Repair takes them from the readable parts of the old index. Writers of the space must be stopped first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial

import msgspec
from msgspec.structs import replace

from ..backend import ABSENT, Backend, Conflict, Discards, Etag
from ..clock import SYSTEM_CLOCK
from ..errors import UNREADABLE, AccessDenied, CorruptData, PermanentError, Unavailable
from ..log.archive_reader import Contents
from ..log.floors import Removal
from ..log.index_rows import encode_index_row
from ..log.keys import (
    ARCHIVE,
    CATALOG,
    HEAD,
    SPACES,
    segment_key,
    space_key,
    transaction_number,
)
from ..log.partition import Partition
from ..log.record_format import Header
from ..log.records import all_records
from ..log.rows import NOTHING, ArchiveRow, GraceRow, Head, SegmentRow, Settings, encode_row
from ..log.still_in_log import TOGETHER, archive_row, grace_row, put_grace_row, whole_from
from ..log.tail import Tail
from ..retry import put_settled, send_until_answered
from ..warn import warn
from .check import check_index
from .cursor import Chunk
from .log_walk import LogWalk
from .readable import readable_rows
from .salvage import Salvage
from .sweep import found_packs, sweep
from .upkeep import encode, index_rows, write_files
from .verify import MakePartition, find_settings, read_index

__all__ = ["repair_catalog", "repair_space"]

_TRIES = 5
_FRAMES = 1 << 15
_BYTES = 8 << 20
_LAST = 1 << 62


def repair_catalog(backend: Backend) -> int:
    """Write the list of the spaces again from its intact rows, if it cannot be read; the number of rows, at least 1.

    Its other names are not known: `repair_space` lists a space again.
    """
    catalog = bytes(CATALOG)
    try:
        for _ in backend.scan(catalog, *map(bytes, SPACES.children())):
            pass
        return 0
    except UNREADABLE:
        if not isinstance(backend, Discards):
            raise
    rows: dict[bytes, bytes] = {}
    for key, read in readable_rows(backend, catalog).rows.items():
        with suppress(*UNREADABLE):
            rows[key] = read()
    backend.discard(catalog)
    for key, data in rows.items():
        send_until_answered(SYSTEM_CLOCK, partial(backend.put, catalog, key, data), "repair again")
    warn(
        "the list of the spaces was damaged and is written again with %d names: repair each space by its name that is "
        "not listed",
        len(rows),
    )
    return max(1, len(rows))


def repair_space(backend: Backend, space: str, make: MakePartition) -> int:
    """Build a space's index again if it disagrees with log and archive. Returns the number of its faults.

    CorruptData if log or archive are damaged.
    """
    settings, findings = find_settings(backend, space)
    if settings is None:
        if findings:
            raise CorruptData(f"nothing tells how many partitions the space {space!r} has: {findings[0].problem}")
        return 0
    count = sum(_repair_partition(make, number, settings) for number in range(settings.partitions))
    key = bytes(space_key(space))
    if any(finding.key == key for finding in findings):
        put = partial(backend.put, bytes(CATALOG), key, encode_row(key, settings))
        send_until_answered(make(0, settings).clock, put, "repair again")
        count += 1
    return count


def _repair_partition(make: MakePartition, number: int, settings: Settings) -> int:
    for _ in range(_TRIES):
        try:
            return _repair(make(number, settings))
        except Conflict:
            continue  # another process changed the head
    raise Unavailable("others write to the store; stop them, and repair again")


def _repair(partition: Partition) -> int:
    log = LogWalk(partition)
    has_head = log.read_head()
    damaged = len(log.findings)
    archived = listed = log.head.archived if has_head else _archived(partition)
    note, damaged_note = _note(partition)
    held = partition.ask(whole_from, note.removed + 1, archived) if archived else 1
    only = archived if held is None else held - 1
    contents = Contents()
    if archived:
        contents = partition.archive().examine(partition.partition, only)
        if contents.problems and only:
            raise CorruptData(
                f"space {partition.space!r}: transactions up to {only} of partition {partition.partition} are in the "
                f"archive only, and it is damaged: {contents.problems[0][1]}"
            )
        # Transactions that the log still has can be archived again, if the archive surely lacks them.
        archived = archived if contents.elsewhere else max(only, min(archived, contents.last))
        contents.problems.clear()
        kept = tuple(mark for mark in note.since if mark[0] <= archived)
        damaged_note |= kept != note.since
        note = ArchiveRow(note.removed, kept)
        log.head = msgspec.structs.replace(log.head, archived=only)
    if not has_head:
        partition.use_packs(found_packs(partition))
        # Trimmed transactions are not lost. Nor are the space's settings from below the floor, while their rows exist.
        later = _walk_after(partition, only)
        log.head = replace(log.head, floor=later.floor, retention=later.retention, changed=later.changed)
    log.begin_after_archive(only, contents)
    log.begin_at_floor()
    log.walk()
    if has_head and log.head.watermark > log.last:
        log.gap(log.head.watermark + 1)
    lost = [finding for finding in log.findings[damaged:] if finding.key != HEAD]
    if lost:
        raise CorruptData(f"the log itself is damaged, and it cannot be rebuilt: {lost[0].problem}")
    salvage = _indexed(log) if has_head else _salvaged(log)
    contents.segments = _segments_before(log, contents.segments, salvage.segments)
    faults = len(log.findings) + (has_head and listed != archived)
    if not has_head and not damaged and (log.last or partition.partition == 0):
        faults += 1
    if faults:
        _rebuild(partition, log, archived, contents, salvage, has_head)
    if damaged_note:
        put = partial(partition.backend.put, partition.key, bytes(ARCHIVE), encode_row(ARCHIVE, note))
        send_until_answered(partition.clock, put, "repair again")
    return faults + damaged_note + _mend_grace(partition, note.removed, archived)


def _walk_after(partition: Partition, archived: int) -> LogWalk:
    """A walk over the transactions after `archived` that are still in the log."""
    log = LogWalk(partition)
    log.last = archived
    log.walk()
    return log


def _indexed(log: LogWalk) -> Salvage:
    """Report the faults of the index that the head names; return its readable rows."""
    partition = log.partition
    salvage = Salvage(partition.backend, partition.key, partition.seed)
    only = log.head.archived
    rows = read_index(log)
    log.head = replace(log.head, archived=only)  # it may have been read again
    if rows is None:
        salvage.add_manifest(log.head.manifest)
    else:
        check_index(log, rows)
        for some in rows.values():
            salvage.add(some)
    return salvage


def _salvaged(log: LogWalk) -> Salvage:
    """The readable rows of an index without a head."""
    partition = log.partition
    salvage = Salvage(partition.backend, partition.key, partition.seed)
    salvage.add_all()
    if any(row.gaps for row in salvage.segments.values()):
        log.head = replace(log.head, thinned=1)
    return salvage


def _segments_before(
    log: LogWalk, archived: Mapping[str, SegmentRow], indexed: Mapping[str, SegmentRow]
) -> dict[str, SegmentRow]:
    """The segments' statuses before the first transaction of the log. The archive tells the least about a segment: no
    removals and no bytes. If a part of the index cannot be read, a row of the index may be an older one."""
    rows = dict(archived)
    for name, row in indexed.items():
        cold, pieces = archived.get(name), log.pieces.get(name)
        if cold is not None and cold.last_sequence > row.last_sequence:
            row = replace(
                row,
                first_timestamp=row.first_timestamp or cold.first_timestamp,
                last_sequence=cold.last_sequence,
                last_timestamp=cold.last_timestamp,
                last_number=0,
            )
        if not log.trimmed(name, row) and not (cold is not None and _agree(row, cold, ends=not pieces)):
            continue
        if pieces and pieces[0].first_sequence > row.last_sequence + 1:
            row = row.without(Removal(name, pieces[0].first_sequence - 1, "trimmed"))
        rows[name] = row
    return rows


def _agree(row: SegmentRow, cold: SegmentRow, *, ends: bool) -> bool:
    """True if both rows begin the segment at the same entry and, with `ends`, end it at the same entry."""
    begins = (row.first_sequence, row.first_timestamp) == (cold.first_sequence, cold.first_timestamp)
    return begins and (not ends or (row.last_sequence, row.last_timestamp) == (cold.last_sequence, cold.last_timestamp))


def _rebuild(
    partition: Partition, log: LogWalk, archived: int, contents: Contents, salvage: Salvage, has_head: bool
) -> None:
    """Rewrite the index: first the rows of archive and old index that the log lacks, then the log, last the head."""
    before, only = log.head, log.head.archived
    forgotten = salvage.forgotten()
    if log.first > 1 and forgotten:
        warn(
            "space %r, partition %d: of the transactions up to %d, which are not in the log any more, the index alone "
            "knew some things: %s%s",
            partition.space,
            partition.partition,
            log.first - 1,
            forgotten,
            "" if has_head else "; a retention and other settings if they were set by one of these",
        )
    # Newer than every possible old head.
    version = before.version + 1 if has_head else partition.clock.now()
    head = Head(
        partition.settings,
        version=version,
        archived=archived,
        trimmed=before.trimmed,
        thinned=max([before.thinned, *log.removed.values()]) and log.last,
        retention=log.retention or before.retention,
        changed=before.changed.then(log.changed),
        # Also the log's erasures that the head did not know yet; without a head, all: an erasure may be done twice.
        erasing=before.erasing + tuple(erasure for erasure in log.erasures if erasure.number > before.watermark),
        erased=before.erased if has_head else log.last,
    )
    # Packed transactions are read through the old head until the new one has packed them again.
    made: list[bytes] = []
    rows = {segment_key(name): encode_index_row(row) for name, row in contents.segments.items()}
    if log.first > 1:
        rows |= {key: encode_index_row(use) for key, use in salvage.keys.items() if use.number < log.first}
        rows |= {key: encode_index_row(fence) for key, fence in salvage.leases.items()}
    if rows:
        keys = sorted(rows)
        pack = encode(partition, 1, log.first - 1, ())
        run, _ = write_files(partition, [(keys, [rows[key] for key in keys])], pack, made)
        head = replace(head, manifest=head.manifest.with_run(run))
    builder = _Builder(partition, contents.segments)
    first = log.first
    for number, record in all_records(partition, partition.packs, first):
        builder.apply(partition.decode_header(record, number), record)
        if builder.tail.frames >= _FRAMES or builder.tail.bytes >= _BYTES or number == log.last:
            pack = encode(partition, first, number, builder.tail.records.items())
            run, packed = write_files(partition, builder.rows(), pack, made)
            packs = (*head.packs, packed) if pack.records else head.packs
            head = replace(head, manifest=head.manifest.with_run(run), packs=packs)
            first = number + 1
    head = replace(
        head,
        watermark=log.last,
        floor=max(before.floor, log.floor, key=lambda floor: floor.number),
        timestamp=log.timestamp,
        position=max(log.position, 0),
        cleared=before.cleared,
        released=only,
        size=log.size,
    )
    _put_head(partition, head, log.etag)
    partition.read_head()
    sweep(partition)


def _put_head(partition: Partition, head: Head, etag: Etag | None) -> None:
    """Put `head` in the place of the one that was read. Conflict if it is another one by now: then a sweep may have
    taken the files that were made for this one."""
    data, expect = encode_row(HEAD, head), ABSENT if etag is None else etag
    key = bytes(HEAD)
    if put_settled(partition.backend, partition.clock, partition.key, key, data, expect, "repair again") is None:
        raise Conflict(key)  # another process was faster


class _Builder:
    """Rows of the index of consecutive transactions."""

    def __init__(self, partition: Partition, statuses: dict[str, SegmentRow]) -> None:
        self._most = partition.policy.frame
        self._statuses = dict(statuses)
        self._fences: dict[str, int] = {}
        self.tail = Tail(0)
        """The transactions since the last call of `rows`."""

    def apply(self, header: Header, record: bytes) -> None:
        self.tail.add(header, record, self._most)
        self._fences.update(header.fences)

    def rows(self) -> Iterator[Chunk]:
        """The rows of the transactions since the last call."""
        tail, fences = self.tail, self._fences
        after = {name: tail.status(name, self._statuses.get(name, NOTHING), _LAST) for name in tail.segments()}
        self._statuses.update(after)
        self.tail, self._fences = Tail(0), {}
        return index_rows(tail.pieces, after, tail.keys, fences)


def _archived(partition: Partition) -> int:
    """The archive watermark, if the head cannot tell."""
    try:
        return partition.archive().examine(partition.partition, 0).last
    except AccessDenied:
        raise
    except PermanentError:
        return 0  # there is none; if there was one, the log begins late, which is a fault of its own


def _note(partition: Partition) -> tuple[ArchiveRow, bool]:
    """The partition's archive row. If the stored row is damaged: the row according to the log, and True."""
    try:
        return archive_row(partition), False
    except CorruptData:
        start, end = partition.transaction_key(1), partition.transaction_key(1 << 64)
        rows = partition.backend.scan(partition.key, start, end, values=False, limit=1)
        first = next((transaction_number(row.key) for row in rows), 1)
        return ArchiveRow(first - 1), True


def _mend_grace(partition: Partition, removed: int, archived: int) -> bool:
    """Forget the archiving times of transactions that must be archived again, and unreadable times: their grace starts
    again. True if there were any."""
    incarnation, place = partition.settings.incarnation, partition.partition % TOGETHER
    try:
        found = grace_row(partition)
        rows = list(found.partitions)
    except CorruptData:
        found, rows = None, []
    if place < len(rows):
        kept = tuple(mark for mark in rows[place].since if mark[0] <= archived)
        rows[place] = ArchiveRow(min(rows[place].removed, removed), kept)
    mended = GraceRow(incarnation, tuple(rows))
    if mended == found:
        return False
    send_until_answered(partition.clock, lambda: put_grace_row(partition, mended), "repair again")
    return True
