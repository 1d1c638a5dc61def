"""Which pages of the index are known to be whole, so that LMDB, which trusts what it reads, may follow them.

Every page has a checksum in a file beside the index, written after each commit, under the store's lock, and before any
process reads the state that was committed: `words[INDEXED]` says up to which transaction that is done. A process
checks a page when it first needs it. A page that a state leads to does not change as long as a transaction of LMDB
holds that state, and no two states of a page have the same checksum: so a page is known while its checksum stays.

A state of which all pages are known is `sound`, and LMDB is used as it is. For others there is `checked`.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import groupby
from typing import Final
from zlib import crc32

from streamkit.errors import AccessDenied, CorruptData
from streamkit.reentry import Mutex

from .census import Census, Inspector
from .layout import LARGE, branch, kind, large_pages, large_values
from .meta import NUMBER, Meta, Tree, parse_meta, read_metas
from .place import INDEXED, PAGED, OpenFile, Place, sync_directory
from .sums import Sums

__all__ = ["Pages"]

_ROOM: Final = 1024
"""Pages for which there is room for checksums before a commit, more than there are."""
_RUN: Final = 16
"""Pages that are looked at together."""
_LEAP: Final = 1024
_AT_ONCE: Final = 4096
_EACH: Final = 64
"""Pages that are checked when a state is first seen, which takes some ms, and then whenever it is read."""
_BRANCHES: Final = 4096
_EMPTY: Final = array("I", b"\xff" * 4)


def _sum(data: bytes | bytearray | memoryview, page: int) -> int:
    """Never that of _EMPTY."""
    found = crc32(data, page)
    return found if found != 0xFFFFFFFF else 0


class Pages:
    """The pages of one data file. `sound` is the transaction whose state is known to be whole."""

    def __init__(self, place: Place, file: OpenFile, path: str) -> None:
        """The store's lock is held. CorruptData if the file is not what was last committed."""
        self.sound = -1
        self._path = path
        self._fd = file.fd
        self._words = place.words
        self._readonly = place.readonly
        newest, _ = read_metas(file.fd, path)
        self._size = newest.size
        self._known = _EMPTY
        self._growing = Mutex()
        self._branches: dict[int, tuple[int, list[bytes], list[int]]] = {}
        self._large: dict[int, int] = {}
        self._meta: Meta | None = None
        self._census: tuple[int, Census] | None = None
        self._sweep = (-1, 0)
        self._open_sums()

    def _open_sums(self) -> None:
        """The checksums; they are made for a store that has none yet."""
        path = os.path.join(os.path.dirname(self._path), "pages")
        words = self._words
        newest, _ = read_metas(self._fd, self._path)
        if self._readonly:
            if not words[PAGED]:
                raise AccessDenied(f"{self._path} has no checksums yet: open the store once as a user who may write it")
            self._sums = Sums(path, readonly=True)
            return
        if words[INDEXED] > newest.transaction:
            raise CorruptData(f"{self._path} is older than the store: restore the store from a backup")
        if words[PAGED]:
            try:
                self._sums = Sums(path)
            except FileNotFoundError:
                raise CorruptData(f"{path} is missing: restore the store from a backup") from None
            words[INDEXED] = self._sums.durable  # a writer, or the machine, may have ended just before
            self.settle()
            for page in (0, 1):
                self._load(page)
        else:
            self._sums = Sums.create(path)
            self._accept(None, newest)
            sync_directory(os.path.dirname(path))
            words[PAGED] = 1

    def damage(self, page: int) -> CorruptData:
        return CorruptData(f"the index {self._path} is damaged at page {page}: restore the store from a backup")

    # Checking

    def check(self, page: int) -> None:
        """CorruptData if a page is not what was written."""
        table, known = self._sums.table, self._known
        if page < len(table) and page < len(known) and known[page] == table[page]:
            return
        self._load(page)

    def _load(self, page: int) -> bytes:
        """The same, and its bytes."""
        if page >= len(self._sums.table):
            self._sums.refresh()
        if page >= len(self._sums.table):
            raise self.damage(page)
        self._make_known(page + 1)
        data = os.pread(self._fd, self._size, page * self._size)
        found = _sum(data, page)
        if len(data) != self._size or found != self._sums.table[page]:
            raise self.damage(page)
        self._known[page] = found
        return data

    def _make_known(self, pages: int) -> None:
        if pages > len(self._known):
            with self._growing():
                count = len(self._known)
                self._known = self._known + _EMPTY * (max(pages, 2 * count, _ROOM) - count)

    def _branch(self, page: int) -> tuple[list[bytes], list[int]]:
        """What a branch page says, which is checked."""
        table, kept = self._sums.table, self._branches.get(page)
        if kept is not None and page < len(table) and kept[0] == table[page]:
            return kept[1], kept[2]
        data = self._load(page)
        if len(self._branches) >= _BRANCHES:
            self._branches.clear()
        keys, children = branch(data)
        self._branches[page] = _sum(data, page), keys, children
        return keys, children

    def _check_leaf(self, tree: Tree, page: int) -> None:
        """A leaf page, and the large values of its rows."""
        self.check(page)
        if tree.large and self._large.get(page) != self._known[page]:
            data = self._load(page)
            for _, _, first in large_values(data):
                self._load_large(first)
            self._large[page] = _sum(data, page)

    def _load_large(self, first: int) -> bytes:
        data = self._load(first)
        if kind(data) != LARGE:
            raise self.damage(first)
        return data + b"".join([self._load(page) for page in range(first + 1, first + large_pages(data))])

    def check_path(self, tree: Tree, key: bytes, *, before: bool = False) -> tuple[bytes, bytes | None]:
        """Check all pages that lead to where `key` is or would be; from which key on, and below which, they do.

        `before`: to where the last key below it is.
        """
        low, high, find = b"", None, bisect_left if before else bisect_right
        if not tree.depth:
            return low, high
        page = tree.root
        for _ in range(tree.depth - 1):
            keys, children = self._branch(page)
            index = find(keys, key)
            if index:
                low = keys[index - 1]
            if index < len(keys):
                high = keys[index]
            page = children[index]
        self._check_leaf(tree, page)
        return low, high

    # States

    def meta(self, number: int) -> Meta | None:
        """The state that transaction `number` made; None if later ones have replaced its meta page."""
        meta = self._meta
        if meta is not None and meta.transaction == number:
            return meta
        page = number & 1
        data = os.pread(self._fd, self._size, page * self._size)
        meta = parse_meta(data, self._path)
        if meta.transaction != number or _sum(data, page) != self._sums.table[page]:
            return None
        self._meta = meta
        return meta

    def look(self, meta: Meta) -> bool:
        """Check more of a state, which a transaction holds; True if it is known to be whole."""
        if self.sound == meta.transaction:
            return True
        number, at = self._sweep
        left = _EACH
        if number != meta.transaction:
            at, left = 2, _AT_ONCE
        self._make_known(meta.last + 1)
        if len(self._sums.table) <= meta.last:
            self._sums.refresh()
        if len(self._sums.table) > meta.last:
            at = self._check_from(meta, at, left)
            self._sweep = meta.transaction, at
            if at > meta.last:
                self.sound = meta.transaction
        return self.sound == meta.transaction

    def _check_from(self, meta: Meta, at: int, left: int) -> int:
        """Check pages from `at` on, `left` of them that were not known. How far they are whole."""
        known, table, size = memoryview(self._known), self._sums.table, self._size
        while at <= meta.last and left > 0:
            stop = min(at + _LEAP, meta.last + 1)
            if known[at:stop].tobytes() == table[at:stop].tobytes():
                at = stop
                continue
            stop = min(at + _RUN, meta.last + 1)
            if known[at:stop].tobytes() != table[at:stop].tobytes():
                left -= stop - at
                data = memoryview(os.pread(self._fd, (stop - at) * size, at * size))
                for page in range(at, stop):
                    wanted = table[page]
                    if known[page] == wanted:
                        continue
                    piece = data[(page - at) * size : (page - at + 1) * size]
                    if len(piece) == size and _sum(piece, page) == wanted:
                        known[page] = wanted
                    elif not self._is_free(meta, page):
                        return page
            at = stop
        return at

    def look_everywhere(self, meta: Meta) -> None:
        """CorruptData if a state is not whole."""
        if not self.look(meta):
            at = self._check_from(meta, self._sweep[1], meta.last)
            if at <= meta.last:
                raise self.damage(at)
            self.sound = meta.transaction

    def _is_free(self, meta: Meta, page: int) -> bool:
        try:
            return page in self._free(meta).free
        except CorruptData:
            return False

    # Commits, under the store's lock

    def settle(self) -> Meta:
        """The newest state, of which all checksums are noted."""
        newest, older = read_metas(self._fd, self._path)
        number = self._words[INDEXED]
        if number == newest.transaction:
            meta = self.meta(number)
            if meta is None:
                raise self.damage(number & 1)
            return meta
        # a writer ended between its commit and this
        before = self.meta(older.transaction)
        if number != newest.transaction - 1 or before is None:
            raise self.damage(newest.transaction & 1)
        self._accept(before, newest)
        return newest

    def prepare(self) -> Meta:
        """The state from which the next commit goes on. What LMDB knows to be free is checked."""
        meta = self.settle()
        self._free(meta)
        self._sums.reserve(meta.last + _ROOM)
        return meta

    def committed(self, before: Meta) -> None:
        """Note the checksums of what a commit has written, and let others read it."""
        newest, _ = read_metas(self._fd, self._path)
        if newest.transaction == before.transaction:
            return
        census = Census.take(newest, self._read)
        self._note(newest, census, census.written_since(newest, self._free(before), before.last))
        if self._sweep[0] == before.transaction:
            self._sweep = newest.transaction, self._sweep[1]
        if self.sound == before.transaction:
            self.sound = newest.transaction

    def _free(self, meta: Meta) -> Census:
        """What is free in a state, checked."""
        kept = self._census
        if kept is None or kept[0] != meta.transaction:
            kept = self._census = meta.transaction, Census.take(meta, self._load)
        return kept[1]

    def _read(self, page: int) -> bytes:
        return os.pread(self._fd, self._size, page * self._size)

    def _accept(self, before: Meta | None, after: Meta) -> None:
        """Take a state for what was written, if it is right in itself; all of `before` has its checksums."""
        inspector = Inspector(after, self._read, self.damage)
        census = inspector.census()
        if after.last >= os.fstat(self._fd).st_size // self._size + len(census.free):
            raise self.damage(after.transaction & 1)  # what was never written can only be free
        self._sums.reserve(after.last + _ROOM)
        if before is not None:
            written = census.written_since(after, self._free(before), before.last)
            self._check_new(after, written)
        else:
            written = set(range(2, after.last + 1)) - census.free
        inspector.inspect(census, written)
        self._note(after, census, written if before is not None else set(range(after.last + 1)))

    def _check_new(self, meta: Meta, written: set[int]) -> None:
        """CorruptData if a state is the last but one, and only its number was damaged: then nothing of it is new."""
        slot = meta.transaction & 1
        data, table = bytearray(self._read(slot)), self._sums.table
        if _sum(data, slot) == table[slot] or any(_sum(self._read(page), page) != table[page] for page in written):
            return
        for bit in range(64):
            data[NUMBER + (bit >> 3)] ^= 1 << (bit & 7)
            if _sum(data, slot) == table[slot]:
                raise self.damage(slot)
            data[NUMBER + (bit >> 3)] ^= 1 << (bit & 7)

    def _note(self, meta: Meta, census: Census, written: set[int]) -> None:
        self._sums.reserve(meta.last + 1)
        self._make_known(meta.last + 1)
        self._note_pages(sorted({*written, meta.transaction & 1}))
        self._meta = meta
        self._census = meta.transaction, census
        self._words[INDEXED] = meta.transaction
        self._sums.settle(meta.transaction)

    def _note_pages(self, pages: list[int]) -> None:
        table, known, size = self._sums.table, self._known, self._size
        for first, count in _runs(pages):
            data = memoryview(os.pread(self._fd, count * size, first * size))
            for page in range(first, first + count):
                at = (page - first) * size
                table[page] = known[page] = _sum(data[at : at + size], page)


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Neighbours together: the first, and how many."""
    for _, run in groupby(enumerate(pages), lambda item: item[1] - item[0]):
        found = list(run)
        yield found[0][1], len(found)
