"""The rows beside the log: their values and how they are packed. Each carries a checksum over its key and its bytes."""

from __future__ import annotations

import struct
import zlib
from typing import Any, TypeVar

import msgspec

from ..errors import CorruptData, UnsupportedVersion

__all__ = ["ArchiveRow", "DataRow", "Head", "KeyRow", "Piece", "SegmentRow", "Settings", "decode_row", "encode_row"]

VERSION = 2
"""The newest format of any row. Only what names an incarnation is of format 2, so that older releases refuse it."""
_CRC = struct.Struct("<I")


class Settings(msgspec.Struct, frozen=True, array_like=True):
    """What is chosen when a space is created."""

    partitions: int = 1
    durability: str = "committed"
    idempotency_window: float = 86_400.0
    """Seconds for which an idempotency key is remembered, at least. One that is found is honoured, however old."""
    archive_grace: float = 3600.0
    """Seconds for which transactions stay in the log after they were archived."""
    incarnation: bytes = b""
    """Drawn when the space is created, so that it is told from another one of its name; empty before format 2."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """How far a partition is. Where writes are atomic it is exact, else as of the last upkeep."""

    settings: Settings
    number: int = 0
    timestamp: int = 0
    position: int = 0
    """Entries up to `number`."""
    watermark: int = 0
    """The index holds everything up to this number."""
    archived: int = 0
    """The cold tier holds everything up to this number."""
    fences: dict[str, int] = {}


class SegmentRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    first_sequence: int
    first_timestamp: int
    last_sequence: int
    last_timestamp: int


class Piece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`count` entries of a segment from `first_sequence`: a frame, at `length` bytes from `start` of transaction
    `number`'s record. `frame` is a copy of it, where the index keeps one."""

    number: int
    timestamp: int
    first_sequence: int
    count: int
    start: int
    length: int
    frame: bytes | None = None

    @property
    def last_sequence(self) -> int:
        return self.first_sequence + self.count - 1


class DataRow(msgspec.Struct, frozen=True, array_like=True):
    pieces: list[Piece]


class ArchiveRow(msgspec.Struct, frozen=True, array_like=True):
    """What became of archived transactions. Only who holds the archiver's lease writes it."""

    removed: int = 0
    """The log holds nothing up to this number any more, nor does the index."""
    since: tuple[tuple[int, int], ...] = ()
    """(number, ms): transactions up to the number have been in the archive since then, by the service's clock."""


class KeyRow(msgspec.Struct, frozen=True, array_like=True):
    """An idempotency key's use."""

    number: int
    timestamp: int
    id: bytes
    node: bytes
    content: bytes
    segments: tuple[tuple[str, int], ...]
    count: int = 0
    """Entries of the transaction; 0 in rows of earlier releases."""


_Row = TypeVar("_Row", Settings, Head, SegmentRow, DataRow, KeyRow, ArchiveRow)
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, Any] = {
    row: msgspec.msgpack.Decoder(row) for row in (Settings, Head, SegmentRow, DataRow, KeyRow, ArchiveRow)
}


_NEWEST: dict[type, int] = {Settings: 2, Head: 2}


def _version(row: object) -> int:
    settings = row.settings if isinstance(row, Head) else row
    return 2 if isinstance(settings, Settings) and settings.incarnation else 1


def encode_row(key: bytes, row: Settings | Head | SegmentRow | DataRow | KeyRow | ArchiveRow) -> bytes:
    body = b"%c%b" % (_version(row), _encoder.encode(row))
    return _CRC.pack(zlib.crc32(body, zlib.crc32(key))) + body


def decode_row(kind: type[_Row], key: bytes, data: bytes) -> _Row:
    """The row of `kind` in `data`. CorruptData or UnsupportedVersion, naming the key."""
    body = data[4:]
    if len(body) < 2 or zlib.crc32(body, zlib.crc32(key)) != _CRC.unpack_from(data)[0]:
        raise CorruptData(f"the row {key!r} is damaged")
    newest = _NEWEST.get(kind, 1)
    if not 1 <= body[0] <= newest:
        raise UnsupportedVersion(
            f"the row {key!r} has format version {body[0]}; this release reads {newest}. Upgrade streamkit."
        )
    try:
        row: _Row = _decoders[kind].decode(memoryview(body)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptData(f"the row {key!r} is damaged") from error
    return row
