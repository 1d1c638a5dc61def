"""Reading for callers: entries of batches, up to a limit, while the store is open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import force_setattr, replace

from .arguments import check_gaps, check_timestamp, check_type
from .handle import Handle
from .log.batches import Batch, Bounds, entries_and_gaps
from .log.floors import Gaps
from .log.offsets import Offset
from .log.partition import Partition
from .log.read_segment import last_entry, segment_batches
from .log.read_space import SpaceCursor, space_backwards
from .log.segment_view import row_of
from .log.statuses import present
from .model import Entry, SegmentStatus, no_status
from .space import segments_of

__all__ = ["Reader", "bounds_of"]

_LAST = (1 << 63) - 1
"""No sequence is greater."""
_LATEST = (1 << 53) - 1
"""Milliseconds since the epoch. No clock goes above it, and other formats cannot hold more."""
_NO = 0
"""The default of each bound. A caller that gives no bounds passes this very object."""
_ALL = Bounds(gaps="raise")
"""The bounds of most reads."""


def bounds_of(
    min_sequence: Any, max_sequence: Any, min_timestamp: Any, max_timestamp: Any, limit: Any, gaps: Any
) -> Bounds:
    """The bounds of a read; `limit` is checked with them."""
    if min_sequence is max_sequence is min_timestamp is max_timestamp is limit is _NO and gaps == "raise":
        return _ALL
    for name, value in (
        ("min_sequence", min_sequence),
        ("max_sequence", max_sequence),
        ("min_timestamp", min_timestamp),
        ("max_timestamp", max_timestamp),
        ("limit", limit),
    ):
        if name.endswith("timestamp"):
            check_timestamp(name, value)
        else:
            check_type(value, int, f"{name} is an int", optional=True)
        if value is not None and value < 0:
            raise ValueError(f"{name} is 0 (no bound) or more, not {value}")
    first, last = min(min_sequence or 0, _LAST), min(max_sequence or 0, _LAST)
    low, high = min(min_timestamp or 0, _LATEST), min(max_timestamp or 0, _LATEST)
    return Bounds(first, last, low, high, check_gaps(gaps))


class Reader:
    """The reads of one handle of a store. Holds no state of its own. For `since` see Partition.refresh."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def segments(self, space: str, prefix: str = "", after: str | None = None) -> Iterator[str]:
        """The names of segments, in code-point order: those that begin with `prefix`, after the name `after`."""
        from heapq import merge

        known = self._handle.space(space)
        if known is None:
            return
        for partition in known.partitions:
            partition.refresh()
        first = max(prefix, after or "")
        for name in merge(*[segments_of(partition, first) for partition in known.partitions]):
            if after is not None and name <= after:
                continue
            if not name.startswith(prefix):
                return
            yield name

    def status(self, space: str, segment: str, since: int | None = None) -> SegmentStatus:
        known, opened = self._handle.look_up(space, (segment,))
        if known is None:
            return no_status(space, segment)
        partition = known.partition(segment)
        partition.refresh((segment,), opened if since is None else since)
        while True:
            rows, end = partition.statuses([segment])
            row = partition.ask(row_of, segment)
            if row.last_sequence == rows[segment].last_sequence:
                return present(partition, {segment: row}, end)[segment]

    def last_entry(self, space: str, segment: str) -> Entry | None:
        known, since = self._handle.look_up(space, (segment,))
        if known is None:
            return None
        if len(known.partitions) == 1:
            return last_entry(known.partitions[0], segment, since)
        partition = known.partition(segment)
        entry = last_entry(partition, segment, since)
        if entry is None:
            return None
        return replace(entry, origin=replace(entry.origin, others=partition.ends()))

    def segment_batches(
        self, space: str, segment: str, bounds: Bounds, reverse: bool = False, since: int | None = None
    ) -> Iterator[Batch]:
        known, opened = self._handle.look_up(space, (segment,))
        if known is not None:
            partition = known.partition(segment)
            batches = segment_batches(partition, segment, bounds, opened if since is None else since, reverse=reverse)
            if len(known.partitions) > 1:
                batches = _with_ends(partition, batches)
            yield from batches

    def space_batches(
        self, space: str, offset: Offset | None, bounds: Bounds, reverse: bool = False, *, together: bool = False
    ) -> Iterator[Batch]:
        cursor, since = self.cursor(space, offset)
        if cursor is not None:
            if reverse:
                yield from space_backwards(cursor.partitions, offset, bounds, since)
            else:
                yield from cursor.batches(bounds, since, together=together)

    def cursor(self, space: str, offset: Offset | None) -> tuple[SpaceCursor | None, int | None]:
        """A cursor over all partitions of a space, None if there is none, and `since` for Partition.refresh."""
        known, since = self._handle.look_up(space)
        if offset is not None:
            offset.check(known.settings if known else None)
        return (SpaceCursor(known.partitions, offset) if known else None), since

    def entries(
        self, batches: Iterator[Batch], limit: int, reverse: bool = False, gaps: Gaps = "skip"
    ) -> Iterator[Any]:
        """Yield the entries, at most `limit` if it is not 0.

        It is a generator, because `itertools.chain` is not safe if several threads share an iterator: here a second
        thread gets a ValueError, and no entry is lost.
        """
        handle = self._handle
        for batch in batches:
            if handle.closed:
                handle.check_open()
            if batch.gap is not None or batch.origin.holes:
                for item in entries_and_gaps(batch, gaps)[:: -1 if reverse else 1]:
                    yield item
                    if limit and isinstance(item, Entry):
                        limit -= 1
                        if not limit:
                            return
                continue
            entries = batch.entries[::-1] if reverse else batch.entries
            if limit:
                if limit <= len(entries):
                    yield from entries[:limit]
                    return
                limit -= len(entries)
            if entries[0].trx.number == entries[-1].trx.number:
                yield from entries
                continue
            for entry in entries:  # of several transactions: between them the store may be closed
                if handle.closed:
                    handle.check_open()
                yield entry

    def lists(self, batches: Iterator[Batch], gaps: Gaps) -> Iterator[list[Any]]:
        for batch in batches:
            self._handle.check_open()
            yield entries_and_gaps(batch, gaps) if batch.gap is not None or batch.origin.holes else batch.entries


def _with_ends(partition: Partition, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Add to the batches the known ends of the space's other partitions, for the offsets of their entries."""
    ends = partition.ends()
    for batch in batches:
        if batch.gap is None:
            # Made for this reading, and not handed out yet. The entries of a frame share one origin.
            force_setattr(batch.origin, "others", ends)
            if batch.entries[0].trx.number != batch.entries[-1].trx.number:
                for entry in batch.entries:
                    force_setattr(entry.origin, "others", ends)
        yield batch
