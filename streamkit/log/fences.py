"""Fences: the highest token of each lease that has written to a partition. They only grow.

The index holds a row for each, and what was written since is known here. A lease that has never written has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .index_rows import decode_index_row
from .keys import fence_key
from .rows import FenceRow

if TYPE_CHECKING:
    from .partition import Partition

__all__ = ["Fences"]

_KNOWN = 10_000


class Fences:
    """Of a partition, whose lock guards what changes it."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._tail: dict[str, tuple[int, int]] = {}
        """(number, token) of leases that wrote transactions after the watermark."""
        self._known: dict[str, int] = {}
        """Others, as of the latest transaction that is known; 0: it has never written."""

    def get(self, name: str, default: int = 0) -> int:
        """The highest token of a lease, as of the last refresh or later. It may ask the index."""
        partition = self._partition
        while True:
            with partition.lock:
                generation = partition.generation
                if name in self._tail:
                    return self._tail[name][1]
                if name in self._known:
                    return self._known[name] or default
            token = self._look_up(name)
            with partition.lock:
                if generation == partition.generation and name not in self._tail:
                    self._remember(name, token)

    def _look_up(self, name: str) -> int:
        key = fence_key(name)
        data = self._partition.ask(lambda view: view.indexed(key))
        return 0 if data is None else decode_index_row(FenceRow, key, data).token

    def apply(self, number: int, written: Mapping[str, int]) -> None:
        """Transaction `number` was written with these leases and tokens; the caller holds the lock."""
        for name, token in written.items():
            if name not in self._tail or token > self._tail[name][1]:
                self._tail[name] = number, token

    def drop_tail(self, watermark: int) -> None:
        """The index holds everything up to `watermark`; the caller holds the lock."""
        for name, (number, token) in list(self._tail.items()):
            if number <= watermark:
                self._remember(name, token)
                del self._tail[name]

    def forget(self) -> None:
        """The index is ahead of what is known; the caller holds the lock."""
        self._tail.clear()
        self._known.clear()

    def tail(self) -> dict[str, int]:
        """Those of transactions after the watermark; the caller holds the lock."""
        return {name: token for name, (_, token) in self._tail.items()}

    def _remember(self, name: str, token: int) -> None:
        if len(self._known) >= _KNOWN:
            del self._known[next(iter(self._known))]
        self._known[name] = token
