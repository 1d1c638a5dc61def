"""Which pages of the index are free, which a commit wrote, and whether together they are all that there are.

LMDB keeps a tree of what is free: under the number of a transaction, the pages that it freed, or left over. A page that
a state leads to is never written over: so what a commit wrote was free before, or behind the end, and is not free now.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cached_property
from typing import Final

from streamkit.errors import CorruptData

from .index import content
from .layout import (
    BRANCH,
    END,
    LARGE_START,
    branch,
    kind,
    large_pages,
    large_values,
    leaf,
    well_formed,
    well_formed_large,
)
from .meta import Meta, Tree

__all__ = ["Census", "Inspector", "Load"]

Load = Callable[[int], bytes]
"""The bytes of a page, as they are or checked."""

_COUNT: Final = struct.Struct("=Q")


class Census:
    """What is free in a state, by record, and the pages that these records are on themselves."""

    def __init__(self, records: dict[bytes, bytes], pages: set[int]) -> None:
        self.records = records
        self.pages = pages

    @staticmethod
    def take(meta: Meta, load: Load) -> Census:
        """What `load` gives is taken for granted."""
        records: dict[bytes, bytes] = {}
        pages: set[int] = set()
        stack = [meta.free.root] if meta.free.depth else []
        while stack:
            page = stack.pop()
            pages.add(page)
            data = load(page)
            if kind(data) == BRANCH:
                stack += branch(data)[1]
                continue
            large = {key: first for key, _, first in large_values(data)}
            for key, size, value in leaf(data):
                if key in large:
                    first = large[key]
                    run = range(first, first + large_pages(load(first)))
                    pages.update(run)
                    value = b"".join([load(page) for page in run])[LARGE_START : LARGE_START + size]
                records[key] = value
        return Census(records, pages)

    @cached_property
    def free(self) -> set[int]:
        return _listed(self.records)

    def written_since(self, meta: Meta, before: Census, last: int) -> set[int]:
        """The pages that were written between two states; this is of `meta`, `before` of one that ended at `last`."""
        old = dict(before.records.items() - self.records.items())
        new = dict(self.records.items() - before.records.items())
        return (_listed(old) | set(range(last + 1, meta.last + 1))) - _listed(new)


def _listed(records: dict[bytes, bytes]) -> set[int]:
    found: set[int] = set()
    for value in records.values():
        count = min(_COUNT.unpack_from(value)[0], len(value) // _COUNT.size - 1)
        found.update(struct.unpack_from(f"={count}Q", value, _COUNT.size))
    return found


class Inspector:
    """Looks whether a state is right in itself, where there are no checksums to say so."""

    def __init__(self, meta: Meta, read: Load, damage: Callable[[int], CorruptData]) -> None:
        self._meta = meta
        self._read = read
        self._damage = damage
        self._reached: set[int] = set()

    def census(self) -> Census:
        """What is free."""
        self._walk(self._meta.free, None)
        return Census.take(self._meta, self._read)

    def inspect(self, census: Census, written: set[int]) -> None:
        """CorruptData unless `written` are exactly the pages that the state leads to and that were not there before.

        Where it leads to other pages, it is not followed.
        """
        meta, free = self._meta, census.free
        reached = census.pages & written
        self._reached = reached
        self._walk(meta.rows, written)
        for page in reached ^ written or (reached | census.pages) & free:
            raise self._damage(page)
        for page in free:
            if not 1 < page <= meta.last:
                raise self._damage(page)

    def _walk(self, tree: Tree, written: set[int] | None) -> None:
        """`written`: this is the tree of rows, and what is not in it was there before, and is only looked at."""
        meta, reached = self._meta, self._reached
        numbers = written is None
        stack: list[tuple[int, int, bytes, bytes]] = [(tree.root, 1, b"", END)] if tree.depth else []
        while stack:
            page, level, low, high = stack.pop()
            new = written is None or page in written
            if page in reached or not 1 < page <= meta.last or level > tree.depth:
                raise self._damage(page)
            if new:
                reached.add(page)
            data = self._read(page)
            if len(data) != meta.size or not well_formed(data, page, meta.last, numbers=numbers):
                raise self._damage(page)
            if (kind(data) == BRANCH) != (level < tree.depth):
                raise self._damage(page)
            keys, children = branch(data) if level < tree.depth else ([row[0] for row in leaf(data)], [])
            if not numbers and keys and not low <= keys[0] <= keys[-1] < high:
                raise self._damage(page)
            if not new:
                continue
            ends = [low, *keys, high]
            stack += [(child, level + 1, ends[at], ends[at + 1]) for at, child in enumerate(children)]
            if children:
                continue
            if written is not None:
                self._check_rows(data, written)
                continue
            for _, length, first in large_values(data):
                self._large(first, length)

    def _check_rows(self, data: bytes, written: set[int]) -> None:
        """The rows of a leaf page: a value that was there before is only pointed to, and is not followed."""
        large = {key: first for key, _, first in large_values(data)}
        for key, size, value in leaf(data):
            if key not in large:
                content(key, value)
            elif large[key] in written:
                run = self._large(large[key], size)
                content(key, b"".join(map(self._read, run))[LARGE_START : LARGE_START + size])

    def _large(self, first: int, length: int) -> range:
        """The pages of a large value."""
        meta = self._meta
        start = self._read(first)
        if len(start) != meta.size or not well_formed_large(start, first, length, meta.last):
            raise self._damage(first)
        run = range(first, first + large_pages(start))
        if not self._reached.isdisjoint(run):
            raise self._damage(first)
        self._reached.update(run)
        return run
