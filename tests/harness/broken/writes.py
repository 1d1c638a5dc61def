"""Broken writes: preconditions, etags, batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from streamkit.backend import (
    ABSENT,
    ANY,
    Append,
    Conflict,
    Delete,
    Etag,
    Op,
    Put,
    Row,
    Value,
)

from .sound import Sound

__all__ = [
    "BatchSeenInPart",
    "CheckedThenWritten",
    "DeleteNotConditional",
    "EtagOfTheSize",
    "EtagsNotCompared",
    "NoPrecondition",
    "ReplacingAppend",
    "StopsAtConflict",
    "SwallowedConflict",
    "TornBatch",
]


def _unconditional(op: Op) -> Op:
    if isinstance(op, Delete):
        return Delete(op.key)
    return Put(op.key, op.value)


class NoPrecondition(Sound):
    """Preconditions are not looked at."""

    caught_by = "test_a_put_with_absent_creates_once"

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        return self.inner.write(partition, [_unconditional(op) for op in ops])


class EtagsNotCompared(Sound):
    """Only ABSENT is looked at; a Put with an etag always wins."""

    caught_by = "test_a_put_with_an_old_etag_conflicts"

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        ops = [Put(op.key, op.value) if isinstance(op, Put) and op.expect is not ABSENT else op for op in ops]
        return self.inner.write(partition, ops)


class DeleteNotConditional(Sound):
    """A Delete removes the row whatever etag it expects."""

    caught_by = "test_a_delete_with_an_etag_is_conditional"

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        return self.inner.write(partition, [Delete(op.key) if isinstance(op, Delete) else op for op in ops])


class CheckedThenWritten(Sound):
    """Preconditions are checked, and then the write is sent, with nothing that holds between the two."""

    caught_by = "test_only_one_of_many_writers_creates_a_row"

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        values = self.inner.get(partition, [op.key for op in ops])
        for op, value in zip(ops, values, strict=True):
            expect = ABSENT if isinstance(op, Append) else op.expect
            if expect is ABSENT and value is not None:
                raise Conflict(op.key)
            if expect is not ANY and expect is not ABSENT and (value is None or value.etag != expect):
                raise Conflict(op.key)
        time.sleep(0.001)
        return self.inner.write(partition, [_unconditional(op) for op in ops])


class ReplacingAppend(Sound):
    """An Append is a Put: it overwrites what was committed."""

    caught_by = "test_an_append_creates_once"

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        return self.inner.write(partition, [_unconditional(op) if isinstance(op, Append) else op for op in ops])


class SwallowedConflict(Sound):
    """A conflict is taken for success: the loser believes that it has won."""

    caught_by = "test_only_one_of_many_writers_appends_a_row"

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        try:
            return self.inner.write(partition, ops)
        except Conflict:
            return [None if isinstance(op, Delete) else "etag" for op in ops]


class EtagOfTheSize(Sound):
    """The etag is made from the size of the value, so that not every change shows."""

    caught_by = "test_every_value_has_its_etag"

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        found = self.inner.get(partition, keys)
        return [value and Value(value.data, str(len(value.data))) for value in found]

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        rows = self.inner.scan(partition, start, end, limit=limit, values=values)
        return (row._replace(etag=str(len(row.data))) for row in rows)

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        self.inner.write(partition, [self._translated(partition, op) for op in ops])
        return [None if isinstance(op, Delete) else str(len(op.value)) for op in ops]

    def _translated(self, partition: bytes, op: Op) -> Op:
        if isinstance(op, Append) or op.expect is ANY or op.expect is ABSENT:
            return op
        (value,) = self.inner.get(partition, [op.key])
        if value is None or str(len(value.data)) != op.expect:
            raise Conflict(op.key)
        return op._replace(expect=value.etag)


class TornBatch(Sound):
    """The operations of a batch are applied one after the other, up to the first that conflicts."""

    caught_by = "test_a_conflict_in_a_batch_writes_nothing"

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        return [self.inner.write(partition, [op])[0] for op in ops]


class BatchSeenInPart(Sound):
    """Batches are all or nothing in the end, but readers see them half done."""

    caught_by = "test_a_batch_is_never_seen_in_part"

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        with self.shared.setdefault("lock", threading.Lock()):
            if any(isinstance(op, Append) or op.expect is not ANY for op in ops):
                return self.inner.write(partition, ops)
            etags = []
            for op in ops:
                etags += self.inner.write(partition, [op])
                time.sleep(0)
            return etags


class StopsAtConflict(Sound):
    """Where writes are not atomic: what comes after the first conflict is not tried."""

    caught_by = "test_a_write_that_is_not_atomic_tries_everything"

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        return [self.inner.write(partition, [op])[0] for op in ops]
