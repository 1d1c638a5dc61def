"""Reading: a partition's log in commit order, a segment by the index and the tail, several of them merged by time.

Everything here yields batches, the entries of one frame, so that what is decided once a batch is not decided for every
entry. A reader fixes the last transaction that it will see before its first batch, and checks that nothing is missing
on the way: a hole raises CorruptData.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec.structs import force_setattr, replace

from ..backend import Range
from ..errors import CorruptData, UnsupportedVersion
from ..gaps import Gap
from ..metadata import NO_METADATA
from ..model import Entry, Origin
from .first_at import first_at
from .floors import REMOVED, Erasure, Gaps, Removed
from .index_reader import Index, RunGone
from .index_rows import decode_index_row
from .keys import data_range
from .offsets import Offset
from .packs import Frame
from .partition import Partition
from .record_format import decode_entries, decode_frames, decode_records, decode_transaction, frames_with
from .records import records
from .rows import DataRow, Piece
from .visible import floor_of, hides, last_of, missing_error, number_gap, raises, row_of, sequence_gaps, still_there

__all__ = [
    "Batch",
    "Bounds",
    "Cursor",
    "Needles",
    "NotLogged",
    "end_of",
    "first_at",
    "intact",
    "is_named",
    "last_entry",
    "load",
    "logged",
    "logged_segment",
    "merge",
    "partition_batches",
    "pieces_of",
    "position_of",
    "segment_batches",
]

_ENOUGH = 1 << 63
_NOWHERE = Origin(0, 0, 0, 0, 0)
_PIECES = 512
_BYTES = 4 << 20


class Bounds(NamedTuple):
    """Inclusive; 0 means no bound."""

    min_sequence: int = 0
    max_sequence: int = 0
    min_timestamp: int = 0
    max_timestamp: int = 0
    gaps: Gaps = "skip"

    @property
    def by_time(self) -> bool:
        return bool(self.min_timestamp or self.max_timestamp)

    @property
    def empty(self) -> bool:
        return bool(
            (self.max_sequence and self.min_sequence > self.max_sequence)
            or (self.max_timestamp and self.min_timestamp > self.max_timestamp)
        )


class Needles:
    """Text that the metadata of entries is to hold; a reader passes over most of the others without decoding them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = list(texts)
        self.all = [text.encode() for text in self.texts]
        self.passed = 0
        """Entries that were passed over."""


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Entries of one frame, at least one; or what is missing before those of the next."""

    timestamp: int
    number: int
    origin: Origin
    entries: list[Entry]
    gap: Gap | None = None


def partition_batches(
    partition: Partition,
    start: tuple[int, int],
    end: int,
    bounds: Bounds,
    *,
    announce: bool = False,
    together: bool = False,
    named: bool = False,
    needles: Needles | None = None,
) -> Iterator[Batch]:
    """The log from (number, index in the transaction) `start` up to transaction `end`; what is archived, from there.

    With `announce` a batch without entries comes before each transaction of the log, which is not decoded yet. With
    `together` small transactions of the log are one batch, which tells its last one's place. `named`: somebody has read
    up to `start`, be it the beginning, and is told of what is missing behind it. With `needles` some of what does not
    hold them is left out.
    """
    hiding = hides(partition)
    together = together and not bounds.by_time and not hiding
    batches = _partition_batches(
        partition, start, end, bounds, needles, announce=announce, together=together, named=named
    )
    return without_hidden(partition, batches, bounds.gaps) if hiding else batches


def _partition_batches(
    partition: Partition,
    start: tuple[int, int],
    end: int,
    bounds: Bounds,
    needles: Needles | None,
    *,
    announce: bool,
    together: bool,
    named: bool,
) -> Iterator[Batch]:
    number, skip = start
    while number <= end:
        floor = floor_of(partition)
        if number < floor.number:
            gap = number_gap(partition, (number, skip), floor) if named or number > start[0] else None
            if gap is not None and (at := told(gap, bounds.gaps)) is not None:
                yield at
            number, skip = floor.number, 0
            continue
        archived = min(partition.head.archived, end)
        if number <= archived:
            yield from partition.archive().transactions(partition, (number, skip), archived, bounds, needles)
            number, skip = archived + 1, 0
            continue
        if bounds.min_timestamp:
            found = first_at(partition, bounds.min_timestamp, number, end)
            if found > number:
                number, skip = found, 0
        until = number if together and skip else end
        if needles is not None:
            reached = yield from _with_needles(partition, number, end, needles)
        elif together and not skip:
            reached = yield from _together(partition, number, end)
        else:
            reached = yield from logged(partition, (number, skip), until, bounds, announce=announce)
        if reached > number:
            number, skip = reached, 0
        if number <= until and not partition.archived_since(number) and still_there(partition, number):
            raise partition.missing(number)


def told(gap: Gap, gaps: Gaps) -> Batch | None:
    """What a reader is told of a gap. EntriesRemoved if it is to be stopped."""
    if gaps == "raise" and raises(gap):
        raise missing_error(gap)
    return Batch(0, 0, _NOWHERE, [], gap) if gaps == "yield" else None


def without_hidden(partition: Partition, batches: Iterator[Batch], gaps: Gaps) -> Iterator[Batch]:
    """`batches` of a log, without entries of segments that begin later by now, or were erased."""
    for batch in without_erased(partition, batches):
        if batch.entries:
            first = batch.entries[0]
            row = row_of(partition, first.segment)
            count = row.first_sequence - first.sequence
            if count > 0:
                entries = batch.entries[count:]
                if gaps == "yield":
                    last = min(row.first_sequence - 1, batch.entries[-1].sequence)
                    for gap in sequence_gaps(partition, first.segment, row, first.sequence, last):
                        yield Batch(batch.timestamp, batch.number, batch.origin, [], gap)
                if entries:
                    yield Batch(batch.timestamp, batch.number, batch.origin, entries)
                continue
        yield batch


def without_erased(partition: Partition, batches: Iterator[Batch]) -> Iterator[Batch]:
    """`batches`, with the entries marked that are erased and not yet everywhere."""
    erasing: dict[str, list[Erasure]] = {}
    for erasure in partition.erasing:
        erasing.setdefault(erasure.segment, []).append(erasure)
    for batch in batches:
        entries = batch.entries
        ranges = erasing.get(entries[0].segment) if entries else None
        if ranges and any(one.first <= entries[-1].sequence and entries[0].sequence <= one.last for one in ranges):
            # Of several frames together, each entry keeps the origin of its own.
            origins: dict[int, Origin] = {}
            marked = []
            for entry in entries:
                if id(entry.origin) not in origins:
                    origins[id(entry.origin)] = replace(entry.origin, holes=True)
                origin = origins[id(entry.origin)]
                if any(one.first <= entry.sequence <= one.last for one in ranges):
                    entry = replace(entry, payload=REMOVED["erased"], metadata=NO_METADATA, origin=origin)
                else:
                    entry = replace(entry, origin=origin)
                marked.append(entry)
            batch = Batch(batch.timestamp, batch.number, origin, marked)
        yield batch


def intact(batches: Iterable[Batch]) -> Iterator[Batch]:
    """`batches` without what is gone: those around it are batches of their own."""
    for batch in batches:
        if batch.gap is not None:
            continue
        if not batch.origin.holes:
            yield batch
            continue
        run: list[Entry] = []
        for entry in batch.entries:
            if not isinstance(entry.payload, Removed):
                run.append(entry)
            elif run:
                yield Batch(batch.timestamp, batch.number, batch.origin, run)
                run = []
        if run:
            yield Batch(batch.timestamp, batch.number, batch.origin, run)


def left(batch: Batch, gaps: Gaps) -> list[Entry | Gap]:
    """What a reader is given of a batch of which entries are gone."""
    if batch.gap is not None:
        return [batch.gap]
    if not batch.origin.holes:
        return list(batch.entries)
    found: list[Entry | Gap] = []
    for entry in batch.entries:
        payload = entry.payload
        if not isinstance(payload, Removed):
            found.append(entry)
        elif gaps == "yield":
            before = found[-1] if found else None
            first = entry.sequence
            if isinstance(before, Gap) and before.reason == payload.reason and before.last_sequence == first - 1:
                first = before.first_sequence
                found.pop()
            found.append(Gap(entry.space, entry.segment, first, entry.sequence, payload.reason))
    return found


def logged(
    partition: Partition, start: tuple[int, int], end: int, bounds: Bounds, *, announce: bool = False
) -> Generator[Batch, None, int]:
    """What the log itself holds from `start` up to transaction `end`. Returns the number that it lacks, or end + 1."""
    number, skip = start
    for at, record in records(partition, number, end):
        if announce:
            yield Batch(partition.decode_header(record, at).timestamp, at, _NOWHERE, [])
        if not (yield from _transaction_batches(partition, record, at, skip, bounds)):
            return end + 1
        number, skip = at + 1, 0
    return number


def _together(partition: Partition, first: int, end: int) -> Generator[Batch, None, int]:
    """What `logged` does, from the beginning of a transaction, of several small ones in one batch."""
    space, index, settings, seed = partition.space, partition.partition, partition.settings, partition.seed
    log = records(partition, first, end)
    number = first
    for last, entries in decode_records(
        space, index, settings.partitions, log, seed, settings.incarnation, partition.with_location
    ):
        if entries:
            latest = entries[-1]
            yield Batch(latest.timestamp, last, latest.origin, entries)
        number = last + 1
    return number


def _with_needles(partition: Partition, first: int, end: int, needles: Needles) -> Generator[Batch, None, int]:
    """What `logged` does, from the beginning of a transaction, without most of what holds no needle."""
    space, index, settings, seed = partition.space, partition.partition, partition.settings, partition.seed
    for number, record in records(partition, first, end):
        needles.passed += partition.decode_header(record, number).count
        try:
            for frame in frames_with(record, seed, needles.all):
                head, origin, entries = decode_entries(
                    space, index, settings.partitions, frame, seed, 0, settings.incarnation
                )
                needles.passed -= len(entries)
                yield Batch(head.timestamp, number, origin, entries)
        except (CorruptData, UnsupportedVersion) as error:
            raise partition.with_location(error, number) from error
        first = number + 1
    return first


def _transaction_batches(
    partition: Partition, record: bytes, number: int, skip: int, bounds: Bounds
) -> Generator[Batch, None, bool]:
    """One transaction from entry `skip` on. Returns False if it is younger than the bounds allow."""
    low, high = bounds.min_timestamp, bounds.max_timestamp
    space, index, settings, seed = partition.space, partition.partition, partition.settings, partition.seed
    try:
        frames = decode_transaction(space, index, settings.partitions, record, seed, settings.incarnation)
    except (CorruptData, UnsupportedVersion) as error:
        raise partition.with_location(error, number) from error
    for head, origin, entries in frames:
        if head.number != number:
            raise CorruptData(f"{partition.where(number)}: a frame of transaction {head.number} is in its place")
        timestamp = head.timestamp
        if high and timestamp > high:
            return False
        if skip:
            if head.index + len(entries) <= skip:
                continue
            if head.index < skip:
                entries = entries[skip - head.index :]
        if timestamp >= low and entries:
            yield Batch(timestamp, number, origin, entries)
    return True


# -- one segment ----------------------------------------------------------------------------------------------------


def segment_batches(partition: Partition, segment: str, bounds: Bounds, since: int | None = None) -> Iterator[Batch]:
    """One segment's entries in sequence order. For `since` see Partition.refresh."""
    if bounds.empty:
        return
    partition.refresh((segment,), since, load=True)
    batches = _segment_batches(partition, segment, bounds)
    yield from without_erased(partition, batches) if partition.erasing else batches


