"""Offsets: "after this entry" in a space, as bytes that sort in reading order.

Layout: "OFS" 00 version 00 space 00 timestamp, kind, partition, then (number, index) pairs, then a crc32. All integers
are big endian, so that bytes compare as the fields do. An offset of a whole reading names, for every partition, the
transaction and the entry in it that come next, so that it loses nothing whatever other writers do. One that was taken
from a single segment of a space with several partitions knows its own partition only; the others follow by timestamp.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from ..errors import InvalidOffset
from ..lexkey import LexKey

__all__ = ["Offset"]

_MAGIC = b"OFS\x00"
_VERSION = 1
_FIELDS = struct.Struct(">QBI")
_PAIR = struct.Struct(">QQ")
_CRC = struct.Struct(">I")


class Offset(NamedTuple):
    """A decoded offset. `positions` has a (number, index) for each partition if `whole`, else only for `partition`."""

    space: str
    timestamp: int
    partition: int
    positions: tuple[tuple[int, int], ...]
    whole: bool = True

    def encode(self) -> LexKey:
        body = b"".join(
            (
                _MAGIC,
                bytes((_VERSION, 0)),
                self.space.encode(),
                b"\x00",
                _FIELDS.pack(self.timestamp, self.whole, self.partition),
                *(_PAIR.pack(*pair) for pair in self.positions),
            )
        )
        return LexKey(body + _CRC.pack(zlib.crc32(body)))

    @classmethod
    def decode(cls, data: bytes | str, space: str) -> Offset:
        """The offset in `data` (bytes, or their hex text). InvalidOffset if it is not one of `space`."""
        if isinstance(data, str):
            try:
                data = bytes.fromhex(data)
            except ValueError as error:
                raise InvalidOffset("the offset is not hexadecimal text; pass what `.hex()` gave") from error
        if not isinstance(data, bytes):
            raise TypeError(f"an offset is LexKey, bytes or hex text, not {type(data).__name__}")
        if len(data) < 6 or not data.startswith(_MAGIC):
            raise InvalidOffset("these bytes are not a space offset; pass an entry's space_offset")
        if data[4] != _VERSION:
            raise InvalidOffset(
                f"the offset has format version {data[4]}, this release reads {_VERSION}: it is damaged or "
                "was made by a newer streamkit"
            )
        body = data[:-4]
        if len(data) < 11 or _CRC.pack(zlib.crc32(body)) != data[-4:]:
            raise InvalidOffset("the offset is damaged (its checksum does not match)")
        try:
            name_end = body.index(b"\x00", 6)
            found = body[6:name_end].decode()
            timestamp, whole, partition = _FIELDS.unpack_from(body, name_end + 1)
            positions = tuple(_PAIR.iter_unpack(body[name_end + 1 + _FIELDS.size :]))
        except (ValueError, struct.error) as error:
            raise InvalidOffset("the offset is damaged") from error
        if found != space:
            raise InvalidOffset(f"the offset is of the space {found!r}, not of {space!r}")
        if (
            not positions
            or whole > 1
            or (not whole and len(positions) != 1)
            or not all(number for number, _ in positions)
        ):
            raise InvalidOffset("the offset is damaged")
        return cls(found, timestamp, partition, positions, bool(whole))

    def check_partitions(self, partitions: int) -> None:
        """InvalidOffset if it was made for a space of the same name with another number of partitions."""
        if self.partition >= partitions or (self.whole and len(self.positions) != partitions):
            raise InvalidOffset(
                f"the offset was made for a space {self.space!r} with another number of partitions than {partitions}"
            )
