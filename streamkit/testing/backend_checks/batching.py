"""Several operations in one write."""

from __future__ import annotations

from functools import partial
from unittest import SkipTest

from ...backend import ABSENT, Append, Backend, Conflict, Delete, Op, Put
from .subject import Subject, hold, refuses, same

__all__ = ["Batching"]

P = b"batching"


class Batching(Subject):
    def need_atomic(self) -> None:
        if not (self.limits.atomic or self.limits.atomic_rows):
            raise SkipTest("writes are not atomic on this backend")

    def test_a_write_returns_the_etags_in_order(self) -> None:
        """The etags that a write returned were not those of its operations, in their order."""
        self.fill(P, [b"gone"])
        ops: list[Op] = [Put(b"z", b"1"), Delete(b"gone"), Append(b"m", b"2"), Put(b"a", b"3"), Delete(b"never")]
        etags = self.backend.write(P, ops)
        same([etag is None for etag in etags], [False, True, False, False, True], "which etags are None")
        values = self.backend.get(P, [op.key for op in ops])
        same([None if value is None else value.etag for value in values], etags, "etags of the rows")
        same(self.content(P), {b"a": b"3", b"m": b"2", b"z": b"1"}, "the partition")

    def test_a_conflict_in_a_batch_writes_nothing(self) -> None:
        """One operation of an atomic write conflicted and others were applied: a torn batch."""
        self.need_atomic()
        (old,) = self.backend.write(P, [Put(b"there", b"0")])
        assert old is not None
        self.backend.write(P, [Put(b"there", b"1")])
        self.fill(P, [b"victim"], b"alive")
        before = self.content(P)
        failing: list[Op] = [
            Put(b"there", b"x", ABSENT),
            Put(b"there", b"x", old),
            Put(b"missing", b"x", old),
            Delete(b"there", old),
            Delete(b"missing", old),
        ]
        if self.limits.atomic:
            failing.append(Append(b"there", b"x"))
        for op in failing:
            others: list[Op] = [Put(b"a", b"x"), Delete(b"victim"), Put(b"zz", b"x", ABSENT)]
            if self.limits.atomic:
                others.append(Append(b"zzz", b"x"))
            for at in range(len(others) + 1):
                ops = [*others[:at], op, *others[at:]]
                error = refuses(Conflict, partial(self.backend.write, P, ops), f"a write with {op}")
                hold(error.key in (op.key, None), f"Conflict names {error.key!r}, but {op.key!r} failed")
                same(self.content(P), before, f"the partition after a write that failed on {op}")

    def test_a_batch_is_never_seen_in_part(self) -> None:
        """A reader saw one row of an atomic write and, afterwards, another row as it was before."""
        self.need_atomic()
        # "a" is first and "z" last in every write, so a write that is applied in steps shows between two looks.
        last = 60
        filling = [b"f%02d" % number for number in range(min(20, self.limits.ops - 2))]
        self.fill(P, [b"a", b"z"], b"0")

        def write() -> None:
            for number in range(1, last + 1):
                data = b"%d" % number
                self.backend.write(P, [Put(key, data) for key in (b"a", *filling, b"z")])

        def look(backend: Backend, first: bytes, second: bytes) -> None:
            seen = 0
            while seen < last:
                seen = int(self.data(P, first, backend) or b"0")
                then = int(self.data(P, second, backend) or b"0")
                hold(then >= seen, f"{first!r} was at write {seen}, and {second!r} still at {then} after that")

        one, two = self.stranger(), self.stranger()
        self.together(write, lambda: look(one, b"a", b"z"), lambda: look(two, b"z", b"a"))

    def test_a_write_that_is_not_atomic_tries_everything(self) -> None:
        """One operation conflicted, and another of the same write was not tried; or the Conflict was lost."""
        if self.limits.atomic:
            raise SkipTest("writes are atomic on this backend")
        for at in range(3):
            partition = b"batching %d" % at
            self.backend.write(partition, [Put(b"there", b"1")])
            ops: list[Op] = [Put(b"a", b"x"), Append(b"z", b"x")]
            ops.insert(at, Put(b"there", b"2", ABSENT))
            error = refuses(Conflict, partial(self.backend.write, partition, ops), "the write")
            hold(error.key in (b"there", None), f"Conflict names {error.key!r}, but b'there' failed")
            found = self.content(partition)
            if self.limits.atomic_rows:  # the rows beside an Append may stand and fall together
                found.setdefault(b"a", b"x")
            same(found, {b"a": b"x", b"there": b"1", b"z": b"x"}, "the partition")

    def test_a_write_takes_as_many_operations_as_the_limit_says(self) -> None:
        """A write of `limits.ops` operations was refused, or not applied in full."""
        count = min(self.limits.ops, 1000)
        keys = [b"%06d" % number for number in range(count)]
        etags = self.backend.write(P, [Put(key, b"value " + key, ABSENT) for key in keys])
        same(len(etags), count, "the number of etags")
        same(self.content(P), {key: b"value " + key for key in keys}, "the partition")
        self.backend.write(P, [Delete(key) for key in keys])
        same(self.content(P), {}, "the partition after deleting all rows in one write")

    def test_a_batch_takes_as_many_bytes_as_the_limit_says(self) -> None:
        """An atomic write of `limits.batch_bytes` was refused, or not applied in full."""
        self.need_atomic()
        if self.limits.batch_bytes > 16 << 20:
            raise SkipTest("the limit is above 16 MiB; the other checks write enough")
        size = min(self.limits.row, self.limits.batch_bytes // 2)
        count = min(self.limits.ops, self.limits.batch_bytes // (size + 8))
        ops = [Put(b"%08d" % number, bytes([number % 251]) * size) for number in range(count)]
        self.backend.write(P, ops)
        same(self.content(P), {op.key: op.value for op in ops}, "the partition")

    def test_several_appends_in_a_batch(self) -> None:
        """Appends in one atomic write, in key order, were refused or not applied in full."""
        if not self.limits.atomic:
            raise SkipTest("writes are not atomic on this backend")
        for first in (0, 10, 20):
            ops = [Append(b"%04d" % number, b"value %d" % number) for number in range(first, first + 10)]
            self.backend.write(P, [*ops, Put(b"head", b"%d" % first)])
        wanted = {b"%04d" % number: b"value %d" % number for number in range(30)}
        same(self.content(P), {**wanted, b"head": b"20"}, "the partition")