def _segment_batches(partition: Partition, segment: str, bounds: Bounds) -> Iterator[Batch]:
    row = row_of(partition, segment)
    last = min(row.last_sequence, bounds.max_sequence or row.last_sequence)
    first = max(bounds.min_sequence or row.first_sequence, 1)
    low, high = bounds.min_timestamp, bounds.max_timestamp
    while first <= last:
        if first < row.first_sequence:
            for gap in sequence_gaps(partition, segment, row, first, last):
                if (at := told(gap, bounds.gaps)) is not None:
                    yield at
            first = row.first_sequence
            continue
        elsewhere = None
        try:
            for batch in _logged(partition, segment, first, last, low, together=not bounds.by_time):
                if high and batch.timestamp > high:
                    return
                entries = batch.entries
                begin = entries[0].sequence
                if begin < first or begin + len(entries) - 1 > last:
                    entries = entries[max(0, first - begin) : last - begin + 1]
                    batch = Batch(batch.timestamp, batch.number, batch.origin, entries)
                if entries:
                    yield batch
                    first = entries[-1].sequence + 1
            return
        except NotLogged as error:
            elsewhere = error
        # A piece that the log does not hold is in the archive, or was moved there under this reader.
        archived, reached = partition.head.archived, first
        if archived:
            for batch in partition.archive().segment(partition, segment, first, last):
                if high and batch.timestamp > high:
                    return
                if batch.timestamp >= low:
                    yield batch
                first = batch.entries[-1].sequence + 1
        if first == reached:
            partition.read_head()
            partition.refresh()
            row = row_of(partition, segment)
            if partition.head.archived == archived and row.first_sequence <= first:
                raise CorruptData(str(elsewhere))


