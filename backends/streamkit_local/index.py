"""What the LMDB index holds, and under which keys.

    r · partition · key     a row: crc32 of key and value, value
    l · partition · key     an appended row: position in the log, length of its value
    c · partition           the checkpoint: all rows of the log below a position are in the index
    z · name                a lease

A partition is the 16-byte digest of its name, so that every key fits into LMDB's limit.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from typing import Final, NamedTuple
from zlib import crc32

import lmdb

from streamkit.errors import CorruptData

from .pending import Checkpoint, Pending

__all__ = ["KEY", "REF", "Keys", "checkpoint", "indexed_end", "keys_of", "pack_row", "put_pending", "unpack_row"]

REF: Final = struct.Struct("<QI")
_CRC: Final = struct.Struct("<I")
_MARK: Final = struct.Struct("<IQ")
KEY: Final = 17
"""Bytes before the key of a row."""


class Keys(NamedTuple):
    """The prefixes of one partition."""

    digest: bytes
    rows: bytes
    refs: bytes
    mark: bytes


@lru_cache(maxsize=65536)
def keys_of(partition: bytes) -> Keys:
    digest = hashlib.blake2b(partition, digest_size=16).digest()
    return Keys(digest, b"r" + digest, b"l" + digest, b"c" + digest)


def pack_row(key: bytes, data: bytes) -> bytes:
    return _CRC.pack(crc32(data, crc32(key))) + data


def unpack_row(key: bytes, stored: bytes) -> bytes:
    data = stored[4:]
    if len(stored) < 4 or _CRC.pack(crc32(data, crc32(key))) != stored[:4]:
        raise CorruptData(f"the row {key[KEY:]!r} is damaged in the index: restore the store from a backup")
    return data


def checkpoint(txn: lmdb.Transaction[bytes], keys: Keys) -> Checkpoint:
    """What the index holds of the log."""
    stored = txn.get(keys.mark)
    if stored is None:
        return Checkpoint()
    if len(stored) < _MARK.size or crc32(stored[4:], crc32(keys.mark)) != _CRC.unpack_from(stored)[0]:
        raise CorruptData("the index of a log is damaged: restore the store from a backup")
    position: int = _MARK.unpack_from(stored)[1]
    first, low = position, None
    with txn.cursor() as cursor:
        if cursor.set_range(keys.refs) and cursor.key().startswith(keys.refs):
            first, low = REF.unpack(cursor.value())[0], cursor.key()[KEY:]
    return Checkpoint(position, stored[_MARK.size :], first, low)


def indexed_end(txn: lmdb.Transaction[bytes], keys: Keys) -> int:
    """The position of the checkpoint."""
    stored = txn.get(keys.mark)
    if stored is None:
        return 0
    position: int = _MARK.unpack_from(stored)[1]
    return position


def put_pending(txn: lmdb.Transaction[bytes], keys: Keys, pending: Pending, end: int) -> int:
    """Put the rows of the log below `end` into the index; returns the checkpoint. Others may have put some of them."""
    stored = txn.get(keys.mark)
    base: int = _MARK.unpack_from(stored)[1] if stored is not None else 0
    if base >= end:
        return base
    refs, prefix, pack = pending.refs, keys.refs, REF.pack
    count = len(pending.keys)
    items = [
        (prefix + key, pack(position, size))
        for key, (position, size) in zip(pending.keys[:count], refs[:count], strict=True)
        if base <= position < end
    ]
    if not items:
        return base
    with txn.cursor() as cursor:
        cursor.putmulti(items)
    body = struct.pack("<Q", end) + items[-1][0][KEY:]
    txn.put(keys.mark, _CRC.pack(crc32(body, crc32(keys.mark))) + body)
    return end
