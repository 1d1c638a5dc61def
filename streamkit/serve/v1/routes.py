"""Routes: where they are, why they are paused. Some program runs them; here they are looked at and controlled."""

from __future__ import annotations

import msgspec

from ...decoders import convert
from ...routes import RouteControl, RouteFailure, RouteStatus
from ...store import Store
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer, no_content
from .records import body_of

__all__ = ["control_route", "delete_route", "get_route", "list_routes"]


class RouteOut(msgspec.Struct):
    """A route. `state` is "current", "behind", "paused" or "unknown"; `error` is the failure that paused it."""

    name: str
    source: str
    target: str
    target_store: str
    state: str
    entries: int
    copied: int
    skipped: int
    missing: int
    behind: float
    error: RouteFailure | None


class RoutesOut(msgspec.Struct):
    """The routes of a store, by name. Their sources are not asked, so `state` is "paused" or "unknown"."""

    routes: list[RouteOut]


class RouteIn(msgspec.Struct, forbid_unknown_fields=True):
    """`action`: "pause" or "resume". `skip`: resume without the entry that failed."""

    action: str
    skip: bool = False


def _out(status: RouteStatus) -> RouteOut:
    return convert(status, RouteOut, from_attributes=True)


def _found(request: Request, store: Store) -> tuple[RouteControl, RouteStatus]:
    name = request.name(1)
    control = store.find_route(name)
    if control is None:
        raise Problem("not-found", f"the store has no route {name!r}; a program creates it with store.route(…)")
    status = control.status()
    request.access.check_space(status.source)
    request.access.check_space(status.target)
    return control, status


async def list_routes(request: Request) -> Answer:
    """The routes of a store; those between spaces that the key is for."""
    request.query(())
    request.access.check_all_segments()
    prefixes = request.access.spaces or ("",)
    found = await request.store().get_routes()
    return json_answer(
        RoutesOut(
            [_out(each) for each in found if each.source.startswith(prefixes) and each.target.startswith(prefixes)]
        )
    )


async def get_route(request: Request) -> Answer:
    """Show a route's position, and why it is paused."""
    request.query(())
    request.access.check_all_segments()
    store = request.store()
    return json_answer(_out(await store.calls.call(lambda: _found(request, store.sync)[1])))


async def control_route(request: Request) -> Answer:
    """Pause a route, or let it go on."""
    request.query(())
    request.access.check_all_segments()
    given = await body_of(request, RouteIn)
    if given.action not in ("pause", "resume"):
        raise Problem("invalid-argument", f"action is pause or resume, not {given.action[:40]!r}")
    store = request.store()

    def control() -> RouteStatus:
        found, _ = _found(request, store.sync)
        if given.action == "pause":
            found.pause()
        else:
            found.resume(skip=given.skip)
        return found.status()

    return json_answer(_out(await store.calls.call(control)))


async def delete_route(request: Request) -> Answer:
    """Forget a route. Its copies stay."""
    request.query(())
    request.access.check_all_segments()
    store = request.store()
    await store.calls.call(lambda: _found(request, store.sync)[0].delete())
    return no_content()
