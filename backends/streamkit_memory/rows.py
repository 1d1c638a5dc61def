"""The rows of one partition: a dict, and its keys in order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import count

from streamkit.backend import ABSENT, ANY, Append, Conflict, Delete, Etag, Op, Row, Value

__all__ = ["Rows"]

# One counter for all: an etag is never used twice, not even by a store that was deleted and made again.
_etags: Iterator[int] = count(1)


class Rows:
    """Not safe between threads: its owner holds the lock. A thread that is interrupted in a write leaves it whole."""

    def __init__(self) -> None:
        self._values: dict[bytes, Value] = {}
        self._keys: list[bytes] = []
        self._appended: bytes | None = None
        self._applying: list[tuple[Op, Value | None]] = []
        """A write from the moment on that it counts; whoever comes next ends it, if its own thread did not."""

    @property
    def empty(self) -> bool:
        return not self._keys and not self._applying

    def __len__(self) -> int:
        self._end()
        return len(self._keys)

    def get(self, key: bytes) -> Value | None:
        self._end()
        return self._values.get(key)

    def check(self, op: Op, ordered: bool) -> None:
        """Conflict unless the precondition of `op` holds; with `ordered` also the order of the Appends."""
        row = self.get(op.key)
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

    def apply(self, ops: Sequence[Op]) -> list[Etag | None]:
        """All of them or none, for whoever looks afterwards. Their preconditions were checked."""
        values = [None if isinstance(op, Delete) else Value(bytes(op.value), str(next(_etags))) for op in ops]
        self._applying = list(zip(ops, values, strict=True))
        self._end()
        return [None if value is None else value.etag for value in values]

    def _end(self) -> None:
        """Every step of it may be made twice."""
        if not self._applying:
            return
        keys = self._keys
        for op, value in self._applying:
            at = len(keys) if not keys or op.key > keys[-1] else bisect_left(keys, op.key)
            there = at < len(keys) and keys[at] == op.key
            if value is None:
                self._values.pop(op.key, None)
                if there:
                    del keys[at]
                continue
            self._values[op.key] = value
            if not there:
                keys.insert(at, op.key)
            if isinstance(op, Append):
                self._appended = op.key if self._appended is None else max(op.key, self._appended)
        self._applying = []

    def page(self, start: bytes, end: bytes, size: int) -> list[Row]:
        """The first `size` rows with start <= key < end."""
        self._end()
        first = bisect_left(self._keys, start)
        last = bisect_left(self._keys, end, first) if first < len(self._keys) else first
        return [Row(key, *self._values[key]) for key in self._keys[first : min(last, first + size)]]
