"""Broken writes: preconditions, etags, the order of a log, deleting."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from streamkit.backend import ABSENT, ANY, NEXT, Conflict, Etag, Expect, Row, Value
from streamkit.errors import PermanentError

from .sound import Sound

__all__ = [
    "CheckedThenWritten",
    "DeletesTheFirst",
    "DeletesWhatIsThere",
    "EtagOfTheSize",
    "EtagsNotCompared",
    "ForgetsWhatWasDeleted",
    "NextCheckedThenWritten",
    "NextIsAbsent",
    "NoPrecondition",
    "ReplacingNext",
    "SwallowedConflict",
]


class NoPrecondition(Sound):
    """Preconditions are not looked at."""

    caught_by = "test_a_put_with_absent_creates_once"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        return self.inner.put(partition, key, value)


class EtagsNotCompared(Sound):
    """A put with an etag always wins."""

    caught_by = "test_a_put_with_an_old_etag_conflicts"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        return self.inner.put(partition, key, value, expect if isinstance(expect, Expect) else ANY)


class CheckedThenWritten(Sound):
    """The precondition is checked, and then the write is sent, with nothing that holds between the two."""

    caught_by = "test_only_one_of_many_writers_creates_a_row"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        (there,) = self.inner.get(partition, [key])
        if expect in (ABSENT, NEXT) and there is not None:
            raise Conflict(key)
        if not isinstance(expect, Expect) and (there is None or there.etag != expect):
            raise Conflict(key)
        time.sleep(0.001)
        return self.inner.put(partition, key, value)


class ReplacingNext(Sound):
    """NEXT is ANY: it overwrites what was committed."""

    caught_by = "test_a_put_with_next_creates_once"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        return self.inner.put(partition, key, value, ANY if expect is NEXT else expect)


class NextIsAbsent(Sound):
    """A put with NEXT checks only its own row, and not the later rows of the log."""

    caught_by = "test_a_key_below_the_last_of_a_log_is_refused_where_it_can_be"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        return self.inner.put(partition, key, value, ABSENT if expect is NEXT else expect)


class ForgetsWhatWasDeleted(Sound):
    """The end of a log is the greatest key that is there, so that a deleted one can be put again."""

    caught_by = "test_a_deleted_key_of_a_log_is_not_put_again"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        if expect is not NEXT:
            return self.inner.put(partition, key, value, expect)
        if next(self.inner.scan(partition, key, b"\xff" * 301, limit=1), None) is not None:
            raise Conflict(key)
        return self.inner.put(partition, key, value, ABSENT)


class NextCheckedThenWritten(Sound):
    """The end of a log is looked up, and then the row is written, with nothing that holds between the two."""

    caught_by = "test_the_keys_of_a_log_grow_whoever_writes"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        if expect is not NEXT:
            return self.inner.put(partition, key, value, expect)
        last = self.shared.get((self.store, partition))
        if last is not None and key <= last:
            raise Conflict(key)
        time.sleep(0.001)
        etag = self.inner.put(partition, key, value, ABSENT)
        self.shared[self.store, partition] = key
        return etag


class SwallowedConflict(Sound):
    """A conflict is taken for success: the loser believes that it has won."""

    caught_by = "test_only_one_of_many_writers_puts_the_next_row"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        try:
            return self.inner.put(partition, key, value, expect)
        except Conflict:
            return "etag"


class EtagOfTheSize(Sound):
    """The etag is made from the size of the value, so that not every change shows."""

    caught_by = "test_every_value_has_its_etag"

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        found = self.inner.get(partition, keys)
        return [value and Value(value.data, str(len(value.data))) for value in found]

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        rows = self.inner.scan(partition, start, end, limit=limit, values=values)
        return (row._replace(etag=str(len(row.data))) for row in rows)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        if not isinstance(expect, Expect):
            (there,) = self.inner.get(partition, [key])
            if there is None or str(len(there.data)) != expect:
                raise Conflict(key)
            expect = there.etag
        self.inner.put(partition, key, value, expect)
        return str(len(value))


class DeletesTheFirst(Sound):
    """A delete of many keys deletes only those of the first request."""

    caught_by = "test_a_delete_takes_many_keys"

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        self.inner.delete(partition, keys[:100])


class DeletesWhatIsThere(Sound):
    """To delete a row that is not there is an error."""

    caught_by = "test_a_delete_removes_the_rows"

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        for key, value in zip(keys, self.inner.get(partition, keys), strict=True):
            if value is None:
                raise PermanentError(f"there is no row {key!r}")
        self.inner.delete(partition, keys)


class DeletesAnyEtag(Sound):
    """A deletion with an etag deletes the row that is there."""

    caught_by = "test_a_row_is_deleted_if_it_has_the_etag"

    def delete_if(self, partition: bytes, key: bytes, etag: Etag) -> None:
        self.inner.delete(partition, [key])