class NotLogged(CorruptData):
    """The log does not hold what was looked for."""


def _logged(partition: Partition, segment: str, first: int, last: int, low: int, *, together: bool) -> Iterator[Batch]:
    """What the log and its index hold of first..last, from timestamp `low` on. NotLogged where they do not.

    With `together` several small frames are one batch, which tells its last one's place.
    """
    for pieces in pieces_of(partition, segment, first, last):
        if pieces[0].number <= partition.head.archived:
            raise _hole(partition, segment, pieces[0].first_sequence)
        if together:
            yield from _load_together(partition, segment, pieces)
        else:
            yield from load(partition, segment, [piece for piece in pieces if piece.timestamp >= low])


def logged_segment(partition: Partition, segment: str, first: int, last: int) -> Iterator[Batch]:
    """What the log and its index still hold of first..last, archived or not. CorruptData where they do not."""
    for pieces in pieces_of(partition, segment, first, last):
        for batch in load(partition, segment, pieces):
            entries = [entry for entry in batch.entries if first <= entry.sequence <= last]
            if entries:
                yield Batch(batch.timestamp, batch.number, batch.origin, entries)


def pieces_of(partition: Partition, segment: str, first: int, last: int) -> Iterator[list[Piece]]:
    """The pieces that hold first..last, without a hole, in groups worth one read: from the index, then from the tail.

    Rows of the index may be merged into larger ones under a reader.
    """
    group: list[Piece] = []
    size = 0
    expected = first
    attempt = 0
    while attempt < 8:
        looked_for = expected
        with partition.lock:
            tail, index = list(partition.tail.get(segment, ())), partition.index
        indexed: Iterable[list[Piece]] = ()
        if partition.watermark and (not tail or tail[0].first_sequence > expected):
            indexed = _indexed(index, segment, expected)
        try:
            for pieces in chain(indexed, (tail,)):
                for piece in pieces:
                    begin = piece.first_sequence
                    after = begin + piece.count
                    if after <= expected:
                        continue
                    if begin > expected or expected > last:
                        break
                    expected = after
                    group.append(piece)
                    size += piece.length
                    if len(group) >= _PIECES or size >= _BYTES:
                        yield group
                        group, size = [], 0
                if expected > last:
                    if group:
                        yield group
                    return
        except RunGone as error:
            partition.check_moved(index, error)  # or another process made progress
            continue
        # The index moved on, and took with it what was looked for: look again from there.
        attempt = 0 if expected > looked_for else attempt + 1
        if attempt > 1:
            partition.read_head()
    raise _hole(partition, segment, expected)


