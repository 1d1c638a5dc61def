"""Scans: order, bounds, pages, and writers meanwhile."""

from __future__ import annotations

import random
import threading

from ...backend import NEXT, Backend
from .subject import Subject, hold, same

__all__ = ["Scanning"]

P = b"scanning"
END = b"\xff"


class Scanning(Subject):
    def many(self, pages: float) -> list[bytes]:
        """Keys for so many pages of a scan and a few rows more."""
        return [b"%06d" % number for number in range(int(pages * min(self.limits.page, 1000)) + 5)]

    def test_a_scan_is_in_key_order(self) -> None:
        """Rows came in another order than that of their keys as bytes."""
        keys = [b"%d" % number for number in range(120)] + [b"a", b"B", b"\x00", b"\xff", b"a\x00", b"ab"]
        random.Random(1).shuffle(keys)
        for key in keys[:40]:
            self.backend.put(P, key, b"=" + key)
        self.put_all(P, {key: b"=" + key for key in keys[40:]})
        rows = list(self.backend.scan(P, b"", b"\xff\xff"))
        same([row.key for row in rows], sorted(keys), "the scanned keys")
        same([row.data for row in rows], [b"=" + key for key in sorted(keys)], "the scanned values")

    def test_a_scan_begins_at_start_and_ends_before_end(self) -> None:
        """A scan gave rows outside start <= key < end, or left some inside out."""
        keys = [b"a", b"a\x00", b"a\x00b", b"a\x01", b"ab", b"b", b"b\xff", b"c"]
        self.fill(P, keys)
        bounds = [b"", b"\x00", b"a", b"a\x00", b"a\x00\x00", b"a\x01", b"aa", b"b", b"b\xff\x00", b"c", b"c\x00", END]
        for start in bounds:
            for end in bounds:
                wanted = [key for key in keys if start <= key < end]
                same(self.keys(P, start, end), wanted, f"the keys from {start!r} to {end!r}")

    def test_a_scan_of_children_leaves_longer_names_out(self) -> None:
        """A scan below `order-4` gave rows of `order-42`."""
        names = ["a", "ab", "abc", "a/b", "a b", "1", "10", "100", "é", "🎉", "order-4", "order-42", "order"]
        for name in names:
            self.fill(P, [name.encode() + b"\x00" + tail for tail in (b"\x00", b"1", b"\xff\xff")])
        for name in names:
            children = self.keys(P, name.encode() + b"\x00", name.encode() + b"\x01")
            wanted = [name.encode() + b"\x00" + tail for tail in (b"\x00", b"1", b"\xff\xff")]
            same(children, wanted, f"the keys below {name!r}")

    def test_a_scan_ends_at_its_limit(self) -> None:
        """A scan gave more or fewer rows than its limit."""
        keys = self.many(1)
        self.fill(P, keys)
        for limit in (1, 2, len(keys) - 6, len(keys) - 5, len(keys) - 4, len(keys), len(keys) + 1, 0):
            found = [row.key for row in self.backend.scan(P, b"", END, limit=limit)]
            same(len(found), min(limit or len(keys), len(keys)), f"the rows with limit={limit}")
            same(found, keys[: len(found)], f"the keys with limit={limit}")

    def test_a_scan_goes_through_all_pages(self) -> None:
        """A scan of more than two pages lost rows, gave some twice, or stopped early."""
        keys = self.many(2)
        self.fill(P, keys)
        for backend in (self.backend, self.stranger()):
            same([row.key for row in backend.scan(P, b"", END)], keys, "the keys of all pages")
        same(self.keys(P, keys[3], keys[-3]), keys[3:-3], "the keys of a part")
        middle = len(keys) // 2
        same(self.keys(P, keys[middle]), keys[middle:], "the keys from the middle on")

    def test_a_scan_without_values_gives_the_keys(self) -> None:
        """A scan with values=False gave other keys than one with values."""
        keys = self.many(0.5)
        self.fill(P, keys, b"value")
        same([row.key for row in self.backend.scan(P, b"", END, values=False)], keys, "the keys")
        some = [row.key for row in self.backend.scan(P, keys[1], END, limit=3, values=False)]
        same(some, keys[1:4], "the keys with a limit")

    def test_an_empty_page_is_not_the_end(self) -> None:
        """A scan stopped where all rows of a page had been deleted: the rows behind were lost."""
        keys = self.many(2)
        page = min(self.limits.page, 1000)
        self.fill(P, keys)
        self.backend.delete(P, keys[page : 2 * page])
        left = keys[:page] + keys[2 * page :]
        same(self.keys(P), left, "the keys around a deleted page")
        same([row.key for row in self.backend.scan(P, b"", END)], left, "the rows around a deleted page")
        self.backend.delete(P, keys[:page])
        same(self.keys(P), keys[2 * page :], "the keys behind two deleted pages")
        same([row.key for row in self.backend.scan(P, b"", END, limit=1)], [keys[2 * page]], "the first row")

    def test_a_scan_goes_on_while_rows_are_written_and_deleted(self) -> None:
        """A row that existed all the time was left out or returned twice, because other rows came and went."""
        keys = self.many(2)
        self.fill(P, keys)
        page = min(self.limits.page, 1000)
        scan = self.backend.scan(P, b"", END)
        seen = [next(scan).key for _ in range(3)]
        gone = set(keys[5:10]) | set(keys[page - 2 : page + 3]) | {keys[-2]}
        self.backend.delete(P, sorted(gone))
        self.fill(P, [keys[0] + b"x", keys[4] + b"x", keys[page] + b"x", keys[-1] + b"x"])
        seen += [row.key for row in scan]
        same(seen, sorted(set(seen)), "the keys in order, each once")
        stayed = [key for key in keys if key not in gone]
        same([key for key in seen if key in set(stayed)], stayed, "the rows that existed all the time")

    def test_scans_are_whole_while_others_write(self) -> None:
        """A scan beside busy writers left out, repeated or damaged an unchanged row."""
        keys = [b"%05d" % number for number in range(200)]
        self.fill(P, keys, b"untouched")
        stop = threading.Event()

        def disturb(backend: Backend, name: bytes) -> None:
            chance = random.Random(name)
            for number in range(1_000_000):
                if stop.is_set():
                    return
                key = b"%05d %s" % (chance.randrange(200), name)
                if number % 10 == 0:
                    if name == b"1":
                        backend.put(P, b"x%08d" % number, b"log", NEXT)
                    else:
                        backend.put(P, key, b"")
                backend.put(P, key, b"noise")
                backend.delete(P, [key])

        def look(backend: Backend) -> None:
            try:
                for _ in range(self.rounds):
                    rows = list(backend.scan(P, b"", b"x"))
                    found = [row.key for row in rows]
                    same(found, sorted(set(found)), "the keys in order, each once")
                    same([row.key for row in rows if row.data == b"untouched"], keys, "the rows nobody touched")
            finally:
                stop.set()

        one, two, three = self.stranger(), self.stranger(), self.stranger()
        self.together(lambda: disturb(one, b"1"), lambda: disturb(two, b"2"), lambda: look(three))

    def test_a_scan_holds_nothing_while_the_caller_thinks(self) -> None:
        """A scan that was begun and not finished kept others, or its own thread, from writing."""
        keys = self.many(1)
        self.fill(P, keys)
        scans = [self.backend.scan(P, b"", END) for _ in range(50)]
        for scan in scans:
            next(scan)
        other = self.stranger()

        def use(backend: Backend, name: bytes) -> None:
            backend.put(P, b"x" + name, b"1")
            backend.put(P, b"y" + name, b"1", NEXT)
            same(len(list(backend.scan(P, b"0", b"x"))), len(keys), "the rows of a scan beside 50 others")

        self.together(lambda: use(self.backend, b"1"))
        self.together(lambda: use(other, b"2"))
        use(self.backend, b"3")
        for scan in scans[:2]:
            same([row.key for row in scan][: len(keys) - 1], keys[1:], "the rest of a scan after a rest")

    def test_a_scan_may_go_on_in_another_thread(self) -> None:
        """A scan that was begun in one thread failed or lost rows in another."""
        keys = self.many(1)
        self.fill(P, keys)
        scan = self.backend.scan(P, b"", END)
        seen = [next(scan).key]
        for _ in range(3):
            seen += self.together(lambda: next(scan).key)
        seen += self.together(lambda: [row.key for row in scan])[0]
        same(seen, keys, "the keys")

    def test_a_scan_of_nothing_is_empty(self) -> None:
        """A scan of an unknown partition, or of a range without rows, gave rows or failed."""
        self.fill(P, [b"b", b"d"])
        same(list(self.backend.scan(b"unknown", b"", END)), [], "the rows of an unknown partition")
        same(list(self.backend.scan(P[:-1], b"", END)), [], "the rows of a partition with a shorter name")
        same(list(self.backend.scan(P, b"c", b"d")), [], "the rows of an empty range")
        same(list(self.backend.scan(P, b"z", b"a")), [], "the rows of a range that ends before it starts")
        hold(list(self.backend.scan(P, b"b", b"c")), "the row b'b' is not found")
