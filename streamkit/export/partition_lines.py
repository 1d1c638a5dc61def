"""The lines of one partition: the entries and gaps that a reader sees, in commit order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache

from ..errors import PermanentError
from ..log.batches import Bounds
from ..log.first_at import first_at
from ..log.floors import Removed
from ..log.idempotency import all_uses
from ..log.index_rows import decode_index_row
from ..log.keys import SEGMENTS, segment_name
from ..log.partition import Partition
from ..log.read_partition import partition_batches
from ..log.rows import SegmentRow
from ..log.segment_view import row_of, status_of
from ..log.view import LogView
from ..log.visible import floor_of, place_of
from ..model import TRX, Entry
from .lines import EntryLine, FloorLine, Gap, Key, Line, Trx, encode_payload
from .lines import Partition as PartitionLine

__all__ = ["PartitionLines", "Reached", "partition_line"]


def partition_line(partition: Partition, until: int | None, end: int | None = None) -> PartitionLine:
    """The first line of a partition. `until`: only transactions up to this timestamp (ms) count. `end`: the end of the
    log for this export."""
    last = partition.refresh()
    floor = partition.ask(floor_of)
    if end is None:
        end = last
        if until is not None and partition.timestamp > until:
            end = partition.ask(first_at, until + 1, floor.number, last) - 1
    if floor.number > end + 1 or (end < last and floor.number == end + 1 and floor.position):
        raise PermanentError(
            f"space {partition.space!r}: entries up to the time of the export were trimmed or have expired since; "
            "export a later time, or without --until"
        )
    timestamp = partition.timestamp
    if end < last and end < floor.number:
        timestamp = floor.timestamp  # the export has no transaction of the partition
    elif end < last:
        header = partition.header(end)
        # An archive has no transactions without entries.
        timestamp = header.timestamp if header is not None else partition.ask(place_of, end)[2] or floor.timestamp
    shown = FloorLine(floor.number, floor.reason, floor.end, floor.position, floor.timestamp)
    return PartitionLine(partition.partition, end, timestamp, shown)


class Reached:
    """The place in a partition's lines: it follows the lines that were written."""

    def __init__(self) -> None:
        self.segments: dict[str, int] = {}
        """The last sequence of each segment that a line has covered."""
        self.after = (0, 0)
        """(number, index) after the last entry."""
        self.key = (0, b"")
        """The last key."""

    def take(self, line: Line) -> None:
        match line:
            case EntryLine():
                self.segments[line.segment] = line.sequence
                self.after = (line.trx.number, line.index + 1)
            case Gap():
                self.segments[line.segment] = line.last
            case Key():
                self.key = (line.trx.number, bytes.fromhex(line.key))


class PartitionLines:
    """Makes the lines of a partition that follow on those that it has `reached`."""

    def __init__(self, partition: Partition, line: PartitionLine, reached: Reached) -> None:
        self._partition = partition
        self._line = line
        self._done = reached
        self._known: dict[str, int] = {}
        """The last sequences of erased entries that the log still tells."""

    def lines(self) -> Iterator[Line]:
        partition, end = self._partition, self._line.end
        keys = deque(self._keys())
        bounds = Bounds(gaps="skip")
        start = max(self._done.after, (self._line.floor.number, 0))
        for batch in partition_batches(partition, start, end, bounds):
            for entry in batch.entries:
                if isinstance(entry.payload, Removed):
                    self._known[entry.segment] = entry.sequence
                    continue
                while keys and keys[0].trx.number <= entry.trx.number:
                    yield keys.popleft()
                yield from self._gaps(entry.segment, entry.sequence - 1)
                self._done.segments[entry.segment] = entry.sequence
                yield _entry_line(entry)
        yield from keys
        yield from self._ends()

    def _keys(self) -> list[Key]:
        uses = sorted(all_uses(self._partition), key=lambda use: (use[1].number, use[0]))
        first, last = self._line.floor.number, self._line.end
        return [
            Key(
                digest.hex(),
                use.content.hex(),
                use.timestamp,
                _trx(TRX(use.id, use.node, use.number)),
                list(use.segments),
            )
            for digest, use in uses
            if first <= use.number <= last and (use.number, digest) > self._done.key
        ]

    def _gaps(self, segment: str, last: int) -> Iterator[Gap]:
        """The sequences of a segment up to `last` that no line has covered."""
        first = self._done.segments.get(segment, 0) + 1
        if first > last:
            return
        for until, reason in self._partition.ask(row_of, segment).gaps:
            until = min(until, last)
            if first <= until:
                yield Gap(segment, first, until, reason)  # type: ignore[arg-type]
                first = until + 1
        if first <= last:
            yield Gap(segment, first, last, "erased")

    def _ends(self) -> Iterator[Gap]:
        """The ends of segments whose last entries were removed."""
        whole = self._line.end == self._partition.number
        ends = self._partition.ask(_segment_ends) if whole else self._known
        for segment in sorted(ends, key=str.encode):
            yield from self._gaps(segment, ends[segment])


def _segment_ends(view: LogView) -> dict[str, int]:
    """The last sequence of every segment that has none of its last entries, or may have none."""
    ends: dict[str, int] = {}
    names = set(view.tail.segments())
    start, end = map(bytes, SEGMENTS.children())
    for key, value in view.index.scan(start, end) if view.tail.watermark else ():
        name = segment_name(key)
        if name not in names:
            ends[name] = decode_index_row(SegmentRow, key, value).last_sequence
    for name in names:
        ends[name] = status_of(view, name).last_sequence
    return ends


@lru_cache(64)
def _trx(trx: TRX) -> Trx:
    return Trx(trx.id, trx.node, trx.number)


def _entry_line(entry: Entry) -> EntryLine:
    origin = entry.origin
    place = entry.sequence - origin.first_sequence
    encoding, payload = encode_payload(entry.payload)
    return EntryLine(
        entry.segment,
        entry.sequence,
        entry.timestamp,
        origin.index + place,
        _trx(entry.trx),
        dict(entry.metadata),
        encoding,
        payload,
    )
