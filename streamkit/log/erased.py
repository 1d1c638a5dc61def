"""The erasures of a partition, kept beside its log.

The transaction that erases leaves the log once it is archived or trimmed. A backup must know of it nevertheless, so
that no older point brings the entries back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

from ..retry import send_until_answered
from .floors import Erasure
from .keys import erased_prefix, transaction_key
from .partition import Partition
from .rows import ErasedRow, decode_row, encode_row

__all__ = ["earlier_rows", "erasures_of", "put_erasures"]

_TOGETHER = 5000
"""The most erasures of one transaction: a row has room for them."""


def put_erasures(partition: Partition, erasures: Sequence[Erasure]) -> None:
    """Write a row for each of their transactions. Twice is the same as once."""
    prefix = erased_prefix(partition.settings.incarnation)
    by_number = attrgetter("number")
    for number, group in groupby(sorted(erasures, key=by_number), by_number):
        key = transaction_key(prefix, number)
        data = encode_row(key, ErasedRow(tuple(group)))
        put = partial(partition.backend.put, partition.key, key, data)
        send_until_answered(partition.clock, put, f"erase in space {partition.space!r} again later")


def earlier_rows(incarnation: bytes, erasures: Sequence[Erasure]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, data) of rows for erasures without a known transaction, from a backup."""
    zero = transaction_key(erased_prefix(incarnation), 0)
    for at in range(0, len(erasures), _TOGETHER):
        key = zero + at.to_bytes(8, "big")
        yield key, encode_row(key, ErasedRow(tuple(erasures[at : at + _TOGETHER])))


def erasures_of(partition: Partition) -> Iterator[Erasure]:
    """All erasures that have a row, in the order of their transactions. CorruptData for a damaged row."""
    prefix = erased_prefix(partition.settings.incarnation)
    start, end = transaction_key(prefix, 0), transaction_key(prefix, 1 << 64)
    for row in partition.backend.scan(partition.key, start, end):
        yield from decode_row(ErasedRow, row.key, row.data).erasures
