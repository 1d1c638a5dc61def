"""What the LMDB index holds, under which keys, and how damage is found in it.

    r · partition · key     a row: its value
    l · partition · key     an appended row: position in the log u64, length of its value u32
    c · partition           the checkpoint: the position below which all rows of the log are in the index, the last key
    z · name                a lease

A partition is the 16-byte digest of its name, so that every key fits into LMDB's limit. Every value ends with the crc32
of its key and of what is before. LMDB itself checks nothing, and a key that was changed by accident hides itself, and
maybe others: so where a row is not there, its neighbours must be whole and in order.
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
from .record import Ref

__all__ = [
    "KEY",
    "Keys",
    "check_neighbour",
    "checkpoint",
    "checksummed",
    "content",
    "damage",
    "indexed_end",
    "keys_of",
    "look_up",
    "put_pending",
    "ref_of",
    "seek",
]

KEY: Final = 17
"""Bytes before the key of a row."""

_RESIDUE: Final = 0x2144DF1C
"""The crc32 of anything that is followed by its crc32."""
_REF: Final = struct.Struct("<QI4x")
_PACK_REF: Final = struct.Struct("<QI")
_POSITION: Final = struct.Struct("<Q")


class Keys(NamedTuple):
    """The prefixes of one partition's rows and appended rows, and the key of its checkpoint."""

    digest: bytes
    rows: bytes
    refs: bytes
    mark: bytes


@lru_cache(maxsize=65536)
def keys_of(partition: bytes) -> Keys:
    digest = hashlib.blake2b(partition, digest_size=16).digest()
    return Keys(digest, b"r" + digest, b"l" + digest, b"c" + digest)


def checksummed(key: bytes, body: bytes) -> bytes:
    """What is stored under `key`."""
    return body + crc32(body, crc32(key)).to_bytes(4, "little")


def content(key: bytes, stored: bytes) -> bytes:
    """The body of what is stored under `key`. CorruptData if it is not what was stored."""
    if crc32(stored, crc32(key)) != _RESIDUE:
        raise damage(key)
    return stored[:-4]


def damage(key: bytes) -> CorruptData:
    """The error for what is not right at or around a key of the index."""
    return CorruptData(f"the index is damaged at {key[KEY:] or key!r}: restore the store from a backup")


def ref_of(stored: bytes) -> Ref:
    """The place of an appended row. Not checked: the record that is there says whether it is right."""
    if len(stored) != _REF.size:
        raise CorruptData("the index of a log is damaged: restore the store from a backup")
    ref: Ref = _REF.unpack(stored)
    return ref


def look_up(txn: lmdb.Transaction[bytes], key: bytes) -> bytes | None:
    """What is stored under `key`. CorruptData if it seems not to be there, and its neighbours are damaged."""
    stored = txn.get(key)
    if stored is None:
        with txn.cursor() as cursor:
            if seek(cursor, key):
                if cursor.key() == key:
                    raise damage(key)
                check_neighbour(cursor)
    return stored


def seek(cursor: lmdb.Cursor[bytes], start: bytes) -> bool:
    """Go to the first row at or after `start`; False if there is none. CorruptData if the row before is damaged."""
    there = cursor.set_range(start)
    if there and cursor.key() < start:
        raise damage(start)
    if cursor.prev() if there else cursor.last():
        check_neighbour(cursor)
        if cursor.key() >= start:
            raise damage(start)
        cursor.next()
    elif there:
        cursor.first()
    return there


def check_neighbour(cursor: lmdb.Cursor[bytes]) -> None:
    """CorruptData if the row that the cursor is on, and that ends a search, is damaged."""
    key, stored = cursor.item()
    content(key, stored)


def checkpoint(txn: lmdb.Transaction[bytes], keys: Keys) -> Checkpoint:
    """What the index holds of a log."""
    stored = look_up(txn, keys.mark)
    if stored is None:
        return Checkpoint()
    body = content(keys.mark, stored)
    (position,) = _POSITION.unpack_from(body)
    first, low = position, None
    with txn.cursor() as cursor:
        if seek(cursor, keys.refs) and cursor.key().startswith(keys.refs):
            check_neighbour(cursor)
            first, low = ref_of(cursor.value())[0], cursor.key()[KEY:]
    return Checkpoint(position, body[_POSITION.size :], first, low)


def indexed_end(txn: lmdb.Transaction[bytes], keys: Keys) -> int:
    """The position of the checkpoint."""
    stored = look_up(txn, keys.mark)
    if stored is None:
        return 0
    position: int = _POSITION.unpack_from(content(keys.mark, stored))[0]
    return position


def put_pending(txn: lmdb.Transaction[bytes], keys: Keys, pending: Pending, end: int) -> int:
    """Put the rows of the log below `end` into the index; returns the checkpoint. Others may have put some of them."""
    base = indexed_end(txn, keys)
    items: list[tuple[bytes, bytes]] = []
    prefix, pack = keys.refs, _PACK_REF.pack
    for key, (position, size) in zip(pending.keys, pending.refs, strict=False):
        if base <= position < end:
            key = prefix + key
            items.append((key, checksummed(key, pack(position, size))))
    if not items:
        return base
    with txn.cursor() as cursor:
        cursor.putmulti(items)
    txn.put(keys.mark, checksummed(keys.mark, _POSITION.pack(end) + items[-1][0][KEY:]))
    return end
