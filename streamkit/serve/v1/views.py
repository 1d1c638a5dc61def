"""Views whose databases are on this machine, and read-only SQL with limits."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from ...errors import PermanentError
from ...store import Store
from ...views.catalog import LocalView, Rows, find_views, query_within
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from .records import body_of

__all__ = ["find_view", "get_view", "list_views", "query_view"]


class ViewOut(msgspec.Struct):
    """A view. `published`: the number of its published databases. `here`: this process can query it."""

    name: str
    version: int
    spaces: list[str]
    entries: int
    timestamp: int
    error: str | None
    bytes: int
    published: int
    here: bool


class ViewsOut(msgspec.Struct):
    """The views of a store."""

    views: list[ViewOut]


class QueryIn(msgspec.Struct, forbid_unknown_fields=True):
    """One SELECT, with `parameters` for its `?`. At most `limit` rows come, and it is stopped after `seconds`."""

    sql: str
    parameters: list[str | float | int | bool | None] = []
    limit: int = 1_000
    seconds: float = 5.0


class RowsOut(msgspec.Struct):
    """Rows, as lists in the order of `columns`. A blob is `{"base64": …}`. `complete`: true if there are no more
    rows."""

    columns: list[str]
    rows: list[list[Any]]
    complete: bool


def _out(view: LocalView) -> ViewOut:
    return ViewOut(
        view.name,
        view.version,
        view.spaces,
        view.entries,
        view.timestamp,
        view.error,
        view.bytes,
        view.published,
        bool(view.path),
    )


def _may(request: Request, view: LocalView) -> bool:
    prefixes = request.access.spaces
    return not prefixes or (bool(view.spaces) and all(space.startswith(prefixes) for space in view.spaces))


def find_view(request: Request, store: Store, *, here: bool = False) -> LocalView:
    """The view that the path names. A Problem if there is none, if the key is for other spaces, and, with `here`, if it
    has no database on this machine."""
    name = request.name(1)
    for local in (True, False) if here else (False,):
        for view in find_views(store, local=local):
            if view.name == name:
                if not _may(request, view):
                    raise Problem("forbidden", "the key is for other spaces")
                if here and not view.path:
                    raise Problem(
                        "not-found",
                        f"the view {name!r} has no database here: ask a server on the machine that builds it",
                    )
                return view
    raise Problem("not-found", f"there is no view {name!r} here; a program builds it with store.view(…)")


async def list_views(request: Request) -> Answer:
    """The views of a store; those of spaces that the key is for."""
    request.query(())
    request.access.check_all_segments()
    store = request.store()
    found = await store.calls.call(lambda: list(find_views(store.sync)))
    return json_answer(ViewsOut([_out(view) for view in found if _may(request, view)]))


async def get_view(request: Request) -> Answer:
    """Show a view's position, and why it is paused."""
    request.query(())
    request.access.check_all_segments()
    store = request.store()
    return json_answer(_out(await store.calls.call(find_view, request, store.sync)))


async def query_view(request: Request) -> Answer:
    """Ask a view in SQL. Only reading is allowed, within limits."""
    request.query(())
    request.access.check_all_segments()
    given = await body_of(request, QueryIn)
    if not 1 <= given.limit <= 10_000 or not 0 < given.seconds <= 30:
        raise Problem("invalid-argument", "limit is 1 to 10000, and seconds above 0 and at most 30")
    store = request.store()

    def work() -> Rows:
        view = find_view(request, store.sync, here=True)
        try:
            return query_within(view.path, given.sql, given.parameters, limit=given.limit, seconds=given.seconds)
        except PermanentError as error:
            if type(error) is not PermanentError:
                raise  # it is no fault of the query
            raise Problem("invalid-argument", str(error)) from None

    found = await store.calls.call(work, long=True)
    rows = [[_plain(value) for value in row] for row in found.rows]
    return json_answer(RowsOut(found.columns, rows, found.complete))


def _plain(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
