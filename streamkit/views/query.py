"""Entries with JSON payloads, found by the values at paths."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..arguments import check_several, check_type
from ..decoders import json_decoder
from ..model import Entry
from .conditions import Column, extract, json_path
from .entries import COLUMNS, DEFINITION, NumberedEntries, encode, limited, placeholders

__all__ = ["Query"]

_decode = json_decoder(msgspec.Raw).decode
_DEEP = 500
"""The deepest nesting that every release of SQLite accepts as JSON; the limit differs between releases."""


class Query(NumberedEntries):
    """A view of JSON payloads. `paths` get an index: "user.id", "items[0].name". `find` filters by any path.

    Payloads that are no JSON are kept, and match no filter on a path.
    """

    def __init__(self, paths: Iterable[str] = (), *, version: int = 1) -> None:
        super().__init__(version)
        check_several("paths", paths, 'Query(["user.id"])')
        self._paths = tuple(dict.fromkeys(paths))
        for path in self._paths:
            json_path(path)

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute(f"create table entries (id integer primary key, {DEFINITION}, json text)")
        for at, path in enumerate(self._paths):
            db.execute(f"create index path_{at} on entries ({extract(path)}) where json is not null")

    def load(self, db: sqlite3.Connection) -> None:
        super().load(db)
        # Paths may change without a new version of the view: indexes change no answer.
        wanted = {f"path_{at}": path for at, path in enumerate(self._paths)}
        found = dict(db.execute("select name, sql from sqlite_master where type = 'index' and name like 'path%'"))
        self._stale = [name for name in found if name not in wanted or extract(wanted[name]) not in found[name]]
        self._missing = {at: path for at, path in enumerate(self._paths) if f"path_{at}" not in found}

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        for name in self._stale:
            db.execute(f"drop index {name}")
            at = int(name.removeprefix("path_"))
            if at < len(self._paths):
                self._missing[at] = self._paths[at]
        for at, path in self._missing.items():
            db.execute(f"create index path_{at} on entries ({extract(path)}) where json is not null")
        self._stale, self._missing = [], {}
        db.executemany(
            f"insert into entries (id, {COLUMNS}, json) values ({placeholders(9)})",
            (
                (id, *row, _text(db, entry.payload))
                for (id, row), entry in zip(enumerate(encode(entries), self._next), entries, strict=True)
            ),
        )
        self._next += len(entries)

    def find(
        self,
        where: Mapping[str, Any] | None = None,
        /,
        *,
        order: str | None = None,
        reverse: bool = False,
        limit: int = 0,
        **equal: Any,
    ) -> list[Entry]:
        """The entries that meet every condition: `find({"user.id": 7, "amount": {"gte": 10}}, kind="paid")`.

        A condition is a value, a list of values, or a dict of eq, ne, lt, lte, gt, gte, in, prefix, exists. A value is
        compared with values of its kind only: text with text, numbers with numbers, True and False with these. None
        equals null and a missing value. "ne" finds all that "eq" does not. The names "@segment", "@space", "@sequence",
        "@timestamp" are the entry's own. In the view's order, or by `order`.
        """
        query, parameters = self._query(COLUMNS, where, equal, order, reverse, limit)
        return self._entries(query, parameters)

    def count(self, where: Mapping[str, Any] | None = None, /, **equal: Any) -> int:
        """The number of entries that fit. The conditions are those of `find`."""
        query, parameters = self._query("count(*)", where, equal, None, False, 0)
        [(count,)] = self._ask(query.partition(" order by ")[0], parameters)
        found: int = count
        return found

    def explain(
        self, where: Mapping[str, Any] | None = None, /, *, order: str | None = None, **equal: Any
    ) -> list[str]:
        """Return SQLite's plan: a line "SEARCH … USING INDEX" where one of the paths is used, "SCAN" where none is."""
        query, parameters = self._query(COLUMNS, where, equal, order, False, 0)
        rows = self._ask(f"explain query plan {query}", parameters)
        used = {f"path_{at}": path for at, path in enumerate(self._paths)}
        return [
            re.sub(r"INDEX (path_\d+)", lambda name: f"INDEX {used.get(name[1], name[1])!r}", row[3]) for row in rows
        ]

    def _query(
        self,
        columns: str,
        where: Mapping[str, Any] | None,
        equal: Mapping[str, Any],
        order: str | None,
        reverse: bool,
        limit: int,
    ) -> tuple[str, list[Any]]:
        check_type(where, Mapping, 'conditions are a dict, as in {"user.id": 7}', optional=True)
        conditions: list[str] = []
        parameters: list[Any] = []
        for path, wanted in [*(where or {}).items(), *equal.items()]:
            column = Column(path)
            if not column.own:
                conditions.append("json is not null")
            comparisons = wanted.items() if isinstance(wanted, Mapping) else [("eq", wanted)]
            if not comparisons:
                raise ValueError(f"the condition for {path!r} is empty: name a value, or a comparison as {{'gte': 7}}")
            for operator, value in comparisons:
                condition, values = column.condition(operator, value)
                conditions.append(condition)
                parameters += values
        by = f"{Column(order).name} {'desc' if reverse else 'asc'}, " if order is not None else ""
        unique = " and ".join(dict.fromkeys(conditions)) if not parameters else " and ".join(conditions)
        query = f"select {columns} from entries{' where ' + unique if unique else ''}"
        return f"{query} order by {by}id {'desc' if reverse else 'asc'}{limited(limit)}", parameters


def _text(db: sqlite3.Connection, payload: bytes) -> str | None:
    try:
        _decode(payload)
        text = payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if payload.count(b"[") + payload.count(b"{") < _DEEP:
        return text
    return text if db.execute("select json_valid(?)", (text,)).fetchone()[0] else None
