"""Functions of ready-made views: get, range, search, nearest and links, within limits."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ...decoders import convert
from ...errors import PermanentError
from ...run.reading import SpacePosition, decode_offset, reached
from ...store import Store
from ...views.asking import Asked, NoFunction, ask_function
from ...views.catalog import LocalView
from ...views.database import State, open_reader, read_state
from ..encoding import EntryOut, entry_out, name_of_transaction
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from ..routing import Handler
from .records import body_of
from .views import find_view

__all__ = ["HANDLERS", "FoundOut", "GetIn", "LinksIn", "NearestIn", "RangeIn", "SearchIn"]

_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_DEPTH = 16
"""Arrays in arrays of a key."""


class _AskIn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`at_least` is an offset: the answer waits for the view to be as far, `wait` seconds at most. It has at most
    `limit` entries. The question is stopped after `seconds`."""

    at_least: str | None = None
    wait: Annotated[float, Meta(ge=0, le=30)] = 10.0
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    seconds: Annotated[float, Meta(gt=0, le=30)] = 5.0


class GetIn(_AskIn, kw_only=True):
    """A key: text, a number, true or false, {"base64": …}, or a list of these for a tuple. A Reduce has none."""

    key: Any = UNSET
    reverse: bool = False


class RangeIn(_AskIn, kw_only=True):
    """The keys from `start` to `end`, both included, or those that begin with `prefix`."""

    start: Any = None
    end: Any = None
    prefix: Any = None
    reverse: bool = False


class SearchIn(_AskIn, kw_only=True):
    """Words, "phrases" and beginnings* of words. With `syntax` it is a query of FTS5."""

    query: str
    order: Literal["rank", "newest", "oldest"] = "rank"
    syntax: bool = False


class NearestIn(_AskIn, kw_only=True):
    """A vector with the dimensions of the view."""

    vector: Annotated[list[float], Meta(min_length=1, max_length=65_536)]


class LinksIn(_AskIn, kw_only=True):
    """One end of links, or both; without one: all links."""

    source: str | None = None
    target: str | None = None
    reverse: bool = False


class FoundOut(msgspec.Struct, omit_defaults=True):
    """The answer of a function. `complete`: the answer is not cut."""

    entries: list[EntryOut]
    complete: bool
    cosines: list[float] | UnsetType = UNSET
    """The nearness of each entry, 1 for the same direction; for `nearest`."""
    names: list[str] | UnsetType = UNSET
    """The other ends, each once; for `links` with one end."""
    state: Any = UNSET
    """The state of a Reduce; for `get`."""


A = TypeVar("A", bound=_AskIn)


async def get_in_view(request: Request) -> Answer:
    """The entries of a key, or the state of a Reduce."""
    return await _answer(request, "get", await _asked_for(request, GetIn))


async def range_of_view(request: Request) -> Answer:
    """The entries of several keys, in the order of the keys."""
    return await _answer(request, "range", await _asked_for(request, RangeIn))


async def search_view(request: Request) -> Answer:
    """The entries that hold every word, the best first."""
    return await _answer(request, "search", await _asked_for(request, SearchIn))


async def nearest_in_view(request: Request) -> Answer:
    """The entries that are nearest to a vector; in a query its numbers have commas between them."""
    return await _answer(request, "nearest", await _asked_for(request, NearestIn))


async def links_of_view(request: Request) -> Answer:
    """The entries that link, and the other ends of the links."""
    return await _answer(request, "links", await _asked_for(request, LinksIn))


HANDLERS: Mapping[str, Handler] = {
    "get": get_in_view,
    "range": range_of_view,
    "search": search_view,
    "nearest": nearest_in_view,
    "links": links_of_view,
}
"""The handlers by the name of the function."""
_COMMON = frozenset(_AskIn.__struct_fields__)
_KEYS = frozenset({"key", "start", "end", "prefix"})


async def _asked_for(request: Request, kind: type[A]) -> A:
    """The question in the body or the query. A Problem if it is not valid."""
    if request.method == "POST":
        request.query(())
        return await body_of(request, kind)
    given: dict[str, Any] = dict(request.query(kind.__struct_fields__))
    if "vector" in given:
        given["vector"] = given["vector"].split(",")
    try:
        return convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem("invalid-argument", f"the query is not valid: {error}") from None


