"""Reading one segment in sequence order, forwards or backwards, by the index and the tail.

A load from a local disk takes these steps:

1. `Store.consume_segment` checks the arguments, and `Reader.segment_batches` finds the partition.
2. `segment_batches`, here, brings the partition up to date and takes a view of it.
3. `Runs.blocks_of` finds the blocks that hold the segment's data rows. It reads the blocks that are not cached, from
   the open files of a backend that `OpensRows`, else in one call to the backend.
4. `SegmentRows` makes the entries: `in_blocks` from the index, `in_pieces` from the tail.
5. `Reader.entries` yields them.

The compiled codec does step 3 and the first half of step 4 in one call, `Runs.entries`, if the files are open. It
leaves everything unusual, damage too, to the steps in Python.

`_Forwards.at_once` takes steps 3 and 4. It stops before everything that is not plain: entries that the index has no
copy of, removed or archived entries, damage. `_Forwards` reads on from there, piece by piece. A segment in many blocks
is read row by row before that, with `SegmentRows.in_rows`. Reads with time bounds and reads from a remote service begin
with the pieces. A missing row before a later one is an error. Only the status of the segment shows that the last row is
missing. Most loads do not read the status: it is enough that the newest run that may have the status, by its filter,
has one small data row of the segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import CorruptData
from ..model import Entry
from . import segment_rows
from .batches import Batch, Bounds, gap_batch, without_erased
from .index_rows import decode_index_row
from .keys import data_range
from .moved import Moved
from .partition import Partition
from .record_format import decode_entries, decode_frames
from .rows import DataRow, Piece
from .segment_rows import SegmentRows
from .segment_view import hot_pieces, last_of, last_piece, piece_groups, row_of, sequence_gaps
from .view import LogView

__all__ = ["last_entry", "segment_batches"]

_SEQUENCES = 4096
"""The most sequences that a read backwards looks up at once."""
_FIRST = 16
"""Sequences that a read backwards looks up first: it often wants the last few entries only."""
_FAR = 1 << 63
"""A number after every sequence."""
_ONE_ROW = 6 << 10
"""Bytes of a data row that is taken for the newest one of its segment without a look at the status. A run has a second
row of a segment only if both together are larger than 8 KiB."""
_BYTES = 4 << 20
"""About the most bytes of frames that a read backwards loads at once."""


def segment_batches(
    partition: Partition, segment: str, bounds: Bounds, since: int | None = None, *, reverse: bool = False
) -> Iterator[Batch]:
    """One segment's entries, by sequence. For `since` see Partition.refresh."""
    if bounds.empty:
        return
    if not partition.is_current():
        partition.refresh((segment,), since, load=True)
    if reverse:
        yield from partition.walk(_Backwards(segment, bounds))
        return
    read = _Forwards(segment, bounds)
    if not partition.remote and not bounds.by_time:
        batch = partition.ask(read.at_once)
        if batch is not None:
            yield batch
        if read.ended:
            return
    yield from partition.walk(read)


class _SegmentRead:
    """The rest of a read: the sequences first..last of a segment. The first view decides which is the last."""

    def __init__(self, segment: str, bounds: Bounds) -> None:
        self._segment = segment
        self._bounds = bounds
        self._first = bounds.min_sequence
        self._last = -1
        self._until = 0
        """The end of the first view, if its status was not looked up: later transactions are not read. Else 0."""
        self.ended = False
        """Nothing is left to read."""

    def __call__(self, view: LogView) -> Iterator[Batch]:
        batches = self._batches(view)
        return without_erased(view, batches) if view.erasing else batches

    def _batches(self, view: LogView) -> Iterator[Batch]:
        raise NotImplementedError

    def _gaps(self, view: LogView) -> list[Batch]:
        """The batches that report removed entries. The read continues after them."""
        row = row_of(view, self._segment)
        if self._last < 0:
            self._last = min(row.last_sequence, self._bounds.max_sequence or row.last_sequence)
            self._first = self._first or max(row.first_sequence, 1)
        if self._first >= row.first_sequence or self._first > self._last:
            return []
        gaps = sequence_gaps(view, self._segment, row, self._first, self._last)
        self._first = row.first_sequence
        return [batch for gap in gaps if (batch := gap_batch(gap, self._bounds.gaps)) is not None]

    def _cut(self, batch: Batch, last: int) -> Batch:
        """The part of a batch that is still to be read, up to sequence `last`."""
        entries = batch.entries
        begin = entries[0].sequence
        if begin >= self._first and begin + len(entries) - 1 <= last:
            return batch
        entries = entries[max(0, self._first - begin) : max(0, last - begin + 1)]
        return Batch(batch.timestamp, batch.number, batch.origin, entries)

    def _in_view(self, batch: Batch) -> Batch:
        """The part of a batch that was committed up to `_until`."""
        until = self._until
        if not until or not batch.entries or batch.entries[-1].trx.number <= until:
            return batch
        self.ended = True
        entries = [entry for entry in batch.entries if entry.trx.number <= until]
        return Batch(batch.timestamp, batch.number, batch.origin, entries)


