"""Reading one partition in commit order, forwards or backwards: the archive, then the log.

A read fixes its last transaction before it begins, and checks that nothing is missing on the way.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import CorruptData, UnsupportedVersion
from .batches import NOWHERE, Batch, Bounds, RequiredText, gap_batch, without_hidden
from .first_at import first_at
from .partition import Partition
from .record_format import Decoded, decode_entries, decode_records, decode_transaction, frames_with
from .view import LogView
from .visible import floor_of, may_hide_entries, number_gap

__all__ = ["ReadPosition", "logged", "logged_backwards", "partition_batches"]


class ReadPosition:
    """The place where a read continues: transaction `number`, entry `index`. A read backwards continues before it."""

    __slots__ = ("index", "number")

    def __init__(self, number: int, index: int = 0) -> None:
        self.number = number
        self.index = index

    @property
    def last(self) -> int:
        """The last transaction with an entry before it."""
        return self.number if self.index else self.number - 1


def partition_batches(
    partition: Partition,
    start: tuple[int, int],
    end: int,
    bounds: Bounds,
    *,
    reverse: bool = False,
    announce: bool = False,
    together: bool = False,
    named: bool = False,
    required: RequiredText | None = None,
) -> Iterator[Batch]:
    """The entries from (number, index in the transaction) `start` up to transaction `end`.

    `named`: `start` is a position that the caller has read to; gaps after it are reported. Forwards only: `announce`
    yields a batch without entries before each transaction of the log that is decoded next, `together` may join small
    transactions of the log. `required` leaves out some entries that lack that text.
    """
    if reverse:
        return partition.walk(_Backwards(start, end, bounds))
    return partition.walk(_Forwards(start, end, bounds, announce, together, named, required))


class _Forwards:
    def __init__(
        self,
        start: tuple[int, int],
        end: int,
        bounds: Bounds,
        announce: bool,
        together: bool,
        named: bool,
        required: RequiredText | None,
    ) -> None:
        self._start = start
        self._at = ReadPosition(*start)
        self._end = end
        self._bounds = bounds
        self._announce = announce
        self._together = together and not bounds.by_time
        self._named = named
        self._required = required

    def __call__(self, view: LogView) -> Iterator[Batch]:
        hiding = may_hide_entries(view)
        batches = self._batches(view, self._together and not hiding)
        return without_hidden(view, batches, self._bounds.gaps) if hiding else batches

    def _batches(self, view: LogView, together: bool) -> Iterator[Batch]:
        at, end, bounds = self._at, self._end, self._bounds
        while at.number <= end:
            floor = floor_of(view)
            if at.number < floor.number:
                seen = self._named or at.number > self._start[0]
                gap = number_gap(view.log.space, (at.number, at.index), floor) if seen else None
                if gap is not None and (batch := gap_batch(gap, bounds.gaps)) is not None:
                    yield batch
                at.number, at.index = floor.number, 0
                continue
            cold = min(view.cold_until, end)
            if at.number <= cold:
                yield from self._archived(view, cold)
                continue
            if bounds.min_timestamp:
                found = first_at(view, bounds.min_timestamp, at.number, end)
                if found > at.number:
                    at.number, at.index = found, 0
            until = at.number if together and at.index else end
            if self._required is not None:
                yield from _with_text(view, at, end, self._required)
            elif together and not at.index:
                yield from _together(view, at, end)
            else:
                yield from logged(view, at, until, bounds, announce=self._announce)
            if at.number <= until:
                raise view.missing(at.number)

    def _archived(self, view: LogView, last: int) -> Iterator[Batch]:
        at = self._at
        archive = view.archive()
        for batch in archive.transactions(view, (at.number, at.index), last, self._bounds, self._required):
            yield batch
            if batch.gap is not None:
                at.number, at.index = batch.gap.last_sequence + 1, 0
            else:
                at.number, at.index = batch.after
        at.number, at.index = last + 1, 0


class _Backwards:
    def __init__(self, start: tuple[int, int], end: int, bounds: Bounds) -> None:
        self._start = start
        self._at = ReadPosition(end + 1)
        self._bounds = bounds
        self._gaps: list[Batch] = []
        """Reported behind the last entry, which is the first one in the log."""

    def __call__(self, view: LogView) -> Iterator[Batch]:
        batches = self._batches(view)
        return without_hidden(view, batches, self._bounds.gaps) if may_hide_entries(view) else batches

    def _batches(self, view: LogView) -> Iterator[Batch]:
        at, bounds = self._at, self._bounds
        floor = floor_of(view)
        if self._start[0] < floor.number:
            gap = number_gap(view.log.space, self._start, floor)
            if gap is not None and (batch := gap_batch(gap, bounds.gaps)) is not None:
                self._gaps.append(batch)
            self._start = floor.number, 0
        start = self._start
        if bounds.max_timestamp and start[0] <= at.last:
            found = first_at(view, bounds.max_timestamp + 1, start[0], at.last)
            if found <= at.last:
                at.number, at.index = found, 0
        if bounds.min_timestamp and start[0] <= at.last:
            start = max(start, (first_at(view, bounds.min_timestamp, start[0], at.last), 0))
        while at.last >= start[0]:
            if at.last <= view.cold_until:
                yield from self._archived(view, start)
            else:
                begin = start if start[0] > view.cold_until else (view.cold_until + 1, 0)
                yield from logged_backwards(view, begin, at)
        yield from self._gaps

    def _archived(self, view: LogView, start: tuple[int, int]) -> Iterator[Batch]:
        at = self._at
        number = 0
        for batch in view.archive().transactions_backwards(view, start, at.last):
            number, index = batch.number, batch.first_index
            if number == at.number and index + len(batch.entries) > at.index:
                if index >= at.index:
                    continue
                batch = Batch(batch.timestamp, number, batch.origin, batch.entries[: at.index - index])
            yield batch
            at.number, at.index = number, index
        if number != start[0]:
            view.look_again()  # it has no entry, or was trimmed meanwhile
        at.number, at.index = start[0], 0


def logged(view: LogView, at: ReadPosition, end: int, bounds: Bounds, *, announce: bool = False) -> Iterator[Batch]:
    """The entries that the log holds from `at`, which goes along, up to transaction `end` or the first one that the log
    lacks. `at` is behind `end` if transactions that follow are younger than the bounds allow."""
    low, high = bounds.min_timestamp, bounds.max_timestamp
    for number, record in view.records(at.number, end):
        if announce:
            yield Batch(view.log.decode_header(record, number).timestamp, number, NOWHERE, [])
        for head, origin, entries in _frames(view, record, number):
            if high and head.timestamp > high:
                at.number, at.index = end + 1, 0
                return
            after = head.index + len(entries)
            if after <= at.index:
                continue
            if head.index < at.index:
                entries = entries[at.index - head.index :]
            if head.timestamp >= low and entries:
                yield Batch(head.timestamp, number, origin, entries)
                at.index = after
        entries = []  # a merge may wait here for long, and must not hold them
        at.number, at.index = number + 1, 0


def logged_backwards(view: LogView, start: tuple[int, int], at: ReadPosition) -> Iterator[Batch]:
    """The entries that the log holds before `at`, which goes along, down to (number, index) `start`. Moved if the log
    lacks a transaction."""
    for number, record in view.records_backwards(start[0], at.last):
        before = at.index if number == at.number else 1 << 63
        skip = start[1] if number == start[0] else 0
        for head, origin, entries in reversed(_frames(view, record, number)):
            entries = entries[max(0, skip - head.index) : max(0, before - head.index)]
            if entries:
                yield Batch(head.timestamp, number, origin, entries)
                at.number, at.index = number, head.index
        at.number, at.index = number, 0


def _frames(view: LogView, record: bytes, number: int) -> list[Decoded]:
    """The decoded frames of a transaction."""
    log = view.log
    settings = log.settings
    try:
        frames = decode_transaction(
            log.space, log.partition, settings.partitions, record, log.seed, settings.incarnation
        )
    except (CorruptData, UnsupportedVersion) as error:
        raise log.with_location(error, number) from error
    for head, _, _ in frames:
        if head.number != number:
            raise CorruptData(f"{log.where(number)}: a frame of transaction {head.number} is in its place")
    return frames


def _together(view: LogView, at: ReadPosition, end: int) -> Iterator[Batch]:
    """Read as `logged` does, from the beginning of a transaction. A batch may hold several small transactions; its
    place is that of the last one."""
    log, settings = view.log, view.log.settings
    parts = view.parts(at.number, end)
    for number, entries in decode_records(
        log.space, log.partition, settings.partitions, parts, log.seed, settings.incarnation, log.with_location
    ):
        if entries:
            latest = entries[-1]
            yield Batch(latest.timestamp, number, latest.origin, entries)
        at.number = number + 1


def _with_text(view: LogView, at: ReadPosition, end: int, required: RequiredText) -> Iterator[Batch]:
    """Read as `logged` does, without most entries that lack the required text."""
    log, settings = view.log, view.log.settings
    for number, record in view.records(at.number, end):
        if not at.index:
            required.passed += log.decode_header(record, number).count
        try:
            for frame in frames_with(record, log.seed, required.encoded):
                head, origin, entries = decode_entries(
                    log.space, log.partition, settings.partitions, frame, log.seed, 0, settings.incarnation
                )
                if head.index >= at.index:
                    required.passed -= len(entries)
                    yield Batch(head.timestamp, number, origin, entries)
                    at.index = head.index + len(entries)
        except (CorruptData, UnsupportedVersion) as error:
            raise log.with_location(error, number) from error
        at.number, at.index = number + 1, 0
