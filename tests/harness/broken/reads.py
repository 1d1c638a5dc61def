"""Broken reads: stale, cut short, confused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from streamkit.backend import (
    ANY,
    Backend,
    Etag,
    Expect,
    Range,
    Row,
    Value,
)

from .sound import Sound

__all__ = [
    "AbsenceRemembered",
    "EmptyIsMissing",
    "EtagNotLookedAt",
    "FoundOnly",
    "LongReads",
    "MixedPartitions",
    "ShortKeys",
    "SmallValues",
    "StaleReads",
    "TextKeys",
    "TextValues",
    "UnsyncedIsUnseen",
]


class StaleReads(Sound):
    """A row that was read once is answered from a cache, which only one's own writes renew."""

    caught_by = "test_an_acknowledged_write_is_seen_by_everyone"

    def __init__(self, inner: Backend, store: UUID, shared: dict[Any, Any]) -> None:
        super().__init__(inner, store, shared)
        self._cache: dict[tuple[bytes, bytes], Value | None] = {}

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        for key, value in zip(keys, self.inner.get(partition, keys), strict=True):
            if value is not None:
                self._cache.setdefault((partition, key), value)
        return [self._cache.get((partition, key)) for key in keys]

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        self._cache.pop((partition, key), None)
        return self.inner.put(partition, key, value, expect)


class AbsenceRemembered(Sound):
    """A row that was not there stays away, because that it was missing is cached."""

    caught_by = "test_an_absent_row_is_not_remembered_as_absent"

    def __init__(self, inner: Backend, store: UUID, shared: dict[Any, Any]) -> None:
        super().__init__(inner, store, shared)
        self._missing: set[tuple[bytes, bytes]] = set()

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        found = self.inner.get(partition, keys)
        self._missing |= {(partition, key) for key, value in zip(keys, found, strict=True) if value is None}
        return [None if (partition, key) in self._missing else v for key, v in zip(keys, found, strict=True)]


class UnsyncedIsUnseen(Sound):
    """A write that need not be durable stays in the writer's buffer until the next one."""

    caught_by = "test_a_write_that_need_not_be_durable_is_seen_at_once"

    def __init__(self, inner: Backend, store: UUID, shared: dict[Any, Any]) -> None:
        super().__init__(inner, store, shared)
        self._buffer: list[tuple[bytes, bytes, bytes, Expect | Etag]] = []

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        for put in self._buffer:
            self.inner.put(*put)
        self._buffer = []
        if durable:
            return self.inner.put(partition, key, value, expect)
        self._buffer.append((partition, key, value, expect))
        return "etag"


class FoundOnly(Sound):
    """get leaves out what is not there, so that the answers do not fit the keys."""

    caught_by = "test_get_answers_in_the_order_of_the_keys"

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        return [value for value in self.inner.get(partition, keys) if value is not None]


class EmptyIsMissing(Sound):
    """An empty value is taken for none."""

    caught_by = "test_an_empty_value_is_a_value"

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        return [value if value and value.data else None for value in self.inner.get(partition, keys)]


class LongReads(Sound):
    """A range is read up to and with its end, as HTTP counts, one byte too far."""

    caught_by = "test_ranges_are_cut_like_bytes"

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        return self.inner.read(partition, [part._replace(length=part.length + 1) for part in ranges])


class EtagNotLookedAt(Sound):
    """A range with an etag is answered from a cache, whose values are never looked at again."""

    caught_by = "test_a_range_may_name_the_etag"

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        found = self.inner.read(partition, ranges)
        for at, part in enumerate(ranges):
            if part.etag is not None:
                found[at] = self.shared.setdefault((partition, *part), found[at])
        return found


class TextKeys(Sound):
    """Keys are turned into text, and bytes that are not UTF-8 are replaced."""

    caught_by = "test_every_byte_is_fit_for_a_key"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        return self.inner.put(partition, key.decode(errors="replace").encode(), value, expect)


class TextValues(Sound):
    """Values go through a file in text mode, which turns the ends of lines into its own."""

    caught_by = "test_values_of_every_byte"

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        found = self.inner.get(partition, keys)
        return [value and value._replace(data=value.data.replace(b"\r\n", b"\n")) for value in found]


class ShortKeys(Sound):
    """Keys are cut at 255 bytes, as file systems do."""

    caught_by = "test_keys_and_partitions_of_300_bytes"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        return self.inner.put(partition, key[:255], value, expect)


class SmallValues(Sound):
    """A value is cut at 4 MiB."""

    caught_by = "test_a_row_may_be_large"

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        return [value and value._replace(data=value.data[: 4 << 20]) for value in self.inner.get(partition, keys)]


class MixedPartitions(Sound):
    """Partition and key are joined without a boundary."""

    caught_by = "test_partitions_are_independent"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        return self.inner.put(b"", (partition + key)[:300], value, expect)

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        return self.inner.get(b"", [(partition + key)[:300] for key in keys])

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        rows = self.inner.scan(b"", (partition + start)[:300], (partition + end)[:300], limit=limit)
        return (row._replace(key=row.key[len(partition) :]) for row in rows)
