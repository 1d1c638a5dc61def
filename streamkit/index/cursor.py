"""Walking through runs in key order: one cursor a run, and the merge of several. `Runs` reads their blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from ..log.keys import DATA_START, SEQUENCE_BYTES
from ..log.manifest import RunFile
from .run_format import Block, RunTail, Stored, decode_block

__all__ = ["Chunk", "Cursor", "Place", "merge_cursors", "merge_with_stored"]

Chunk = tuple[list[bytes], list[bytes]]
"""Keys in order, and their values."""
_DECODED = 8
"""Blocks of a run that are decoded at once: the other blocks that were read ahead stay compressed."""
_CACHED = 8
"""A step with more blocks of one run than that leaves the cache alone."""
_MOST_AHEAD = 256 << 10
_AFTER = b"\xff" * 9
"""After every sequence."""
_STORED = 32
"""The most blocks that are taken over at once."""
_next_key = attrgetter("next_key")


class Place(NamedTuple):
    """A block: number `block` of a file."""

    file: RunFile
    tail: RunTail
    block: int


class Cursor:
    """The rows of one run with start <= key < end. `keys` and `values` are those that were not taken yet.

    `hash` and `mask` are those of the subject, if all rows are of one. `ahead` is how many bytes are read at once, and
    more each time if it `grows`. State: one reader's.
    """

    __slots__ = (
        "_ahead",
        "_at",
        "_end",
        "_files",
        "_grows",
        "_hash",
        "_high",
        "_low",
        "_mask",
        "_pending",
        "_seed",
        "_start",
        "_tail",
        "keys",
        "values",
    )

    def __init__(
        self,
        files: tuple[RunFile, ...],
        at: int,
        start: bytes,
        end: bytes,
        seed: int,
        hash: int | None,
        mask: int,
        ahead: int,
        grows: bool,
    ) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self._files = files
        self._at = at
        self._start = start
        self._end = end
        self._seed = seed
        self._hash = hash
        self._mask = mask
        self._ahead = ahead
        self._grows = grows
        self._tail: RunTail | None = None
        self._low = self._high = 0
        self._pending: list[tuple[Place, Block | bytes]] = []

    @property
    def file(self) -> RunFile | None:
        """The file to read on in; None if all is read."""
        return self._files[self._at] if self._at < len(self._files) else None

    @property
    def starved(self) -> bool:
        """More must be read before it can continue, beyond its `keys`."""
        return not self._pending and self._at < len(self._files)

    @property
    def ended(self) -> bool:
        """No rows follow but its `keys`."""
        return not self._pending and self._at >= len(self._files)

    def settle(self, tails: Mapping[bytes, RunTail]) -> bool:
        """Find the next blocks to read. True if the tail of another file is needed first."""
        if self._tail is not None or self._at >= len(self._files):
            return False
        tail = tails[self._files[self._at].id]
        if self._hash is not None and not tail.may_hold(self._hash, self._mask):
            self._next_file()
            return self._at < len(self._files)
        self._tail = tail
        self._low = tail.block_of(self._start)
        self._high = tail.last_block(self._end) + 1
        return False

    def _next_file(self) -> None:
        self._tail = None
        self._at += 1
        if self._at < len(self._files) and self._files[self._at].first_key >= self._end:
            self._at = len(self._files)

    def wanted(self) -> list[Place]:
        """The next blocks, together of about the bytes to be read ahead. They must be given."""
        tail = self._tail
        if tail is None:
            return []
        file, low, high = self._files[self._at], self._low, self._high
        offsets = tail.offsets
        stop = low + 1
        while stop < high and offsets[stop + 1] - offsets[low] <= self._ahead:
            stop += 1
        self._low = stop
        if stop >= high:
            self._next_file()
        if self._grows:
            self._ahead = min(2 * self._ahead, _MOST_AHEAD)
        if stop == low + 1:
            return [Place(file, tail, low)]
        return [Place(file, tail, block) for block in range(low, stop)]

    def is_cached(self, places: Sequence[Place]) -> bool:
        """True if the next blocks, `places`, are looked for and kept in the cache."""
        return self._grows and len(places) <= _CACHED

    def give(self, places: Sequence[Place], bodies: Mapping[tuple[bytes, int], Block | bytes]) -> None:
        """The blocks that were wanted."""
        self._pending += [(place, bodies[place.file.id, place.block]) for place in places]

    @property
    def next_key(self) -> bytes:
        """A key that is not after the next row. There is a row, or a block that was given."""
        if self.keys:
            return self.keys[0]
        _, tail, number = self._pending[0][0]
        return max(tail.first(number), self._start)

    def _staying(self, at: int, end: bytes | None) -> int:
        """The number of blocks, from this place of those that were given, that may be taken over as they are.

        All of their rows are of one segment, which goes on in the next block, and before `end`."""
        _, tail, number = self._pending[at][0]
        first = tail.first(number)
        segment = first[:-SEQUENCE_BYTES]
        if number + 1 == tail.blocks or not tail.first(number + 1).startswith(segment):
            return 0
        if first < self._start or not first.startswith(DATA_START):
            return 0
        stop = tail.last_block(segment + _AFTER)
        return stop - number if end is None else max(min(stop, tail.block_of(end)) - number, 0)

    def stays(self) -> bool:
        """True if there are no rows, but a block that may be taken over as it is."""
        return not self.keys and self._staying(0, None) > 0

    def take_stored(self, end: bytes | None) -> Stored | None:
        """The next blocks, as they are stored, with rows of one segment before `end`; None if there are none."""
        (file, tail, number), _ = self._pending[0]
        some = self._pending[: min(self._staying(0, end), _STORED)]
        blocks = [body for place, body in some if place.tail is tail and isinstance(body, bytes)]
        if not blocks or len(blocks) < len(some):
            return None
        del self._pending[: len(blocks)]
        return Stored(file, tail, number, blocks)

    def fill(self, keeping: bool = False) -> None:
        """Make rows of some of the blocks that were given. `keeping`: of those before the next one that may be
        taken over as it is, and of one at least."""
        count = 1 if keeping else _DECODED
        while keeping and count < min(_DECODED, len(self._pending)) and not self._staying(count, None):
            count += 1
        some = self._pending[:count]
        del self._pending[:count]
        start, end = self._start, self._end
        for (file, tail, number), body in some:
            block = decode_block(body, file, tail.offsets[number], self._seed) if isinstance(body, bytes) else body
            low, high = 0, block.rows
            if tail.first(number) < start:
                low = block.seek(start)
            if (tail.first(number + 1) if number + 1 < tail.blocks else file.last_key + b"\x00") > end:
                high = block.seek(end, low)
            if self.keys:
                self.keys += block.keys(low, high)
                self.values += block.values(low, high)
            else:
                self.keys, self.values = block.keys(low, high), block.values(low, high)


def merge_cursors(cursors: Sequence[Cursor], refill: Callable[[Sequence[Cursor]], object]) -> Iterator[Chunk]:
    """The newest row of each key, in key order; `cursors` are oldest first. Chunks are not empty."""
    live = list(cursors)
    while live := _filled(live, refill):
        yield _next_rows(live)


def merge_with_stored(
    cursors: Sequence[Cursor], refill: Callable[[Sequence[Cursor]], object]
) -> Iterator[Chunk | Stored]:
    """The rows of `merge_cursors`. Blocks that are full of rows of one segment come as they are stored, if no other
    cursor has rows in between."""
    live = list(cursors)
    while True:
        if any(cursor.starved and not cursor.keys for cursor in live):
            refill([cursor for cursor in live if cursor.starved])
            continue
        live = [cursor for cursor in live if cursor.keys or not cursor.ended]
        if not live:
            return
        low, *others = sorted(live, key=_next_key)
        end = others[0].next_key if others else None
        if not low.keys:
            stored = low.take_stored(end)
            if stored is not None:
                yield stored
            else:
                low.fill(keeping=True)
            continue
        if others and others[0].stays():
            count = bisect_left(low.keys, others[0].next_key)
            if count:
                rows = low.keys[:count], low.values[:count]
                low.keys, low.values = low.keys[count:], low.values[count:]
                yield rows
                continue
        live = _filled(live, refill, keeping=True)
        yield _next_rows(live)


def _filled(
    live: Sequence[Cursor], refill: Callable[[Sequence[Cursor]], object], keeping: bool = False
) -> list[Cursor]:
    """The cursors that have rows, after each has decoded some if it had none."""
    for cursor in live:
        while not cursor.keys and not cursor.ended:
            if cursor.starved:
                refill([other for other in live if other.starved])
            cursor.fill(keeping)
    return [cursor for cursor in live if cursor.keys]


def _next_rows(live: Sequence[Cursor]) -> Chunk:
    """Rows before which no others can come. Each cursor has some."""
    if len(live) == 1:
        cursor = live[0]
        chunk = cursor.keys, cursor.values
        cursor.keys, cursor.values = [], []
        return chunk
    # Up to the key that the shortest look ahead has reached, nothing can come in between any more.
    bound = min((cursor.keys[-1] for cursor in live if not cursor.ended), default=None)
    rows: dict[bytes, bytes] = {}
    for cursor in live:
        keys, values = cursor.keys, cursor.values
        if bound is None or keys[-1] <= bound:
            rows.update(zip(keys, values, strict=True))
            cursor.keys, cursor.values = [], []
        else:
            count = bisect_left(keys, bound + b"\x00")
            rows.update(zip(keys[:count], values[:count], strict=True))
            cursor.keys, cursor.values = keys[count:], values[count:]
    keys = sorted(rows)
    return keys, list(map(rows.__getitem__, keys))
