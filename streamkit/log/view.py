"""A view: the value of a partition's log at one moment. Readers walk it without a lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..backend import Range
from .archive_reader import ArchiveReader
from .floors import Erasure, Floor, Retained
from .index_reader import Index
from .keys import transaction_number
from .moved import Moved
from .packs import Frame, Packs
from .record_format import Header
from .rows import Head, Piece, SegmentRow
from .searches import Searches
from .tail import Tail

if TYPE_CHECKING:
    from .partition import Partition

__all__ = ["LogView"]

_TRANSACTIONS = 1024
_BYTES = 4 << 20
"""The most transactions, and about the most bytes of them, that are read together."""
_FIRST = 16
"""Transactions that a read backwards begins with: it often wants the last few entries only."""


class LogView(msgspec.Struct, frozen=True):
    """Consistent by itself: the index holds everything up to the tail, and the tail everything after it.

    A walk over it raises Moved if something that it names is not there any more.
    """

    log: Partition
    """The partition, for its constants. A walk does not look at its state."""
    head: Head
    index: Index
    packs: Packs
    tail: Tail
    end: int
    """The last transaction."""
    position: int
    """Entries up to the end."""
    size: int
    """Bytes of payload up to the end."""
    floor: Floor
    retention: Retained | None
    thinned: int
    """The last transaction that removed entries of segments, or 0."""
    erasing: tuple[Erasure, ...]
    """Erasures that readers hide, because the entries may still be stored."""
    searches: Searches
    cold_until: int
    """Transactions up to this number are read from the archive, and the others from the log: an entry's `tier`.

    The archive watermark; less if the archive cannot be read and the log still has its transactions.
    """

    def archive(self) -> ArchiveReader:
        """The archive. CorruptData if this client cannot know where it is; MissingDependency without the extra."""
        return self.log.archive()

    # -- transactions -------------------------------------------------------------------------------------------

    def check_row(self, number: int) -> None:
        """Raise Moved if the row of transaction `number`, just read from the log, may not be the committed transaction.

        A transaction that is in a pack or in the archive is removed from the log after a grace. Its key is free then,
        and a writer that was stopped for all that time may have left another transaction there. So the head must be
        newer than the row's last chance to be removed: this is the only look at the present that a walk takes.
        """
        log = self.log
        if log.remote:
            now = log.confirmed_head()
            if now is not self.head and number <= max(now.watermark, now.archived):
                raise Moved(f"{log.where(number)} was packed or archived meanwhile")

    def record(self, number: int) -> bytes | None:
        """A transaction, from the log; None if it is not there."""
        record = self.tail.records.get(number) if number <= self.end else None
        if record is None:
            record = self.packs.get([number])[0]
        if record is None and number > self.head.released:
            log = self.log
            row = log.backend.get(log.key, [log.transaction_key(number)])[0]
            if row is not None:
                self.check_row(number)
                record = row.data
        return record

    def header(self, number: int) -> Header:
        """The header of a transaction that the log must hold."""
        record = self.record(number)
        if record is None:
            raise self.missing(number)
        return self.log.decode_header(record, number)

    def missing(self, number: int) -> Moved:
        """The error for a transaction that is not at its place."""
        return Moved(str(self.log.missing(number)))

    def records(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, record) of transactions first..last in order, up to the first one that is not in the log.

        A pack's record counts, and not a row of the same number: that may be of a writer that came too late.
        """
        for part in self.parts(first, last):
            yield from part

    def parts(self, first: int, last: int) -> Iterator[Iterable[tuple[int, bytes]]]:
        """Yield the records of `records` in parts. Read each part to its end before the next."""
        number, packs = first, self.packs

        def rows(until: int) -> Iterator[tuple[int, bytes]]:
            nonlocal number
            for at, record in self._rows(number, until):
                yield at, record
                number = at + 1

        while number <= last:
            until = last
            if number <= packs.last:
                for batch in packs.batches(number, last):
                    number += len(batch)
                    yield batch
                until = min(last, packs.next_held(number) - 1)
            if number <= until:
                reached = number
                yield rows(until)
                if number == reached or number <= until:
                    return

    def records_backwards(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, record) of transactions first..last, the last one first. Moved if one is not in the log."""
        size = _FIRST
        while last >= first:
            begin = max(first, last - size + 1)
            found, length = self._some(begin, last)
            if len(found) <= last - begin:
                if length <= _BYTES:
                    raise self.missing(begin + len(found))
                size = max(1, len(found) // 2)
                continue
            while found:
                yield last, found.pop()
                last -= 1
            size = min(size * 2, _TRANSACTIONS) if length * 2 <= _BYTES else size

    def _some(self, first: int, last: int) -> tuple[list[bytes], int]:
        """The records first..last, and their bytes. Fewer records if they are large, or if one is not there."""
        found: list[bytes] = []
        length = 0
        for _, record in self.records(first, last):
            if length > _BYTES:
                break
            found.append(record)
            length += len(record)
        return found, length

    def _rows(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, record) of transactions in memory and in rows of their own, up to the first missing one."""
        number, kept = first, self.tail.records
        while number <= last and (record := kept.get(number)) is not None:
            yield number, record
            number += 1
        if number > last:
            return
        log, least = self.log, self.head.released
        start, after = log.transaction_key(number), log.transaction_key(last + 1)
        for row in log.backend.scan(log.key, start, after):
            if transaction_number(row.key) != number or number <= least:
                return
            self.check_row(number)
            yield number, row.data
            number += 1

    # -- segments -----------------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Raise Moved if a later look at the log shows that something was removed or archived since."""
        self.log.look_again(self)

    def known(self, segment: str) -> SegmentRow | None:
        """A segment's status, if the partition knows it and it is not later than this view."""
        row = self.log.cached.get(segment)
        return row if row is not None and row.last_number <= self.end else None

    def indexed(self, key: bytes) -> bytes | None:
        """A row of the index; None if it has none."""
        return self.index.get([key])[0] if self.tail.watermark else None

    def with_tail(self, segment: str, row: SegmentRow) -> SegmentRow:
        """The status of a segment, from its `row` in the index."""
        return self.tail.status(segment, row, self.end)

    @property
    def nothing_removed(self) -> bool:
        """True if no entry of the partition was ever removed or archived: the pieces tell all about a segment."""
        head = self.head
        return not (
            self.floor.number > 1 or self.thinned or head.archived or head.released or self.retention or self.erasing
        )

    def frames(self, pieces: Sequence[Piece]) -> Iterator[tuple[int, int, bytes]]:
        """Yield (number, first sequence, frame) of each piece. The frames that the index lacks are read at once."""
        absent = [(piece.number, piece.start, piece.length) for piece in pieces if piece.frame is None]
        loaded = iter(self._loaded(absent) if absent else ())
        for piece in pieces:
            frame = piece.frame
            if frame is None:
                frame = next(loaded)
            yield piece.number, piece.first_sequence, frame

    def _loaded(self, wanted: Sequence[Frame]) -> list[bytes]:
        """Parts of transactions, from packs, or from rows of their own."""
        log, parts = self.log, self.packs.frames(wanted)
        rest = [at for at, part in enumerate(parts) if part is None]
        if rest and min(wanted[at][0] for at in rest) > self.head.released:
            ranges = [Range(log.transaction_key(wanted[at][0]), *wanted[at][1:]) for at in rest]
            for at, part in zip(rest, log.backend.read(log.key, ranges), strict=True):
                parts[at] = part
            self.check_row(min(wanted[at][0] for at in rest))
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            raise Moved(f"{log.where(wanted[parts.index(None)][0])} is missing from the log")
        return found
