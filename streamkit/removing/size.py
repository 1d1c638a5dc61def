"""Measure the size of spaces from the statuses of segments and the sizes of files in the heads. In the archive, only
the file that holds a floor is read."""

from __future__ import annotations

from collections.abc import Iterable

from ..backend import TellsSize
from ..log.index_rows import decode_index_row
from ..log.keys import SEGMENTS, segment_name
from ..log.partition import Partition
from ..log.rows import NOTHING, SegmentRow
from ..log.view import LogView
from ..log.visible import floor_of, has_entries, size_of_floor
from .report import StoreSize, Tier

__all__ = ["size_of"]


def size_of(partitions: Iterable[Partition], archived_bytes: int) -> StoreSize:
    entries = segments = size = log = index = 0
    for partition in partitions:
        partition.refresh()
        counts = partition.ask(_counted)
        entries, segments, size = entries + counts[0], segments + counts[1], size + counts[2]
        head = partition.head
        indexed = sum(file.length for file in head.manifest.files()) + len(head.manifest.inline)
        index += indexed
        if isinstance(backend := partition.backend, TellsSize):
            log += max(0, backend.stored_bytes(partition.key) - indexed)
        else:
            log += sum(pack.length for pack in head.packs) + len(head.pack) + partition.tail.bytes
    tiers = (Tier("log", log), Tier("index", index), Tier("archive", archived_bytes))
    return StoreSize(entries, segments, size, tiers)


def _counted(view: LogView) -> tuple[int, int, int]:
    """Return (entries, segments, bytes of payload) of a partition."""
    floor, fresh = floor_of(view), set(view.tail.segments())
    entries = segments = size = cut = 0
    retention = view.retention
    by_segment = retention if retention is not None and retention.per == "segment" else None
    most = (by_segment and by_segment.max_entries) or 1 << 63
    most_bytes = (by_segment and by_segment.max_bytes) or 1 << 63

    def count(row: SegmentRow) -> None:
        nonlocal entries, segments, size, cut
        if has_entries(view, row):
            segments += 1
            entries += min(row.last_sequence - row.first_sequence + 1, most)
            size += min(max(0, row.size - row.first_size), most_bytes)
            cut += row.first_number < floor.number

    for key, value in view.index.scan(*map(bytes, SEGMENTS.children())) if view.tail.watermark else ():
        name = segment_name(key)
        row = decode_index_row(SegmentRow, key, value)
        if name in fresh:
            fresh.discard(name)
            row = view.with_tail(name, row)
        count(row)
    for name in fresh:
        count(view.with_tail(name, NOTHING))
    if cut:
        # Of segments that begin below the floor only the partition knows how much is left, all together.
        entries = min(entries, view.position - floor.position)
        size = min(size, view.size - size_of_floor(view, floor))
    return entries, segments, size
