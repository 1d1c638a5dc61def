"""Rows of a log that the index does not have yet."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from .record import Ref

__all__ = ["Checkpoint", "Pending"]


class Checkpoint(NamedTuple):
    """What the index knows of a log: it holds all rows below `position`, the last of which had the key `last`.

    `first` is the position of the first row that was not deleted, or `position`; `low` is its key.
    """

    position: int = 0
    last: bytes | None = None
    first: int = 0
    low: bytes | None = None


class Pending:
    """Keys in order, and where each row is. The lists only grow, at their end, the refs first.

    `txn` is the index transaction in which the rows below `base` were seen to be in the index.
    """

    __slots__ = ("base", "keys", "refs", "txn")

    def __init__(self, base: int, txn: int, keys: list[bytes], refs: list[Ref]) -> None:
        self.base = base
        self.txn = txn
        self.keys = keys
        self.refs = refs

    def since(self, base: int, txn: int) -> Pending:
        """The same without what is below `base`, as of the index transaction `txn`."""
        first = bisect_left(self.refs, (base, 0))
        if first == 0:
            return Pending(base, txn, self.keys, self.refs)
        return Pending(base, txn, self.keys[first:], self.refs[first:])

    def before(self, end: int) -> Pending:
        """The same without what is at `end` or after it."""
        last = bisect_left(self.refs, (end, 0))
        return Pending(self.base, self.txn, self.keys[:last], self.refs[:last])
