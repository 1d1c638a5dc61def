"""Preconditions, etags, appends: what one operation must do."""

from __future__ import annotations

from functools import partial

from ...backend import ABSENT, ANY, Append, Conflict, Delete, Put, Range
from .subject import Subject, hold, refuses, same

__all__ = ["Writing"]

P = b"writing"


class Writing(Subject):
    def test_a_put_creates_and_replaces(self) -> None:
        """A Put without a precondition did not set the row."""
        for data in (b"one", b"two", b"", b"three"):
            self.backend.write(P, [Put(b"k", data)])
            same(self.data(P, b"k"), data, "the row after a Put")
        same(self.content(P), {b"k": b"three"}, "the partition after four Puts of one key")

    def test_a_put_with_absent_creates_once(self) -> None:
        """A Put with ABSENT replaced a row that was there: two writers could both commit the same number."""
        self.backend.write(P, [Put(b"k", b"first", ABSENT)])
        for backend in (self.backend, self.stranger()):
            for data in (b"second", b"first"):
                conflict = refuses(
                    Conflict,
                    partial(backend.write, P, [Put(b"k", data, ABSENT)]),
                    "a Put with ABSENT over a row",
                )
                hold(conflict.key in (b"k", None), f"Conflict names the key {conflict.key!r}, not b'k'")
        same(self.data(P, b"k"), b"first", "the row that was there first")

    def test_a_put_with_an_etag_replaces_what_has_it(self) -> None:
        """A Put with the row's etag was refused, or did not set the row."""
        (etag,) = self.backend.write(P, [Put(b"k", b"0")])
        other = self.stranger()
        for number in range(1, 6):
            hold(etag, "write returned no etag for a Put")
            assert etag is not None
            backend = other if number % 2 else self.backend
            (etag,) = backend.write(P, [Put(b"k", b"%d" % number, etag)])
            same(self.data(P, b"k"), b"%d" % number, "the row after a Put with its etag")

    def test_a_put_with_an_old_etag_conflicts(self) -> None:
        """A Put with an etag that the row has no more was applied: an update was lost."""
        (old,) = self.backend.write(P, [Put(b"k", b"old")])
        assert old is not None
        (new,) = self.stranger().write(P, [Put(b"k", b"new")])
        hold(old != new, "the etag did not change with the value")
        refuses(Conflict, lambda: self.backend.write(P, [Put(b"k", b"mine", old)]), "a Put with an old etag")
        same(self.data(P, b"k"), b"new", "the row after a refused Put")

    def test_a_put_with_an_etag_creates_nothing(self) -> None:
        """A Put with an etag made a row that was not there."""
        (etag,) = self.backend.write(P, [Put(b"k", b"1")])
        assert etag is not None
        refuses(Conflict, lambda: self.backend.write(P, [Put(b"x", b"1", etag)]), "an etag on a missing row")
        self.backend.write(P, [Delete(b"k")])
        refuses(Conflict, lambda: self.backend.write(P, [Put(b"k", b"2", etag)]), "an etag on a deleted row")
        same(self.content(P), {}, "the partition")

    def test_a_delete_removes_the_row(self) -> None:
        """A deleted row is still there, or a row that was not there could not be deleted."""
        self.fill(P, [b"a", b"b", b"c"])
        same(self.backend.write(P, [Delete(b"b")]), [None], "what a Delete returns")
        same(self.keys(P), [b"a", b"c"], "the keys after a Delete")
        same(self.backend.get(P, [b"b"]), [None], "the deleted row")
        self.backend.write(P, [Delete(b"b")])
        self.backend.write(b"writing, never used", [Delete(b"b")])
        self.backend.write(P, [Put(b"b", b"again", ABSENT)])
        same(self.data(P, b"b"), b"again", "a row made again after its Delete")

    def test_a_delete_with_an_etag_is_conditional(self) -> None:
        """A Delete with an etag removed a row that had another one, or did not conflict where there is no row."""
        (old,) = self.backend.write(P, [Put(b"k", b"old")])
        (new,) = self.backend.write(P, [Put(b"k", b"new")])
        assert old is not None
        assert new is not None
        refuses(Conflict, lambda: self.backend.write(P, [Delete(b"k", old)]), "a Delete with an old etag")
        same(self.data(P, b"k"), b"new", "the row after a refused Delete")
        self.backend.write(P, [Delete(b"k", new)])
        same(self.backend.get(P, [b"k"]), [None], "the row after a Delete with its etag")
        refuses(Conflict, lambda: self.backend.write(P, [Delete(b"k", new)]), "an etag on a missing row")

    def test_every_value_has_its_etag(self) -> None:
        """Two values of a row had the same etag: a writer could not see that the row had changed."""
        etags = [self.backend.write(P, [Put(b"k", b"value %d" % number)])[0] for number in range(20)]
        hold(all(etags), f"a Put returned no etag: {etags}")
        same(len(set(etags)), 20, "different etags of 20 values")

    def test_an_etag_is_the_same_wherever_it_is_seen(self) -> None:
        """write, get and scan disagree about a row's etag: a precondition made from one would always fail."""
        self.backend.write(P, [Append(b"a", b"appended")])
        (written,) = self.backend.write(P, [Put(b"k", b"put")])
        for backend in (self.backend, self.stranger()):
            appended, put = backend.get(P, [b"a", b"k"])
            assert appended is not None
            assert put is not None
            same(put.etag, written, "the etag that get gives, and the one that write returned")
            scanned = [row.etag for row in backend.scan(P, b"", b"\xff")]
            same(scanned, [appended.etag, put.etag], "the etags that scan gives, and those of get")

    def test_an_append_creates_once(self) -> None:
        """An Append replaced a row: a committed transaction was overwritten."""
        self.backend.write(P, [Append(b"1", b"first")])
        for data in (b"second", b"first"):
            refuses(
                Conflict,
                partial(self.stranger().write, P, [Append(b"1", data)]),
                "an Append over a row",
            )
        same(self.data(P, b"1"), b"first", "the row that was there first")

    def test_an_append_out_of_order_is_refused_or_done(self) -> None:
        """An Append below an earlier one was neither refused nor stored, or it harmed other rows."""
        self.backend.write(P, [Append(b"5", b"five")])
        self.backend.write(P, [Append(b"7", b"seven")])
        wanted = {b"5": b"five", b"7": b"seven"}
        try:
            self.backend.write(P, [Append(b"6", b"six")])
            wanted[b"6"] = b"six"
        except Conflict:
            pass
        self.backend.write(P, [Append(b"8", b"eight")])
        wanted[b"8"] = b"eight"
        same(self.content(P), wanted, "the partition")

    def test_appended_rows_are_rows(self) -> None:
        """Rows that were appended are not found by get, read and scan like others, or cannot be deleted."""
        keys = [b"t%04d" % number for number in range(30)]
        for key in keys:
            (etag,) = self.backend.write(P, [Append(key, b"data of " + key)])
            hold(etag, "write returned no etag for an Append")
        self.fill(P, [b"s", b"t0003x", b"u"])
        for backend in (self.backend, self.stranger()):
            rows = list(backend.scan(P, b"t", b"u"))
            same([row.key for row in rows], sorted([*keys, b"t0003x"]), "the scanned keys")
            found = [value.data for value in backend.get(P, keys) if value is not None]
            same(found, [b"data of " + key for key in keys], "the values of the appended rows")
            same(backend.read(P, [Range(keys[7], 5, 6)]), [b"of t00"], "a range of an appended row")
        self.write_all(P, [Delete(key) for key in keys[:20]])
        self.backend.write(P, [Append(b"t0030", b"later")])
        wanted = sorted([b"s", b"u", *keys[20:], b"t0030"])
        same([key for key in self.keys(P) if key != b"t0003x"], wanted, "the keys after deleting the front")
        self.write_all(P, [Delete(key) for key in [*keys[20:], b"t0030"]])
        self.backend.write(P, [Append(b"t0031", b"last")])
        same(self.keys(P, b"t0004", b"u"), [b"t0031"], "the keys after deleting all that was appended")

    def test_partitions_are_independent(self) -> None:
        """What was written in one partition shows, or is an obstacle, in another."""
        partitions = [b"", b"a", b"ab", b"a\x00", b"a\x00b", b"\x00", b"\xff", b"A", b"a/b", b"a" * 300]
        for number, partition in enumerate(partitions):
            self.backend.write(partition, [Append(b"bc", b"%d" % number)])
            self.backend.write(partition, [Put(b"c", b"%d" % number, ABSENT)])
        for number, partition in enumerate(partitions):
            wanted = {b"bc": b"%d" % number, b"c": b"%d" % number}
            same(self.content(partition), wanted, f"the partition {partition[:8]!r}")
        self.backend.write(b"a", [Delete(b"bc")])
        same(self.keys(b"a"), [b"c"], "the partition with a deleted row")
        same(self.keys(b"ab"), [b"bc", b"c"], "its neighbour")

    def test_a_write_that_need_not_be_durable_is_seen_at_once(self) -> None:
        """A write with durable=False was acknowledged, but a reader did not see it."""
        other = self.stranger()
        for number in range(10):
            self.backend.write(P, [Append(b"%02d" % number, b"log")], durable=False)
            self.backend.write(P, [Put(b"head", b"%d" % number, ANY)], durable=False)
            same(self.data(P, b"%02d" % number, other), b"log", "a row appended with durable=False")
            same(self.data(P, b"head", other), b"%d" % number, "a row put with durable=False")
