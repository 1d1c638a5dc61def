"""The entries of one segment, out of the blocks of the index that hold its data rows: the straight path of most loads.

One function goes from blocks to entries: rows of a range of keys, their pieces, the frames in these, the entries in the
frames. It stops before everything that is not plain: a frame that the index has no copy of, that is damaged, or that
has removed entries; a gap. Then `read_segment` reads on, one piece after the other, and decides about errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .. import speed
from ..errors import CorruptData, UnsupportedVersion
from ..model import Entry
from .index_reader import BlockRows
from .index_rows import decode_index_row
from .record_format import decode_entries, frame_reader
from .rows import DataRow, Piece

__all__ = ["MOST", "Found", "SegmentRows"]

MOST = 1024
"""About the most entries that are made at once."""
_TOGETHER = 256
"""Entries of several rows that are handed out together."""
_ALL = 1 << 30
"""More entries than a list has."""
_ENDLESS = 1 << 63
"""No entry has this sequence."""
_twin: Any = speed.twin


class Found(NamedTuple):
    """The place at which the found entries end."""

    next: int
    """The sequence after the last entry."""
    ended: bool
    """Nothing follows. False: read on from `next`."""
    newest: int
    """Bytes of the data row in the newest blocks; 0 if they have none, or several."""


class SegmentRows:
    """Makes entries of the pieces of one segment of a partition."""

    __slots__ = ("_place", "_reader", "_segment")

    def __init__(
        self, space: str, partition: int, partitions: int, segment: str, seed: int, incarnation: bytes
    ) -> None:
        self._place = space, partition, partitions, seed, incarnation
        self._segment = segment
        self._reader = frame_reader(space, partition, partitions, segment, seed, incarnation)

    def in_blocks(
        self,
        blocks: Sequence[BlockRows],
        newest: int,
        start: bytes,
        end: bytes,
        first: int,
        last: int,
        entries: list[Entry],
    ) -> Found:
        """Append the entries of the sequences first..last in the rows with start <= key < end. The last `newest` blocks
        are those of the newest run."""
        if _twin is not None:
            found = _twin.segment_entries(self._reader, blocks, newest, start, end, first, last, entries, MOST)
            return Found(first, False, 0) if found is None else Found(*found)
        rows: dict[bytes, bytes] = {}
        older = len(blocks) - newest
        for block in blocks[:older]:
            rows.update(block.between(start, end))
        last_rows = [row for block in blocks[older:] for row in block.between(start, end)]
        rows.update(last_rows)
        pieces: list[Piece] = []
        plain = True
        try:
            for key, value in sorted(rows.items()):
                pieces += decode_index_row(DataRow, key, value).pieces
        except CorruptData:
            plain = False
        reached, ended = self.in_pieces(pieces, first, last, entries)
        return Found(reached, ended and plain, len(last_rows[0][1]) if len(last_rows) == 1 else 0)

    def in_rows(self, rows: Iterable[bytes], first: int, last: int) -> Iterator[list[Entry]]:
        """The entries of the sequences first..last in encoded data rows, up to the first row that is not plain."""
        entries: list[Entry] = []
        for row in rows:
            first, plain = self._in_row(row, first, last, entries)
            if not plain or first > last:
                break
            if len(entries) >= _TOGETHER:
                yield entries
                entries = []
        if entries:
            yield entries

    def _in_row(self, row: bytes, first: int, last: int, entries: list[Entry]) -> tuple[int, bool]:
        """Append the entries of one encoded data row, as `in_pieces` does of pieces."""
        if _twin is not None:
            found: tuple[int, bool] | None = _twin.row_entries(self._reader, row, first, last, entries, MOST)
            if found is not None:
                return found
        try:
            pieces = decode_index_row(DataRow, b"", row).pieces
        except CorruptData:
            return first, False
        return self.in_pieces(pieces, first, last, entries)

    def in_pieces(self, pieces: Iterable[Piece], first: int, last: int, entries: list[Entry]) -> tuple[int, bool]:
        """Append the entries of the sequences first..last in `pieces`: (the sequence after the last one, True if the
        pieces have no more of them)."""
        small: list[tuple[int, int, bytes]] = []
        reached, ended, end = first, True, min(last + 1, first + MOST)
        for piece in pieces:
            begin, frame = piece.first_sequence, piece.frame
            if begin == reached < end and piece.count == 1 and frame is not None:
                small.append((piece.number, begin, frame))
                reached += 1
                continue
            after = begin + piece.count
            if after <= reached:
                continue
            if reached > last:
                break
            if begin > reached or after - 1 > last or frame is None or reached >= end:
                ended = False
                break
            item = piece.number, begin, frame
            stop = self._make(small, 1, first, entries) or self._make((item,), piece.count, first, entries)
            if stop:
                return stop, False
            small = []
            reached = after
        stop = self._make(small, 1, first, entries)
        return (stop, False) if stop else (reached, ended)

    def last_entry(self, row: bytes) -> Entry | None:
        """The last entry of an encoded data row; None if it is not plain."""
        if _twin is not None:
            entry: Entry | None = _twin.last_entry(self._reader, row)
            if entry is not None:
                return entry
        pieces = decode_index_row(DataRow, b"", row).pieces
        if not pieces or not 1 <= pieces[-1].first_sequence <= pieces[-1].last_sequence < _ENDLESS:
            return None
        piece = pieces[-1]
        entries: list[Entry] = []
        self.in_pieces((piece,), piece.last_sequence, piece.last_sequence, entries)
        return entries[-1] if entries else None

    def _make(self, frames: Sequence[tuple[int, int, bytes]], count: int, first: int, entries: list[Entry]) -> int:
        """Append the entries of frames with `count` entries each, from sequence `first` on: the sequence before which
        it stops, or 0 if all are made."""
        rest = iter(frames)
        while (item := self._reader.take(rest, entries, _ALL) if count == 1 else next(rest, None)) is not None:
            number, begin, frame = item
            try:
                head, origin, found = decode_entries(*self._place[:3], frame, self._place[3], first, self._place[4])
            except (CorruptData, UnsupportedVersion):
                return max(begin, first)
            expected = number, begin, count, self._segment
            if (head.number, head.first_sequence, head.count, head.segment) != expected or origin.holes:
                return max(begin, first)
            entries += found
        return 0
