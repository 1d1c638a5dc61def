"""Following for callers: the looks of followers and subscribers at a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .arguments import check_seconds
from .handle import Handle
from .log.batches import Bounds, entries_and_gaps
from .log.floors import Gaps
from .log.follow import Following, PollTimer, watch, watch_all
from .log.offsets import Offset
from .log.partition import Partition
from .log.read_space import SpaceCursor, merge
from .model import Entry, SegmentStatus
from .reading import Reader

__all__ = ["Follower"]


class Follower:
    """The follows of one handle of a store. Holds no state of its own."""

    def __init__(self, handle: Handle, reader: Reader) -> None:
        self._handle = handle
        self._reader = reader

    def segment(self, space: str, segment: str, after: int, timeout: float | None, gaps: Gaps) -> Following[Any]:
        timer = self._timer(space, timeout)
        reader, last = self._reader, after

        def look() -> Iterator[Iterable[Any]]:
            nonlocal last
            self._handle.check_open()
            bounds = Bounds(min_sequence=last + 1 if last else 0, gaps=gaps)
            for batch in reader.segment_batches(space, segment, bounds, since=timer.since):
                self._handle.check_open()
                last = batch.entries[-1].sequence if batch.gap is None else batch.gap.last_sequence
                if batch.gap is not None or batch.origin.holes:
                    yield entries_and_gaps(batch, gaps)
                else:
                    yield self._while_open(batch.entries)

        return Following(timer, look)

    def _while_open(self, entries: list[Entry]) -> Iterable[Entry]:
        if entries[0].trx.number == entries[-1].trx.number:
            return entries
        return self._checked(entries)

    def _checked(self, entries: list[Entry]) -> Iterator[Entry]:
        """Yield the entries of several transactions; check before each one that the store is open."""
        for entry in entries:
            self._handle.check_open()
            yield entry

    def space(self, space: str, after: Offset | None, timeout: float | None, gaps: Gaps) -> Following[Any]:
        timer = self._timer(space, timeout)
        reader = self._reader
        cursor: SpaceCursor | None = None

        def look() -> Iterator[list[Any]]:
            nonlocal cursor
            self._handle.check_open()
            since = timer.since
            if cursor is None:
                cursor, since = reader.cursor(space, after)
            return reader.lists(cursor.batches(Bounds(gaps=gaps), since) if cursor else iter(()), gaps)

        return Following(timer, look)

    def spaces(self, after: Mapping[str, Offset | None], timeout: float | None, gaps: Gaps) -> Following[Any]:
        """Follow several spaces. Ends at once if there are none."""
        timer = self._timer("\n".join(after), timeout if after else 0.0, tuple(after))
        reader = self._reader
        cursors: dict[str, SpaceCursor] = {}

        def look() -> Iterator[list[Any]]:
            self._handle.check_open()
            logs = {}
            for space, offset in after.items():
                since = timer.since
                if space not in cursors:
                    cursor, since = reader.cursor(space, offset)
                    if cursor is None:
                        continue
                    cursors[space] = cursor
                logs[space] = cursors[space].batches(Bounds(gaps=gaps), since)
            return reader.lists(merge(logs), gaps)

        return Following(timer, look)

    def status(self, space: str, segment: str, timeout: float | None) -> Following[SegmentStatus]:
        return watch(self._timer(space, timeout), lambda since: self._reader.status(space, segment, since))

    def statuses(self, space: str, timeout: float | None) -> Following[SegmentStatus]:
        reader = self._reader
        return watch_all(
            self._timer(space, timeout),
            lambda: self._partitions(space),
            lambda: reader.segments(space),
            lambda segment, since: reader.status(space, segment, since),
        )

    def _partitions(self, space: str) -> Sequence[Partition]:
        known = self._handle.space(space)
        return known.partitions if known else ()

    def _refresh(self, spaces: Sequence[str]) -> None:
        for space in spaces:
            for partition in self._partitions(space):
                partition.refresh()

    def _numbers(self, spaces: Sequence[str]) -> tuple[int, ...]:
        """The known ends of the spaces' logs; StoreClosed if no more transactions will ever come."""
        self._handle.check_open()
        numbers = self._handle.shared.numbers
        return numbers(spaces[0]) if len(spaces) == 1 else tuple([n for space in spaces for n in numbers(space)])

    def _timer(self, name: str, timeout: float | None, spaces: Sequence[str] | None = None) -> PollTimer:
        """`name` is the same for those that follow the same spaces; it is the space where there is only one."""
        followed = (name,) if spaces is None else spaces
        if timeout is not None:
            check_seconds("timeout", timeout, endless=True)
        self._handle.check_open()
        shared = self._handle.shared
        return PollTimer(
            shared.clock,
            shared.notifier,
            shared.poll,
            timeout,
            lambda: self._numbers(followed),
            name,
            lambda: self._refresh(followed),
        )
