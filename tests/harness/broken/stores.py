"""Broken stores."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from uuid import UUID

from streamkit.backend import (
    ANY,
    Backend,
    Driver,
    Etag,
    Expect,
    Row,
    Value,
)
from streamkit.errors import PermanentError, StoreClosed
from streamkit_memory import MemoryDriver

from .sound import Sound

__all__ = [
    "DeletedOnPaper",
    "DeletedOnlyOnce",
    "KeepsNothing",
    "ListedByPartition",
    "LostByFork",
    "OneStoreForAll",
    "ReadingMakesTheStore",
    "WritesToADeletedStore",
]


class ReadingMakesTheStore(Sound):
    """A read makes the store: it exists from the first look at it."""

    caught_by = "test_a_store_that_nobody_wrote_to_reads_empty"

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        self.inner.put(b"made", b"by reading", b"")
        return self.inner.get(partition, keys)


class DeletedOnPaper(Sound):
    """A deleted store is not listed any more, but its rows are still there."""

    caught_by = "test_a_deleted_store_is_gone"

    @staticmethod
    def stores(driver: Driver) -> Iterator[UUID]:
        return (store for store in driver.stores() if not driver.open(store).get(b"deleted", [b""])[0])

    @staticmethod
    def delete_store(driver: Driver, store: UUID, keep: Collection[tuple[bytes, bytes]]) -> None:
        driver.open(store).put(b"deleted", b"", b"")


class DeletedOnlyOnce(Sound):
    """Deleting a store that does not exist is an error, so that a delete that failed half-way cannot go on."""

    caught_by = "test_deleting_again_is_fine"

    @staticmethod
    def delete_store(driver: Driver, store: UUID, keep: Collection[tuple[bytes, bytes]]) -> None:
        if store not in set(driver.stores()):
            raise PermanentError(f"there is no store {store}")
        driver.delete(store)


class KeepsNothing(Sound):
    """All of a store is deleted, also what was to be kept."""

    caught_by = "test_rows_that_are_to_be_kept_are_left_where_a_store_is_deleted"
    remote = True

    @staticmethod
    def delete_store(driver: Driver, store: UUID, keep: Collection[tuple[bytes, bytes]]) -> None:
        driver.delete(store)


class WritesToADeletedStore(Sound):
    """A handle of a deleted store opens it again on the way, and makes it anew."""

    caught_by = "test_who_has_a_deleted_store_open_cannot_write_to_it"

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        try:
            return self.inner.put(partition, key, value, expect)
        except StoreClosed:
            self.inner = self.reopen()
            return self.inner.put(partition, key, value, expect)


class ListedByPartition(Sound):
    """A store is listed once for each of its partitions."""

    caught_by = "test_the_first_write_makes_the_store"

    @staticmethod
    def stores(driver: Driver) -> Iterator[UUID]:
        return (store for store in driver.stores() for _ in range(2))


class LostByFork(Sound):
    """A forked child meets a foreign error."""

    caught_by = "test_a_fork_does_not_disturb_its_parent"

    def __init__(self, inner: Backend, store: UUID, shared: dict[Any, Any]) -> None:
        super().__init__(inner, store, shared)
        self._process = os.getpid()

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        if os.getpid() != self._process:
            raise BrokenPipeError("the connection is the parent's")
        return self.inner.get(partition, keys)


class OneStoreForAll(Sound):
    """All stores are the same one."""

    caught_by = "test_stores_are_independent"

    def __init__(self, inner: Backend, store: UUID, shared: dict[Any, Any]) -> None:
        super().__init__(inner, store, shared)
        self.rows: Backend = shared.setdefault("rows", MemoryDriver(page=inner.limits.page).open(store))

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        return self.rows.get(partition, keys)

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        return self.rows.scan(partition, start, end, limit=limit, values=values)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        self.inner.put(b"", b"exists", b"")
        return self.rows.put(partition, key, value, expect)
