"""Offsets: "after this entry" in a space, as bytes that sort in reading order.

Layout: "OFS" 00 version 00 space 00 incarnation, timestamp, kind, partition, then (number, index) pairs, then a crc32.
All integers are big endian, so bytes compare as the fields do. An offset names the next transaction of every partition
and the next entry in it, so no entry is lost, regardless of other writers.

The offset of a single segment, or of a status, knows only the position in its own partition. In another partition the
entries with an earlier timestamp are before it, as far as they were known when the offset was made. The offset names
the known end of each other partition, and a reader begins there at the latest. (Offsets of earlier releases do not name
it: a reader then reads the other partitions from the beginning.) An offset without positions is before every entry, in
every incarnation.

Version 1 has no incarnation. Spaces that were created before there were incarnations still get it.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from ..checksum import crc32
from ..errors import InvalidOffset
from ..lexkey import LexKey

if TYPE_CHECKING:
    from .rows import Settings

__all__ = ["Offset", "encode_one", "text_of_one"]

_MAGIC = b"OFS\x00"
_VERSION = 2
_INCARNATION = 8
_FIELDS = struct.Struct(">QBI")
_PAIR = struct.Struct(">QQ")
_CRC = struct.Struct(">I")
_REMEDY = "Read from the beginning, or from an offset that was taken here"


_ONE = struct.Struct(">QBIQQ")
"""The fields and the pair of a space with one partition."""


@lru_cache(1024)
def _begin(space: str, incarnation: bytes) -> bytes:
    version = b"\x02\x00" if incarnation else b"\x01\x00"
    return b"".join((_MAGIC, version, space.encode(), b"\x00", incarnation))


def encode_one(space: str, timestamp: int, number: int, index: int, incarnation: bytes) -> LexKey:
    """`Offset(space, timestamp, 0, ((number, index),), True, incarnation).encode()`, in a third of its time.

    Most spaces have one partition, and every entry that leaves a server has an offset.
    """
    body = _begin(space, incarnation) + _ONE.pack(timestamp, True, 0, number, index)
    return LexKey(body + _CRC.pack(crc32(body)))


def text_of_one(space: str, timestamp: int, number: int, index: int, incarnation: bytes) -> str:
    """`encode_one(…).hex()`, without the key."""
    body = _begin(space, incarnation) + _ONE.pack(timestamp, True, 0, number, index)
    return (body + _CRC.pack(crc32(body))).hex()


class Offset(NamedTuple):
    """A decoded offset. `positions` has a (number, index) for each partition; of an earlier release maybe only one, for
    `partition`. If it is not `whole`, those of the others are the latest ones possible."""

    space: str
    timestamp: int
    partition: int
    positions: tuple[tuple[int, int], ...]
    whole: bool = True
    incarnation: bytes = b""

    def encode(self) -> LexKey:
        incarnation = self.incarnation or (b"" if self.positions else bytes(_INCARNATION))
        body = b"".join(
            (
                _begin(self.space, incarnation),
                _FIELDS.pack(self.timestamp, self.whole, self.partition),
                *(_PAIR.pack(*pair) for pair in self.positions),
            )
        )
        return LexKey(body + _CRC.pack(crc32(body)))

    @classmethod
    def decode(cls, data: bytes | str, space: str) -> Offset:
        """The offset in `data` (bytes, or their hex text). InvalidOffset if it is not one of `space`."""
        if isinstance(data, str):
            try:
                data = bytes.fromhex(data)
            except ValueError as error:
                raise InvalidOffset(
                    f"{data[:40]!r} is not an offset: pass the hexadecimal text that the store gave"
                ) from error
        if not isinstance(data, bytes):
            remedy = ": pass its .space_offset" if hasattr(data, "space_offset") else ""
            raise TypeError(f"an offset is LexKey, bytes or hex text, not {type(data).__name__}{remedy}")
        if len(data) < 6 or not data.startswith(_MAGIC):
            raise InvalidOffset("these bytes are not a space offset; pass an entry's space_offset")
        version = data[4]
        if not 1 <= version <= _VERSION:
            raise InvalidOffset(
                f"the offset has format version {version}, this release reads {_VERSION}: it is damaged or "
                "was made by a newer streamkit"
            )
        body = data[:-4]
        if len(data) < 11 or _CRC.pack(crc32(body)) != data[-4:]:
            raise InvalidOffset(f"the offset is damaged. {_REMEDY}")
        try:
            name_end = body.index(b"\x00", 6)
            found = body[6:name_end].decode()
            fields = name_end + 1 + (_INCARNATION if version > 1 else 0)
            incarnation = body[name_end + 1 : fields]
            timestamp, whole, partition = _FIELDS.unpack_from(body, fields)
            positions = tuple(_PAIR.iter_unpack(body[fields + _FIELDS.size :]))
        except (ValueError, struct.error) as error:
            raise InvalidOffset(f"the offset is damaged. {_REMEDY}") from error
        if found != space:
            raise InvalidOffset(f"the offset is of the space {found!r}, not of {space!r}")
        if (
            whole > 1
            or (not positions and not (whole and version > 1 and not any(incarnation)))
            or (positions and version > 1 and not any(incarnation))
            or not all(number for number, _ in positions)
        ):
            raise InvalidOffset(f"the offset is damaged. {_REMEDY}")
        return cls(found, timestamp, partition, positions, bool(whole), incarnation if positions else b"")

    def check(self, settings: Settings | None) -> None:
        """Raise InvalidOffset unless the offset belongs to the space with these settings. None: the space does not
        exist."""
        if not self.positions:
            return
        if settings is None:
            raise InvalidOffset(
                f"the offset is of a space {self.space!r} that does not exist here: it is of another store, or the "
                f"space was deleted since. {_REMEDY}"
            )
        partitions = settings.partitions
        if self.partition >= partitions or len(self.positions) != (1 if self._alone else partitions):
            raise InvalidOffset(
                f"the offset was made for a space {self.space!r} with another number of partitions than {partitions}. "
                f"{_REMEDY}"
            )
        if self.incarnation != settings.incarnation:
            raise InvalidOffset(
                f"the offset is of another space {self.space!r}: of another store, or of one that was deleted and made "
                f"again since. {_REMEDY}"
            )

    @property
    def _alone(self) -> bool:
        """True if it has the position of its own partition only."""
        return not self.whole and len(self.positions) == 1

    def position(self, partition: int) -> tuple[int, int]:
        """The next (number, index) of a partition. If the offset is not `whole`, another partition's is the latest
        possible one."""
        if not self._alone and self.positions:
            return self.positions[partition]
        return self.positions[0] if self.positions and partition == self.partition else (1, 0)

    def check_end(self, partition: int, number: int) -> None:
        """Raise InvalidOffset if the offset is beyond transaction `number`, the last one of a partition."""
        position = self.position(partition)
        if position > (number + 1, 0):
            raise InvalidOffset(
                f"the offset is beyond the end of the space {self.space!r}: it is after transaction {position[0]} of "
                f"partition {partition}, whose last is {number}. It comes from a copy of this store that received "
                f"later writes, or this store was set back"
            )

    @classmethod
    def beginning(cls, space: str) -> Offset:
        """The offset before every entry, also of a space that does not exist yet."""
        return cls(space, 0, 0, ())
