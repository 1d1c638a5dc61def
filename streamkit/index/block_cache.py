"""A bounded cache of the tails and blocks of runs. Each store has one, shared by its partitions and threads."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from .. import speed
from ..reentry import Mutex
from .run_format import Block, RunTail

__all__ = ["BLOCKS_BYTES", "TAILS_BYTES", "BlockCache"]

_twin: Any = speed.twin
BLOCKS_BYTES = 4 << 20
TAILS_BYTES = 8 << 20
_MARKS = 4096
"""About the number of blocks that were read last for which a cache knows that."""


class _Sized(Protocol):
    used: bool

    @property
    def size(self) -> int: ...


_Item = TypeVar("_Item", bound=_Sized)


_Key = tuple[bytes, bytes, int]


class _Recent(Generic[_Item]):
    """The items that were used lately, up to a number of bytes.

    A caller that gets an item marks it as used, without a lock. An item that was used since the last look stays.
    """

    def __init__(self, limit: int) -> None:
        self.items: OrderedDict[_Key, _Item] = OrderedDict()
        self.get = self.items.get
        self._limit = limit
        self._bytes = 0
        self._mutex = Mutex()

    @property
    def size(self) -> int:
        return self._bytes

    def put(self, key: _Key, item: _Item) -> None:
        """Keep `item`. One that is as large as all the room is not kept."""
        self.put_all(((key, item),))

    def put_all(self, some: Iterable[tuple[_Key, _Item]]) -> None:
        """Keep some items."""
        if self._mutex.mine:
            return
        items = self.items
        with self._mutex():
            for key, item in some:
                # It is counted before it is added, and until it is removed: an interrupt in between only wastes room.
                size = item.size
                if key not in items and size <= self._limit // 2:
                    self._bytes += size
                    items[key] = item
            while self._bytes > self._limit:
                oldest, found = items.popitem(last=False)
                if found.used:
                    found.used = False
                    items[oldest] = found
                else:
                    self._bytes -= found.size


class BlockCache:
    """Blocks and tails of runs, by (partition, file id, number of the block; -1: the tail)."""

    def __init__(self, blocks_bytes: int = BLOCKS_BYTES, tails_bytes: int = TAILS_BYTES) -> None:
        recent: type[_Recent[Any]] = _Recent if _twin is None else _twin.Recent
        self.blocks: _Recent[Block] = recent(blocks_bytes)
        self.tails: _Recent[RunTail] = recent(tails_bytes)
        self.block = self.blocks.get
        """The block by its key, or None. Set `used` on it."""
        self.tail = self.tails.get
        self.put_block = self.blocks.put
        self.put_blocks = self.blocks.put_all
        self.put_tail = self.tails.put
        self._marks = array("q", bytes(8 * _MARKS))

    def was_read(self, key: _Key) -> bool:
        """True if the same was asked lately of the block with this key: the block is worth its room.

        A load from open files keeps no others. Most of them would be dropped before they are read again, and a block
        that stays takes new memory, which costs a fifth of such a load.
        """
        mark = hash(key)
        at = mark % _MARKS
        if self._marks[at] == mark:
            return True
        self._marks[at] = mark
        return False

    @property
    def size(self) -> int:
        """Bytes that are kept, by estimate."""
        return self.blocks.size + self.tails.size
