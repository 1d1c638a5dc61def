"""Rows that are put with NEXT: created once, in growing order, and rows like all others."""

from __future__ import annotations

from functools import partial
from unittest import SkipTest

from ...backend import ABSENT, NEXT, Conflict, Range
from .subject import Subject, hold, refuses, same

__all__ = ["Logs"]

P = b"logs"


class Logs(Subject):
    def test_a_put_with_next_creates_once(self) -> None:
        """A put with NEXT replaced a row: a committed transaction was overwritten."""
        self.backend.put(P, b"1", b"first", NEXT)
        for data in (b"second", b"first"):
            refuses(
                Conflict,
                partial(self.stranger().put, P, b"1", data, NEXT),
                "a put with NEXT over a row",
            )
        same(self.data(P, b"1"), b"first", "the first row")

    def test_a_key_below_the_last_of_a_log_is_refused_where_it_can_be(self) -> None:
        """A put with NEXT below an earlier one was applied though no service is between, or it harmed other rows."""
        self.backend.put(P, b"9", b"no row of the log")
        self.backend.put(P, b"5", b"five", NEXT)
        self.backend.put(P, b"7", b"seven", NEXT)
        wanted = {b"5": b"five", b"7": b"seven", b"9": b"no row of the log"}
        for backend in (self.backend, self.stranger()):
            try:
                backend.put(P, b"6", b"six", NEXT)
                hold(self.limits.remote, "a key below the last of the log was put with NEXT")
                wanted[b"6"] = b"six"
            except Conflict as conflict:
                hold(conflict.key in (b"6", None), f"Conflict names the key {conflict.key!r}, not b'6'")
            same(self.content(P), wanted, "the partition after a key below the last of the log")
        self.backend.put(P, b"6" if b"6" not in wanted else b"60", b"no row of the log", ABSENT)
        self.backend.put(P, b"8", b"eight", NEXT)
        same(self.data(P, b"8"), b"eight", "the next row of the log")
        self.backend.put(b"logs, another", b"1", b"one", NEXT)

    def test_a_deleted_key_of_a_log_is_not_put_again(self) -> None:
        """A put with NEXT was applied to a key that is not above all before, because rows of the log were deleted."""
        if self.limits.remote:
            raise SkipTest("a remote backend sees only the row")
        for key in (b"1", b"2", b"3"):
            self.backend.put(P, key, b"log", NEXT)
        for gone in ([b"3"], [b"1", b"2"]):
            self.backend.delete(P, gone)
            for backend in (self.backend, self.stranger()):
                for key in (b"1", b"2", b"3"):
                    refuses(Conflict, partial(backend.put, P, key, b"again", NEXT), f"NEXT for {key!r} after deleting")
        same(self.content(P), {}, "the partition after the deletion of all rows")
        self.stranger().put(P, b"4", b"log", NEXT)
        same(self.content(P), {b"4": b"log"}, "the partition with one row after those that were deleted")

    def test_rows_of_a_log_are_rows(self) -> None:
        """Rows that were put with NEXT are not found by get, read and scan like others, or cannot be deleted."""
        keys = [b"t%04d" % number for number in range(30)]
        for key in keys:
            etag = self.backend.put(P, key, b"data of " + key, NEXT)
            hold(etag, "put returned no etag")
        self.fill(P, [b"s", b"t0003x", b"u"])
        for backend in (self.backend, self.stranger()):
            rows = list(backend.scan(P, b"t", b"u"))
            same([row.key for row in rows], sorted([*keys, b"t0003x"]), "the scanned keys")
            found = [value.data for value in backend.get(P, keys) if value is not None]
            same(found, [b"data of " + key for key in keys], "the values of the rows of the log")
            same(backend.read(P, [Range(keys[7], 5, 6)]), [b"of t00"], "a range of a row of the log")
        self.backend.delete(P, keys[:20])
        self.backend.put(P, b"t0030", b"later", NEXT)
        wanted = sorted([b"s", b"u", *keys[20:], b"t0030"])
        same([key for key in self.keys(P) if key != b"t0003x"], wanted, "the keys after deleting the front")
        self.backend.delete(P, [*keys[20:], b"t0030"])
        self.backend.put(P, b"t0031", b"last", NEXT)
        same(self.keys(P, b"t0004", b"u"), [b"t0031"], "the keys after deleting all rows of the log")
