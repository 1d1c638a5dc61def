"""Verifying a store: log and archive are whole, and the index says what they say. Repair builds the index from both.

Both look at the rows themselves, whatever state they are in, and rely on nothing that was learned before. The index is
read between two walks over the log: whatever was written meanwhile is in the log before it is in the index.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ..backend import Ambiguous, Backend, Delete, Op, Put
from ..errors import CorruptData, MissingDependency, PermanentError, StreamkitError, Unavailable
from ..log.archive_reader import Contents
from ..log.held import archive_row, whole_from
from ..log.idempotency import key_row
from ..log.keys import (
    ARCHIVE,
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
    transaction_number,
)
from ..log.partition import Partition
from ..log.record_format import Header, decode_entries, decode_header, frames_start, split_frames
from ..log.rows import ArchiveRow, DataRow, Head, KeyRow, Piece, SegmentRow, Settings, decode_row, encode_row
from ..warn import warn
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
        segments += len(log.pieces.keys() | (log.cold or {}).keys())
    return VerifyReport(tuple(findings), transactions, entries, segments)


def repair_space(backend: Backend, space: str, make: MakePartition) -> int:
    """Build a space's index again from its log and archive; the number of rows that were written or removed.

    Only the log is believed, and for what it does not hold any more the archive. CorruptData if they are damaged.
    Nobody may write to the space, or archive it, meanwhile.
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
        self.cold: dict[str, SegmentRow] | None = {}
        """The archive's part of each segment; None if that cannot be relied on."""

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
        start, end = partition.transaction_key(self.last + 1), partition.transaction_key(1 << 64)
        for row in partition.backend.scan(partition.key, start, end):
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
        self.found(self.partition.transaction_key(first), f"the transaction is missing{more}")
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
            elif not pieces and self.cold is not None:
                before = self.cold[ref.segment].last_sequence if ref.segment in self.cold else 0
                if ref.first_sequence != before + 1:
                    self.found(key, f"segment {ref.segment!r} goes on at {ref.first_sequence} after {before}")
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


def _take_archive(log: _Log, last: int, contents: Contents) -> None:
    """Go on after the first `last` transactions, which are in the archive."""
    log.last = last
    if contents.problems:
        log.cold = None
        return
    log.cold = contents.segments
    log.position, log.timestamp = contents.entries, contents.timestamp


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
    if head.archived:
        contents = partition.archive().examine(partition, head.archived)
        for path, problem in contents.problems:
            log.found(f"archive/{path}".encode(), problem)
        _take_archive(log, head.archived, contents)
        log.transactions, log.entries = head.archived, contents.entries
    total = 0
    if progress is not None:
        start, end = partition.transaction_key(log.last + 1), partition.transaction_key(1 << 64)
        keys = backend.scan(partition.key, start, end, values=False)
        total = log.transactions + sum(1 for _ in keys)
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
    missing = {segment for segment, pieces in log.pieces.items() if _reached(log, pieces)} | set(log.cold or ())
    for key, data in rows:
        segment = segment_name(key)
        missing.discard(segment)
        pieces = log.pieces.get(segment)
        cold = None if log.cold is None else log.cold.get(segment)
        if pieces is None and cold is None and log.cold is not None:
            log.found(key, f"the index knows a segment {segment!r} that the log does not")
            continue
        try:
            status = decode_row(SegmentRow, key, data)
        except StreamkitError as error:
            log.found(key, str(error))
            continue
        if pieces is None:
            if cold not in (None, status):
                log.found(key, f"the index says {status}, the archive {cold}")
            continue
        at = bisect_left(pieces, status.last_sequence, key=lambda piece: piece.last_sequence)
        reached = _reached(log, pieces)
        if status.last_sequence < reached or at == len(pieces):
            if reached or status.last_sequence >= pieces[0].first_sequence:
                log.found(key, f"the index ends it at {status.last_sequence}, the log at {reached}")
        elif pieces[at].last_sequence == status.last_sequence and pieces[at].timestamp != status.last_timestamp:
            log.found(key, f"the index says that its last entry is of {status.last_timestamp}, the log does not")
        begin = (pieces[0].first_sequence, pieces[0].timestamp)
        if cold is not None:
            begin = (cold.first_sequence, cold.first_timestamp)
        if log.cold is not None and (status.first_sequence, status.first_timestamp) != begin:
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
    there = log.read_head()
    damaged = len(log.findings)
    archived = log.head.archived if there else _archived(partition)
    note, damaged_note = _note(partition)
    held = whole_from(partition, note.removed + 1, archived) if archived else 1
    only = archived if held is None else held - 1
    contents = Contents()
    if archived:
        contents = partition.archive().examine(partition, only)
        if contents.problems and only:
            raise CorruptData(
                f"space {partition.space!r}: transactions up to {only} of partition {partition.partition} are in the "
                f"archive only, and it is damaged: {contents.problems[0][1]}"
            )
        # What the log has still can be archived again, if it is sure that the archive lacks it.
        archived = archived if contents.elsewhere else max(only, min(archived, contents.last))
        contents.problems.clear()
        kept = tuple(mark for mark in note.since if mark[0] <= archived)
        damaged_note |= kept != note.since
        note = ArchiveRow(note.removed, kept)
        log.head = msgspec.structs.replace(log.head, archived=only)
    _take_archive(log, only, contents)
    log.walk()
    faults = [finding for finding in log.findings[damaged:] if finding.key != HEAD]
    if partition.limits.atomic and log.head.number > log.last:
        faults.append(Finding(partition.space, partition.partition, b"", f"it ends before {log.head.number}"))
    if faults:
        raise CorruptData(f"the log itself is damaged, and nothing else knows what it said: {faults[0].problem}")
    ops = list(_differences(partition, log, only))
    if damaged_note:
        ops.append(Put(bytes(ARCHIVE), encode_row(ARCHIVE, note)))
    last = log.last
    if last or damaged or partition.partition == 0:
        fences = dict(log.fences)
        if only and there:
            # Those of transactions that are in the archive are remembered by the head alone.
            before = log.head.fences
            fences = {name: max(before.get(name, 0), fences.get(name, 0)) for name in {*before, *fences}}
        elif only:
            warn(
                "space %r, partition %d: the head was damaged, and with it the tokens of leases that wrote the "
                "transactions up to %d are forgotten",
                partition.space,
                partition.partition,
                only,
            )
        head = Head(
            partition.settings, last, log.timestamp, max(log.position, 0), last, archived, dict(sorted(fences.items()))
        )
        value = partition.backend.get(partition.key, [bytes(HEAD)])[0]
        if value is None or value.data != encode_row(HEAD, head):
            ops.append(Put(bytes(HEAD), encode_row(HEAD, head)))
    _write(partition.backend, partition.key, ops)
    return len(ops)


