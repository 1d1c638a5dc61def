"""Broken scans: order, bounds, pages, and memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count, islice
from typing import Any
from uuid import UUID

from streamkit.backend import (
    ANY,
    Backend,
    Etag,
    Expect,
    Row,
)
from streamkit.errors import StreamkitError

from .sound import Sound

__all__ = [
    "EndIncluded",
    "EtagOfTheList",
    "FirstPageOnly",
    "LimitOfAPage",
    "LockHeldByScan",
    "LostOrder",
    "PagesByNumber",
    "PrefixScan",
    "ScanOfOneThread",
    "StopsAtAnEmptyPage",
    "SwallowedError",
]


class LostOrder(Sound):
    """Rows come in the order of their text, where 10 comes after 9 and case does not matter."""

    caught_by = "test_a_scan_is_in_key_order"

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        rows = sorted(self.inner.scan(partition, start, end), key=lambda row: (len(row.key), row.key.lower()))
        return islice(rows, limit or None)


class EtagOfTheList(Sound):
    """A scan gives etags of another kind than get and put do."""

    caught_by = "test_an_etag_is_the_same_wherever_it_is_seen"

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        for row in self.inner.scan(partition, start, end, limit=limit, values=values):
            yield row._replace(etag=f"list {row.etag}")


class EndIncluded(Sound):
    """A scan gives the row at its end too."""

    caught_by = "test_a_scan_begins_at_start_and_ends_before_end"

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        return self.inner.scan(partition, start, end + b"\x00", limit=limit, values=values)


class PrefixScan(Sound):
    """A scan is of all keys with the prefix that start and end have in common: `order-42` is below `order-4`."""

    caught_by = "test_a_scan_of_children_leaves_longer_names_out"

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        if start and end == start[:-1] + b"\x01":
            end = start[:-1] + b"\xff"
        return self.inner.scan(partition, start, end, limit=limit, values=values)


class LimitOfAPage(Sound):
    """The limit is taken for the size of a page: a scan goes on behind it."""

    caught_by = "test_a_scan_ends_at_its_limit"

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        return self.inner.scan(partition, start, end, values=values)


class FirstPageOnly(Sound):
    """The token of the next page is not looked at."""

    caught_by = "test_a_scan_goes_through_all_pages"

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        rows = self.inner.scan(partition, start, end, limit=limit, values=values)
        return islice(rows, self.limits.page)


class StopsAtAnEmptyPage(Sound):
    """Deleted rows still take part in paging, and a page without a living row is taken for the end."""

    caught_by = "test_an_empty_page_is_not_the_end"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        etag = self.inner.put(partition, key, value, expect)
        self.shared.setdefault((self.store, partition), set()).add(key)
        return etag

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        return islice(self._pages(partition, start, end), limit or None)

    def _pages(self, partition: bytes, start: bytes, end: bytes) -> Iterator[Row]:
        slots = sorted(key for key in self.shared.get((self.store, partition), ()) if start <= key < end)
        for at in range(0, len(slots), self.limits.page):
            page = slots[at : at + self.limits.page]
            rows = list(self.inner.scan(partition, page[0], page[-1] + b"\x00"))
            if not rows:
                return
            yield from rows


class PagesByNumber(Sound):
    """Pages are counted off from the start each time, so that rows move between them while others are deleted."""

    caught_by = "test_a_scan_goes_on_while_rows_are_written_and_deleted"

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        return islice(self._pages(partition, start, end), limit or None)

    def _pages(self, partition: bytes, start: bytes, end: bytes) -> Iterator[Row]:
        size = self.limits.page
        for number in count():
            page = list(self.inner.scan(partition, start, end))[number * size : (number + 1) * size]
            if not page:
                return
            yield from page


class LockHeldByScan(Sound):
    """A scan holds the store's lock from its first row until it is finished or forgotten."""

    caught_by = "test_a_scan_holds_nothing_while_the_caller_thinks"

    def __init__(self, inner: Backend, store: UUID, shared: dict[Any, Any]) -> None:
        super().__init__(inner, store, shared)
        self.lock = shared.setdefault("lock", threading.RLock())

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        with self.lock:
            yield from self.inner.scan(partition, start, end, limit=limit, values=values)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        with self.lock:
            return self.inner.put(partition, key, value, expect)


class ScanOfOneThread(Sound):
    """A scan works only in the thread that began it."""

    caught_by = "test_a_scan_may_go_on_in_another_thread"

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        thread = threading.get_ident()
        for row in self.inner.scan(partition, start, end, limit=limit, values=values):
            if threading.get_ident() != thread:
                return
            yield row


class SwallowedError(Sound):
    """A failed read looks like a shorter result."""

    caught_by = "test_after_close_every_call_raises"

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        try:
            yield from self.inner.scan(partition, start, end, limit=limit, values=values)
        except StreamkitError:
            return
