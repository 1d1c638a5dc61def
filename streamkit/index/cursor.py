"""Walking through runs in key order: one cursor a run, and the merge of several. `Runs` reads their blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..log.manifest import RunFile
from .run_format import Block, RunTail, decode_block

__all__ = ["Chunk", "Cursor", "Place", "merge_cursors"]

Chunk = tuple[list[bytes], list[bytes]]
"""Keys in order, and their values."""
_DECODED = 8
"""Blocks of a run that are decoded at once: the other blocks that were read ahead stay compressed."""
_CACHED = 8
"""A step with more blocks of one run than that leaves the cache alone."""
_MOST_AHEAD = 256 << 10


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

    def fill(self) -> None:
        """Make rows of some of the blocks that were given."""
        some = self._pending[:_DECODED]
        del self._pending[:_DECODED]
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
    while True:
        for cursor in live:
            while not cursor.keys and not cursor.ended:
                if cursor.starved:
                    refill([other for other in live if other.starved])
                cursor.fill()
        live = [cursor for cursor in live if cursor.keys]
        if not live:
            return
        if len(live) == 1:
            cursor = live[0]
            chunk = cursor.keys, cursor.values
            cursor.keys, cursor.values = [], []
            yield chunk
            continue
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
        yield keys, list(map(rows.__getitem__, keys))
