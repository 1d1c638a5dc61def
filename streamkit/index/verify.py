"""Verifying a store: the log is whole, and the index says what the log says. Repair builds the index from the log.

Both look at the rows themselves, whatever state they are in, and rely on nothing that was learned before. The index is
read between two walks over the log: whatever was written meanwhile is in the log before it is in the index.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ..backend import Ambiguous, Backend, Delete, Op, Put
from ..errors import CorruptData, StreamkitError, Unavailable
from ..log.idempotency import key_row
from ..log.keys import (
    CATALOG,
    DATA,
    HEAD,
    KEYS,
    SEGMENTS,
    idempotency_key,
    partition_key,
    segment_key,
    segment_name,
    space_key,
    transaction_key,
    transaction_number,
)
from ..log.partition import Partition
from ..log.record_format import Header, decode_entries, decode_header, frames_start, split_frames
from ..log.rows import DataRow, Head, KeyRow, Piece, SegmentRow, Settings, decode_row, encode_row
from .upkeep import data_rows

__all__ = ["Finding", "VerifyReport", "repair_space", "verify_space"]

Progress = Callable[[int, int], None]
"""Called with (transactions checked, transactions in all)."""
MakePartition = Callable[[int, Settings], Partition]


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


def verify_space(backend: Backend, space: str, make: MakePartition, progress: Progress | None) -> VerifyReport:
    """What is wrong with a space's rows. `make` makes its partitions, of which nothing has been read."""
    settings, findings = _settings(backend, space)
    transactions = entries = segments = 0
    for number in range(settings.partitions if settings else 0):
        assert settings is not None
        log = _verify(make(number, settings), progress)
        findings += log.findings
        transactions, entries = transactions + log.transactions, entries + log.entries
        segments += len(log.pieces)
    return VerifyReport(tuple(findings), transactions, entries, segments)


def repair_space(backend: Backend, space: str, make: MakePartition) -> int:
    """Build a space's index again from its log; the number of rows that were written or removed.

    Only the log is believed. CorruptData if the log itself is damaged, or if part of it is in the archive only.
    Nobody may write to the space meanwhile.
    """
    settings, findings = _settings(backend, space)
    if settings is None:
        if findings:
            raise CorruptData(f"nothing tells how many partitions the space {space!r} has: {findings[0].problem}")
        return 0
    count = sum(_repair(make(number, settings)) for number in range(settings.partitions))
    if any(finding.key == space_key(space) for finding in findings):
        key = space_key(space)
        _write(backend, bytes(CATALOG), [Put(key, encode_row(key, settings))])
        count += 1
    return count


def _settings(backend: Backend, space: str) -> tuple[Settings | None, list[Finding]]:
    """A space's settings, from the catalog or from its first head, and what is wrong with the catalog."""
    key = bytes(space_key(space))
    findings: list[Finding] = []
    listed = head = None
    value = backend.get(bytes(CATALOG), [key])[0]
    first = backend.get(bytes(partition_key(space, 0)), [bytes(HEAD)])[0]
    try:
        listed = None if value is None else decode_row(Settings, key, value.data)
    except StreamkitError as error:
        findings.append(Finding(space, 0, key, str(error)))
    try:
        head = None if first is None else decode_row(Head, HEAD, first.data).settings
    except StreamkitError as error:
        if listed is None:
            findings.append(Finding(space, 0, bytes(HEAD), str(error)))
    if value is None and first is not None:
        findings.append(Finding(space, 0, key, "the catalog does not list the space"))
    elif listed is not None and head is not None and listed != head:
        findings.append(Finding(space, 0, key, f"the catalog says {listed}, the space itself {head}"))
    return head or listed, findings


