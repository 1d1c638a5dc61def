"""The check of the index against the log and the archive: each row agrees with them, and none is missing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from ..checksum import crc32
from ..errors import StreamkitError
from ..log.index_reader import Index
from ..log.index_rows import decode_index_row
from ..log.keys import DATA, FENCES, KEYS, SEGMENTS, fence_key, idempotency_key, segment_key, segment_name
from ..log.rows import DataRow, FenceRow, KeyRow, Piece, SegmentRow
from .log_walk import LogWalk

__all__ = ["check_index", "rows_of"]

Rows = Mapping[bytes, Sequence[tuple[bytes, bytes]]]


def rows_of(index: Index) -> Rows:
    """All rows by the prefix of their keys. CorruptData or RunGone if they cannot be read."""
    return {bytes(prefix): list(index.scan(*prefix.children())) for prefix in (SEGMENTS, DATA, KEYS, FENCES)}


def check_index(log: LogWalk, rows: Rows) -> None:
    """Compare the index with the log. `rows` were read in the middle of the walk."""
    begins = _check_segments(log, rows[SEGMENTS])
    _check_data(log, rows[DATA], begins)
    _check_keys(log, dict(rows[KEYS]))
    _check_fences(log, dict(rows[FENCES]))


def _reached(log: LogWalk, pieces: Sequence[Piece]) -> int:
    """The last sequence of these pieces that the index must hold."""
    return max((piece.last_sequence for piece in pieces if piece.number <= log.head.watermark), default=0)


def _check_segments(log: LogWalk, rows: Sequence[tuple[bytes, bytes]]) -> dict[str, int]:
    """Compare the index's segment rows with the log; return the first sequence of each segment that was trimmed."""
    begins: dict[str, int] = {}
    missing = {segment for segment, pieces in log.pieces.items() if _reached(log, pieces)} | set(log.cold or ())
    for key, data in rows:
        segment = segment_name(key)
        missing.discard(segment)
        pieces = log.pieces.get(segment)
        cold = None if log.cold is None else log.cold.get(segment)
        if pieces is None and cold is None and log.cold is not None:
            log.found(key, f"the index knows a segment {segment!r} that the log does not")
            continue
        try:
            status = decode_index_row(SegmentRow, key, data)
        except StreamkitError as error:
            log.found(key, str(error))
            continue
        if log.trimmed(segment, status):
            begins[segment] = status.first_sequence
        if pieces is None:
            if cold is not None and _ends(cold) != _ends(status) and not log.trimmed(segment, status):
                log.found(key, f"the index says {status}, the archive {cold}")
            continue
        at = bisect_left(pieces, status.last_sequence, key=lambda piece: piece.last_sequence)
        reached = _reached(log, pieces)
        if status.last_sequence < reached or at == len(pieces):
            if reached or status.last_sequence >= pieces[0].first_sequence:
                log.found(key, f"the index ends it at {status.last_sequence}, the log at {reached}")
        elif pieces[at].last_sequence == status.last_sequence and pieces[at].timestamp != status.last_timestamp:
            log.found(key, f"the index says that its last entry is of {status.last_timestamp}, the log does not")
        if log.trimmed(segment, status):
            continue
        begin = (pieces[0].first_sequence, pieces[0].timestamp)
        if cold is not None:
            begin = (cold.first_sequence, cold.first_timestamp)
        if log.cold is not None and (status.first_sequence, status.first_timestamp) != begin:
            log.found(key, f"the index begins it at {status.first_sequence}, {status.first_timestamp}; the log not")
    for segment in sorted(missing):
        log.found(segment_key(segment), "the index does not know the segment")
    return begins


def _ends(row: SegmentRow) -> tuple[int, int, int, int]:
    """The first and last sequence and timestamp of a segment."""
    return row.first_sequence, row.first_timestamp, row.last_sequence, row.last_timestamp


