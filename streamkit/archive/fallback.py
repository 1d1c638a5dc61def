"""Reads the log in place of a damaged archive, while the grace keeps archived transactions in the log.

This applies only to an archive that is missing or cannot be read. Rows that somebody has changed are an error at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import CorruptData
from ..log.archive_reader import Amount, Contents
from ..log.batches import Batch, Bounds, Needles
from ..log.held import archive_row, held_from
from ..log.read_partition import Place, logged, logged_backwards
from ..log.read_segment import logged_segment
from ..log.record_format import Header
from ..log.view import LogView
from ..warn import warn
from .errors import UNREADABLE, Damaged, Elsewhere

if TYPE_CHECKING:
    import pyarrow as pa

    from ..log.partition import Partition
    from .read import Archive

__all__ = ["ArchiveOrLog"]


_CHUNK = 1024
"""Entries of a segment that are read from the log together, backwards."""


def _or_raise(batches: Iterator[Batch], damage: Damaged | Elsewhere) -> Iterator[Batch]:
    """The batches of the log; the damage if it lacks one."""
    try:
        yield from batches
    except CorruptData as error:
        raise damage from error


def _held(partition: Partition, number: int) -> Header | None:
    """The header of an archived transaction, if the log still holds that."""
    return partition.header(number) if held_from(partition, number, number) == number else None


def _first_of(partition: Partition, first: int, last: int, holds: Callable[[Header], bool]) -> int:
    """The first transaction of first..last for which `holds` is true, or last + 1. The log has all of them."""
    low, high = first, last + 1
    while low < high:
        middle = (low + high) // 2
        header = partition.header(middle)
        if header is None:
            raise CorruptData(f"{partition.where(middle)} is missing from the log")
        low, high = (low, middle) if holds(header) else (middle + 1, high)
    return low


def _listed(view: LogView, segment: str, first: int, last: int) -> list[Batch]:
    return list(logged_segment(view, segment, first, last))


class ArchiveOrLog:
    """An archive as `streamkit.log.archive_reader.ArchiveReader`, and the log for what it should hold and does not."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._warned = False

    def _instead(self, partition: Partition, error: Damaged | Elsewhere) -> None:
        if not self._warned:
            self._warned = True
            warn(
                "%s: the archive is damaged, or not where it is looked for, and the log is read in its place, for as "
                "long as it holds that: restore the table before the grace is over, or name its place with "
                "connect(archive=…): %s",
                partition.where(partition.head.archived),
                error,
            )

    def transactions(
        self, partition: Partition, start: tuple[int, int], last: int, bounds: Bounds, needles: Needles | None = None
    ) -> Iterator[Batch]:
        batch = None
        try:
            for batch in self._archive.transactions(partition, start, last, bounds, needles):
                yield batch
            return
        except UNREADABLE as error:
            damage = error
        if batch is not None and batch.gap is not None:
            start = (batch.gap.last_sequence + 1, 0)
        elif batch is not None:
            index = batch.entries[-1].sequence - batch.origin.first_sequence
            start = (batch.number, batch.origin.index + index + 1)
        held = held_from(partition, start[0], last)
        if held is None:
            raise damage
        if held > start[0]:
            yield from self._archive.transactions(partition, start, held - 1, bounds, needles)
            start = (held, 0)
        self._instead(partition, damage)
        at = Place(*start)
        yield from partition.walk(lambda view: logged(view, at, last, bounds))
        if at.number <= last:
            raise damage

    def tables(
        self, partition: Partition, start: tuple[int, int], last: int, columns: Sequence[str]
    ) -> Iterator[pa.Table | Batch]:
        """Like `tables` of Archive. After damage, the rest comes as batches."""
        try:
            for rows in self._archive.tables(partition, start, last, columns):
                yield rows
                start = (rows["number"][-1].as_py() + 1, 0)
        except UNREADABLE:
            # The rest in entries, as other readers have it.
            yield from self.transactions(partition, start, last, Bounds())

    def segment(self, partition: Partition, segment: str, first: int, last: int) -> Iterator[Batch]:
        try:
            for batch in self._archive.segment(partition, segment, first, last):
                yield batch
                first = batch.entries[-1].sequence + 1
            return
        except UNREADABLE as error:
            damage = error
        removed = archive_row(partition).removed

        def read(view: LogView) -> Iterator[Batch]:
            return logged_segment(view, segment, first, last)

        try:
            for batch in self._archive.segment(partition, segment, first, last, removed):
                yield batch
                first = batch.entries[-1].sequence + 1
        except UNREADABLE:
            pass  # what follows on it may still be in the log
        if first > last:
            return
        try:
            for batch in partition.walk(read):
                if batch.number <= removed:
                    raise damage
                self._instead(partition, damage)
                yield batch
                first = batch.entries[-1].sequence + 1
        except CorruptData as error:
            raise damage from error

    def entries_until(self, partition: Partition, number: int) -> int:
        """Entries of the partition up to transaction `number`, which is archived."""
        try:
            return self._archive.entries_until(partition, number)
        except UNREADABLE as error:
            header = _held(partition, number)
            if header is None:
                raise
            self._instead(partition, error)
            return header.position + header.count

    def place(self, partition: Partition, number: int) -> tuple[int, int, int]:
        try:
            return self._archive.place(partition, number)
        except UNREADABLE as error:
            header = _held(partition, number)
            if header is None:
                raise
            self._instead(partition, error)
            return header.position, header.count, header.timestamp

    def number_of(self, partition: Partition, position: int) -> int | None:
        try:
            return self._archive.number_of(partition, position)
        except UNREADABLE as error:
            last = partition.head.archived
            held = held_from(partition, 1, last)
            header = None if held is None else partition.header(held)
            if held is None or header is None or header.position > position:
                raise
            self._instead(partition, error)
        return _first_of(partition, held, last, lambda header: header.position + header.count > position)

    def bytes_between(self, partition: Partition, first: int, last: int) -> int:
        try:
            return self._archive.bytes_between(partition, first, last)
        except UNREADABLE as error:
            held = held_from(partition, first, last)
            begin, end = (partition.header(number) if held == first else None for number in (first, last))
            if begin is None or end is None:
                raise
            self._instead(partition, error)
            return end.after - begin.size

    def first_within(self, partition: Partition, first: int, last: int, most: int) -> int:
        try:
            return self._archive.first_within(partition, first, last, most)
        except UNREADABLE as error:
            held = held_from(partition, first, last)
            if held is None:
                raise
            begin, end = partition.header(held), partition.header(last)
            if begin is None or end is None or (held > first and end.after - begin.size <= most):
                raise
            least = end.after - most
            self._instead(partition, error)
        return _first_of(partition, held, last, lambda header: header.size >= least)

    def segment_bytes(self, partition: Partition, segment: str, first: int, last: int) -> tuple[int, int]:
        try:
            return self._archive.segment_bytes(partition, segment, first, last)
        except UNREADABLE:
            batches = self.segment(partition, segment, first, last)
            sizes = [len(entry.payload) for batch in batches for entry in batch.entries]
            return len(sizes), sum(sizes)

    def amounts_backwards(self, partition: Partition, first: int, last: int, sized: bool) -> Iterator[Amount]:
        end = last
        try:
            for amount in self._archive.amounts_backwards(partition, first, last, sized):
                yield amount
                end = amount.number - 1
            return
        except UNREADABLE as error:
            damage = error
        held = held_from(partition, first, end)
        if held is None:
            raise damage
        self._instead(partition, damage)
        for number in range(end, held - 1, -1):
            header = partition.header(number)
            if header is None:
                raise damage
            if header.count:
                yield Amount(number, header.timestamp, header.count, header.after - header.size)
        if held > first:
            yield from self._archive.amounts_backwards(partition, first, held - 1, sized)

    def transactions_backwards(self, partition: Partition, start: tuple[int, int], last: int) -> Iterator[Batch]:
        number = last + 1
        index = 0
        try:
            for batch in self._archive.transactions_backwards(partition, start, last):
                yield batch
                number, index = (
                    batch.number,
                    batch.origin.index + batch.entries[0].sequence - batch.origin.first_sequence,
                )
            return
        except UNREADABLE as error:
            damage = error
        # First the rest of the transaction in which it ended, then the transactions before it.
        last = number if index else number - 1
        held = held_from(partition, start[0], last) if last >= start[0] else start[0]
        if held is None:
            raise damage
        self._instead(partition, damage)
        least, at = max(start, (held, 0)), Place(last + 1)
        batches = partition.walk(lambda view: logged_backwards(view, least, at))
        for batch in _or_raise(batches, damage):
            if batch.number == number:
                here = batch.origin.index + batch.entries[0].sequence - batch.origin.first_sequence
                if here >= index:
                    continue
                batch = Batch(batch.timestamp, batch.number, batch.origin, batch.entries[: index - here])
            yield batch
        if held > start[0]:
            yield from self._archive.transactions_backwards(partition, start, held - 1)

    def segment_backwards(self, partition: Partition, segment: str, first: int, last: int) -> Iterator[Batch]:
        try:
            for batch in self._archive.segment_backwards(partition, segment, first, last):
                yield batch
                last = batch.entries[0].sequence - 1
            return
        except UNREADABLE as error:
            damage = error
        removed = archive_row(partition).removed
        pieces = partition.ask(lambda view: list(view.pieces_after(segment, first)))
        begin = next((piece.first_sequence for piece in pieces if piece.number > removed), last + 1)
        while last >= max(first, begin):
            try:
                least = max(first, begin, last - _CHUNK + 1)
                found = partition.ask(_listed, segment, least, last)
            except CorruptData as error:
                raise damage from error
            for batch in reversed(found):
                self._instead(partition, damage)
                yield batch
                last = batch.entries[0].sequence - 1
        if first <= last:  # only the archive can tell
            yield from self._archive.segment_backwards(partition, segment, first, last)

    def first_at(self, partition: Partition, timestamp: int, first: int, last: int) -> int:
        try:
            return self._archive.first_at(partition, timestamp, first, last)
        except UNREADABLE as error:
            held = held_from(partition, first, last)
            if held is None:
                raise
            self._instead(partition, error)
        if held > first:
            found = self._archive.first_at(partition, timestamp, first, held - 1)
            if found < held:
                return found
        return _first_of(partition, held, last, lambda header: header.timestamp >= timestamp)

    def first_of(self, partition: Partition, segment: str, least: int) -> int | None:
        try:
            return self._archive.first_of(partition, segment, least)
        except UNREADABLE as error:
            last = partition.head.archived
            held = held_from(partition, least, last) if least <= last else least
            if held != least:
                raise
            self._instead(partition, error)
        for piece in partition.ask(lambda view: list(view.pieces_after(segment, 1))):
            if least <= piece.number <= last:
                return piece.first_sequence
        return None

    def touched(self, partition: Partition, first: int, last: int) -> Iterator[str]:
        try:
            yield from list(self._archive.touched(partition, first, last))
            return
        except UNREADABLE as error:
            held = held_from(partition, first, last)
            if held is None:
                raise
            self._instead(partition, error)
        latest: dict[str, None] = {}
        if held > first:
            latest = dict.fromkeys(self._archive.touched(partition, first, held - 1))
        at = Place(held)
        for batch in partition.walk(lambda view: logged(view, at, last, Bounds())):
            segment = batch.entries[0].segment
            latest.pop(segment, None)
            latest[segment] = None
        yield from latest

    def has(self, partition: Partition, id: bytes, number: int | None, made: int) -> bool:
        # A row of a stale writer in the log looks like a committed one: only the table can tell.
        return self._archive.has(partition, id, number, made)

    def examine(self, partition: Partition, last: int) -> Contents:
        return self._archive.examine(partition, last)
