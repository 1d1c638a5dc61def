"""The meta pages of an LMDB data file, which LMDB does not check: a flipped bit there would bring an old state back."""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple
from zlib import crc32

from streamkit.errors import CorruptData

__all__ = ["Meta", "read_meta"]

_META: Final = struct.Struct("<16xIIQQI92xQQ")
"""Magic, version, address, map size, page size (in the first database), last page, transaction."""


class Meta(NamedTuple):
    """The newest state of the file: its transaction, where its last page ends, and the checksum of its meta page."""

    transaction: int
    end: int
    crc: int


def read_meta(fd: int, path: str) -> Meta:
    """CorruptData if the two pages cannot be what LMDB wrote: it takes turns between them."""
    first, page = _parse(os.pread(fd, _META.size, 0), path)
    second, _ = _parse(os.pread(fd, _META.size, page), path)
    numbers = first.transaction, second.transaction
    turns = abs(numbers[0] - numbers[1]) == 1 and not numbers[0] & 1
    if not turns and numbers != (0, 0):
        raise CorruptData(f"{path} has a damaged meta page: restore the store from a backup")
    return max(first, second)


def _parse(data: bytes, path: str) -> tuple[Meta, int]:
    if len(data) < _META.size:
        raise CorruptData(f"{path} is cut short: restore the store from a backup")
    magic, version, _, _, page, last, transaction = _META.unpack(data)
    if magic != 0xBEEFC0DE or version != 1 or not 512 <= page <= 65536:
        raise CorruptData(f"{path} has a damaged meta page: restore the store from a backup")
    return Meta(transaction, (last + 1) * page, crc32(data)), page
