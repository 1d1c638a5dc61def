"""The transactions after the index's watermark, as this process has read or written them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .floors import Removal
from .idempotency import key_row
from .pack_format import MOST
from .record_format import FrameRef, Header
from .request import Part
from .rows import KeyRow, Piece, SegmentRow

__all__ = ["Tail", "piece_of"]


class Tail:
    """The transactions of the log after the index. A tail only grows. When the index takes over its beginning, the rest
    becomes a new Tail: see `after`.

    The partition's lock guards `add`. A view needs no lock, because it ignores transactions after its own end.
    """

    __slots__ = ("bytes", "frames", "keys", "pieces", "records", "removals", "watermark")

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        """The index holds every transaction up to this number."""
        self.pieces: dict[str, list[Piece]] = {}
        """The pieces of each segment, in order."""
        self.removals: dict[str, list[tuple[int, Removal]]] = {}
        """(transaction, removal) of each segment, in order."""
        self.records: dict[int, bytes] = {}
        """The transactions by number, except those that are too large for a pack."""
        self.keys: dict[bytes, KeyRow] = {}
        """Uses of idempotency keys."""
        self.bytes = 0
        """Bytes of `records`."""
        self.frames = 0

    def segments(self) -> list[str]:
        """The names of the segments that a transaction wrote to or removed from, each once."""
        return list({**self.pieces, **self.removals})

    def add(self, header: Header, record: bytes, copied: int) -> None:
        """Take the next transaction. Twice is the same as once. Frames of up to `copied` bytes are copied."""
        number, timestamp, pieces, frames = header.number, header.timestamp, self.pieces, header.frames
        if header.control is not None:
            for removal in header.control.removals:
                removals = self.removals.setdefault(removal.segment, [])
                if not removals or removals[-1][0] < number or (number, removal) not in removals:
                    removals.append((number, removal))
        # A record ends with its last frame.
        base = len(record) - frames[-1].start - frames[-1].length if frames else 0
        for ref in frames:
            segment = ref.segment
            known = pieces.get(segment)
            if known is None:  # `piece_of`, which would take most of the time where each frame is a new segment's
                start, length = base + ref.start, ref.length
                frame = record[start : start + length] if length <= copied else None
                first, count = ref.first_sequence, ref.count
                piece = Piece(number, timestamp, first, count, start, length, frame, ref.before, ref.size)
                pieces[segment] = [piece]
            elif known[-1].last_sequence < ref.first_sequence:
                known.append(piece_of(header, ref, record, base, copied))
        if len(record) <= MOST:
            self.records[number] = record
            self.bytes += len(record)
        self.frames += len(frames)
        for use in header.keys:
            self.keys[use.key] = key_row(header, use)

    def add_lone(self, number: int, segment: str, piece: Piece, record: bytes) -> None:
        """Take the next transaction, which has one frame and nothing else. Twice is the same as once."""
        known, size = self.pieces.get(segment), len(record)
        if known is None:
            self.pieces[segment] = [piece]
        elif known[-1].number < number:
            known.append(piece)
        if size <= MOST:
            self.records[number] = record
            self.bytes += size
        self.frames += 1

    def add_pieces(self, pieces: Mapping[str, list[Piece]], records: Mapping[int, bytes]) -> None:
        """Take the next transactions as `add_lone` does. No record is too large for a pack."""
        for segment, some in pieces.items():
            known = self.pieces.get(segment)
            if known is None:
                self.pieces[segment] = some
            else:
                last = known[-1].last_sequence
                known += [piece for piece in some if piece.first_sequence > last]
        self.records.update(records)
        self.bytes += sum(map(len, records.values()))
        self.frames += len(records)

    def add_shared(self, number: int, parts: Sequence[Part], pieces: Sequence[Piece], record: bytes) -> None:
        """Take the next transaction as `add_lone` does, with a frame for each of `parts`."""
        size = len(record)
        for part, piece in zip(parts, pieces, strict=True):
            known = self.pieces.get(part.segment)
            if known is None:
                self.pieces[part.segment] = [piece]
            elif known[-1].number < number:
                known.append(piece)
        if size <= MOST:
            self.records[number] = record
            self.bytes += size
        self.frames += len(parts)

    def pieces_until(self, segment: str, end: int) -> list[Piece]:
        """The pieces of a segment in transactions up to `end`, in order."""
        pieces = list(self.pieces.get(segment, ()))
        while pieces and pieces[-1].number > end:
            pieces.pop()
        return pieces

    def status(self, segment: str, row: SegmentRow, end: int) -> SegmentRow:
        """The status of a segment after transaction `end`, from its `row` before the tail."""
        pieces = self.pieces_until(segment, end)
        for number, removal in list(self.removals.get(segment, ())):
            if number <= end:
                row = row.with_pieces([piece for piece in pieces if piece.number < number]).without(removal)
        return row.with_pieces(pieces)

    def after(self, watermark: int) -> Tail:
        """The part after transaction `watermark`."""
        left = Tail(watermark)
        for segment, pieces in self.pieces.items():
            if pieces[0].number > watermark:
                left.pieces[segment] = pieces
            elif pieces[-1].number > watermark:
                left.pieces[segment] = [piece for piece in pieces if piece.number > watermark]
        for segment, removals in self.removals.items():
            if removals[-1][0] > watermark:
                left.removals[segment] = [removal for removal in removals if removal[0] > watermark]
        if self.records and next(reversed(self.records)) > watermark:
            left.records = {number: record for number, record in self.records.items() if number > watermark}
        left.keys = {key: row for key, row in self.keys.items() if row.number > watermark}
        left.bytes = sum(map(len, left.records.values()))
        left.frames = sum(map(len, left.pieces.values()))
        return left


def piece_of(header: Header, ref: FrameRef, record: bytes, base: int, copied: int) -> Piece:
    """The piece of a frame, in a record whose frames begin at `base`. A frame of up to `copied` bytes is copied."""
    start, length = base + ref.start, ref.length
    frame = record[start : start + length] if length <= copied else None
    first = ref.first_sequence
    return Piece(header.number, header.timestamp, first, ref.count, start, length, frame, ref.before, ref.size)
