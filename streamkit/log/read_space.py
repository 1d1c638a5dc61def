"""Reading a space: each partition in its own order, several of them merged by time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import force_setattr

from ..gaps import Gap
from .batches import Batch, Bounds, gap_batch
from .first_at import first_at
from .offsets import Offset
from .partition import Partition
from .read_partition import partition_batches
from .visible import floor_of, number_gap

__all__ = ["SpaceCursor", "end_of", "is_named", "merge", "position_of", "space_backwards"]


class SpaceCursor:
    """A place in a space, from which its log is read as one, once or again and again.

    Each partition comes in its own order, several are merged by timestamp.
    """

    def __init__(self, partitions: Sequence[Partition], offset: Offset | None) -> None:
        self.partitions = partitions
        self._offset = offset
        self._positions: list[tuple[int, int]] | None = None
        """(number, index in the transaction) of the next entry in each partition."""
        self._watermark = offset.timestamp if offset else 0

    def batches(self, bounds: Bounds, since: int | None = None, *, together: bool = False) -> Iterator[Batch]:
        """The entries from the cursor on. After the last one, the cursor is behind it. For `since` see
        Partition.refresh.

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
                # Gaps come before the first entry: the offset of an entry does not name the same place again.
                positions[at] = max(positions[at], (partition.ask(floor_of).number, 0))
            for at, batch in _merge_by_time(logs):
                if batch.gap is not None:
                    positions[at] = max(positions[at], _after_gap(batch, batch.gap))
                    yield batch
                    continue
                self._watermark = max(self._watermark, batch.timestamp)
                _set_position(batch, tuple(positions), self._watermark)
                yield batch
                positions[at] = batch.after
        self._positions = [max(at, (end + 1, 0)) for at, end in zip(positions, ends, strict=True)]


def space_backwards(
    partitions: Sequence[Partition], offset: Offset | None, bounds: Bounds, since: int | None
) -> Iterator[Batch]:
    """The entries after `offset`, in the reverse of a SpaceCursor's order."""
    if bounds.empty:
        return
    ends = [partition.refresh((), since) for partition in partitions]
    starts = [position_of(partition, offset, end) for partition, end in zip(partitions, ends, strict=True)]
    gaps: list[Batch] = []
    for at, partition in enumerate(partitions):
        floor = partition.ask(floor_of)
        if starts[at][0] < floor.number:
            named = is_named(partition, offset, starts[at])
            gap = number_gap(partition.space, starts[at], floor) if named else None
            if gap is not None and (batch := gap_batch(gap, bounds.gaps)) is not None:
                gaps.append(batch)
            starts[at] = (floor.number, 0)
    yield from _space_backwards(partitions, starts, ends, offset.timestamp if offset else 0, bounds)
    yield from gaps


def _space_backwards(
    partitions: Sequence[Partition],
    starts: Sequence[tuple[int, int]],
    ends: Sequence[int],
    watermark: int,
    bounds: Bounds,
) -> Iterator[Batch]:
    parts = zip(partitions, starts, ends, strict=True)
    logs = [partition_batches(partition, start, end, bounds, reverse=True) for partition, start, end in parts]
    if len(logs) == 1:
        yield from logs[0]
        return
    heads: dict[int, Batch] = {}

    def go_on(at: int) -> Iterator[Batch]:
        """The gaps before the partition's next entries, which become its head."""
        for batch in logs[at]:
            if batch.entries:
                heads[at] = batch
                return
            if batch.gap is not None:
                yield batch

    for at in range(len(logs)):
        yield from go_on(at)
    while heads:
        at = max(heads, key=lambda at: (heads[at].timestamp, at))
        batch = heads.pop(at)
        # A forward reader from here has passed, in the others, everything that this one has still to read.
        others = tuple(heads[other].after if other in heads else starts[other] for other in range(len(logs)))
        _set_position(batch, others, max(watermark, batch.timestamp))
        yield batch
        yield from go_on(at)


def _after_gap(batch: Batch, gap: Gap) -> tuple[int, int]:
    """The place behind a gap: (number, index in the transaction)."""
    if gap.segment:
        return batch.number, batch.origin.index + gap.last_sequence - batch.origin.first_sequence + 1
    return gap.last_sequence + 1, 0


def _set_position(batch: Batch, others: tuple[tuple[int, int], ...], watermark: int) -> None:
    """Give the entries of a batch the place of the whole read, for their offsets.

    The batch was made for this reading, and is not handed out yet: the entries of a frame share one origin.
    """
    force_setattr(batch.origin, "others", others)
    force_setattr(batch.origin, "whole", True)
    force_setattr(batch.origin, "watermark", watermark)


def is_named(partition: Partition, offset: Offset | None, start: tuple[int, int]) -> bool:
    """True if `offset`, from which a read begins at `start`, says how much of the partition was read, even if nothing
    was."""
    if offset is None or not offset.positions:
        return False
    return start > (1, 0) or offset.whole or partition.partition == offset.partition


def position_of(partition: Partition, offset: Offset | None, end: int) -> tuple[int, int]:
    """Return (number, index in the transaction) of the entry that is next after `offset` in a partition that ends at
    `end`.

    InvalidOffset if it is of another incarnation of the space, or beyond the end.
    """
    if offset is None or not offset.positions:
        return (1, 0)
    offset.check(partition.settings)
    offset.check_end(partition.partition, end)
    position = offset.position(partition.partition)
    if offset.whole or partition.partition == offset.partition:
        return position
    # An offset of one segment: in another partition, the known entries with an earlier timestamp are before it.
    after = offset.timestamp + (partition.partition < offset.partition)
    return min(position, (partition.ask(first_at, after, 1, position[0] - 1), 0))


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