def _indexed(index: Index, segment: str, expected: int) -> Iterator[list[Piece]]:
    """The rows of the index from the one that holds `expected`, as far as one follows on the other."""
    begin, end = data_range(segment, expected)
    for key, data in index.scan(begin, end, segment.encode()):
        pieces = decode_index_row(DataRow, key, data).pieces
        if not pieces or pieces[0].first_sequence > expected:
            return
        yield pieces
        expected = pieces[-1].last_sequence + 1


def _hole(partition: Partition, segment: str, sequence: int) -> NotLogged:
    return NotLogged(
        f"space {partition.space!r}, segment {segment!r}: the index does not know where sequence {sequence} is; "
        "check the store with `streamkit verify`"
    )


def _load_together(partition: Partition, segment: str, pieces: Sequence[Piece]) -> Iterator[Batch]:
    space, index, settings, seed = partition.space, partition.partition, partition.settings, partition.seed
    frames = _frames_of(partition, pieces)
    for number, entries in decode_frames(
        space, index, settings.partitions, segment, frames, seed, settings.incarnation, partition.with_location
    ):
        latest = entries[-1]
        yield Batch(latest.timestamp, number, latest.origin, entries)


def load(partition: Partition, segment: str, pieces: Sequence[Piece], start: int = 0) -> Iterator[Batch]:
    space, index, settings, seed = partition.space, partition.partition, partition.settings, partition.seed
    partitions, incarnation = settings.partitions, settings.incarnation
    for number, first, frame in _frames_of(partition, pieces):
        try:
            head, origin, entries = decode_entries(space, index, partitions, frame, seed, start, incarnation)
        except CorruptData as error:
            raise partition.with_location(error, number) from error
        if head.segment != segment or head.first_sequence != first or head.number != number:
            where = partition.where(number)
            raise CorruptData(f"{where}: the index points at a frame of {head.segment!r} instead of {segment!r}")
        yield Batch(head.timestamp, head.number, origin, entries)


