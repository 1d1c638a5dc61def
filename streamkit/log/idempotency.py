"""Idempotency keys: which transaction a key belongs to, and what it gave its caller."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ..model import TRX
from .keys import idempotency_key
from .rows import KeyRow, SegmentRow, decode_row

if TYPE_CHECKING:
    from .partition import Partition
    from .record_format import Header, KeyUse

__all__ = ["digest_of", "find_use", "first_result", "key_row"]


def digest_of(key: str) -> bytes:
    """What stands for an idempotency key in the log."""
    return hashlib.blake2b(key.encode(), digest_size=16).digest()


def key_row(header: Header, use: KeyUse) -> KeyRow:
    """The index row of one of a transaction's keys."""
    return KeyRow(header.number, header.timestamp, header.id, header.node, use.content, use.segments, header.count)


def find_use(partition: Partition, digest: bytes) -> KeyRow | None:
    """The first use of a key, as of the last refresh; None if there is none. It is honoured however old it seems: this
    machine's clock is no judge of what another has written."""
    use = partition.tail_keys.get(digest)
    if use is not None:
        return use
    row = idempotency_key(digest)
    value = partition.backend.get(partition.key, [row])[0]
    if value is None:
        return None
    return decode_row(KeyRow, row, value.data)


def first_result(partition: Partition, use: KeyRow) -> tuple[dict[str, SegmentRow], TRX]:
    """What the first caller with the key was given."""
    now = partition.learn(segment for segment, _ in use.segments)
    rows = {
        segment: SegmentRow(now[segment].first_sequence, now[segment].first_timestamp, last, use.timestamp)
        for segment, last in use.segments
    }
    return rows, TRX(use.id, use.node, use.number)