class _Forwards(_SegmentRead):
    _index_read = False
    """All entries that the index has were read. The status tells whether these are all."""
    _last_row_found = False
    """The index of the first view has the last data row of the segment, or the tail follows on it."""

    def _batches(self, view: LogView) -> Iterator[Batch]:
        if self._last < 0 and view.nothing_removed and not (self._bounds.by_time or self._index_read):
            self._until = self._until or view.end
            yield from self._without_status(view)
            if self.ended:
                return
        yield from self._gaps(view)
        high = self._bounds.max_timestamp
        while self._first <= self._last:
            reached = self._first
            for batch in self._logged(view):
                if high and batch.timestamp > high:
                    return
                batch = self._in_view(self._cut(batch, self._last))
                if batch.entries:
                    yield batch
                    self._first = batch.entries[-1].sequence + 1
                if self.ended:
                    return
            if self._first <= self._last and view.cold_until:
                archive = view.archive()
                for batch in archive.segment(view, self._segment, self._first, self._last):
                    if high and batch.timestamp > high:
                        return
                    batch = self._in_view(batch)
                    if batch.entries:
                        if batch.timestamp >= self._bounds.min_timestamp:
                            yield batch
                        self._first = batch.entries[-1].sequence + 1
                    if self.ended:
                        return
            if self._first == reached:
                raise _not_found(view, self._segment, self._first)

    def at_once(self, view: LogView) -> Batch | None:
        """The first entries of a segment that still has all its entries in the log; mostly all of them.

        The last entry ends the read, and the status is not looked up. `ended` is False if the status has to decide.
        """
        if not view.nothing_removed:
            return None
        segment = self._segment
        self._until = end = view.end
        first, last = self._bounds.min_sequence or 1, self._bounds.max_sequence or _FAR
        entries: list[Entry] = []
        reached, ended = first, True
        tail = view.tail.pieces_until(segment, end)
        if view.tail.watermark and (not tail or tail[0].first_sequence > first):
            found = view.index.entries(view.log.reader, segment, first, last, entries, segment_rows.MOST)
            if found is None:
                begin, after = data_range(segment, first)
                blocks = view.index.blocks_of(segment, begin, after)
                if blocks is None:
                    return None
                found = _segment_rows(view.log, segment).in_blocks(*blocks, begin, after, first, last, entries)
            reached, ended, newest = found
            self._last_row_found = 0 < newest <= _ONE_ROW
        if ended and tail:
            reached, ended = _segment_rows(view.log, segment).in_pieces(tail, reached, last, entries)
        self._last_row_found = self._last_row_found or bool(tail)  # the tail follows on the last row
        known = view.known(segment)
        sure = self._last_row_found if known is None else reached > known.last_sequence
        self.ended = ended and (sure or reached > last)
        self._index_read = ended
        if not entries:
            return None
        self._first = reached
        latest = entries[-1]
        return Batch(latest.timestamp, latest.trx.number, latest.origin, entries)

    def _without_status(self, view: LogView) -> Iterator[Batch]:
        """The entries of a segment that still has all its entries in the log, mostly without a look at its status.

        `ended` is False if the status has to decide: there are no pieces, one is missing, or the last one may be.
        """
        last, pieces = self._bounds.max_sequence or _FAR, list[Piece]()
        if not view.log.remote:
            yield from self._in_rows(view, last)
            self.ended = self.ended or self._first > last
            if self.ended:
                return
        for pieces in piece_groups(view, self._segment, self._first or 1, last):
            later = bool(pieces) and pieces[-1].number > self._until
            if later:
                pieces = [piece for piece in pieces if piece.number <= self._until]
            for batch in _load_together(view, self._segment, pieces):
                batch = self._cut(batch, last)
                yield batch
                self._first = batch.entries[-1].sequence + 1
            if later:
                self.ended = True
                return
        known = view.known(self._segment)
        if known is not None:
            end = min(known.last_sequence, last)
        else:
            # A later row of the index may be lost. On a remote service a look at the status is a request more.
            end = 0 if view.log.remote or self._last_row_found else last
        self.ended = bool(pieces) and self._first > end

    def _in_rows(self, view: LogView, last: int) -> Iterator[Batch]:
        """The entries up to sequence `last` in the rows of the index, up to the first row that is not plain."""
        segment, first = self._segment, self._first or 1
        tail = view.tail.pieces_until(segment, view.end)
        if not view.tail.watermark or (tail and tail[0].first_sequence <= first):
            return
        rows = view.index.scan(*data_range(segment, first), segment.encode())
        for entries in _segment_rows(view.log, segment).in_rows((value for _, value in rows), first, last):
            latest = entries[-1]
            batch = self._in_view(Batch(latest.timestamp, latest.trx.number, latest.origin, entries))
            if batch.entries:
                yield batch
                self._first = batch.entries[-1].sequence + 1
            if self.ended:
                return

    def _logged(self, view: LogView) -> Iterator[Batch]:
        """The next entries in the log, up to the first one that is archived or missing."""
        bounds, segment = self._bounds, self._segment
        for pieces in piece_groups(view, segment, self._first, self._last):
            if not pieces or pieces[0].number <= view.cold_until:
                return
            if not bounds.by_time:
                yield from _load_together(view, segment, pieces)
                continue
            yield from _load(view, segment, [piece for piece in pieces if piece.timestamp >= bounds.min_timestamp])
            self._first = max(self._first, pieces[-1].last_sequence + 1)


