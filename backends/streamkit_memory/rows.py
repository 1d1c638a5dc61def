"""The rows of one partition: a dict, and its keys in order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import count

from streamkit.backend import ABSENT, ANY, Append, Conflict, Delete, Etag, Op, Row, Value

__all__ = ["Rows"]

# One counter for all: an etag is never used twice, not even by a store that was deleted and made again.
_etags: Iterator[int] = count(1)


class Rows:
    """Not safe between threads: its owner holds the lock."""

    def __init__(self) -> None:
        self.values: dict[bytes, Value] = {}
        self._keys: list[bytes] = []
        self._appended: bytes | None = None

    def check(self, op: Op, ordered: bool) -> None:
        """Conflict unless the precondition of `op` holds; with `ordered` also the order of the Appends."""
        row = self.values.get(op.key)
        if isinstance(op, Append):
            if row is not None or (ordered and self._appended is not None and op.key <= self._appended):
                raise Conflict(op.key)
        elif op.expect is ANY:
            return
        elif op.expect is ABSENT:
            if row is not None:
                raise Conflict(op.key)
        elif row is None or row.etag != op.expect:
            raise Conflict(op.key)

    def apply(self, op: Op) -> Etag | None:
        if isinstance(op, Delete):
            if self.values.pop(op.key, None) is not None:
                del self._keys[bisect_left(self._keys, op.key)]
            return None
        if isinstance(op, Append):
            self._appended = op.key if self._appended is None else max(op.key, self._appended)
        if op.key not in self.values:
            if not self._keys or op.key > self._keys[-1]:
                self._keys.append(op.key)
            else:
                insort(self._keys, op.key)
        etag = str(next(_etags))
        self.values[op.key] = Value(bytes(op.value), etag)
        return etag

    def page(self, start: bytes, end: bytes, size: int) -> list[Row]:
        """The first `size` rows with start <= key < end."""
        first = bisect_left(self._keys, start)
        last = bisect_left(self._keys, end, first) if first < len(self._keys) else first
        return [Row(key, *self.values[key]) for key in self._keys[first : min(last, first + size)]]