class _Log:
    """What a walk over the log finds."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.findings: list[Finding] = []
        self.head = Head(partition.settings)
        self.last = 0
        """The number of the last transaction that is there."""
        self.timestamp = 0
        self.position = -1
        """Entries up to `last`; -1 after one that cannot be read."""
        self.pieces: dict[str, list[Piece]] = {}
        self.sums: dict[tuple[str, int], int] = {}
        """Checksums of the frames, by segment and first sequence: copies in the index are held against them."""
        self.uses: dict[bytes, list[KeyRow]] = {}
        self.fences: dict[str, int] = {}
        self.transactions = 0
        self.entries = 0

    def found(self, key: bytes, problem: str) -> None:
        self.findings.append(Finding(self.partition.space, self.partition.partition, bytes(key), problem))

    def read_head(self) -> bool:
        """Whether there is one that can be read."""
        value = self.partition.backend.get(self.partition.key, [bytes(HEAD)])[0]
        if value is None:
            return False
        try:
            self.head = decode_row(Head, HEAD, value.data)
        except StreamkitError as error:
            self.found(HEAD, str(error))
            return False
        return True

    def walk(self, progress: Progress | None = None, total: int = 0) -> None:
        """Read on after `last`, to the end."""
        partition = self.partition
        for row in partition.backend.scan(partition.key, transaction_key(self.last + 1), transaction_key(1 << 64)):
            number = transaction_number(row.key)
            self._gap(number)
            self.last = number
            self.transactions += 1
            if progress is not None:
                progress(self.transactions, max(total, self.transactions))
            try:
                header = decode_header(row.data, partition.seed)
                frames = split_frames(row.data, partition.seed)
            except StreamkitError as error:
                self.found(row.key, str(error))
                self.position = -1
                continue
            self._take(row.key, number, header, frames_start(row.data), frames)
            if number == self.head.number:
                self._check_head(header)

    def _gap(self, until: int) -> None:
        """Say so if there is something missing before `until`."""
        first = self.last + 1
        if first >= until:
            return
        archived = self.partition.backend.get(self.partition.key, [bytes(HEAD)])[0]
        if archived is not None and first > self.head.archived:
            try:
                # It may have been archived and removed since the walk began.
                if decode_row(Head, HEAD, archived.data).archived >= until - 1:
                    return
            except StreamkitError:
                pass
        more = f", and all others before {until}" if until - first > 1 else ""
        self.found(transaction_key(first), f"the transaction is missing{more}")
        self.position = -1

    def _take(self, key: bytes, number: int, header: Header, base: int, frames: Sequence[memoryview]) -> None:
        partition = self.partition
        if header.number != number:
            self.found(key, f"the record says that it is transaction {header.number}")
        if header.timestamp < self.timestamp:
            self.found(key, "its timestamp is lower than that of the transaction before")
        if self.position not in (-1, header.position) or (number == 1 and header.position):
            self.found(key, f"{max(self.position, 0)} entries are before it and it says {header.position}")
        self.timestamp, self.position = header.timestamp, header.position + header.count
        if len(frames) != len(header.frames):
            self.found(key, f"it has {len(frames)} frames and its header says {len(header.frames)}")
        for ref, frame in zip(header.frames, frames, strict=False):
            try:
                head, _, entries = decode_entries(
                    partition.space, partition.partition, partition.settings.partitions, frame, partition.seed
                )
            except CorruptData as error:
                self.found(key, str(error))
                continue
            self.entries += len(entries)
            told = (head.segment, head.first_sequence, head.count, head.number, head.id, head.timestamp)
            if told != (ref.segment, ref.first_sequence, ref.count, number, header.id, header.timestamp):
                self.found(key, f"the frame of {head.segment!r} is not what the header says")
            pieces = self.pieces.setdefault(ref.segment, [])
            if pieces and pieces[-1].last_sequence + 1 != ref.first_sequence:
                before = pieces[-1].last_sequence
                self.found(key, f"segment {ref.segment!r} goes on at {ref.first_sequence} after {before}")
            elif not pieces and ref.first_sequence != 1 and not self.head.archived:
                self.found(key, f"segment {ref.segment!r} begins at {ref.first_sequence}")
            start = base + ref.start
            pieces.append(Piece(number, header.timestamp, ref.first_sequence, ref.count, start, ref.length))
            self.sums[ref.segment, ref.first_sequence] = zlib.crc32(frame)
        for use in header.keys:
            row = key_row(header, use)
            self.uses.setdefault(use.key, []).append(row)
        for name, token in header.fences.items():
            if token < self.fences.get(name, 0):
                self.found(key, f"the lease {name!r} goes back from token {self.fences[name]} to {token}")
            self.fences[name] = max(token, self.fences.get(name, 0))

    def _check_head(self, header: Header) -> None:
        """The head, at the transaction that it is of."""
        head = self.head
        if head.timestamp != header.timestamp or head.position != header.position + header.count:
            self.found(HEAD, f"timestamp or position of the head are not those of transaction {head.number}")
        if head.archived:
            wrong = [name for name, token in self.fences.items() if head.fences.get(name, 0) < token]
        else:
            wrong = [name for name in {*head.fences, *self.fences} if head.fences.get(name) != self.fences.get(name)]
        if wrong:
            self.found(HEAD, f"the head does not remember the highest token of the leases {sorted(wrong)}")


def _verify(partition: Partition, progress: Progress | None) -> _Log:
    backend = partition.backend
    log = _Log(partition)
    there = log.read_head()
    head, damaged = log.head, bool(log.findings)
    if there and head.settings != partition.settings:
        log.found(HEAD, f"the head has the settings {head.settings}, the space {partition.settings}")
    if not head.archived <= head.number >= head.watermark:
        log.found(HEAD, f"the head is at {head.number}, and its watermarks at {head.watermark} and {head.archived}")
    log.last = head.archived
    total = 0
    if progress is not None:
        keys = backend.scan(partition.key, transaction_key(log.last + 1), transaction_key(1 << 64), values=False)
        total = sum(1 for _ in keys)
    log.walk(progress, total)
    if head.number > log.last:
        log._gap(head.number + 1)
    rows = {prefix: list(backend.scan(partition.key, *prefix.children())) for prefix in (SEGMENTS, DATA, KEYS)}
    walked = log.last
    log.walk()
    if not there and not damaged and walked and (partition.partition == 0 or backend.limits.atomic):
        log.found(HEAD, "the head is missing")
    elif there and backend.limits.atomic:
        value = backend.get(partition.key, [bytes(HEAD)])[0]
        if value is not None and decode_row(Head, HEAD, value.data).number < walked:
            log.found(HEAD, f"the head is at {head.number} and the log at {walked}")
    _check_segments(log, [(row.key, row.data) for row in rows[SEGMENTS]])
    _check_data(log, [(row.key, row.data) for row in rows[DATA]])
    _check_keys(log, {row.key: row.data for row in rows[KEYS]})
    return log


def _reached(log: _Log, pieces: Sequence[Piece]) -> int:
    """The last sequence of these pieces that the index must hold."""
    return max((piece.last_sequence for piece in pieces if piece.number <= log.head.watermark), default=0)


def _check_segments(log: _Log, rows: Sequence[tuple[bytes, bytes]]) -> None:
    missing = {segment for segment, pieces in log.pieces.items() if _reached(log, pieces)}
    for key, data in rows:
        segment = segment_name(key)
        missing.discard(segment)
        pieces = log.pieces.get(segment)
        if pieces is None:
            if not log.head.archived:
                log.found(key, f"the index knows a segment {segment!r} that the log does not")
            continue
        try:
            status = decode_row(SegmentRow, key, data)
        except StreamkitError as error:
            log.found(key, str(error))
            continue
        at = bisect_left(pieces, status.last_sequence, key=lambda piece: piece.last_sequence)
        reached = _reached(log, pieces)
        if status.last_sequence < reached or at == len(pieces):
            if reached or status.last_sequence >= pieces[0].first_sequence:
                log.found(key, f"the index ends it at {status.last_sequence}, the log at {reached}")
        elif pieces[at].last_sequence == status.last_sequence and pieces[at].timestamp != status.last_timestamp:
            log.found(key, f"the index says that its last entry is of {status.last_timestamp}, the log does not")
        first = pieces[0]
        if not log.head.archived and (status.first_sequence, status.first_timestamp) != (
            first.first_sequence,
            first.timestamp,
        ):
            log.found(key, f"the index begins it at {status.first_sequence}, {status.first_timestamp}; the log not")
    for segment in sorted(missing):
        log.found(segment_key(segment), "the index does not know the segment")


def _check_data(log: _Log, rows: Sequence[tuple[bytes, bytes]]) -> None:
    """Every piece is where the log has it, and all up to the watermark are there."""
    truth = {(segment, piece.first_sequence): piece for segment, pieces in log.pieces.items() for piece in pieces}
    expected = {segment: pieces[0].first_sequence for segment, pieces in log.pieces.items()}
    hiding: dict[str, tuple[bytes, int]] = {}
    for key, data in rows:
        segment = key[len(DATA) + 1 : -9].decode(errors="replace")
        try:
            found = decode_row(DataRow, key, data).pieces
        except StreamkitError as error:
            log.found(key, str(error))
            continue
        if not found or found[-1].last_sequence != int.from_bytes(key[-8:], "big"):
            log.found(key, "the row does not end where its key says")
        if found and found[0].first_sequence > expected.get(segment, found[0].first_sequence):
            hiding.setdefault(segment, (key, expected[segment]))
        for piece in found:
            real = truth.get((segment, piece.first_sequence))
            if real is None:
                if piece.number > log.head.archived:
                    log.found(key, f"the log has nothing of {segment!r} that begins at {piece.first_sequence}")
            elif msgspec.structs.replace(piece, frame=None) != real:
                log.found(key, f"the index points to another place than the log for {piece.first_sequence}")
            elif piece.frame is not None and zlib.crc32(piece.frame) != log.sums[segment, piece.first_sequence]:
                log.found(key, f"the copy of what begins at {piece.first_sequence} is not what the log has")
            if segment in expected and piece.first_sequence <= expected[segment] <= piece.last_sequence:
                expected[segment] = piece.last_sequence + 1
    for segment, pieces in log.pieces.items():
        if expected[segment] <= _reached(log, pieces):
            key = bytes(DATA) + b"\x00" + segment.encode()
            log.found(key, f"the index has a hole: nothing holds sequence {expected[segment]} of {segment!r}")
        elif segment in hiding:
            key, sequence = hiding[segment]
            log.found(key, f"a reader looks here for sequence {sequence} of {segment!r}, which a later row holds")


def _check_keys(log: _Log, rows: dict[bytes, bytes]) -> None:
    for digest, uses in log.uses.items():
        key = idempotency_key(digest)
        data = rows.pop(key, None)
        indexed = [use for use in uses if use.number <= log.head.watermark]
        if data is None:
            if indexed:
                log.found(key, "the index does not know the idempotency key")
            continue
        try:
            row = decode_row(KeyRow, key, data)
        except StreamkitError as error:
            log.found(key, str(error))
            continue
        if not row.count:  # of an earlier release
            uses = [msgspec.structs.replace(use, count=0) for use in uses]
        if row not in uses[len(indexed) - 1 if indexed else 0 :] and (indexed or row.number > log.head.archived):
            log.found(key, "the index says of the idempotency key what the log does not")
    for key, data in rows.items():
        try:
            if decode_row(KeyRow, key, data).number > log.head.archived:
                log.found(key, "the index knows an idempotency key that the log does not")
        except StreamkitError as error:
            log.found(key, str(error))


def _repair(partition: Partition) -> int:
    log = _Log(partition)
    log.read_head()
    damaged = len(log.findings)
    log.last = log.head.archived
    log.walk()
    faults = [finding for finding in log.findings[damaged:] if finding.key != HEAD]
    if partition.limits.atomic and log.head.number > log.last:
        faults.append(Finding(partition.space, partition.partition, b"", f"it ends before {log.head.number}"))
    if faults:
        raise CorruptData(f"the log itself is damaged, and nothing else knows what it said: {faults[0].problem}")
    if log.head.archived:
        raise CorruptData("part of the log is in the archive only: the index cannot be built from the log alone")
    ops = list(_differences(partition, log))
    last = log.last
    if last or partition.partition == 0:
        head = Head(
            partition.settings, last, log.timestamp, max(log.position, 0), last, 0, dict(sorted(log.fences.items()))
        )
        if damaged or log.head != head:
            ops.append(Put(bytes(HEAD), encode_row(HEAD, head)))
    _write(partition.backend, partition.key, ops)
    return len(ops)


def _write(backend: Backend, partition: bytes, ops: Sequence[Op]) -> None:
    """All of `ops`, the last of them last. Nothing of it does harm when it is done twice."""
    limits = backend.limits
    batch: list[Op] = []
    size = 0
    for at, op in enumerate(ops):
        length = len(op.key) + (0 if isinstance(op, Delete) else len(op.value)) + 256
        if batch and (len(batch) >= limits.ops or size + length > limits.batch_bytes or at == len(ops) - 1):
            _apply(backend, partition, batch)
            batch, size = [], 0
        batch.append(op)
        size += length
    if batch:
        _apply(backend, partition, batch)


def _apply(backend: Backend, partition: bytes, ops: Sequence[Op]) -> None:
    for _ in range(5):
        try:
            backend.write(partition, ops)
            return
        except Ambiguous:
            continue
    raise Unavailable("the storage's answers are lost one after the other; repair again")


def _differences(partition: Partition, log: _Log) -> Iterator[Op]:
    wanted: dict[bytes, bytes] = {}
    for segment, pieces in log.pieces.items():
        key = segment_key(segment)
        first, last = pieces[0], pieces[-1]
        row = SegmentRow(first.first_sequence, first.timestamp, last.last_sequence, last.timestamp)
        wanted[key] = encode_row(key, row)
        for put in data_rows(partition.limits.row, segment, pieces):
            wanted[put.key] = put.value
    for digest, uses in log.uses.items():
        key = idempotency_key(digest)
        wanted[key] = encode_row(key, uses[-1])
    for prefix in (SEGMENTS, DATA, KEYS):
        for found in partition.backend.scan(partition.key, *prefix.children()):
            data = wanted.pop(found.key, None)
            if data is None:
                yield Delete(found.key)
            elif data != found.data:
                yield Put(found.key, data)
    for key, data in wanted.items():
        yield Put(key, data)