class _Backwards(_SegmentRead):
    def __init__(self, segment: str, bounds: Bounds) -> None:
        super().__init__(segment, bounds)
        self._gap_batches: list[Batch] = []
        """The gaps before the first entry. A read backwards reports them at its end."""

    def _batches(self, view: LogView) -> Iterator[Batch]:
        self._gap_batches += self._gaps(view)
        low, high = self._bounds.min_timestamp, self._bounds.max_timestamp or 1 << 63
        size = _FIRST
        while self._first <= self._last:
            reached = self._last
            pieces = self._pieces_from(view, max(self._first, self._last - size + 1))
            for batch in _load_backwards(
                view, self._segment, [piece for piece in pieces if low <= piece.timestamp <= high]
            ):
                batch = self._cut(batch, self._last)
                yield batch
                self._last = batch.entries[0].sequence - 1
            if pieces:
                if pieces[0].timestamp < low:
                    break
                self._last = pieces[0].first_sequence - 1
                size = min(size * 2, _SEQUENCES)
            elif view.cold_until:
                archive = view.archive()
                for batch in archive.segment_backwards(view, self._segment, self._first, self._last):
                    if batch.timestamp < low:
                        self._last = 0
                        break
                    if batch.timestamp <= high:
                        yield batch
                    self._last = batch.entries[0].sequence - 1
            if self._last == reached:
                raise _not_found(view, self._segment, reached)
        yield from reversed(self._gap_batches)

    def _pieces_from(self, view: LogView, begin: int) -> list[Piece]:
        """The pieces that hold sequences from `begin` up to the last one and are not archived."""
        pieces: list[Piece] = []
        for piece in hot_pieces(view, self._segment, begin):
            if piece.first_sequence > self._last:
                break
            if pieces and piece.first_sequence != pieces[-1].last_sequence + 1:
                raise _not_found(view, self._segment, pieces[-1].last_sequence + 1)
            pieces.append(piece)
        if pieces and pieces[-1].last_sequence < self._last:
            raise _not_found(view, self._segment, self._last)
        return pieces


def _not_found(view: LogView, segment: str, sequence: int) -> Moved:
    return Moved(
        f"space {view.log.space!r}, segment {segment!r}: the index does not know where sequence {sequence} is; "
        "check the store with `streamkit verify`"
    )


def _segment_rows(log: Partition, segment: str) -> SegmentRows:
    settings = log.settings
    return SegmentRows(log.space, log.partition, settings.partitions, segment, log.seed, settings.incarnation)


def _load_together(view: LogView, segment: str, pieces: Sequence[Piece]) -> Iterator[Batch]:
    """The entries of pieces, several small frames in one batch, which has the place of the last one."""
    log, settings = view.log, view.log.settings
    partitions, incarnation, frames = settings.partitions, settings.incarnation, view.frames(pieces)
    for number, entries in decode_frames(
        log.space, log.partition, partitions, segment, frames, log.seed, incarnation, log.with_location
    ):
        latest = entries[-1]
        yield Batch(latest.timestamp, number, latest.origin, entries)


def _load(view: LogView, segment: str, pieces: Sequence[Piece], start: int = 0) -> Iterator[Batch]:
    """The entries of pieces, a batch for each."""
    log, settings = view.log, view.log.settings
    for number, first, frame in view.frames(pieces):
        try:
            head, origin, entries = decode_entries(
                log.space, log.partition, settings.partitions, frame, log.seed, start, settings.incarnation
            )
        except CorruptData as error:
            raise log.with_location(error, number) from error
        if head.segment != segment or head.first_sequence != first or head.number != number:
            where = log.where(number)
            raise CorruptData(f"{where}: the index points at a frame of {head.segment!r} instead of {segment!r}")
        yield Batch(head.timestamp, head.number, origin, entries)


