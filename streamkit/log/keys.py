"""The keys of a store. Each is a lexkey, split at the seam into a backend partition and a key within it.

| partition | key | row |
|---|---|---|
| CATALOG | INV, SPACES, space | the space's settings |
| space, partition | INV, PARTITIONS | the head: the ends of log, index and archive, and the files of the index |
| space, partition | INV, ARCHIVE | the removed part of the log, after archiving |
| space, the first of 64 partitions | INV, GRACE | since when what is archived of them has been so |
| space, partition | TXN, incarnation, number | a transaction |
| space, partition | RUN, id | a file of the index |
| space, partition | ERA, incarnation, number | the erasures of a transaction, also after the log has dropped it |
| space, the first partition | IMPORT, FILE | the import of the space that was begun |
| RESTORE | RESTORE | the restore of a backup that was begun |
| space, partition, INB | incarnation, number, id | requests that another process is to commit: see inbox_message.py |

The rows of the index, which are in its files:

| key | row |
|---|---|
| INV, SEGMENTS, segment | first and last entry of a segment |
| INV, FENCES, lease | the highest token with which the lease has written |
| INV, KEYS, idempotency key | which transaction an idempotency key belongs to |
| DAT, SEGMENTS, segment, last sequence | where a segment's entries up to that sequence are |
"""

from __future__ import annotations

import struct

from ..lexkey import LexKey, Unsigned

__all__ = [
    "ARCHIVE",
    "CATALOG",
    "DATA",
    "DATA_END",
    "DATA_START",
    "EPOCH",
    "FENCES",
    "GRACE",
    "HEAD",
    "IMPORT",
    "KEYS",
    "RESTORE",
    "RUNS",
    "SEGMENTS",
    "SEQUENCE_BYTES",
    "SPACES",
    "USERS_SPACES",
    "created_at",
    "data_key",
    "data_range",
    "erased_prefix",
    "fence_key",
    "idempotency_key",
    "inbox_key",
    "partition_key",
    "run_key",
    "segment_key",
    "segment_name",
    "space_key",
    "transaction_incarnation",
    "transaction_key",
    "transaction_number",
    "transaction_prefix",
]

CATALOG = LexKey.encode("INV")
SPACES = LexKey.encode("INV", "SPACES")
USERS_SPACES = (bytes(LexKey.encode("INV", "SPACES", "\x20")), bytes(SPACES.children()[1]))
"""The range of the spaces' keys without those of internal ones, whose names begin with a control character."""
ARCHIVE = LexKey.encode("INV", "ARCHIVE")
GRACE = LexKey.encode("INV", "GRACE")
IMPORT = b"IMPORT\x00FILE"
RESTORE = b"RESTORE", b"RESTORE"
HEAD = LexKey.encode("INV", "PARTITIONS")
SEGMENTS = LexKey.encode("INV", "SEGMENTS")
FENCES = LexKey.encode("INV", "FENCES")
KEYS = LexKey.encode("INV", "KEYS")
RUNS = LexKey.encode("RUN")
DATA = LexKey.encode("DAT", "SEGMENTS")
DATA_START, DATA_END = map(bytes, DATA.children())
"""The range of the data rows' keys. Each is the start, the segment, a zero byte and the last sequence."""
SEQUENCE_BYTES = 8
"""Bytes of the sequence at the end of a data row's key."""
EPOCH = 1_735_689_600_000
"""2025-01-01, in ms: incarnations count from here."""
_FENCE = bytes(LexKey.encode_first("INV", "FENCES"))
_KEYS = LexKey.encode_first("INV", "KEYS")
_SEGMENT = bytes(LexKey.encode_first("INV", "SEGMENTS"))
_DATA = bytes(LexKey.encode_first("DAT", "SEGMENTS"))
_RUN = bytes(LexKey.encode_first("RUN"))
_ERASED = bytes(LexKey.encode_first("ERA"))
_TRANSACTION = bytes(LexKey.encode_first("TXN"))
_U64 = struct.Struct(">Q")
_LAST = (1 << 64) - 1


def space_key(space: str) -> LexKey:
    return LexKey.encode("INV", "SPACES", space)


def created_at(incarnation: bytes) -> float:
    """The time at which an incarnation was drawn, in seconds since 1970: see `space.new_incarnation`."""
    return ((int.from_bytes(incarnation, "big") >> 23) + EPOCH) / 1000


def partition_key(space: str, partition: int) -> LexKey:
    return LexKey.encode(space, Unsigned(partition))


def inbox_key(space: str, partition: int) -> LexKey:
    """The inbox has its own backend partition, so that a limit on each partition does not slow the log down."""
    return LexKey.encode(space, Unsigned(partition), "INB")


def segment_key(segment: str) -> bytes:
    return _SEGMENT + segment.encode()


def segment_name(key: bytes) -> str:
    """The last part of a segment's or a space's key."""
    return key.rpartition(b"\x00")[2].decode()


def fence_key(lease: str) -> bytes:
    return _FENCE + lease.encode()


def idempotency_key(digest: bytes) -> bytes:
    return _KEYS + digest


def data_key(segment: str, last_sequence: int) -> bytes:
    return b"%b%b\x00%b" % (_DATA, segment.encode(), _U64.pack(last_sequence))


def data_range(segment: str, first_sequence: int) -> tuple[bytes, bytes]:
    """Return (start, end) of the rows that hold `first_sequence` and all after it."""
    name = segment.encode()
    return b"%b%b\x00%b" % (_DATA, name, _U64.pack(first_sequence)), b"%b%b\x01" % (_DATA, name)


def run_key(id: bytes) -> bytes:
    return _RUN + id


def transaction_prefix(incarnation: bytes) -> bytes:
    """The prefix of the keys of a partition's transactions."""
    return _TRANSACTION + incarnation


def erased_prefix(incarnation: bytes) -> bytes:
    """The prefix of the keys of a partition's erasures. The number of the transaction follows."""
    return _ERASED + incarnation


def transaction_key(prefix: bytes, number: int) -> bytes:
    """The key of transaction `number`; as the end of a range, up to the largest unsigned 64-bit integer."""
    return prefix + _U64.pack(number if number < _LAST else _LAST)


def transaction_incarnation(key: bytes) -> bytes:
    """The incarnation in the key of a transaction."""
    return key[len(_TRANSACTION) : -_U64.size]


def transaction_number(key: bytes) -> int:
    number: int = _U64.unpack_from(key, len(key) - _U64.size)[0]
    return number
