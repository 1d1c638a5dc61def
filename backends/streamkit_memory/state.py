"""The state that drivers of one name share."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING
from uuid import UUID

from streamkit.backend import ANY
from streamkit.reentry import Mutex

from .rows import Rows

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

__all__ = ["Service", "tokens"]

# One counter for all: tokens always grow, also if the store is deleted in between.
tokens: Iterator[int] = count(1)


class Service:
    """Guarded by its lock, which is held for the time of one request and never while a caller thinks."""

    def __init__(self) -> None:
        self.lock = Mutex()
        self.stores: dict[UUID, dict[bytes, Rows]] = {}
        self.leases: dict[tuple[UUID, str], tuple[int, float]] = {}
        """(store, name) to (token, deadline)."""
        self.deleted: Counter[UUID] = Counter()
        """The number of times that each store was deleted."""
        self.kept: dict[UUID, dict[bytes, int]] = {}
        """The number of rows of each partition that were kept when the store was deleted."""
        self.forked = False
        self._archive: TemporaryDirectory[str] | None = None

    def keep(self, store: UUID, partition: bytes, key: bytes, data: bytes) -> None:
        """Leave a row of a store that is being deleted."""
        rows = self.stores.setdefault(store, {}).setdefault(partition, Rows())
        rows.put(key, data, ANY, False)
        self.kept[store][partition] = self.kept[store].get(partition, 0) + 1

    def is_deleted(self, store: UUID) -> bool:
        """True if it has only the rows that a deletion kept."""
        kept = self.kept.get(store, {})
        return bool(kept) and all(len(rows) <= kept.get(at, 0) for at, rows in self.stores[store].items())

    def archive(self) -> str:
        """The directory of archives, made when it is first asked for."""
        from tempfile import TemporaryDirectory

        with self.lock():
            if self._archive is None:
                self._archive = TemporaryDirectory(prefix="streamkit-archive-", ignore_cleanup_errors=True)
            return self._archive.name

    def forget_archive(self, store: UUID) -> None:
        if self._archive is not None:
            from shutil import rmtree

            rmtree(os.path.join(self._archive.name, str(store)), ignore_errors=True)
