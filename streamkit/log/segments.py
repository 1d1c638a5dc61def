"""Walking through the segments of a partition's index."""

from __future__ import annotations

from collections.abc import Iterator

from .index_rows import decode_index_row
from .keys import SEGMENTS, segment_name
from .partition import Partition
from .rows import SegmentRow
from .view import LogView

__all__ = ["all_segments", "indexed_segments"]


def indexed_segments(partition: Partition) -> Iterator[tuple[str, SegmentRow]]:
    """Yield each segment of the index once, in order."""
    start, end = map(bytes, SEGMENTS.children())

    def walk(view: LogView) -> Iterator[tuple[str, SegmentRow]]:
        nonlocal start
        for key, value in view.index.scan(start, end) if view.tail.watermark else ():
            start = key + b"\x00"
            yield segment_name(key), decode_index_row(SegmentRow, key, value)

    return partition.walk(walk)


def all_segments(partition: Partition) -> Iterator[str]:
    """Yield each segment that ever had an entry, once, empty ones included. Indexed ones come first."""
    recent = dict.fromkeys(partition.view().tail.segments())
    for name, _ in indexed_segments(partition):
        recent.pop(name, None)
        yield name
    yield from recent
