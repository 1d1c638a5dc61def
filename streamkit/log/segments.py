"""Walking through the segments of a partition's index."""

from __future__ import annotations

from collections.abc import Iterator

from .index_rows import decode_index_row
from .keys import SEGMENTS, segment_name
from .manifest import RunGone
from .partition import Partition
from .rows import SegmentRow

__all__ = ["all_segments", "indexed_segments"]


def indexed_segments(partition: Partition) -> Iterator[tuple[str, SegmentRow]]:
    """Each segment once, in order, as the index has it; also while others merge its runs."""
    start, end = map(bytes, SEGMENTS.children())
    while partition.watermark:
        index = partition.index
        rows = index.scan(start, end)
        while True:
            try:
                row = next(rows, None)
            except RunGone as error:
                partition.check_moved(index, error)
                break
            if row is None:
                return
            start = row[0] + b"\x00"
            yield segment_name(row[0]), decode_index_row(SegmentRow, *row)


def all_segments(partition: Partition) -> Iterator[str]:
    """Each segment that ever had an entry, once, empty ones included. Indexed ones come first."""
    with partition.lock:
        recent = dict.fromkeys((*partition.tail, *partition.removals))
    for name, _ in indexed_segments(partition):
        recent.pop(name, None)
        yield name
    yield from recent