async def _answer(request: Request, function: str, given: _AskIn) -> Answer:
    request.access.check_all_segments()
    if given.wait != given.wait or given.seconds != given.seconds:
        raise Problem("invalid-argument", "wait and seconds are numbers, not NaN")
    arguments = {name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not UNSET}
    arguments = {
        name: _key(value) if name in _KEYS else value for name, value in arguments.items() if name not in _COMMON
    }
    store = request.store()
    view = await store.calls.call(_found, request, store.sync)
    if given.at_least is not None:
        await _wait(request, view, given.at_least, given.wait)

    def work() -> Asked:
        try:
            return ask_function(view.path, view.name, function, arguments, limit=given.limit, seconds=given.seconds)
        except NoFunction as error:
            raise Problem("not-found", str(error)) from None
        except FileNotFoundError:
            raise Problem("view-behind", f"the view {view.name!r} is being rebuilt; ask again") from None
        except PermanentError as error:
            if type(error) is not PermanentError:
                raise
            raise Problem("invalid-argument", str(error)) from None

    return json_answer(_out(await store.calls.call(work, long=True), view))


def _found(request: Request, store: Store) -> LocalView:
    return find_view(request, store, here=True)


async def _wait(request: Request, view: LocalView, at_least: str, wait: float) -> None:
    """Return when the view has applied all that is before an offset. A Problem if it does not come as far."""
    calls = request.store().calls
    wanted = decode_offset(at_least, view.spaces)
    clock = asyncio.get_running_loop()
    end, pause = clock.time() + wait, _PAUSE
    waiter = None
    try:
        while True:
            state = await calls.call(_state_of, view)
            if state is not None:
                if reached(state.spaces.get(wanted.space, SpacePosition()), wanted):
                    return
                if state.failure is not None:
                    raise Problem(
                        "conflict", f"the view {view.name!r} is paused before the wanted offset: {state.failure.error}"
                    )
            now = clock.time()
            if now >= end or request.service.is_draining:
                raise Problem(
                    "view-behind",
                    f"the view {view.name!r} has not reached the offset within {wait:g} seconds: check that its "
                    "program runs, and ask again",
                )
            if waiter is None:
                waiter = await request.waiter()
                request.service.waiters.add(waiter)
            await waiter.wait_until(min(end, now + pause))
            pause = min(pause * 2, _LONGEST_PAUSE)
    finally:
        if waiter is not None:
            request.service.waiters.discard(waiter)


def _state_of(view: LocalView) -> State | None:
    try:
        db = open_reader(view.path)
    except FileNotFoundError:
        return None
    try:
        return read_state(db, view.name)
    finally:
        db.close()


def _out(found: Asked, view: LocalView) -> FoundOut:
    entries = []
    for entry in found.entries:
        out = entry_out(entry, name_of_transaction(entry.trx))
        out.space = entry.space
        entries.append(out)
    state: Any = UNSET
    if found.has_state:
        try:
            state = msgspec.Raw(msgspec.json.encode(found.state))
        except (TypeError, ValueError, RecursionError) as error:
            raise Problem(
                "not-acceptable", f"the state of {view.name!r} cannot be JSON ({error}): read it in SQL"
            ) from None
    return FoundOut(
        entries,
        found.complete,
        UNSET if found.cosines is None else found.cosines,
        UNSET if found.names is None else found.names,
        state,
    )


def _key(value: Any, depth: int = 0) -> Any:
    """A key of JSON: a list is a tuple, and {"base64": …} is bytes."""
    if isinstance(value, list):
        if depth >= _DEPTH:
            raise Problem("invalid-argument", f"the lists of a key are nested at most {_DEPTH} deep")
        return tuple([_key(part, depth + 1) for part in value])
    if isinstance(value, dict) and list(value) == ["base64"]:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise Problem("invalid-argument", 'the bytes of a key are {"base64": …}, with padding') from None
    return value