def _check_data(log: LogWalk, rows: Sequence[tuple[bytes, bytes]], begins: Mapping[str, int]) -> None:
    """Check that every piece is at its place in the log, and that none is missing from the segment's beginning
    (`begins`) up to the watermark."""
    truth = {(segment, piece.first_sequence): piece for segment, pieces in log.pieces.items() for piece in pieces}
    removed = log.removed
    expected = {
        name: max(some[0].first_sequence, removed.get(name, 0) + 1, begins.get(name, 0))
        for name, some in log.pieces.items()
    }
    hiding: dict[str, tuple[bytes, int]] = {}
    for key, data in rows:
        segment = key[len(DATA) + 1 : -9].decode(errors="replace")
        try:
            row_pieces = decode_index_row(DataRow, key, data).pieces
        except StreamkitError as error:
            log.found(key, str(error))
            continue
        if not row_pieces or row_pieces[-1].last_sequence != int.from_bytes(key[-8:], "big"):
            log.found(key, "the row does not end where its key says")
        if row_pieces and row_pieces[0].first_sequence > expected.get(segment, row_pieces[0].first_sequence):
            hiding.setdefault(segment, (key, expected[segment]))
        for piece in row_pieces:
            real = truth.get((segment, piece.first_sequence))
            if real is None:
                if piece.number >= log.first:
                    log.found(key, f"the log has nothing of {segment!r} that begins at {piece.first_sequence}")
            elif msgspec.structs.replace(piece, frame=None) != real:
                log.found(key, f"the index points to another place than the log for {piece.first_sequence}")
            elif piece.first_sequence < begins.get(segment, 0):
                pass  # trimmed entries may have left the frame in the log, and are still in the copy
            elif piece.frame is not None and crc32(piece.frame) != log.checksums[segment, piece.first_sequence]:
                log.found(key, f"the copy of the entries from sequence {piece.first_sequence} on differs from the log")
            if segment in expected and piece.first_sequence <= expected[segment] <= piece.last_sequence:
                expected[segment] = piece.last_sequence + 1
    for segment, pieces in log.pieces.items():
        if expected[segment] <= _reached(log, pieces):
            key = bytes(DATA) + b"\x00" + segment.encode()
            log.found(key, f"the index has a hole: nothing holds sequence {expected[segment]} of {segment!r}")
        elif segment in hiding:
            key, sequence = hiding[segment]
            log.found(key, f"a reader looks here for sequence {sequence} of {segment!r}, which a later row holds")


def _check_keys(log: LogWalk, rows: dict[bytes, bytes]) -> None:
    for digest, uses in log.uses.items():
        key = idempotency_key(digest)
        data = rows.pop(key, None)
        indexed = [use for use in uses if log.head.forgotten < use.number <= log.head.watermark]
        if data is None:
            if indexed:
                log.found(key, "the index does not know the idempotency key")
            continue
        try:
            row = decode_index_row(KeyRow, key, data)
        except StreamkitError as error:
            log.found(key, str(error))
            continue
        if row not in uses[len(indexed) - 1 if indexed else 0 :] and (indexed or row.number >= log.first):
            log.found(key, "the index and the log differ about the idempotency key")
    for key, data in rows.items():
        try:
            if decode_index_row(KeyRow, key, data).number >= log.first:
                log.found(key, "the index knows an idempotency key that the log does not")
        except StreamkitError as error:
            log.found(key, str(error))


def _check_fences(log: LogWalk, rows: dict[bytes, bytes]) -> None:
    """Compare the tokens of leases. Others may write, and bring the index forward, while log and index are read."""
    whole = log.first <= 1  # else a higher token may be in a transaction that has left the log
    for name, tokens in log.fences.items():
        key = fence_key(name)
        data = rows.pop(key, None)
        least = max((token for number, token in tokens if number <= log.head.watermark), default=0)
        try:
            token = 0 if data is None else decode_index_row(FenceRow, key, data).token
        except StreamkitError as error:
            log.found(key, str(error))
            continue
        if token < least or (token > tokens[-1][1] and whole):
            log.found(key, f"the index says that the lease's highest token is {token}, the log {least}")
    for key, data in rows.items():
        try:
            token = decode_index_row(FenceRow, key, data).token
        except StreamkitError as error:
            log.found(key, str(error))
            continue
        if whole:
            log.found(key, f"the index knows a token of a lease, {token}, that the log does not")
