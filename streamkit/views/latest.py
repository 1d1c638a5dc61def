"""The newest entry of each key."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..arguments import check_function
from ..model import Entry
from .entries import COLUMNS, DEFINITION, EntryView, decode, encode, limited, placeholders
from .keys import stored

__all__ = ["Latest"]


class Latest(EntryView):
    """A view of the latest entry of each key. `key(entry)` returns a key, or None for an entry without one: see
    Index."""

    layout = 1

    def __init__(self, key: Callable[[Entry], Any], *, version: int = 1) -> None:
        super().__init__(version)
        check_function("key", key, "an Entry")
        self._key = key

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute(f"create table latest (key primary key, {DEFINITION}) without rowid")
        self._mark_layout(db)

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        key = self._key
        newest = {stored(found): entry for entry in entries if (found := key(entry)) is not None}
        rows = zip(newest, encode(list(newest.values())), strict=True)
        db.executemany(
            f"insert or replace into latest (key, {COLUMNS}) values ({placeholders(8)})",
            ((key, *row) for key, row in rows),
        )

    def get(self, key: Any) -> Entry | None:
        """The latest entry with this key; None if there is none."""
        key = stored(key)
        found = self._entries(f"select {COLUMNS} from latest where key = ?", (key,), layout=type(key) is bytes)
        return found[0] if found else None

    def entries(self, *, limit: int = 0) -> Iterator[Entry]:
        """Return the latest entries of all keys, in the order of the keys."""
        query = f"select {COLUMNS} from latest order by key{limited(limit)}"
        return self._each(self.db, query)

    def _each(self, db: sqlite3.Connection, query: str) -> Iterator[Entry]:
        with self._asking():
            yield from map(decode, db.execute(query))

    def __len__(self) -> int:
        [(count,)] = self._ask("select count(*) from latest")
        found: int = count
        return found

    def __bool__(self) -> bool:
        return True
