"""A transaction with one frame and nothing else, as most are: one step makes it, and all that follows from it."""

from __future__ import annotations

from typing import Any

from .. import speed
from ..model import TRX, Position, SegmentStatus
from .commit_base import LoneBase, SharedBase
from .ids import TAG, id_of
from .keys import transaction_key
from .pack_format import MOST
from .record_format import Body, encode_transaction
from .request import Part
from .rows import Piece, SegmentRow, Settings

__all__ = ["Lone", "LoneEncoder", "Read", "Shared"]

Lone = tuple[bytes, bytes, SegmentRow, Piece, TRX, SegmentStatus | None]
"""The transaction's key and record. The status of its segment after it: as a row, and as its caller gets it, None if
the space has several partitions. The piece of its frame, and its name."""
Shared = tuple[bytes, bytes, list[SegmentRow], list[Piece], TRX, list[SegmentStatus | None]]
"""The fields of `Lone`, for a transaction with several frames, each of another segment."""
Read = tuple[int, dict[str, list[Piece]], list[int], int, int, int]
"""Transactions that follow each other: how many there are, the pieces of each segment, and each of their timestamps
once. The entries and the bytes of payload in the partition after them, and the entries of the last one."""

_twin: Any = speed.twin
_CLASSES = SegmentRow, Piece, Part, Body, TRX, Position, SegmentStatus


class LoneEncoder:
    """Encodes the transactions of one partition that have one frame and nothing else."""

    def __init__(
        self, space: str, partition: int, settings: Settings, seed: int, transactions: bytes, copied: int
    ) -> None:
        """`transactions`: the prefix of their keys. Frames of up to `copied` bytes are copied into their pieces."""
        self._space = space
        self._partition = partition
        self._settings = settings
        self._seed = seed
        self._transactions = transactions
        self._copied = copied
        self._compiled: Any = None
        if speed.twin is not None:
            place = space, partition, settings.incarnation, settings.partitions == 1
            self._compiled = speed.twin.LoneEncoder(_CLASSES, *place, seed, transactions, copied)

    def encode(self, now: int, drawn: int, node: bytes, timestamp: int, base: LoneBase, part: Part) -> Lone:
        """The transaction after `base` that writes `part`, which has a body. `now`, `drawn`: see `id_of`."""
        if _twin is not None:
            made: Lone | None = self._compiled.encode(now, drawn, node, timestamp, base, part)
            if made is not None:
                return made
        row, number, _, position, size, _ = base
        segment, body = part.segment, part.body
        assert body is not None
        number, first, before = number + 1, row.last_sequence + 1, row.size
        id = id_of(now, self._seed & TAG, drawn)
        header, record = encode_transaction(
            number=number,
            timestamp=timestamp,
            id=id,
            node=node,
            position=position,
            parts=[(segment, first, body)],
            seed=self._seed,
            sizes=[(before, part.size)],
            size=size,
        )
        length = header.frames[0].length
        start = len(record) - length
        frame = record[start:] if length <= self._copied else None
        row = row.with_entries(number, timestamp, first, body.count, before + part.size)
        piece = Piece(number, timestamp, first, body.count, start, length, frame, before, part.size)
        trx = TRX(id, node, number)
        return (
            transaction_key(self._transactions, number),
            record,
            row,
            piece,
            trx,
            self._status(segment, row, piece, trx),
        )

    def encode_shared(
        self, now: int, drawn: int, node: bytes, timestamp: int, base: SharedBase, parts: list[Part]
    ) -> Shared | None:
        """The transaction after `base` that writes each of `parts` to another segment. None where it has to be made in
        several steps: without the twin, if there are several."""
        rows, number, timed, position, size, looked = base
        if len(parts) == 1:
            key, record, row, piece, trx, status = self.encode(
                now, drawn, node, timestamp, (rows[0], number, timed, position, size, looked), parts[0]
            )
            return key, record, [row], [piece], trx, [status]
        if _twin is None:
            return None
        made: Shared | None = self._compiled.encode_shared(
            now, drawn, node, timestamp, number, position, size, rows, parts
        )
        return made

    def read(self, rows: list[tuple[int, bytes | None]], number: int) -> Read | None:
        """The transactions at the beginning of `rows`, each (its number, record), that follow `number` and have one
        frame and nothing else. None if there is none, and without the twin."""
        read: Read | None = None if _twin is None else self._compiled.read(rows, number, MOST)
        return read

    def _status(self, segment: str, row: SegmentRow, piece: Piece, trx: TRX) -> SegmentStatus | None:
        settings = self._settings
        if settings.partitions > 1:
            return None
        place = Position(self._partition, 1, piece.timestamp, trx.number, piece.count, settings.incarnation)
        first, last = (row.first_sequence, row.first_timestamp), (row.last_sequence, row.last_timestamp)
        return SegmentStatus(self._space, segment, *first, *last, trx, place)