def _frames_of(partition: Partition, pieces: Sequence[Piece]) -> Iterator[tuple[int, int, bytes]]:
    """(number, first sequence, frame) of each piece, all that is not in the index read at once. NotLogged where one is
    missing."""
    absent = [(piece.number, piece.start, piece.length) for piece in pieces if piece.frame is None]
    loaded = iter(_frames(partition, absent) if absent else ())
    for piece in pieces:
        frame: bytes | None = piece.frame if piece.frame is not None else next(loaded)
        if frame is None:
            raise NotLogged(f"{partition.where(piece.number)} is missing from the log")
        yield piece.number, piece.first_sequence, frame


def _frames(partition: Partition, wanted: Sequence[Frame]) -> list[bytes | None]:
    """Parts of transactions, from packs, else from rows of their own. None for what is in neither."""
    archived = partition.head.archived
    while True:
        head, packs = partition.head, partition.packs
        try:
            parts = packs.frames(wanted)
        except RunGone as error:
            partition.check_moved(packs, error)
            continue
        rest = [at for at, part in enumerate(parts) if part is None]
        ranges = [Range(partition.transaction_key(wanted[at][0]), *wanted[at][1:]) for at in rest]
        for at, part in zip(rest, partition.backend.read(partition.key, ranges) if ranges else (), strict=True):
            parts[at] = part
        if rest and not partition.is_current(head, min(wanted[at][0] for at in rest)):
            if any(archived < wanted[at][0] <= partition.head.archived for at in rest):
                return [None] * len(wanted)
            continue
        missing = next((wanted[at][0] for at in rest if parts[at] is None), None)
        if missing is None or not partition.packed_since(packs, missing):
            return parts


