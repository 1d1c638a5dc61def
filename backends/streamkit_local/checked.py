"""LMDB transactions on a state that is not yet known to be whole: each page is checked before LMDB comes to it.

They have those methods of lmdb's that are used here, and mean the same. Looking up a key reads the pages that lead to
it; a cursor reads the neighbours of these too. Putting a row reads no others; deleting one may join pages with any of
their neighbours, so before the first one the whole state is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import lmdb

from .layout import END
from .meta import Meta
from .pages import Pages

__all__ = ["CheckedTransaction"]


class CheckedTransaction:
    """One transaction, on the state `meta`."""

    def __init__(self, txn: lmdb.Transaction[bytes], pages: Pages, meta: Meta) -> None:
        self._txn = txn
        self._pages = pages
        self._meta = meta

    def id(self) -> int:
        return self._txn.id()

    def abort(self) -> None:
        self._txn.abort()

    def get(self, key: bytes) -> bytes | None:
        self._pages.check_path(self._meta.rows, key)
        return self._txn.get(key)

    def put(self, key: bytes, value: bytes) -> bool:
        self._pages.check_path(self._meta.rows, key)
        return self._txn.put(key, value)

    def delete(self, key: bytes) -> bool:
        self._pages.look_everywhere(self._meta)
        return self._txn.delete(key)

    def cursor(self) -> CheckedCursor:
        return CheckedCursor(self._txn.cursor(), self._pages, self._meta)


class CheckedCursor:
    """One cursor."""

    def __init__(self, cursor: lmdb.Cursor[bytes], pages: Pages, meta: Meta) -> None:
        self._cursor = cursor
        self._check = pages.check_path
        self._rows = meta.rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cursor.close()

    def _around(self, key: bytes) -> bytes | None:
        """Check what leads to `key`, and to the pages before and after; up to which key one may go on."""
        low, high = self._check(self._rows, key)
        if low:
            self._check(self._rows, low, before=True)
        if high is not None:
            self._check(self._rows, high)
        return high

    def set_range(self, key: bytes) -> bool:
        self._around(key)
        return self._cursor.set_range(key)

    def first(self) -> bool:
        self._around(b"")
        return self._cursor.first()

    def last(self) -> bool:
        self._around(END)
        return self._cursor.last()

    def next(self) -> bool:
        self._around(self._cursor.key())
        return self._cursor.next()

    def prev(self) -> bool:
        self._around(self._cursor.key())
        return self._cursor.prev()

    def key(self) -> bytes:
        return self._cursor.key()

    def value(self) -> bytes:
        return self._cursor.value()

    def item(self) -> tuple[bytes, bytes]:
        return self._cursor.item()

    def iternext(self) -> Iterator[tuple[bytes, bytes]]:
        high = self._around(self._cursor.key())
        for item in self._cursor.iternext():
            if high is not None and item[0] >= high:
                high = self._around(item[0])
            yield item

    def putmulti(self, items: Sequence[tuple[bytes, bytes]]) -> tuple[int, int]:
        low: bytes = b""
        high: bytes | None = b""
        for key, _ in items:
            if key < low or (high is not None and key >= high):
                low, high = self._check(self._rows, key)
        return self._cursor.putmulti(items)
