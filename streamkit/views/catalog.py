"""The views of a store, found by their databases, without their programs."""

from __future__ import annotations

import itertools
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ..errors import CorruptData, PermanentError
from ..store import Store
from .database import mapped, open_reader, read_state
from .publish import default_path, published_views

__all__ = ["LocalView", "Rows", "ask", "find_views", "query", "query_within"]


class LocalView(msgspec.Struct, frozen=True):
    """A view's database on this machine, or the published one of a view that has none here (path "")."""

    name: str
    version: int
    spaces: list[str]
    entries: int
    timestamp: int
    """The timestamp of the last applied entry, in ms."""
    error: str | None
    path: str
    bytes: int
    published: int


def find_views(store: Store, name: str | None = None, *, local: bool = False) -> Iterator[LocalView]:
    """The views in the store's place for views, by name; with a `name`, which may be a path, that one alone.

    `local`: only those with a database on this machine. Their published databases are not counted, which would be a
    request to the storage.
    """
    published = {} if local else published_views(store)
    found: dict[str, str] = {}
    if name is not None and (os.sep in name or os.path.exists(name)):
        found[name] = name
    else:
        directory = os.path.dirname(default_path(store, "x"))
        for file in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
            if file.endswith(".sqlite"):
                found[file] = os.path.join(directory, file)
    seen = set()
    for path in found.values():
        view = _of(path, published)
        if view is not None and (name is None or name in (view.name, path)):
            seen.add(view.name)
            yield view
    for other, count in sorted(published.items()):
        if other not in seen and (name is None or name == other):
            yield LocalView(other, 0, [], 0, 0, None, "", 0, count)


def _of(path: str, published: dict[str, int]) -> LocalView | None:
    try:
        db = open_reader(path)
        try:
            state = read_state(db, path)
        finally:
            db.close()
    except (FileNotFoundError, CorruptData, sqlite3.Error):
        return None
    if state is None:
        return None
    return LocalView(
        state.name,
        state.version,
        list(state.spaces),
        state.entries,
        max((position.timestamp for position in state.spaces.values()), default=0),
        state.failure.error if state.failure is not None else None,
        path,
        os.stat(path).st_size,
        published.get(state.name, 0),
    )


def query(path: str, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """The names of the columns, and the rows. PermanentError for SQL that SQLite refuses."""
    return ask(open_reader(path), path, sql)


class Rows(msgspec.Struct, frozen=True):
    """The answer to a query. `complete`: True if there are no more rows."""

    columns: list[str]
    rows: list[list[Any]]
    complete: bool


_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_STEPS = 10_000
"""Steps of SQLite's machine between two looks at the clock."""
_VALUE_BYTES = 8 << 20
"""Bytes of the longest value that a query makes, and of all rows that it returns but for the last one."""


def query_within(
    path: str, sql: str, parameters: Sequence[Any] = (), *, limit: int = 1000, seconds: float = 5.0
) -> Rows:
    """Run one SELECT for a caller that is not trusted: at most `limit` rows, and about 8 MiB of them.

    It writes nothing, opens no other file, reads no pragma, and is stopped after `seconds`. PermanentError for SQL that
    SQLite refuses, and for a query that is stopped.
    """
    db = open_reader(path)
    try:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES)
        db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        db.set_authorizer(_reads_only)
        end = time.monotonic() + seconds
        db.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        with _refused(path):
            cursor = db.execute(sql, parameters)
            rows: list[list[Any]] = []
            left = _VALUE_BYTES
            for row in itertools.islice(cursor, limit + 1):
                if left <= 0:
                    limit = len(rows)
                rows.append(list(row))
                if len(rows) > limit:
                    break
                left -= sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
        if cursor.description is None:
            raise PermanentError("SQLite refuses the query: it is no SELECT")
        return Rows([column[0] for column in cursor.description], rows[:limit], len(rows) <= limit)
    finally:
        db.close()


def _reads_only(action: int, first: str | None, second: str | None, *_: Any) -> int:
    if action not in _READS or (action == sqlite3.SQLITE_FUNCTION and second in ("load_extension", "fts3_tokenizer")):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def ask(db: sqlite3.Connection, path: str, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
    """Run `query` on a connection to the database at `path`."""
    with _refused(path):
        cursor = db.execute(sql)
    return [column[0] for column in cursor.description or ()], _rows(cursor, path)


def _rows(cursor: sqlite3.Cursor, path: str) -> Iterator[tuple[Any, ...]]:
    with _refused(path):
        yield from cursor


@contextmanager
def _refused(path: str) -> Iterator[None]:
    try:
        with mapped(path):
            yield
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise PermanentError(f"SQLite refuses the query: {error}") from error
