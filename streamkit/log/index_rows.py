"""The values of rows in runs: msgpack, bare. The blocks that hold them carry the checksums and the version."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from ..decoders import Decoders
from ..errors import CorruptData
from .rows import DataRow, FenceRow, KeyRow, SegmentRow

__all__ = ["decode_index_row", "encode_index_row", "join_data", "piece_count"]

_Row = TypeVar("_Row", SegmentRow, DataRow, KeyRow, FenceRow)
_encoder = msgspec.msgpack.Encoder()
_decoders = Decoders()
_U16 = struct.Struct(">H")
_SHORT = 16


encode_index_row: Callable[[SegmentRow | DataRow | KeyRow | FenceRow], bytes] = _encoder.encode


def decode_index_row(kind: type[_Row], key: bytes, data: bytes) -> _Row:
    """The row of `kind` in `data`. CorruptData, naming the key."""
    try:
        row: _Row = _decoders[kind].decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptData(f"the index row {key!r} is damaged") from error
    return row


def _pieces(value: bytes) -> tuple[int, int]:
    """Return (how many pieces, where they begin) of an encoded DataRow."""
    kind = value[1]
    if kind & 0xF0 == 0x90:
        return kind & 0x0F, 2
    if kind == 0xDC:
        return int(_U16.unpack_from(value, 2)[0]), 4
    raise CorruptData("a data row of the index is damaged: it holds no list of pieces")


def piece_count(value: bytes) -> int:
    """The number of pieces in an encoded DataRow, which is not decoded."""
    return _pieces(value)[0]


def join_data(values: Sequence[bytes]) -> bytes:
    """The encoded DataRow with the pieces of all `values`, in their order; at most 65535. They are not decoded."""
    count = 0
    parts = [b""]
    for value in values:
        pieces, start = _pieces(value)
        count += pieces
        parts.append(value[start:])
    parts[0] = b"\x91%c" % (0x90 | count) if count < _SHORT else b"\x91\xdc" + _U16.pack(count)
    return b"".join(parts)
