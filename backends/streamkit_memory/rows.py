"""The rows of one partition: a dict, and its keys in order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import count

from streamkit.backend import ABSENT, ANY, NEXT, Conflict, Etag, Expect, Row, Value

__all__ = ["Rows"]

# One counter for all: an etag is never used twice, not even by a store that was deleted and made again.
_etags: Iterator[int] = count(1)


class Rows:
    """The rows of one partition. Their owner holds the lock. A thread that is interrupted in a write leaves them
    whole."""

    def __init__(self) -> None:
        self._values: dict[bytes, Value] = {}
        self._keys: list[bytes] = []
        self._last: bytes | None = None
        """The greatest key that was put with NEXT."""
        self._change: tuple[bytes, Value | None, bool] | None = None
        """A write that has taken effect. If its own thread was stopped, the next one completes it."""

    @property
    def empty(self) -> bool:
        return not self._keys and self._change is None and self._last is None

    def __len__(self) -> int:
        self._end()
        return len(self._keys)

    def get(self, key: bytes) -> Value | None:
        self._end()
        return self._values.get(key)

    def put(self, key: bytes, data: bytes, expect: Expect | Etag, ordered: bool) -> Etag:
        """Set a row. Conflict unless the precondition holds, and with `ordered` also the order of a log's keys."""
        row = self.get(key)
        if expect is ANY:
            pass
        elif expect is ABSENT or expect is NEXT:
            if row is not None:
                raise Conflict(key)
            if expect is NEXT and ordered and self._last is not None and key <= self._last:
                raise Conflict(key)
        elif row is None or row.etag != expect:
            raise Conflict(key)
        value = Value(bytes(data), str(next(_etags)))
        self._change = (key, value, expect is NEXT)
        self._end()
        return value.etag

    def delete(self, key: bytes, etag: Etag | None = None) -> None:
        """Remove a row. Conflict if it has another etag than `etag`."""
        row = self.get(key)
        if row is not None and etag not in (None, row.etag):
            raise Conflict(key)
        self._change = (key, None, False)
        self._end()

    def _end(self) -> None:
        """Complete a write that was interrupted. Every step may be repeated."""
        if self._change is None:
            return
        key, value, last = self._change
        keys = self._keys
        at = len(keys) if not keys or key > keys[-1] else bisect_left(keys, key)
        there = at < len(keys) and keys[at] == key
        if value is None:
            self._values.pop(key, None)
            if there:
                del keys[at]
        else:
            self._values[key] = value
            if not there:
                keys.insert(at, key)
        if last:
            self._last = key if self._last is None else max(key, self._last)
        self._change = None

    def page(self, start: bytes, end: bytes, size: int) -> list[Row]:
        """The first `size` rows with start <= key < end."""
        self._end()
        first = bisect_left(self._keys, start)
        last = bisect_left(self._keys, end, first) if first < len(self._keys) else first
        return [Row(key, *self._values[key]) for key in self._keys[first : min(last, first + size)]]
