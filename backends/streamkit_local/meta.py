"""The meta pages of an LMDB data file: where its trees begin. LMDB takes turns between the two."""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple

from streamkit.errors import CorruptData

__all__ = ["NUMBER", "Meta", "Tree", "parse_meta", "read_metas"]

_META: Final = struct.Struct("=16xIIQQ96xQQ")
"""Magic, version, address, map size; after the trees, the last page and the number of the transaction."""
_TREE: Final = struct.Struct("=IHHQQQQQ")
"""In that of free pages the page size; flags, depth, branch pages, leaf pages, pages of large values, rows, root."""
NUMBER: Final = 144
"""Where the number of the transaction is."""
_META_FREE: Final = 40
_META_ROWS: Final = 88
_MAGIC: Final = 0xBEEFC0DE
_BY_NUMBER: Final = 8
_NONE: Final = (1 << 64) - 1


class Tree(NamedTuple):
    """Its root, how many levels it has (0: it is empty), and how many pages hold large values."""

    root: int
    depth: int
    large: int


class Meta(NamedTuple):
    """A state of the file: the number of the transaction that made it, its last page, bytes of a page, its trees."""

    transaction: int
    last: int
    size: int
    rows: Tree
    free: Tree

    @property
    def end(self) -> int:
        """Where its last page ends."""
        return (self.last + 1) * self.size


def read_metas(fd: int, path: str) -> tuple[Meta, Meta]:
    """The newest state and the one before. CorruptData if these cannot be what LMDB wrote."""
    first = parse_meta(os.pread(fd, _META.size, 0), path)
    second = parse_meta(os.pread(fd, _META.size, first.size), path)
    numbers = first.transaction, second.transaction
    turns = abs(numbers[0] - numbers[1]) == 1 and not numbers[0] & 1
    if not turns and numbers != (0, 0):
        raise CorruptData(f"{path} has a damaged meta page: restore the store from a backup")
    return (first, second) if first.transaction > second.transaction else (second, first)


def parse_meta(data: bytes, path: str) -> Meta:
    """One meta page."""
    if len(data) < _META.size:
        raise CorruptData(f"{path} is cut short: restore the store from a backup")
    magic, version, _, _, last, number = _META.unpack_from(data)
    size, free_flags, *free = _TREE.unpack_from(data, _META_FREE)
    _, flags, *rows = _TREE.unpack_from(data, _META_ROWS)
    if magic != _MAGIC or version != 1 or not 512 <= size <= 65536 or flags or free_flags & 0xFF != _BY_NUMBER:
        raise CorruptData(f"{path} has a damaged meta page: restore the store from a backup")
    return Meta(number, last, size, _tree(*rows), _tree(*free))


def _tree(depth: int, branches: int, leaves: int, large: int, rows: int, root: int) -> Tree:
    return Tree(root, depth if root != _NONE else 0, large)
