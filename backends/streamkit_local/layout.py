"""The pages of LMDB's trees, as far as they have to be understood to know which page leads to which.

    page        number u64 · pad u16 · kind u16 · lower u16 · upper u16 · offsets of nodes u16, up to `lower` · … nodes
    branch      a node for each child: its number (48 bits, in three) · key length u16 · the lowest key in it
    leaf        a node for each row: value length (32 bits, in two) · large u16 · key length u16 · key · value
    large       a value that does not fit: the page holds the number of the first of its pages, which begins with
                number u64 · pad u16 · kind u16 · how many pages u32

All in the machine's byte order; nodes begin at even offsets and fill a page from its end without a gap.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

__all__ = [
    "BRANCH",
    "END",
    "LARGE",
    "LARGE_START",
    "branch",
    "kind",
    "large_pages",
    "large_values",
    "leaf",
    "well_formed",
    "well_formed_large",
]

BRANCH, LEAF, LARGE = 1, 2, 4
END: Final = b"\xff" * 512
"""After every key."""
_HEADER: Final = struct.Struct("=QHHHH")
_NODE: Final = struct.Struct("=HHHH")
_RUN: Final = struct.Struct("=QHHI")
_PAGE: Final = struct.Struct("=Q")
LARGE_START: Final = _RUN.size
"""Where the bytes of a large value begin."""


def kind(data: bytes) -> int:
    """BRANCH, LEAF, LARGE, or what else a page says that it is."""
    found: int = _HEADER.unpack_from(data)[2]
    return found


def _nodes(data: bytes) -> tuple[int, ...]:
    lower = _HEADER.unpack_from(data)[3]
    return struct.unpack_from(f"={(lower - _HEADER.size) // 2}H", data, _HEADER.size)


def branch(data: bytes) -> tuple[list[bytes], list[int]]:
    """The children of a branch page, and the keys between them: child n+1 begins with key n."""
    keys: list[bytes] = []
    children: list[int] = []
    unpack, start = _NODE.unpack_from, _NODE.size
    for at in _nodes(data):
        low, middle, high, length = unpack(data, at)
        children.append(low | middle << 16 | high << 32)
        at += start
        keys.append(data[at : at + length])
    return keys[1:], children


def leaf(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """The rows of a leaf page: key, length of the value, the value, or if it is large the 8 bytes in its place."""
    for at in _nodes(data):
        low, high, large, length = _NODE.unpack_from(data, at)
        at += _NODE.size
        size = low | high << 16
        key = data[at : at + length]
        at += length
        yield key, size, data[at : at + (_PAGE.size if large else size)]


def large_values(data: bytes) -> list[tuple[bytes, int, int]]:
    """Of the large values of a leaf page: key, length, first page."""
    found = []
    for at in _nodes(data):
        low, high, large, length = _NODE.unpack_from(data, at)
        if large:
            at += _NODE.size
            (page,) = _PAGE.unpack_from(data, at + length)
            found.append((data[at : at + length], low | high << 16, page))
    return found


def large_pages(data: bytes) -> int:
    """How many pages the large value has that begins on this page."""
    count: int = _RUN.unpack_from(data)[3]
    return count


def well_formed(data: bytes, page: int, last: int, *, numbers: bool = False) -> bool:
    """A branch or leaf page is as LMDB would write it as `page`, of a file whose last page is `last`.

    To follow what it says then leads out of neither it nor the file. `numbers`: its keys are numbers.
    """
    number, _, what, lower, upper = _HEADER.unpack_from(data)
    if number != page or what not in (BRANCH, LEAF) or lower & 1 or not _HEADER.size < lower <= upper <= len(data):
        return False
    end = len(data)
    for at in sorted(_nodes(data), reverse=True):
        if at < upper or at + _NODE.size > end:
            return False
        low, high, flags, length = _NODE.unpack_from(data, at)
        size = _NODE.size + length
        if what == LEAF:
            if flags > 1:
                return False
            size += _PAGE.size if flags else low | high << 16
        elif not 1 < low | high << 16 | flags << 32 <= last:
            return False
        if at + size + (size & 1) != end:
            return False
        end = at
    if end != upper:
        return False
    if what == BRANCH:
        keys = branch(data)[0]
    else:
        keys = [key for key, _, _ in leaf(data)]
        if any(not 1 < first <= last for _, _, first in large_values(data)):
            return False
    if numbers:
        keys = [key[::-1] if sys.byteorder == "little" else key for key in keys]
    return all(key < after for key, after in pairwise(keys))


def well_formed_large(data: bytes, page: int, length: int, last: int) -> bool:
    """`data` is the first page, `page`, of a large value of `length` bytes."""
    number, _, what, count = _RUN.unpack_from(data)
    whole: bool = number == page and what == LARGE and count == -(-(LARGE_START + length) // len(data))
    return whole and 1 < page <= page + count - 1 <= last
