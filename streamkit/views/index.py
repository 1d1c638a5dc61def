"""Entries by keys that are found in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from ..arguments import check_function
from ..model import Entry
from .entries import QUALIFIED, NumberedEntries, limited
from .keys import end_of_prefix, loaded, stored, stored_prefix, values

__all__ = ["Index"]


class Index(NumberedEntries):
    """A view of entries by key. `keys(entry)` returns a key (text, a number, bytes, a tuple of these), a list, or None.

    The entries of one key come in the view's order. The keys come in this order: numbers, text by code point, False and
    True, bytes, tuples. 1 and 1.0 are one key; 1, True, "1" and b"1" are four. A part of a tuple may also be None, a
    UUID, a datetime with a time zone, or a tuple.
    """

    layout = 1
    _beside = ("keys.id",)

    def __init__(self, keys: Callable[[Entry], Any], *, version: int = 1) -> None:
        super().__init__(version)
        check_function("keys", keys, "an Entry", iterated=True)
        self._keys = keys

    def setup(self, db: sqlite3.Connection) -> None:
        super().setup(db)
        db.execute("create table keys (key, id integer, primary key (key, id)) without rowid")
        self._mark_layout(db)

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        keys, id = self._keys, self._next
        pairs: list[tuple[Any, int]] = []
        kept: list[Entry] = []
        kinds: set[type] = set()
        for entry in entries:
            found = keys(entry)
            kind = type(found)
            if kind is str:
                pairs.append((found, id))
                kinds.add(kind)
            else:
                several = dict.fromkeys(map(stored, values(found)))
                if not several:
                    continue
                pairs += [(key, id) for key in several]
                kinds.update(map(type, several))
            kept.append(entry)
            id += 1
        self._keep(db, kept)
        pairs.sort(key=_first if len(kinds) == 1 else _order)  # neighbours in the tree, one after the other
        db.executemany("insert into keys values (?, ?)", pairs)

    def get(self, key: Any, *, limit: int = 0, reverse: bool = False) -> list[Entry]:
        """The entries of one key; with `reverse` the newest first."""
        order = "desc" if reverse else "asc"
        return self._entries(
            f"select {QUALIFIED} from keys join entries using (id) where key = ? order by id {order}{limited(limit)}",
            (key := stored(key),),
            layout=type(key) is bytes,
        )

    def range(
        self,
        start: Any = None,
        end: Any = None,
        *,
        prefix: str | bytes | tuple[Any, ...] | None = None,
        limit: int = 0,
        reverse: bool = False,
    ) -> list[Entry]:
        """The entries of the keys from `start` to `end`, both included, or of the keys that begin with `prefix`.

        A tuple begins with a shorter one if its first parts are equal to the parts of that one. The entries come in the
        order of the keys. With `reverse` the last key comes first, and of each key the newest entry.
        """
        conditions, parameters = _bounds(start, end, prefix)
        order = "desc" if reverse else "asc"
        return self._entries(
            f"select {QUALIFIED} from keys join entries using (id){conditions} "
            f"order by key {order}, id {order}{limited(limit)}",
            parameters,
            layout=True,
        )

    def keys(
        self,
        start: Any = None,
        end: Any = None,
        *,
        prefix: str | bytes | tuple[Any, ...] | None = None,
        limit: int = 0,
        reverse: bool = False,
    ) -> list[Any]:
        """The keys that there are, each once."""
        conditions, parameters = _bounds(start, end, prefix)
        order = "desc" if reverse else "asc"
        query = f"select distinct key from keys{conditions} order by key {order}{limited(limit)}"
        return [loaded(key) for (key,) in self._ask(query, parameters, layout=True)]

    def count(self, key: Any) -> int:
        """Count the entries of a key."""
        key = stored(key)
        [(count,)] = self._ask("select count(*) from keys where key = ?", (key,), layout=type(key) is bytes)
        found: int = count
        return found


_first = itemgetter(0)
"""The sort key of (key, value) pairs with keys of one kind. Pairs with the same key are in order already."""


def _order(pair: tuple[Any, int]) -> tuple[Any, ...]:
    key = pair[0]
    if type(key) is str:
        return (1, key, pair[1])
    return (2, key, pair[1]) if isinstance(key, bytes) else (0, key, pair[1])


def _bounds(start: Any, end: Any, prefix: str | bytes | tuple[Any, ...] | None) -> tuple[str, list[Any]]:
    conditions, parameters = [], []
    if prefix is not None:
        if start is not None or end is not None:
            raise ValueError("name a prefix, or a start and an end, not both")
        first = stored_prefix(prefix)
        conditions, parameters = ["key >= ?"], [first]
        above = end_of_prefix(first)
        if above is not None:
            conditions.append("key < ?")
            parameters.append(above)
        elif isinstance(first, str):
            conditions.append("key < x''")
        return f" where {' and '.join(conditions)}", parameters
    if start is not None:
        conditions.append("key >= ?")
        parameters.append(stored(start))
    if end is not None:
        conditions.append("key <= ?")
        parameters.append(stored(end))
    return (f" where {' and '.join(conditions)}" if conditions else ""), parameters
