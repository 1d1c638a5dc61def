"""Idempotency keys: the transaction of a key, and its first result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..digest import blake2b
from ..model import TRX
from .index_rows import decode_index_row
from .keys import KEYS, idempotency_key
from .rows import KeyRow, SegmentRow

if TYPE_CHECKING:
    from .partition import Partition
    from .record_format import Header, KeyUse
    from .view import LogView

__all__ = ["LASTING", "all_uses", "digest_of", "find_use", "first_result", "key_row", "lasts"]


_DIGEST = 16
_LASTS = 0x80
LASTING = "spark/"
"""The prefix of keys that outlive the window: a stream that continues from an old checkpoint repeats a write at any
time."""


def digest_of(key: str) -> bytes:
    """The digest that the log keeps of an idempotency key. Its first bit is set if the key outlives the window."""
    digest = blake2b(key.encode(), digest_size=_DIGEST).digest()
    first = digest[0] | _LASTS if key.startswith(LASTING) else digest[0] & ~_LASTS
    return bytes((first,)) + digest[1:]


def lasts(digest: bytes) -> bool:
    """True if the key outlives the window."""
    return digest[0] & _LASTS != 0


def key_row(header: Header, use: KeyUse) -> KeyRow:
    """The index row of one of a transaction's keys."""
    return KeyRow(header.number, header.timestamp, header.id, header.node, use.content, use.segments, header.count)


def find_use(partition: Partition, digest: bytes) -> KeyRow | None:
    """The first use of a key, as of the last refresh; None if there is none. It counts however old it seems, because
    this machine's clock cannot judge another's timestamp."""
    row = idempotency_key(digest)

    def find(view: LogView) -> KeyRow | None:
        use = view.tail.keys.get(digest)
        if use is not None:
            return use
        value = view.indexed(row)
        return None if value is None else decode_index_row(KeyRow, row, value)

    return partition.ask(find)


def all_uses(partition: Partition) -> list[tuple[bytes, KeyRow]]:
    """Return (digest, use) of the keys that are remembered, as of the last refresh; a later use of a key comes
    later."""

    def find(view: LogView) -> list[tuple[bytes, KeyRow]]:
        tail = list(view.tail.keys.items())
        rows = view.index.scan(*KEYS.children()) if view.tail.watermark else ()
        return [*((key[-_DIGEST:], decode_index_row(KeyRow, key, data)) for key, data in rows), *tail]

    return partition.ask(find)


def first_result(partition: Partition, use: KeyRow) -> tuple[dict[str, SegmentRow], TRX]:
    """The result that the first caller with the key got."""
    now = partition.load_statuses(segment for segment, _ in use.segments)
    rows = {
        segment: replace(now[segment], last_sequence=last, last_timestamp=use.timestamp)
        for segment, last in use.segments
    }
    return rows, TRX(use.id, use.node, use.number)
