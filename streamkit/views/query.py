"""Entries with JSON payloads, by what is at paths in them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ..model import Entry
from ..run.reading import Removed
from .entries import COLUMNS, DEFINITION, EntryView, encode, limited, placeholders

__all__ = ["Query"]

_PART = re.compile(r'[^.\[\]"]+|\[\d+\]')
_decode = msgspec.json.Decoder(msgspec.Raw).decode
_DEEP = 500
"""What is nested less is JSON for SQLite too; where it ends differs from one SQLite to the next."""
_COMPARISONS = {"eq": "is", "ne": "is not", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_OWN = {"segment", "sequence", "timestamp", "space"}


class Query(EntryView):
    """`paths` are indexed: "user.id", "items[0].name". `find` filters by these, and by all others without an index.

    Payloads that are no JSON are kept, and match no filter on a path.
    """

    def __init__(self, paths: Iterable[str] = (), *, version: int = 1) -> None:
        super().__init__(version)
        if isinstance(paths, str):
            raise TypeError(f'paths are several, as in Query(["user.id"]), not {paths!r:.60}')
        self._paths = tuple(dict.fromkeys(paths))
        for path in self._paths:
            _json_path(path)
        self._next = 1

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute(f"create table entries (id integer primary key, {DEFINITION}, json text)")
        for at, path in enumerate(self._paths):
            db.execute(f"create index path_{at} on entries ({_extract(path)}) where json is not null")

    def load(self, db: sqlite3.Connection) -> None:
        # Paths are a part of what the view is, and may be changed without a version: indexes change no answer.
        wanted = {f"path_{at}": path for at, path in enumerate(self._paths)}
        found = dict(db.execute("select name, sql from sqlite_master where type = 'index' and name like 'path%'"))
        self._stale = [name for name in found if name not in wanted or _extract(wanted[name]) not in found[name]]
        self._missing = {at: path for at, path in enumerate(self._paths) if f"path_{at}" not in found}
        self._next = db.execute("select coalesce(max(id), 0) + 1 from entries").fetchone()[0]

    def erase(self, db: sqlite3.Connection, gap: Removed) -> None:
        self._erase(db, gap)

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        for name in self._stale:
            db.execute(f"drop index {name}")
            at = int(name.removeprefix("path_"))
            if at < len(self._paths):
                self._missing[at] = self._paths[at]
        for at, path in self._missing.items():
            db.execute(f"create index path_{at} on entries ({_extract(path)}) where json is not null")
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

        A condition is a value, a list of values, or a dict of eq, ne, lt, lte, gt, gte, in, prefix, exists. The names
        "@segment", "@space", "@sequence", "@timestamp" are the entry's own. In the view's order, or by `order`.
        """
        query, parameters = self._query(COLUMNS, where, equal, order, reverse, limit)
        return self._entries(query, parameters)

    def count(self, where: Mapping[str, Any] | None = None, /, **equal: Any) -> int:
        query, parameters = self._query("count(*)", where, equal, None, False, 0)
        count: int = self.db.execute(query.partition(" order by ")[0], parameters).fetchone()[0]
        return count

    def explain(
        self, where: Mapping[str, Any] | None = None, /, *, order: str | None = None, **equal: Any
    ) -> list[str]:
        """How SQLite finds them: a line "SEARCH … USING INDEX" where one of the paths is used, "SCAN" where none is."""
        query, parameters = self._query(COLUMNS, where, equal, order, False, 0)
        rows = list(self.db.execute(f"explain query plan {query}", parameters))
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
        conditions: list[str] = []
        parameters: list[Any] = []
        for path, wanted in [*(where or {}).items(), *equal.items()]:
            column = _column(path)
            if not path.startswith("@"):
                conditions.append("json is not null")
            for operator, value in wanted.items() if isinstance(wanted, Mapping) else [("eq", wanted)]:
                condition, values = _condition(column, path, operator, value)
                conditions.append(condition)
                parameters += values
        by = f"{_column(order)} {'desc' if reverse else 'asc'}, " if order is not None else ""
        unique = " and ".join(dict.fromkeys(conditions)) if not parameters else " and ".join(conditions)
        query = f"select {columns} from entries{' where ' + unique if unique else ''}"
        return f"{query} order by {by}id {'desc' if reverse else 'asc'}{limited(limit)}", parameters


def _condition(column: str, path: str, operator: str, value: Any) -> tuple[str, list[Any]]:
    if isinstance(value, (list, set, frozenset)) and operator == "eq":
        operator = "in"
    if operator == "in":
        values = [_value(path, one) for one in value]
        return f"{column} in ({placeholders(len(values))})", values
    if operator == "exists":
        return f"{column} is {'not ' if value else ''}null", []
    if operator == "prefix":
        from .keys import end_of_prefix

        above = end_of_prefix(value)
        return (f"{column} >= ? and {column} < ?", [value, above]) if above is not None else (f"{column} >= ?", [value])
    if operator not in _COMPARISONS:
        known = ", ".join([*_COMPARISONS, "in", "prefix", "exists"])
        raise ValueError(f"no comparison {operator!r} for {path!r}; there are {known}")
    return f"{column} {_COMPARISONS[operator]} ?", [_value(path, value)]


def _value(path: str, value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return int(value) if isinstance(value, bool) else value
    raise TypeError(f"{path!r} is compared with text, a number, True, False or None, not {type(value).__name__}")


def _column(path: str) -> str:
    if path.startswith("@"):
        if path[1:] not in _OWN:
            raise ValueError(f"an entry has no {path!r}: it has {', '.join(sorted('@' + name for name in _OWN))}")
        return path[1:]
    return _extract(path)


def _extract(path: str) -> str:
    return f"json_extract(json, '{_json_path(path)}')"


def _json_path(path: str) -> str:
    """As SQLite writes it, with nothing in it that could end a string there."""
    parts = _PART.findall(path.removeprefix("$."))
    if not parts or "".join(parts) != path.removeprefix("$.").replace(".", ""):
        raise ValueError(
            f'{path!r} is no path: it is names with dots, and [n] for the n-th of a list, as "items[0].name"'
        )
    text = "".join(part if part.startswith("[") else f'."{part}"' for part in parts)
    return "$" + text.replace("'", "''")


def _text(db: sqlite3.Connection, payload: bytes) -> str | None:
    try:
        _decode(payload)
        text = payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if payload.count(b"[") + payload.count(b"{") < _DEEP:
        return text
    return text if db.execute("select json_valid(?)", (text,)).fetchone()[0] else None