def _load_backwards(view: LogView, segment: str, pieces: Sequence[Piece]) -> Iterator[Batch]:
    """The entries of pieces, a batch for each, the last batch first."""
    end = len(pieces)
    while end:
        begin, length = end - 1, pieces[end - 1].length
        while begin and length + pieces[begin - 1].length <= _BYTES:
            begin -= 1
            length += pieces[begin].length
        yield from reversed(list(_load(view, segment, pieces[begin:end])))
        end = begin


def last_entry(partition: Partition, segment: str, since: int | None = None) -> Entry | None:
    """The latest entry of a segment, or None. For `since` see Partition.refresh."""
    if not partition.is_current():
        partition.refresh((), since)
    latest = partition.latest
    # In this order. An erasure first hides its entries, then it counts as a drop. It hides them until there is an index
    # without them. The index takes over the beginning of a tail before that is dropped; and of two entries the later
    # one is kept. An erasure that a view lacks counts as one after it, because the drops come before the view.
    drops, row = latest.drops, partition.cached.get(segment)
    if row is None:
        nothing_removed, tail, index = partition.nothing_removed, partition.tail.pieces.get(segment), partition.index
        entry = latest.last_of(segment, index)
        if nothing_removed and (tail is None or (entry is not None and tail[-1].last_sequence == entry.sequence)):
            if entry is not None:
                partition.counters["cache_hits"] += 1
                return entry
            # The newest data row tells as much as the status.
            entry = index.last_entry(partition.reader, segment, _ONE_ROW)
            if entry is not None:
                partition.counters["cache_misses"] += 1
                latest.keep(entry, drops, index)
                return entry
    elif (
        partition.retention is None
        and row.first_number >= partition.floor.number
        and (entry := latest.get(segment)) is not None
        and row.first_sequence <= row.last_sequence == entry.sequence
        and (entry.trx.number > partition.head.archived or entry.tier == "cold")
    ):
        partition.counters["cache_hits"] += 1
        return entry  # most peeks end here, without a view
    return partition.ask(_last_entry, segment, drops)


def _last_entry(view: LogView, segment: str, drops: int) -> Entry | None:
    """`drops`: those of the cache before the view was taken."""
    latest, counters = view.log.latest, view.log.counters
    index = view.index if view.nothing_removed and view.log.cached.get(segment) is None else None
    if index is not None:
        # The newest data row tells as much as the status, and it is read anyway.
        entry = _newest_entry(view, segment)
        if entry is not None:
            counters["cache_misses"] += 1
            latest.keep(entry, drops, index)
            return entry
    row = last_of(view, segment)
    if row.empty:
        return None
    last = row.last_sequence
    known = latest.get(segment)
    if known is not None and known.sequence == last and (known.trx.number > view.cold_until or known.tier == "cold"):
        counters["cache_hits"] += 1
        if index is not None:
            latest.keep(known, drops, index)  # the next peek does not look for its data row again
        return known
    counters["cache_misses"] += 1
    entry = _load_last(view, segment, last)
    if type(entry.payload) is bytes and not view.erasing:
        latest.keep(entry, drops, index)
        return entry
    for batch in _Backwards(segment, Bounds())(view):  # the last one is erased, or may be
        for entry in reversed(batch.entries):
            if type(entry.payload) is bytes:
                return entry
    return None


def _newest_entry(view: LogView, segment: str) -> Entry | None:
    """The last entry of a segment, if `nothing_removed`; None if only the status tells it."""
    tail = view.tail.pieces_until(segment, view.end)
    if tail:
        piece = tail[-1]
    else:
        start, end = data_range(segment, 1)
        value = view.index.last(segment, start, end) if view.tail.watermark else None
        if value is None or len(value) > _ONE_ROW:
            return None
        entry = _segment_rows(view.log, segment).last_entry(value)
        if entry is not None:
            return entry
        piece = decode_index_row(DataRow, start, value).pieces[-1]
    entry = next(_load(view, segment, [piece], piece.last_sequence)).entries[-1]
    return entry if type(entry.payload) is bytes else None


def _load_last(view: LogView, segment: str, last: int) -> Entry:
    """The entry with sequence `last`. Moved if neither the index nor the archive has it."""
    piece = last_piece(view, segment, last)
    if piece is not None and piece.number > view.cold_until:
        return next(_load(view, segment, [piece], last)).entries[-1]
    if view.cold_until:
        for batch in view.archive().segment(view, segment, last, last):
            return batch.entries[-1]
    raise _not_found(view, segment, last)
