"""Broken stores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from streamkit.backend import (
    Backend,
    Driver,
    Etag,
    Op,
    Put,
    Row,
    Value,
)
from streamkit.errors import PermanentError
from streamkit_memory import MemoryDriver

from .sound import Sound

__all__ = [
    "DeletedOnPaper",
    "DeletedOnlyOnce",
    "ListedByPartition",
    "LostByFork",
    "OneStoreForAll",
    "ReadingMakesTheStore",
]


class ReadingMakesTheStore(Sound):
    """What is read is made: a store exists from the first look at it."""

    caught_by = "test_a_store_that_nobody_wrote_to_reads_empty"

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        self.inner.write(b"made", [Put(b"by reading", b"")])
        return self.inner.get(partition, keys)


class DeletedOnPaper(Sound):
    """A deleted store is not listed any more, but its rows are still there."""

    caught_by = "test_a_deleted_store_is_gone"

    @staticmethod
    def stores(driver: Driver) -> Iterator[UUID]:
        return (store for store in driver.stores() if not driver.open(store).get(b"deleted", [b""])[0])

    @staticmethod
    def delete(driver: Driver, store: UUID) -> None:
        driver.open(store).write(b"deleted", [Put(b"", b"")])


class DeletedOnlyOnce(Sound):
    """Deleting a store that does not exist is an error, so that a delete that failed half-way cannot go on."""

    caught_by = "test_deleting_again_is_fine"

    @staticmethod
    def delete(driver: Driver, store: UUID) -> None:
        if store not in set(driver.stores()):
            raise PermanentError(f"there is no store {store}")
        driver.delete(store)


class ListedByPartition(Sound):
    """A store is listed once for each of its partitions."""

    caught_by = "test_the_first_write_makes_the_store"

    @staticmethod
    def stores(driver: Driver) -> Iterator[UUID]:
        return (store for store in driver.stores() for _ in range(2))


class LostByFork(Sound):
    """After a fork the child meets a foreign error."""

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

    def write(self, partition: bytes, ops: Sequence[Op], *, durable: bool = True) -> list[Etag | None]:
        self.inner.write(b"", [Put(b"exists", b"")])
        return self.rows.write(partition, ops)
