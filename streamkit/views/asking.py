"""Functions of ready-made views, asked of a view's database alone: the program that built it need not run."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

import msgspec

from ..errors import MissingDependency, PermanentError
from ..model import Entry
from .database import mapped, open_reader
from .entries import EntryView
from .index import Index
from .latest import Latest
from .links import Links
from .reduce import Reduce
from .search import Search
from .vectors import Vectors

__all__ = ["Asked", "NoFunction", "ask_function"]

_MOST_BYTES = 8 << 20
"""The most bytes of entries in one answer; its first entry may be larger."""
_STEPS = 10_000
_TOKENIZER = "tokenize = "


class NoFunction(PermanentError):
    """The view is of a kind that has no such function."""


class Asked(msgspec.Struct, frozen=True):
    """The answer of a function. `complete`: it is not cut, neither by the limit nor by its size."""

    entries: list[Entry]
    complete: bool
    cosines: list[float] | None = None
    """The nearness of each entry; for `nearest`."""
    names: list[str] | None = None
    """The other ends; for `links` with one end."""
    state: Any = None
    """The state of a Reduce; for `get`."""
    has_state: bool = False


def ask_function(
    path: str, name: str, function: str, arguments: Mapping[str, Any], *, limit: int, seconds: float
) -> Asked:
    """Ask the database at `path` of the view `name`. At most `limit` entries come.

    NoFunction if its view has none of this name, ValueError and TypeError for arguments that are not valid,
    PermanentError for a question that is stopped after `seconds`.
    """
    with closing(_Bounded(path, name, seconds)) as db, mapped(name):
        view, functions = _view_of(db)
        if function not in functions:
            has = " and ".join(functions) or "none of these functions"
            raise NoFunction(f"the view {name!r} has no {function}: it has {has}. Each view answers SQL")
        assert view is not None
        view.attach(db)
        with _stopped(db, seconds):
            return functions[function](view, dict(arguments), limit, db)


class _Bounded:
    """The opened view that a ready-made view asks: its connection reads only, and gives a bounded amount."""

    closed = False

    def __init__(self, path: str, name: str, seconds: float) -> None:
        self.name = self.path = name
        self.is_cut = self.is_stopped = False
        self._left = _MOST_BYTES
        self._taken = False
        self._end = time.monotonic() + seconds
        self._db = open_reader(path)
        self._db.set_progress_handler(self._look, _STEPS)

    @property
    def db(self) -> _Bounded:
        return self

    def _look(self) -> bool:
        self.is_stopped = time.monotonic() > self._end
        return self.is_stopped

    def execute(self, query: str, parameters: Any = ()) -> sqlite3.Cursor:
        cursor = self._db.cursor(_Cursor)
        cursor.takes = self.takes
        return cursor.execute(query, parameters)

    def takes(self, row: tuple[Any, ...]) -> bool:
        """True if the answer has room for a row."""
        size = sum([len(value) for value in row if isinstance(value, bytes | str)])
        self.is_cut = self.is_cut or (self._taken and size > self._left)
        self._left -= size
        self._taken = self._taken or size > 0
        return not self.is_cut

    def close(self) -> None:
        self._db.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class _Cursor(sqlite3.Cursor):
    takes: Callable[[tuple[Any, ...]], bool]

    def fetchone(self) -> Any:
        row = super().fetchone()
        return row if row is not None and self.takes(row) else None

    def fetchall(self) -> list[Any]:
        return list(itertools.takewhile(self.takes, self))


@contextmanager
def _stopped(db: _Bounded, seconds: float) -> Iterator[None]:
    try:
        yield
    except (PermanentError, ValueError, sqlite3.Error) as error:
        if db.is_stopped:
            raise PermanentError(f"the question was stopped after {seconds:g} seconds: ask for less") from error
        raise


_Function = Callable[[Any, dict[str, Any], int, _Bounded], Asked]


def _asked(entries: list[Entry], limit: int, db: _Bounded, **more: Any) -> Asked:
    return Asked(entries[:limit], len(entries) <= limit and not db.is_cut, **more)


def _get(view: Any, arguments: dict[str, Any], limit: int, db: _Bounded) -> Asked:
    if "key" not in arguments:
        raise ValueError("get needs a key")
    return _asked(view.get(arguments["key"], limit=limit + 1, reverse=arguments["reverse"]), limit, db)


def _get_latest(view: Any, arguments: dict[str, Any], limit: int, db: _Bounded) -> Asked:
    if "key" not in arguments:
        raise ValueError("get needs a key")
    found = view.get(arguments["key"])
    return _asked([] if found is None else [found], limit, db)


def _get_state(view: Any, arguments: dict[str, Any], limit: int, db: _Bounded) -> Asked:
    if "key" in arguments:
        raise ValueError("the view is one state, without keys: get it without a key")
    return _asked([], limit, db, state=view.get(), has_state=True)


def _range(view: Any, arguments: dict[str, Any], limit: int, db: _Bounded) -> Asked:
    return _asked(view.range(**arguments, limit=limit + 1), limit, db)


def _search(view: Any, arguments: dict[str, Any], limit: int, db: _Bounded) -> Asked:
    return _asked(view.search(**arguments, limit=limit + 1), limit, db)


def _nearest(view: Any, arguments: dict[str, Any], limit: int, db: _Bounded) -> Asked:
    found = view.similar(arguments["vector"], limit)
    return _asked([entry for entry, _ in found], limit, db, cosines=[cosine for _, cosine in found])


def _links(view: Any, arguments: dict[str, Any], limit: int, db: _Bounded) -> Asked:
    source, target = arguments.get("source"), arguments.get("target")
    names = None
    if target is None and source is not None:
        names = view.of(source)
    elif source is None and target is not None:
        names = view.to(target)
    asked = _asked(view.entries(**arguments, limit=limit + 1), limit, db, names=names and names[:limit])
    return msgspec.structs.replace(asked, complete=asked.complete and len(names or ()) <= limit)


def _nothing(*_: Any) -> None:
    return None


def _view_of(db: _Bounded) -> tuple[EntryView | None, dict[str, _Function]]:
    """A view of the kind whose tables the database has, without its program's functions."""
    shape = _shape_of(db)
    for known, make, functions in _kinds():
        if shape == known:
            return make(db), functions
    return None, {}