def last_entry(partition: Partition, segment: str, since: int | None = None) -> Entry | None:
    """The latest entry of a segment, or None. For `since` see Partition.refresh."""
    partition.refresh((), since)
    for _ in range(8):
        latest = partition.latest
        drops = latest.drops
        row = last_of(partition, segment)
        if row.empty:
            return None
        entry = latest.get(segment)
        if (
            entry is not None
            and entry.sequence == row.last_sequence
            and (entry.trx.number > partition.head.archived or entry.tier == "cold")
        ):
            partition.counters["cache_hits"] += 1
            return entry
        partition.counters["cache_misses"] += 1
        entry = _find_last(partition, segment, row.last_sequence)
        if entry is not None and (type(entry.payload) is not bytes or partition.erasing):
            return _last_left(partition, segment)
        if entry is not None:
            latest.keep(entry, drops)
            return entry
        partition.invalidate((segment,))
        partition.refresh()
    raise CorruptData(str(_hole(partition, segment, row.last_sequence)))


def _last_left(partition: Partition, segment: str) -> Entry | None:
    """The latest entry of a segment that was not erased."""
    from .backwards import segment_backwards

    for batch in segment_backwards(partition, segment, Bounds(), None):
        for entry in reversed(batch.entries):
            if type(entry.payload) is bytes:
                return entry
    return None


def _find_last(partition: Partition, segment: str, last: int) -> Entry | None:
    """Entry `last` of a segment, which is where a piece ends; None if it is not found there any more."""
    piece = _last_piece(partition, segment, last)
    if piece is not None and piece.number > partition.head.archived:
        try:
            return next(load(partition, segment, [piece], last)).entries[-1]
        except NotLogged as error:
            if not partition.archived_since(piece.number):
                raise CorruptData(str(error)) from None
    elif piece is None:
        partition.read_head()
    if partition.head.archived:
        for batch in partition.archive().segment(partition, segment, last, last):
            return batch.entries[-1]
    return None


def _last_piece(partition: Partition, segment: str, last: int) -> Piece | None:
    with partition.lock:
        tail = partition.tail.get(segment)
        if tail and tail[-1].last_sequence >= last:
            return next((piece for piece in reversed(tail) if piece.first_sequence <= last), None)
    if not partition.watermark:
        return None
    start, end = data_range(segment, last)
    # As a rule a row ends with the last entry: then its key is known, and it is in the newest run that has the segment.
    data = partition.ask(lambda index: index.get([start]))[0]
    row = (start, data) if data else partition.ask(lambda index: next(index.scan(start, end, segment.encode()), None))
    for piece in decode_index_row(DataRow, *row).pieces if row is not None else ():
        if piece.last_sequence == last:
            return piece
    return None


# -- a space --------------------------------------------------------------------------------------------------------


