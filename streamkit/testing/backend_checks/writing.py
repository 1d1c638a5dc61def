"""Preconditions, etags, deleting: the duties of one write."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from unittest import SkipTest

from ...backend import ABSENT, ANY, NEXT, Conflict, DeletesIf
from .subject import Subject, hold, refuses, same

__all__ = ["Writing"]

P = b"writing"


class Writing(Subject):
    def test_a_put_creates_and_replaces(self) -> None:
        """A put without a precondition did not set the row."""
        for data in (b"one", b"two", b"", b"three"):
            self.backend.put(P, b"k", data)
            same(self.data(P, b"k"), data, "the row after a put")
        same(self.content(P), {b"k": b"three"}, "the partition after four puts of one key")

    def test_a_put_with_absent_creates_once(self) -> None:
        """A put with ABSENT replaced an existing row: two writers could both commit the same number."""
        self.backend.put(P, b"k", b"first", ABSENT)
        for backend in (self.backend, self.stranger()):
            for data in (b"second", b"first"):
                conflict = refuses(
                    Conflict,
                    partial(backend.put, P, b"k", data, ABSENT),
                    "a put with ABSENT over a row",
                )
                hold(conflict.key in (b"k", None), f"Conflict names the key {conflict.key!r}, not b'k'")
        same(self.data(P, b"k"), b"first", "the first row")

    def test_a_put_with_an_etag_replaces_what_has_it(self) -> None:
        """A put with the row's etag was refused, or did not set the row."""
        etag = self.backend.put(P, b"k", b"0")
        other = self.stranger()
        for number in range(1, 6):
            hold(etag, "put returned no etag")
            backend = other if number % 2 else self.backend
            etag = backend.put(P, b"k", b"%d" % number, etag)
            same(self.data(P, b"k"), b"%d" % number, "the row after a put with its etag")

    def test_a_put_with_an_old_etag_conflicts(self) -> None:
        """A put with an etag that the row has no more was applied: an update was lost."""
        old = self.backend.put(P, b"k", b"old")
        new = self.stranger().put(P, b"k", b"new")
        hold(old != new, "the etag did not change with the value")
        refuses(Conflict, lambda: self.backend.put(P, b"k", b"mine", old), "a put with an old etag")
        same(self.data(P, b"k"), b"new", "the row after a refused Put")

    def test_a_row_is_deleted_if_it_has_the_etag(self) -> None:
        """`delete_if` deleted a row with another etag, or left one with this etag."""
        backend, other = self.backend, self.stranger()
        if not isinstance(backend, DeletesIf):
            raise SkipTest("a backend need not delete with a precondition")
        for size in (3, 200_000):
            old = backend.put(P, b"k", b"x" * size)
            new = other.put(P, b"k", b"y" * size)
            refuses(Conflict, partial(backend.delete_if, P, b"k", old), "a deletion with an old etag")
            same(self.data(P, b"k"), b"y" * size, "the row after a refused deletion")
            backend.delete_if(P, b"k", new)
            same(self.content(P), {}, "the partition after a deletion with the row's etag")
            with suppress(Conflict):
                backend.delete_if(P, b"k", new)
            backend.put(P, b"k", b"z", ABSENT)
            refuses(Conflict, partial(backend.delete_if, P, b"k", new), "a deletion with an etag of a deleted row")
            backend.delete(P, [b"k"])

    def test_a_put_with_an_etag_creates_nothing(self) -> None:
        """A put with an etag made a row that was not there."""
        etag = self.backend.put(P, b"k", b"1")
        refuses(Conflict, lambda: self.backend.put(P, b"x", b"1", etag), "an etag on a missing row")
        self.backend.delete(P, [b"k"])
        refuses(Conflict, lambda: self.backend.put(P, b"k", b"2", etag), "an etag on a deleted row")
        same(self.content(P), {}, "the partition")

    def test_a_delete_removes_the_rows(self) -> None:
        """A deleted row is still there, or one that was not there could not be deleted, or a neighbour is gone."""
        self.fill(P, [b"a", b"b", b"c"])
        self.backend.delete(P, [b"b"])
        same(self.keys(P), [b"a", b"c"], "the keys after a delete")
        same(self.backend.get(P, [b"b"]), [None], "the deleted row")
        self.backend.delete(P, [b"b"])
        self.backend.delete(P, [])
        self.backend.delete(P, [b"none", b"c", b"nor this"])
        same(self.keys(P), [b"a"], "the keys after a delete of some that are not there")
        self.backend.delete(b"writing, never used", [b"b", b"c"])
        self.backend.put(P, b"b", b"again", ABSENT)
        same(self.content(P), {b"a": b"-", b"b": b"again"}, "the rows, one of them created again")

    def test_a_delete_takes_many_keys(self) -> None:
        """A delete of 300 keys, with rows of every kind among them, left some or removed others."""
        keys = [b"%05d" % number for number in range(300)]
        self.fill(P, keys[::3])
        self.backend.put(P, b"00001", b"x" * (2 << 20))
        for key in (b"x1", b"x2", b"x3"):
            self.backend.put(P, key, b"log", NEXT)
        self.stranger().delete(P, [*keys[:150], b"x2", *keys[151:299]])
        same(self.keys(P), [b"00150", b"x1", b"x3"], "the keys after the delete")
        self.backend.delete(P, [b"x3", b"00150"])
        same(self.keys(P), [b"x1"], "the keys after deleting two more")

    def test_every_value_has_its_etag(self) -> None:
        """Two values of a row had the same etag: a writer could not see that the row had changed."""
        etags = [self.backend.put(P, b"k", b"value %d" % number) for number in range(20)]
        hold(all(etags), f"a put returned no etag: {etags}")
        same(len(set(etags)), 20, "different etags of 20 values")

    def test_an_etag_is_the_same_wherever_it_is_seen(self) -> None:
        """put, get and scan disagree about a row's etag: a precondition made from one would always fail."""
        self.backend.put(P, b"a", b"appended", NEXT)
        written = self.backend.put(P, b"k", b"put")
        for backend in (self.backend, self.stranger()):
            appended, put = backend.get(P, [b"a", b"k"])
            assert appended is not None
            assert put is not None
            same(put.etag, written, "the etag that get gives, and the one that put returned")
            scanned = [row.etag for row in backend.scan(P, b"", b"\xff")]
            same(scanned, [appended.etag, put.etag], "the etags that scan gives, and those of get")

    def test_partitions_are_independent(self) -> None:
        """A row of one partition shows, or is an obstacle, in another."""
        partitions = [b"", b"a", b"ab", b"a\x00", b"a\x00b", b"\x00", b"\xff", b"A", b"a/b", b"a" * 300]
        for number, partition in enumerate(partitions):
            self.backend.put(partition, b"bc", b"%d" % number, NEXT)
            self.backend.put(partition, b"c", b"%d" % number, ABSENT)
        for number, partition in enumerate(partitions):
            wanted = {b"bc": b"%d" % number, b"c": b"%d" % number}
            same(self.content(partition), wanted, f"the partition {partition[:8]!r}")
        self.backend.delete(b"a", [b"bc"])
        same(self.keys(b"a"), [b"c"], "the partition with a deleted row")
        same(self.keys(b"ab"), [b"bc", b"c"], "its neighbour")

    def test_a_write_that_need_not_be_durable_is_seen_at_once(self) -> None:
        """A write with durable=False was acknowledged, but a reader did not see it."""
        other = self.stranger()
        for number in range(10):
            self.backend.put(P, b"%02d" % number, b"log", NEXT, durable=False)
            self.backend.put(P, b"head", b"%d" % number, ANY, durable=False)
            same(self.data(P, b"%02d" % number, other), b"log", "a row appended with durable=False")
            same(self.data(P, b"head", other), b"%d" % number, "a row put with durable=False")
