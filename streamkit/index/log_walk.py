"""A walk over a partition's log and archive: it collects their content and their faults.

It looks at the rows themselves, damaged or not, and uses no state of an open partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..backend import Etag
from ..checksum import crc32
from ..errors import CorruptData, StreamkitError
from ..log.archive_reader import Contents
from ..log.floors import Changed, Erasure, Floor, Retained
from ..log.idempotency import key_row
from ..log.keys import HEAD
from ..log.manifest import RunGone
from ..log.partition import Partition
from ..log.record_format import Header, decode_entries, decode_header, frames_start, split_frames
from ..log.records import all_records
from ..log.rows import Head, KeyRow, Piece, SegmentRow, decode_row
from ..log.tail import piece_of

__all__ = ["Finding", "LogWalk", "Progress"]

_TRIES = 20

Progress = Callable[[int, int], None]
"""Called with (transactions checked, transactions in all)."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong: `problem` with the row `key` of a partition."""

    space: str
    partition: int
    key: bytes
    problem: str


class LogWalk:
    """A walk over the log, its faults, and the rows that the index should have."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.findings: list[Finding] = []
        self.head = Head(partition.settings)
        self.etag: Etag | None = None
        """The etag of the head's row, even if that row cannot be read."""
        self._packed = self.head.packs, self.head.pack
        """The packs by which the walk reads; another process may merge them meanwhile."""
        self._aside: set[bytes] = set()
        """Unreadable packs whose transactions are all still in the log."""
        self.released = 0
        """The last archived transaction that the log had released when the walk began."""
        self.last = 0
        """The number of the last existing transaction."""
        self.timestamp = 0
        self.position = -1
        """Entries up to `last`; -1 after one that cannot be read."""
        self.pieces: dict[str, list[Piece]] = {}
        self.checksums: dict[tuple[str, int], int] = {}
        """Checksums of the frames, by segment and first sequence: copies in the index are held against them."""
        self.uses: dict[bytes, list[KeyRow]] = {}
        self.fences: dict[str, list[tuple[int, int]]] = {}
        """(number, token) of each lease: when it wrote with a higher one than before."""
        self.transactions = 0
        self.entries = 0
        self.removed: dict[str, int] = {}
        """The last sequence of each segment that the log says was removed."""
        self.retention: Retained | None = None
        self.changed = Changed()
        self.size = 0
        """Bytes of payload, by the last transaction that was read."""
        self.floor = Floor()
        """The floor according to the log itself."""
        self.erasures: list[Erasure] = []
        """The erasures that the log records."""
        self.cold: dict[str, SegmentRow] | None = {}
        """The archive's row of each segment; None if the archive cannot be relied on."""

    def found(self, key: bytes, problem: str) -> None:
        self.findings.append(Finding(self.partition.space, self.partition.partition, bytes(key), problem))

    @property
    def first(self) -> int:
        """The first transaction that the log must hold."""
        return max(self.head.archived + 1, self.head.floor.number)

    def trimmed(self, segment: str, row: SegmentRow) -> bool:
        """True if the segment of an index's `row` does not begin where log and archive do.

        Only the row tells this if the transaction that removed the first entries is archived and no longer in the log.
        """
        by_space = self.head.floor.number > 1 or self.head.retention is not None
        return by_space or segment in self.removed or bool(row.gaps and self.head.thinned)

    def begin_at_floor(self) -> None:
        """Pass over the trimmed transactions."""
        floor = self.head.floor
        if floor.number > 1:
            self.cold = None  # the archive lacks the trimmed beginnings of segments
        if floor.number - 1 > self.last:
            self.last, self.position, self.timestamp = floor.number - 1, floor.position, floor.timestamp
            self.size = floor.size
            self.cold = None

    def read_head(self) -> bool:
        """True if there is one that can be read."""
        partition = self.partition
        value = partition.backend.get(partition.key, [bytes(HEAD)])[0]
        if value is None:
            return False
        self.etag = value.etag
        try:
            head = decode_row(Head, HEAD, value.data)
            if partition.partition and head.settings.incarnation != partition.settings.incarnation:
                return False  # of a space that is gone; the next upkeep replaces it
            self.head = head
            self._open_packs(head)
        except StreamkitError as error:
            self.found(HEAD, str(error))
            return False
        return True

    def walk(self, progress: Progress | None = None, total: int = 0) -> None:
        """Read on after `last`, to the end."""
        first = self.last + 1
        tries = 0
        while True:
            packs = self.partition.packs
            try:
                for number, record in all_records(self.partition, packs, first):
                    # A missing transaction may have been packed, and removed from the log, since the walk began.
                    if number > first and tries < _TRIES and self._moved():
                        tries += 1
                        break
                    self._apply(number, record)
                    first, tries = number + 1, 0
                    if progress is not None:
                        progress(self.transactions, max(total, self.transactions))
                else:
                    return
                continue
            except RunGone as error:
                if tries < _TRIES and self._moved():
                    tries += 1
                    continue
                problem, key = str(error), error.key
            except StreamkitError as error:
                problem, key = str(error), bytes(HEAD)
            if self._set_aside(first):
                self.found(HEAD, problem)
            else:
                # The rest of the pack cannot be read.
                self.found(key, problem)
                first = packs.beyond(first)

    def _set_aside(self, number: int) -> bool:
        """Go on without the pack that `number` should be in, if all that it holds is in the log as well."""
        packs = self.partition.packs
        bad = packs.file_of(number)
        if bad is None or bad.first <= self.head.cleared:
            return False
        self._aside.add(bad.id)
        self.partition.use_packs(packs.without(self._aside))
        return True

    def _moved(self) -> bool:
        """True if the head names other packs by now, as others merge them."""
        value = self.partition.backend.get(self.partition.key, [bytes(HEAD)])[0]
        try:
            head = self.head if value is None else decode_row(Head, HEAD, value.data)
        except StreamkitError:
            return False
        if (head.packs, head.pack) == self._packed:
            return False
        self._open_packs(head)
        return True

    def _open_packs(self, head: Head) -> None:
        self.partition.use_packs(self.partition.open_packs(head).without(self._aside))
        self._packed = head.packs, head.pack

    def _apply(self, number: int, record: bytes) -> None:
        key = self.partition.transaction_key(number)
        self.gap(number)
        self.last = number
        self.transactions += 1
        try:
            header = decode_header(record, self.partition.seed)
            frames = split_frames(record, self.partition.seed)
        except StreamkitError as error:
            self.found(key, str(error))
            self.position = -1
            return
        self._apply_frames(key, number, header, record, frames)
        if number == self.head.watermark:
            self._check_head(header)

    def gap(self, until: int) -> None:
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

    def _apply_frames(
        self, key: bytes, number: int, header: Header, record: bytes, frames: Sequence[memoryview]
    ) -> None:
        partition = self.partition
        if header.number != number:
            self.found(key, f"the record says that it is transaction {header.number}")
        if header.timestamp < self.timestamp:
            self.found(key, "its timestamp is lower than that of the transaction before")
        if self.position not in (-1, header.position) or (number == 1 and header.position):
            self.found(key, f"{max(self.position, 0)} entries are before it and it says {header.position}")
        self.timestamp, self.position = header.timestamp, header.position + header.count
        self.size = header.after
        if len(frames) != len(header.frames):
            self.found(key, f"it has {len(frames)} frames and its header says {len(header.frames)}")
        if header.control is not None:
            for removal in header.control.removals:
                self.removed[removal.segment] = max(removal.last, self.removed.get(removal.segment, 0))
            self.retention = header.control.retention or self.retention
            self.changed = self.changed.then(header.control.changed)
            self.erasures += [
                Erasure(erasure.segment, erasure.first, erasure.last, number) for erasure in header.control.erasures
            ]
            if header.control.floor is not None and header.control.floor.number > self.floor.number:
                self.floor = header.control.floor
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
                self.found(key, f"the frame of {head.segment!r} does not match its header")
            pieces = self.pieces.setdefault(ref.segment, [])
            removed = self.removed.get(ref.segment, 0)
            if pieces and max(pieces[-1].last_sequence, removed) + 1 != ref.first_sequence:
                before = pieces[-1].last_sequence
                self.found(key, f"segment {ref.segment!r} continues at {ref.first_sequence} after {before}")
            elif not pieces and self.cold is not None and self.head.floor.number == 1:
                before = max(removed, self.cold[ref.segment].last_sequence if ref.segment in self.cold else 0)
                if ref.first_sequence != before + 1:
                    self.found(key, f"segment {ref.segment!r} continues at {ref.first_sequence} after {before}")
            pieces.append(piece_of(header, ref, record, frames_start(record), 0))
            self.checksums[ref.segment, ref.first_sequence] = crc32(frame)
        for use in header.keys:
            row = key_row(header, use)
            self.uses.setdefault(use.key, []).append(row)
        for name, token in header.fences.items():
            tokens = self.fences.setdefault(name, [])
            if tokens and token < tokens[-1][1]:
                self.found(key, f"the lease {name!r} goes back from token {tokens[-1][1]} to {token}")
            elif not tokens or token > tokens[-1][1]:
                tokens.append((number, token))

    def _check_head(self, header: Header) -> None:
        """The head, at the transaction that it is of."""
        head = self.head
        if head.timestamp != header.timestamp or head.position != header.position + header.count:
            self.found(HEAD, f"timestamp or position of the head are not those of transaction {head.watermark}")

    def begin_after_archive(self, last: int, contents: Contents) -> None:
        """Go on after the first `last` transactions, which are in the archive."""
        self.last = last
        if contents.problems:
            self.cold = None
            return
        self.cold = None if contents.sparse else contents.segments
        # The archive may know nothing of trimmed transactions.
        self.position = contents.position if contents.position or not last else -1
        self.timestamp = contents.timestamp