def _archived(partition: Partition) -> int:
    """The archive watermark, if the head cannot tell."""
    try:
        archive = partition.archive()
    except (MissingDependency, PermanentError):
        return 0  # there is none; if there was one, the log begins late, which is a fault of its own
    contents = archive.examine(partition, 0)
    return contents.last


def _note(partition: Partition) -> tuple[ArchiveRow, bool]:
    """What became of archived transactions; and whether the row that tells it is damaged, then as the log tells it."""
    try:
        return archive_row(partition), False
    except CorruptData:
        start, end = partition.transaction_key(1), partition.transaction_key(1 << 64)
        rows = partition.backend.scan(partition.key, start, end, values=False, limit=1)
        first = next((transaction_number(row.key) for row in rows), 1)
        return ArchiveRow(first - 1), True


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


def _differences(partition: Partition, log: _Log, only: int) -> Iterator[Op]:
    """What makes the index that of the log, and of the first `only` transactions, which the archive alone has."""
    wanted: dict[bytes, bytes] = {}
    rows = dict(log.cold or {})
    for segment, pieces in log.pieces.items():
        first, last = pieces[0], pieces[-1]
        row = rows.get(segment) or SegmentRow(first.first_sequence, first.timestamp, 0, 0)
        rows[segment] = SegmentRow(row.first_sequence, row.first_timestamp, last.last_sequence, last.timestamp)
    for segment, row in rows.items():
        key = segment_key(segment)
        wanted[key] = encode_row(key, row)
    for segment, pieces in log.pieces.items():
        for put in data_rows(partition.limits.row, segment, pieces):
            wanted[put.key] = put.value
    for digest, uses in log.uses.items():
        key = idempotency_key(digest)
        wanted[key] = encode_row(key, uses[-1])
    for prefix in (SEGMENTS, DATA, KEYS):
        for found in partition.backend.scan(partition.key, *prefix.children()):
            data = wanted.pop(found.key, None)
            if data is None:
                if not (prefix is KEYS and _is_of_archive(found.key, found.data, only)):
                    yield Delete(found.key)
            elif data != found.data:
                yield Put(found.key, data)
    for key, data in wanted.items():
        yield Put(key, data)


def _is_of_archive(key: bytes, data: bytes, only: int) -> bool:
    """Whether the row tells of an idempotency key of an archived transaction: the archive does not know keys."""
    try:
        return decode_row(KeyRow, key, data).number <= only
    except StreamkitError as error:
        if only:
            warn("an idempotency key of an archived transaction may be forgotten: %s", error)
        return False