@cache
def _kinds() -> list[tuple[frozenset[str], Callable[[_Bounded], EntryView], dict[str, _Function]]]:
    found: list[tuple[frozenset[str], Callable[[_Bounded], EntryView], dict[str, _Function]]] = []
    for make, functions in _MAKERS:
        with closing(sqlite3.connect(":memory:")) as db:
            try:
                view = make(None)
            except MissingDependency:  # Search, in a SQLite without FTS5
                continue
            view.setup(db)
            found.append((_shape_of(db), make, functions))
    return found


def _vectors(db: _Bounded | None) -> Vectors:
    row = db.execute("select length(vector) from vectors limit 1").fetchone() if db is not None else None
    return Vectors(_nothing, row[0] // 4 if row is not None else 1)


_MAKERS: tuple[tuple[Callable[[_Bounded | None], EntryView], dict[str, _Function]], ...] = (
    (lambda _: Index(_nothing), {"get": _get, "range": _range}),
    (lambda _: Latest(_nothing), {"get": _get_latest}),
    (lambda _: Reduce(lambda state, _: state, None), {"get": _get_state}),
    (lambda _: Search(_nothing), {"search": _search}),
    (_vectors, {"nearest": _nearest}),
    (lambda _: Links(_nothing), {"links": _links}),
)


def _shape_of(db: Any) -> frozenset[str]:
    """The definitions of the tables, without those of SQLite, of FTS5 and of every view."""
    rows = list(db.execute("select name, sql from sqlite_master where type = 'table'"))
    return frozenset(
        sql.partition(_TOKENIZER)[0]
        for name, sql in rows
        if not name.startswith(("streamkit_", "sqlite_")) and not (name.startswith("words_") and "'" in sql)
    )
