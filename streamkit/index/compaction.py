"""Rules for merging rows: neighbouring data rows of a segment are joined, and rows that have ended are dropped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import eq
from typing import overload

import msgspec

from ..log.idempotency import lasts
from ..log.index_rows import decode_index_row, encode_index_row, join_data, piece_count
from ..log.keys import DATA_END, DATA_START, KEYS, SEQUENCE_BYTES
from ..log.rows import DataRow, KeyRow
from .cursor import Chunk
from .run_format import Stored

__all__ = ["PIECES", "ROW_BYTES", "Expiry", "Rules", "compact", "keeps_data"]

ROW_BYTES = 8 << 10
"""The most bytes of data rows that are joined."""
PIECES = 256
"""The most pieces of data rows that are joined."""
_KEYS, _KEYS_END = KEYS.children()

Rules = Callable[[list[bytes], list[bytes], bool], Chunk]
"""`rules(keys, values, oldest)` gives the rows that stay, of sorted rows of all kinds, with the same keys; a value may
be another one. With `oldest` False an older row of the same key may come to light where one is dropped."""


class Expiry(msgspec.Struct, frozen=True, gc=False):
    """Rules: drop rows of removed transactions, and expired idempotency keys."""

    removed: int = 0
    """The log holds nothing up to this number: pieces up to it go."""
    forgotten: int = 0
    """Idempotency keys that were used up to this number go, where no older use can come to light. Some last."""

    def __call__(self, keys: list[bytes], values: list[bytes], oldest: bool) -> Chunk:
        if self.removed:
            keys, values = self._without_removed(keys, values)
        if self.forgotten and oldest:
            keys, values = self._without_old_keys(keys, values)
        return keys, values

    def _without_removed(self, keys: list[bytes], values: list[bytes]) -> Chunk:
        low = bisect_left(keys, DATA_START)
        high = bisect_left(keys, DATA_END, low)
        kept_keys, kept_values = keys[:low], values[:low]
        for key, value in zip(keys[low:high], values[low:high], strict=True):
            pieces = decode_index_row(DataRow, key, value).pieces
            if not pieces or pieces[-1].number <= self.removed:
                continue
            if pieces[0].number <= self.removed:
                value = encode_index_row(DataRow([piece for piece in pieces if piece.number > self.removed]))
            kept_keys.append(key)
            kept_values.append(value)
        return kept_keys + keys[high:], kept_values + values[high:]

    def _without_old_keys(self, keys: list[bytes], values: list[bytes]) -> Chunk:
        low = bisect_left(keys, _KEYS)
        high = bisect_left(keys, _KEYS_END, low)
        kept = [
            (key, value)
            for key, value in zip(keys[low:high], values[low:high], strict=True)
            if lasts(key[len(_KEYS) :]) or decode_index_row(KeyRow, key, value).number > self.forgotten
        ]
        if len(kept) == high - low:
            return keys, values
        return (
            [*keys[:low], *(key for key, _ in kept), *keys[high:]],
            [*values[:low], *(value for _, value in kept), *values[high:]],
        )


def keeps_data(rules: Rules | None) -> bool:
    """True if the rules leave all data rows as they are."""
    return rules is None or (isinstance(rules, Expiry) and not rules.removed)


@overload
def compact(chunks: Iterable[Chunk], rules: Rules | None, *, oldest: bool) -> Iterator[Chunk]: ...
@overload
def compact(chunks: Iterable[Chunk | Stored], rules: Rules | None, *, oldest: bool) -> Iterator[Chunk | Stored]: ...


def compact(chunks: Iterable[Chunk | Stored], rules: Rules | None, *, oldest: bool) -> Iterator[Chunk | Stored]:
    """The rows of `chunks`, which are in key order, after the rules and joined. Chunks may be empty. Stored blocks are
    full, and nothing is joined to them.

    The last row of a chunk is held back while rows that follow may join it.
    """
    held: Chunk = [], []
    for chunk in chunks:
        if isinstance(chunk, Stored):
            if held[0]:
                yield held
                held = [], []
            yield chunk
            continue
        keys, values = chunk
        if rules is not None:
            keys, values = rules(keys, values, oldest)
        if not keys:
            continue
        if held[0]:
            keys, values = held[0] + keys, held[1] + values
            held = [], []
        low = bisect_left(keys, DATA_START)
        high = bisect_left(keys, DATA_END, low)
        if low < high:
            data = _join_rows(keys[low:high], values[low:high])
            if high == len(keys):
                held = [data[0].pop()], [data[1].pop()]
            keys, values = keys[:low] + data[0] + keys[high:], values[:low] + data[1] + values[high:]
        yield keys, values
    if held[0]:
        yield held


def _join_rows(keys: list[bytes], values: list[bytes]) -> Chunk:
    """Data rows, with neighbours of one segment joined."""
    segments = [key[:-SEQUENCE_BYTES] for key in keys]
    # One byte a row: whether the next one is of the same segment. Most are alone, and whole stretches are copied.
    same = bytes(map(eq, segments, islice(segments, 1, None))) + b"\x00"
    first = same.find(1)
    if first < 0:
        return keys, values
    joined_keys: list[bytes] = []
    joined: list[bytes] = []
    at = 0
    while first >= 0:
        joined_keys += keys[at:first]
        joined += values[at:first]
        at = same.index(0, first) + 1
        _join_segment(keys[first:at], values[first:at], joined_keys, joined)
        first = same.find(1, at)
    return joined_keys + keys[at:], joined + values[at:]


def _join_segment(keys: list[bytes], values: list[bytes], joined_keys: list[bytes], joined: list[bytes]) -> None:
    """Add the rows of one segment to the others."""
    counts = list(map(piece_count, values))
    first = size = pieces = 0
    for at, (value, count) in enumerate(zip(values, counts, strict=True)):
        if at > first and (size + len(value) > ROW_BYTES or pieces + count > PIECES):
            joined_keys.append(keys[at - 1])
            joined.append(join_data(values[first:at]) if at - first > 1 else values[first])
            first, size, pieces = at, 0, 0
        size += len(value)
        pieces += count
    joined_keys.append(keys[-1])
    joined.append(join_data(values[first:]) if len(values) - first > 1 else values[first])
