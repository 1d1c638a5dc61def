"""The transactions after the index's watermark, as this process has read or written them."""

from __future__ import annotations

from .floors import Removal
from .idempotency import key_row
from .pack_format import MOST
from .record_format import Header, frames_start
from .rows import KeyRow, Piece

__all__ = ["Tail"]


class Tail:
    """It only grows. When the index takes over its beginning, what is left becomes a new Tail: see `after`.

    The partition's lock guards `add`. Views need no lock: each passes over what came after its own end.
    """

    __slots__ = ("bytes", "frames", "keys", "pieces", "records", "removals", "watermark")

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark
        """The index holds every transaction up to this number."""
        self.pieces: dict[str, list[Piece]] = {}
        """The pieces of each segment, in order."""
        self.removals: dict[str, list[tuple[int, Removal]]] = {}
        """(transaction, what it removes) of each segment, in order."""
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
        number, timestamp, pieces = header.number, header.timestamp, self.pieces
        for removal in header.control.removals if header.control is not None else ():
            removals = self.removals.setdefault(removal.segment, [])
            if not removals or removals[-1][0] < number or (number, removal) not in removals:
                removals.append((number, removal))
        base = frames_start(record)
        for ref in header.frames:
            start, length, first = base + ref.start, ref.length, ref.first_sequence
            frame = record[start : start + length] if length <= copied else None
            piece = Piece(number, timestamp, first, ref.count, start, length, frame, ref.before, ref.size)
            known = pieces.get(ref.segment)
            if known is None:
                pieces[ref.segment] = [piece]
            elif known[-1].last_sequence < first:
                known.append(piece)
        if len(record) <= MOST:
            self.records[number] = record
            self.bytes += len(record)
        self.frames += len(header.frames)
        for use in header.keys:
            self.keys[use.key] = key_row(header, use)

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
        left.records = {number: record for number, record in self.records.items() if number > watermark}
        left.keys = {key: row for key, row in self.keys.items() if row.number > watermark}
        left.bytes = sum(map(len, left.records.values()))
        left.frames = sum(map(len, left.pieces.values()))
        return left
