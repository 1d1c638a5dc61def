"""The index: a view of the log that tells where each segment's entries are. It can always be built again.

Where a backend writes atomically, a transaction's index rows go with it. Elsewhere they follow, many transactions at
once: `bring_forward` may run in several processes at the same time, may stop anywhere, and may land late. It holds
because a data row is true for ever, a segment row is replaced only by who has read it, the head moves last, and a data
row is removed only when another one that holds all of it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..backend import ABSENT, Ambiguous, Conflict, Delete, Etag, Expect, Op, Put, Value
from ..errors import TransientError
from ..log.idempotency import key_row
from ..log.keys import HEAD, data_key, idempotency_key, segment_key
from ..log.partition import Partition
from ..log.record_format import Header, frames_start
from ..log.rows import DataRow, Head, Piece, SegmentRow, decode_row, encode_row

__all__ = ["bring_forward", "data_rows", "rows_of"]

_PIECES = 256
"""The most pieces in one data row."""
_PIECE_BYTES = 48


def _data_put(segment: str, pieces: list[Piece]) -> Put:
    key = data_key(segment, pieces[-1].last_sequence)
    return Put(key, encode_row(key, DataRow(pieces)))


def rows_of(
    partition: Partition,
    header: Header,
    record: bytes,
    statuses: Mapping[str, SegmentRow],
    etags: Mapping[str, Etag],
) -> list[Put]:
    """The index rows that go with a transaction. `statuses` are those after it, `etags` those of the rows before."""
    inline = partition.limits.inline
    base = frames_start(record)
    pieces: dict[str, list[Piece]] = {}
    for ref in header.frames:
        start = base + ref.start
        frame = record[start : start + ref.length] if ref.length <= inline else None
        piece = Piece(header.number, header.timestamp, ref.first_sequence, ref.count, start, ref.length, frame)
        pieces.setdefault(ref.segment, []).append(piece)
    puts: list[Put] = []
    for segment, found in pieces.items():
        puts.append(_data_put(segment, found))
        key = segment_key(segment)
        puts.append(Put(key, encode_row(key, statuses[segment]), etags.get(segment, ABSENT)))
    for use in header.keys:
        key = idempotency_key(use.key)
        puts.append(Put(key, encode_row(key, key_row(header, use))))
    return puts


def bring_forward(partition: Partition) -> bool:
    """Index every transaction that is known and not indexed yet. False if another process was at it: it will do."""
    backend = partition.backend
    with partition.lock:
        if partition.watermark == partition.number:
            return True
        tail = {segment: list(pieces) for segment, pieces in partition.tail.items()}
        keys = list(partition.tail_keys.items())
        head, head_etag = partition.head, partition.head_etag
        number = partition.number
        after = Head(
            partition.settings,
            number,
            partition.timestamp,
            partition.position,
            number,
            head.archived,
            dict(partition.fences),
        )
    try:
        data, segments, gone = _merge(partition, tail)
        uses = [Put(key, encode_row(key, row)) for key, row in ((idempotency_key(digest), row) for digest, row in keys)]
        top = Put(bytes(HEAD), encode_row(HEAD, after), ABSENT if head_etag is None else head_etag)
        etag: Etag | None
        if backend.limits.atomic_rows and len(data) + len(segments) + len(gone) + len(uses) < backend.limits.ops:
            etag = backend.write(partition.key, [*data, *segments, *uses, *gone, top])[-1]
        else:
            if not backend.limits.atomic:
                partition.check_space()
            _write_data(partition, data)
            _write(partition, [*uses, *segments])
            etag = backend.write(partition.key, [top])[0]
            if gone:
                _write(partition, gone)
    except Conflict:
        _catch_up(partition)
        return False
    except Ambiguous:
        _catch_up(partition)
        return partition.watermark >= number
    with partition.lock:
        if partition.head_etag == head_etag:
            partition.indexed(after, etag, tail)
    partition.counters["upkeeps"] += 1
    return True


def _catch_up(partition: Partition) -> None:
    try:
        partition.look_at_head()
    except (TransientError, Ambiguous):
        return


def _write_data(partition: Partition, puts: Sequence[Put]) -> None:
    """Two rows of one key end at the same sequence, so one of them holds the other: that one stays."""
    todo = [put._replace(expect=ABSENT) for put in puts]
    while todo:
        try:
            _write(partition, todo)
            return
        except Conflict:
            values = partition.backend.get(partition.key, [put.key for put in todo])
        rest = []
        for put, value in zip(todo, values, strict=True):
            if value is None:
                rest.append(put._replace(expect=ABSENT))
            elif _first(put.key, value.data) > _first(put.key, put.value):
                rest.append(put._replace(expect=value.etag))
        todo = rest


def _first(key: bytes, data: bytes) -> int:
    return decode_row(DataRow, key, data).pieces[0].first_sequence


def _write(partition: Partition, ops: Sequence[Op]) -> None:
    limits = partition.limits
    batch: list[Op] = []
    size = 0
    for op in ops:
        length = len(op.key) + (0 if isinstance(op, Delete) else len(op.value)) + 256
        if batch and (len(batch) >= limits.ops or size + length > limits.batch_bytes):
            partition.backend.write(partition.key, batch)
            batch, size = [], 0
        batch.append(op)
        size += length
    if batch:
        partition.backend.write(partition.key, batch)


def _merge(partition: Partition, tail: Mapping[str, list[Piece]]) -> tuple[list[Put], list[Put], list[Delete]]:
    """The data rows, segment rows and deletions that bring `tail` into the index."""
    backend = partition.backend
    names = list(tail)
    segment_keys = [segment_key(name) for name in names]
    found: list[Value | None] = []
    for at in range(0, len(names), 1000):
        found += backend.get(partition.key, segment_keys[at : at + 1000])
    rows: dict[str, SegmentRow] = {}
    expects: dict[str, Expect | Etag] = {}
    open_keys: dict[str, bytes] = {}
    for name, key, value in zip(names, segment_keys, found, strict=True):
        if value is None:
            expects[name] = ABSENT
            continue
        rows[name] = decode_row(SegmentRow, key, value.data)
        expects[name] = value.etag
        open_keys[name] = data_key(name, rows[name].last_sequence)
    open_rows: dict[str, DataRow] = {}
    wanted = list(open_keys.items())
    for at in range(0, len(wanted), 1000):
        part = wanted[at : at + 1000]
        for (name, key), value in zip(part, backend.get(partition.key, [key for _, key in part]), strict=True):
            if value is not None:
                open_rows[name] = decode_row(DataRow, key, value.data)
    _check_unmoved(partition, [name for name in rows if name not in open_rows], expects)
    data: list[Put] = []
    segments: list[Put] = []
    gone: list[Delete] = []
    for name, pieces in tail.items():
        row = rows.get(name)
        if row is not None:
            pieces = [piece for piece in pieces if piece.first_sequence > row.last_sequence]
        if not pieces:
            continue
        if name in open_rows and _has_room(backend.limits.row, open_rows[name].pieces, pieces[0]):
            pieces = [*open_rows[name].pieces, *pieces]
            gone.append(Delete(open_keys[name]))
        data += data_rows(backend.limits.row, name, pieces)
        last = pieces[-1]
        status = SegmentRow(
            row.first_sequence if row else pieces[0].first_sequence,
            row.first_timestamp if row else pieces[0].timestamp,
            last.last_sequence,
            last.timestamp,
        )
        key = segment_key(name)
        segments.append(Put(key, encode_row(key, status), expects[name]))
    return data, segments, gone


def _check_unmoved(partition: Partition, names: Sequence[str], expects: Mapping[str, Expect | Etag]) -> None:
    """Conflict if a data row is not there because another process merged it into a larger one since its segment row was
    read. Without it, a row would begin in the middle of that larger one, and hide it from who looks for its beginning.
    A row that was archived and removed is missing as well; then its segment row has not changed.
    """
    keys = [segment_key(name) for name in names]
    for name, key, value in zip(names, keys, partition.backend.get(partition.key, keys) if keys else (), strict=True):
        if value is None or value.etag != expects[name]:
            raise Conflict(key)


def data_rows(limit: int, segment: str, pieces: Sequence[Piece]) -> list[Put]:
    """The rows that hold `pieces`, each of up to about `limit` bytes."""
    return [_data_put(segment, part) for part in _split(limit, pieces)]


def _size(piece: Piece) -> int:
    return _PIECE_BYTES + (len(piece.frame) if piece.frame is not None else 0)


def _has_room(limit: int, pieces: Sequence[Piece], more: Piece) -> bool:
    return len(pieces) < _PIECES and sum(map(_size, pieces)) + _size(more) <= limit


def _split(limit: int, pieces: Sequence[Piece]) -> list[list[Piece]]:
    parts: list[list[Piece]] = []
    size = limit
    for piece in pieces:
        size += _size(piece)
        if size > limit or len(parts[-1]) >= _PIECES:
            parts.append([])
            size = _size(piece)
        parts[-1].append(piece)
    return parts
