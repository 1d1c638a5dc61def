"""Writing one partition of an import: its transactions, with the numbers, ids and timestamps that they had.

Transactions are collected in memory and go to storage as upkeep would leave them: packed, with their index. So an
import takes a few requests for thousands of transactions. The head records the position, and a stopped import continues
there.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from msgspec.structs import replace

from ..backend import ABSENT, NEXT
from ..errors import CorruptData, Unavailable
from ..index.head_change import change_head
from ..index.upkeep import bring_forward, file_pack, merge_some
from ..log.floors import Changed, Floor, Removal, Retained
from ..log.keys import HEAD
from ..log.pack_format import MOST
from ..log.partition import Partition
from ..log.record_format import KeyUse
from ..log.rows import Head, encode_row
from ..names import check_name, partition_of
from ..retry import put_settled
from .lines import EntryLine, Gap, Key, Trx, payload_of
from .lines import Partition as PartitionLine
from .transaction import ImportedTransaction

__all__ = ["TargetPartition"]

_TRANSACTIONS = 8192
_BYTES = 4 << 20
"""Transactions, and bytes of them, that go to storage together."""
_LARGE = 16 << 10
"""Larger records may stay out of packs: they get a row of their own."""
_FILLER = b"streamkit filler"
"""The node of transactions without entries that stand for those that are not exported."""


class _Hole(NamedTuple):
    """Sequences of a segment that were erased."""

    segment: str
    first: int
    length: int


class TargetPartition:
    """The state of one partition's import."""

    def __init__(self, partition: Partition, line: PartitionLine, retention: Retained | None, changed: Changed) -> None:
        self._partition = partition
        self._line = line
        self._reached: dict[str, int] = {}
        """The last sequence of each segment."""
        self._beginning: dict[str, list[Gap]] = {}
        """Gaps at the beginning of segments without an entry so far."""
        self._gaps: list[Gap] = []
        """Gaps before the next entry."""
        self._held: ImportedTransaction | None = None
        """The transaction before the current one. It is not written yet: it takes holes for which there is no room."""
        self._current: ImportedTransaction | None = None
        self._late: list[tuple[_Hole | None, list[Removal]]] = []
        """Holes that have no room in the current transaction, and removals that go with them."""
        self._bytes = 0
        self._begin(retention, changed)
        self.present = partition.number
        """Transactions up to this number existed already."""

    def _begin(self, retention: Retained | None, changed: Changed) -> None:
        partition, line = self._partition, self._line
        partition.read_head()
        if partition.head_etag is not None:
            return
        given = line.floor
        base = max(0, min(given.number - 1, line.end - 1))
        floor = Floor(given.number, given.reason, given.end, given.position, 0, given.timestamp)
        head = Head(
            partition.settings,
            watermark=base,
            timestamp=given.timestamp,
            position=given.position,
            cleared=base,
            trimmed=base,
            floor=floor,
            retention=retention,
            changed=changed,
        )
        etag = put_settled(
            partition.backend, partition.clock, partition.key, bytes(HEAD), encode_row(HEAD, head), ABSENT, _AGAIN
        )
        if etag is None:
            raise _overtaken(partition)
        partition.read_head()

    # -- lines --------------------------------------------------------------------------------------------------

    def add_key(self, line: Key, number: int) -> None:
        transaction = self._transaction(line.trx, line.timestamp, number)
        try:
            use = KeyUse(bytes.fromhex(line.key), bytes.fromhex(line.content), tuple(line.segments))
        except ValueError as error:
            raise CorruptData(f"line {number} of the export: its key is not hexadecimal") from error
        transaction.keys.append(use)

    def add_gap(self, line: Gap, number: int) -> None:
        self._check_segment(line.segment, number)
        if line.first != self._reached.get(line.segment, 0) + 1 or line.last < line.first:
            raise _wrong_order(number, f"sequence {line.first} of segment {line.segment!r}")
        if line.first == 1 or line.segment in self._beginning:
            self._beginning.setdefault(line.segment, []).append(line)
        else:
            self._gaps.append(line)
        self._reached[line.segment] = line.last

    def add_entry(self, line: EntryLine, number: int) -> None:
        segment, sequence = line.segment, line.sequence
        if self._reached.get(segment) != sequence - 1:
            if sequence != 1 or segment in self._reached:
                raise _wrong_order(number, f"sequence {sequence} of segment {segment!r}")
            self._check_segment(segment, number)
        transaction = self._transaction(line.trx, line.timestamp, number)
        if line.index < transaction.used:
            raise _wrong_order(number, f"entry {line.index} of transaction {line.trx.number}")
        if any(gap.segment != segment for gap in self._gaps):
            raise _wrong_order(number, "a gap of another segment before it")
        removals, holes = self._before(line)
        first = sequence - holes
        rest = transaction.add(segment, sequence, line.index, payload_of(line, number), line.metadata, holes)
        if rest and any(frame.segment == segment for frame in transaction.frames[:-1]):
            raise _wrong_order(number, f"sequence {sequence} of segment {segment!r}")
        if rest or removals:
            self._late.append((_Hole(segment, first, rest) if rest else None, removals))
        self._reached[segment] = sequence
        self._gaps = []

    def _before(self, line: EntryLine) -> tuple[list[Removal], int]:
        """The removals at the beginning of the entry's segment, and the number of erased entries before it."""
        beginning = self._beginning.pop(line.segment, None)
        gaps = self._gaps if beginning is None else beginning
        removals, holes = [], 0
        for gap in gaps:
            if beginning is not None and gap.reason != "erased":
                removals.append(Removal(gap.segment, gap.last, gap.reason, line.timestamp, line.trx.number))
                holes = 0
            else:
                holes += gap.last - gap.first + 1
        return removals, holes

    def _check_segment(self, segment: str, number: int) -> None:
        try:
            check_name(segment, "segment")
        except ValueError as error:
            raise CorruptData(f"line {number} of the export: {error}") from error
        partition = self._partition
        if partition_of(segment, partition.settings.partitions) != partition.partition:
            raise CorruptData(
                f"line {number} of the export: segment {segment!r} is not one of partition {partition.partition}"
            )

    def _transaction(self, trx: Trx, timestamp: int, number: int) -> ImportedTransaction:
        """The transaction of a line. It is the current one, or the next one."""
        current = self._current
        if current is not None and current.number == trx.number:
            if (current.id, current.node, current.timestamp) != (trx.id.bytes, trx.node.bytes, timestamp):
                raise _wrong_order(number, f"transaction {trx.number}")
            return current
        floor, end = self._line.floor.number, self._line.end
        last = (current.number, current.timestamp) if current is not None else (floor - 1, 0)
        if not last[0] < trx.number <= end or timestamp < last[1]:
            raise _wrong_order(number, f"transaction {trx.number}")
        self._complete()
        self._current = ImportedTransaction(trx.number, timestamp, trx.id.bytes, trx.node.bytes)
        return self._current

    # -- transactions -------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        """The current transaction is whole: the one before it can be written."""
        current, late = self._current, self._late
        if current is None:
            return
        self._late = []
        before = self._held
        reached = self._line.floor.number - 1 if before is None else before.number
        if late and current.number > reached + 1:
            self._write_held()
            self._fill(current.number - 2)
            before = self._filler(current.number - 1)
        for hole, removals in late:
            if before is not None:
                before.removals += removals
                if hole is not None:
                    before.append_holes(*hole)
            else:
                current.removals += removals
                if hole is not None:
                    last = hole.first + hole.length - 1
                    current.removals.append(Removal(hole.segment, last, "erased", current.timestamp, current.number))
        if before is not None and before is not self._held:
            self._write(before)
        else:
            self._write_held()
        self._held, self._current = current, None

    def _write_held(self) -> None:
        if self._held is not None:
            self._write(self._held)
            self._held = None

    def _filler(self, number: int) -> ImportedTransaction:
        partition = self._partition
        name = b"%b %d" % (partition.settings.incarnation + partition.key, number)
        id = hashlib.blake2b(name, digest_size=16).digest()
        timestamp = self._line.timestamp if number == self._line.end else partition.timestamp
        return ImportedTransaction(number, timestamp, id, _FILLER)

    def _fill(self, last: int) -> None:
        """Write transactions without entries up to number `last`."""
        while self._partition.number < last:
            self._write_next(self._filler(self._partition.number + 1))

    def _write(self, transaction: ImportedTransaction) -> None:
        self._fill(transaction.number - 1)
        if transaction.number > self._partition.number:
            self._write_next(transaction)

    def _write_next(self, transaction: ImportedTransaction) -> None:
        partition, number = self._partition, transaction.number
        record = transaction.encode(partition)
        if len(record) >= (MOST if partition.remote else _LARGE):
            self._put_row(number, record)
        partition.apply(record, number)
        self._bytes += len(record)
        if self._bytes >= _BYTES or number - partition.watermark >= _TRANSACTIONS:
            self._store()

    def _put_row(self, number: int, record: bytes) -> None:
        partition = self._partition
        key = partition.transaction_key(number)
        if put_settled(partition.backend, partition.clock, partition.key, key, record, NEXT, _AGAIN) is None:
            raise _overtaken(partition)

    def _store(self) -> None:
        partition, number = self._partition, self._partition.number
        if not bring_forward(partition) or partition.watermark != number:
            raise _overtaken(partition)
        if partition.remote and not merge_some(partition):
            raise _overtaken(partition)
        self._bytes = 0

    # -- the end ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Write the remaining transactions, and the end of the log in the head."""
        partition, line = self._partition, self._line
        self._complete()
        last = self._held
        ends = [gap for gaps in self._beginning.values() for gap in gaps] + self._gaps
        if ends and (last is None or last.number < line.end):
            self._write_held()
            self._fill(line.end - 1)
            last = self._filler(line.end)
        if last is not None:
            for gap in ends:
                if gap.segment in self._beginning and gap.reason != "erased":
                    last.removals.append(Removal(gap.segment, gap.last, gap.reason))
                else:
                    last.append_holes(gap.segment, gap.first, gap.last - gap.first + 1)
            self._write(last)
        self._held = None
        self._fill(line.end)
        if partition.number != line.end:
            raise _overtaken(partition)
        self._store()
        # Large records have rows already. A local log takes no earlier rows after them.
        if not file_pack(partition):
            raise _overtaken(partition)
        filed = partition.head.packs[-1].last if partition.head.packs else 0

        def ended(head: Head) -> Head:
            return head if head.cleared >= filed else replace(head, cleared=filed)

        change_head(partition, ended)


_AGAIN = "import again"


def _overtaken(partition: Partition) -> Unavailable:
    return Unavailable(
        f"space {partition.space!r}: another process writes to it, perhaps the same import; import again later"
    )


def _wrong_order(number: int, what: str) -> CorruptData:
    return CorruptData(f"line {number} of the export: {what} is out of order, or lines before it are missing")