class Cursor:
    """A place in a space, from which its log is read as one, once or again and again.

    Each partition comes in its own order, several are merged by timestamp.
    """

    def __init__(self, partitions: Sequence[Partition], offset: Offset | None) -> None:
        self.partitions = partitions
        self._offset = offset
        self._positions: list[tuple[int, int]] | None = None
        """(number, index in the transaction) of what is next in each partition."""
        self._watermark = offset.timestamp if offset else 0

    def batches(self, bounds: Bounds, since: int | None = None, *, together: bool = False) -> Iterator[Batch]:
        """What is there from the cursor on; read to its end, the cursor is behind it. For `since` see Partition.

        `together`: of one partition, small transactions may be one batch.
        """
        if bounds.empty:
            return
        partitions = self.partitions
        ends = [partition.refresh((), since) for partition in partitions]
        positions = self._positions
        named = [True] * len(partitions)
        if positions is None:
            self._positions = positions = [
                position_of(partition, self._offset, end) for partition, end in zip(partitions, ends, strict=True)
            ]
            named = [
                is_named(partition, self._offset, start) for partition, start in zip(partitions, positions, strict=True)
            ]
        several = len(partitions) > 1
        logs = [
            partition_batches(
                partition, start, end, bounds, announce=several, together=together and not several, named=seen
            )
            for partition, start, end, seen in zip(partitions, positions, ends, named, strict=True)
        ]
        if len(logs) == 1:
            yield from logs[0]
        else:
            for at, partition in enumerate(partitions):
                # What is gone is told before the first entry: an offset of one does not name the same place again.
                positions[at] = max(positions[at], (floor_of(partition).number, 0))
            for at, batch in _merge_by_time(logs):
                if batch.gap is not None:
                    if not batch.gap.segment:
                        positions[at] = max(positions[at], (batch.gap.last_sequence + 1, 0))
                    yield batch
                    continue
                self._watermark = max(self._watermark, batch.timestamp)
                # Made for this reading, and not handed out yet: the entries of a frame share one origin.
                force_setattr(batch.origin, "others", tuple(positions))
                force_setattr(batch.origin, "whole", True)
                force_setattr(batch.origin, "watermark", self._watermark)
                yield batch
                last = batch.entries[-1].sequence - batch.origin.first_sequence
                positions[at] = (batch.number, batch.origin.index + last + 1)
        self._positions = [max(at, (end + 1, 0)) for at, end in zip(positions, ends, strict=True)]


def is_named(partition: Partition, offset: Offset | None, start: tuple[int, int]) -> bool:
    """Whether the offset, by which a reading begins at `start`, tells how much of the partition was seen, be it
    nothing."""
    if offset is None or not offset.positions:
        return False
    return start > (1, 0) or offset.whole or partition.partition == offset.partition


def position_of(partition: Partition, offset: Offset | None, end: int) -> tuple[int, int]:
    """(number, index in the transaction) of the entry that is next after `offset` in a partition that ends at `end`.

    InvalidOffset if it is of another incarnation of the space, or beyond the end.
    """
    if offset is None or not offset.positions:
        return (1, 0)
    offset.check(partition.settings)
    offset.check_end(partition.partition, end)
    position = offset.position(partition.partition)
    if offset.whole or partition.partition == offset.partition:
        return position
    # Of one segment: what is before it in another partition is what was earlier, as far as that was known.
    after = offset.timestamp + (partition.partition < offset.partition)
    return min(position, (first_at(partition, after, 1, position[0] - 1), 0))


def end_of(partitions: Sequence[Partition], since: int | None = None) -> Offset:
    """The offset after everything that is committed: that of the last entry. For `since` see Partition.refresh."""
    for partition in partitions:
        partition.refresh((), since)
    ends = [partition.end() for partition in partitions]
    first = partitions[0]
    positions = tuple((number, index) for number, index, _ in ends)
    return Offset(first.space, max(end[2] for end in ends), 0, positions, True, first.settings.incarnation)


def merge(logs: Mapping[str, Iterator[Batch]]) -> Iterator[Batch]:
    """Several spaces by timestamp, each in its own order; at one timestamp in the order of their names."""
    for _, batch in _merge_by_time([logs[name] for name in sorted(logs)]):
        yield batch


def _merge_by_time(logs: Sequence[Iterator[Batch]]) -> Iterator[tuple[int, Batch]]:
    heads: dict[int, Batch] = {}
    for at, log in enumerate(logs):
        batch = next(log, None)
        if batch is not None:
            heads[at] = batch
    while heads:
        at = min(heads, key=lambda at: (heads[at].timestamp, at))
        if heads[at].entries or heads[at].gap is not None:
            yield at, heads[at]
        del heads[at]  # only one transaction is decoded at a time, however many logs there are
        following = next(logs[at], None)
        if following is not None:
            heads[at] = following
