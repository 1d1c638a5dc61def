"""Verifying a store: the log is whole, and the index says what the log says. Repair builds the index from the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from .backend import Delete, Op, Put
from .errors import CorruptData, StreamkitError, UnsupportedVersion
from .index import data_rows
from .keys import HEAD, SEGMENTS, data_range, segment_key, segment_name, transaction_key, transaction_number
from .partition import Partition
from .rows import DataRow, Head, Piece, SegmentRow, decode_row, encode_row
from .transactions import decode_entries, decode_header, frames_start, split_frames

__all__ = ["Finding", "VerifyReport", "repair_partition", "verify_partition"]

Progress = Callable[[int, int], None]
"""Called with (transactions checked, transactions in all)."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong: `problem` with the row `key` of a partition."""

    space: str
    partition: int
    key: bytes
    problem: str


class VerifyReport(msgspec.Struct, frozen=True):
    findings: tuple[Finding, ...]
    transactions: int
    entries: int
    segments: int

    @property
    def ok(self) -> bool:
        return not self.findings


class _Log:
    """What a walk over the log finds."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.findings: list[Finding] = []
        self.pieces: dict[str, list[Piece]] = {}
        self.transactions = 0
        self.entries = 0

    def found(self, key: bytes, problem: str) -> None:
        self.findings.append(Finding(self.partition.space, self.partition.partition, bytes(key), problem))

    def walk(self, first: int, last: int, progress: Progress | None) -> None:
        partition = self.partition
        expected, timestamp, position = first, 0, -1
        rows = partition.backend.scan(partition.key, transaction_key(first), transaction_key(last + 1))
        for row in rows:
            number = transaction_number(row.key)
            while expected < number:
                self.found(transaction_key(expected), "the transaction is missing")
                expected, position = expected + 1, -1
            expected = number + 1
            self.transactions += 1
            if progress is not None:
                progress(number - first + 1, last - first + 1)
            try:
                header = decode_header(row.data, partition.seed)
                base = frames_start(row.data)
                frames = split_frames(row.data, partition.seed)
            except (CorruptData, UnsupportedVersion) as error:
                self.found(row.key, str(error))
                position = -1
                continue
            if header.number != number:
                self.found(row.key, f"the record says that it is transaction {header.number}")
            if header.timestamp < timestamp:
                self.found(row.key, "its timestamp is lower than that of the transaction before")
            if position not in (-1, header.position):
                self.found(row.key, f"{position} entries are before it and it says {header.position}")
            timestamp, position = header.timestamp, header.position + header.count
            if len(frames) != len(header.frames):
                self.found(row.key, f"it has {len(frames)} frames and its header says {len(header.frames)}")
            for ref, frame in zip(header.frames, frames, strict=False):
                try:
                    head, _, entries = decode_entries(
                        partition.space,
                        partition.partition,
                        partition.settings.partitions,
                        frame,
                        partition.seed,
                    )
                except CorruptData as error:
                    self.found(row.key, str(error))
                    continue
                self.entries += len(entries)
                if (head.segment, head.first_sequence, head.count, head.number) != (
                    ref.segment,
                    ref.first_sequence,
                    ref.count,
                    number,
                ):
                    self.found(row.key, f"the frame of {head.segment!r} is not what the header says")
                self._follow_on(row.key, head.segment, head.first_sequence)
                piece = Piece(
                    number, header.timestamp, ref.first_sequence, ref.count, base + ref.start, ref.length, None
                )
                self.pieces.setdefault(ref.segment, []).append(piece)
        while expected <= last:
            self.found(transaction_key(expected), "the transaction is missing")
            expected += 1

    def _follow_on(self, key: bytes, segment: str, first: int) -> None:
        pieces = self.pieces.get(segment)
        if pieces and pieces[-1].last_sequence + 1 != first:
            self.found(key, f"segment {segment!r} goes on at {first} after {pieces[-1].last_sequence}")
        elif not pieces and first != 1 and not self.partition.head.archived:
            self.found(key, f"segment {segment!r} begins at {first}")


def verify_partition(partition: Partition, progress: Progress | None = None) -> tuple[list[Finding], int, int, int]:
    """(findings, transactions, entries, segments) of one partition, as of now."""
    log, _ = _walk(partition, progress)
    names = {row.key: row for row in partition.backend.scan(partition.key, *SEGMENTS.children())}
    watermark = partition.watermark
    for segment, pieces in log.pieces.items():
        indexed = [piece for piece in pieces if piece.number <= watermark]
        row = names.pop(segment_key(segment), None)
        if row is None:
            if indexed:
                log.found(segment_key(segment), "the index does not know the segment")
            continue
        try:
            status = decode_row(SegmentRow, row.key, row.data)
        except StreamkitError as error:
            log.found(row.key, str(error))
            continue
        reached = indexed[-1].last_sequence if indexed else 0
        if not reached <= status.last_sequence <= pieces[-1].last_sequence:
            log.found(row.key, f"the index ends it at {status.last_sequence}, the log at {reached}")
        if not partition.head.archived and status.first_sequence != pieces[0].first_sequence:
            log.found(row.key, f"the index begins it at {status.first_sequence}, not {pieces[0].first_sequence}")
        _check_data(log, segment, {piece.first_sequence: piece for piece in pieces}, pieces[0].first_sequence, reached)
    if not partition.head.archived:
        for key in names:
            log.found(key, f"the index knows a segment {segment_name(key)!r} that the log does not")
    return log.findings, log.transactions, log.entries, len(log.pieces)


def _walk(partition: Partition, progress: Progress | None) -> tuple[_Log, int]:
    last = partition.refresh()
    partition.look_at_head()
    log = _Log(partition)
    log.walk(partition.head.archived + 1, last, progress)
    return log, last


def _check_data(log: _Log, segment: str, pieces: dict[int, Piece], first: int, last: int) -> None:
    partition = log.partition
    expected = first
    for row in partition.backend.scan(partition.key, *data_range(segment, first)):
        try:
            found = decode_row(DataRow, row.key, row.data).pieces
        except StreamkitError as error:
            log.found(row.key, str(error))
            return
        for piece in found:
            if piece.last_sequence < expected:
                continue
            if piece.first_sequence > expected:
                log.found(row.key, f"the index has a hole: nothing holds sequence {expected} of {segment!r}")
            expected = piece.last_sequence + 1
            truth = pieces.get(piece.first_sequence)
            if truth is not None and msgspec.structs.replace(piece, frame=None) != truth:
                log.found(row.key, f"the index points to another place than the log for {piece.first_sequence}")
    if expected <= last:
        log.found(data_range(segment, expected)[0], f"the index does not hold {segment!r} up to {last}")


def repair_partition(partition: Partition) -> int:
    """Build the partition's index again from its log; the number of rows that were written or removed.

    Only the log is believed. CorruptData if the log itself is damaged, or if part of it is in the archive only.
    Nobody may write to the partition meanwhile.
    """
    log, last = _walk(partition, None)
    if log.findings and any(finding.key.startswith(b"TXN") for finding in log.findings):
        raise CorruptData(f"the log itself is damaged, and nothing else knows what it said: {log.findings[0].problem}")
    if partition.head.archived:
        raise CorruptData("part of the log is in the archive only: the index cannot be built from the log alone")
    ops = list(_differences(partition, log))
    limits = partition.backend.limits
    for at in range(0, len(ops), min(limits.ops, 90)):
        partition.backend.write(partition.key, ops[at : at + min(limits.ops, 90)])
    head = Head(
        partition.settings,
        last,
        partition.timestamp,
        partition.position,
        last,
        partition.head.archived,
        dict(partition.fences),
    )
    etag = partition.backend.write(partition.key, [Put(bytes(HEAD), encode_row(HEAD, head))])[0]
    with partition.lock:
        partition.head, partition.head_etag = head, etag
        partition.drop_tail(last)
        partition.unlearn(list(partition.known))
    return len(ops)


def _differences(partition: Partition, log: _Log) -> Iterator[Op]:
    wanted: dict[bytes, bytes] = {}
    for segment, pieces in log.pieces.items():
        key = segment_key(segment)
        first, last = pieces[0], pieces[-1]
        row = SegmentRow(first.first_sequence, first.timestamp, last.last_sequence, last.timestamp)
        wanted[key] = encode_row(key, row)
        for put in data_rows(partition.backend.limits.row, segment, pieces):
            wanted[put.key] = put.value
    for start, end in (SEGMENTS.children(), (b"DAT\x00", b"DAT\x01")):
        for found in partition.backend.scan(partition.key, start, end):
            data = wanted.pop(found.key, None)
            if data is None:
                yield Delete(found.key)
            elif data != found.data:
                yield Put(found.key, data)
    for key, data in wanted.items():
        yield Put(key, data)
