"""Signing in and out. A viewer gives a key once, and the browser keeps a cookie in its place."""

from __future__ import annotations

import time

import msgspec

from ... import __version__
from ..access import EVERYTHING, Access
from ..keys import refused
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from ..routing import Router
from ..sessions import LONGEST, check_origin, clear_cookie, cookie_of, is_foreign, session_of
from ..v1.records import body_of

__all__ = ["register"]

_NO_STORE = (b"cache-control", b"no-store")


class SessionIn(msgspec.Struct, forbid_unknown_fields=True):
    """A key or a JWT; or the one-time `code` of the link that `streamkit console` prints."""

    key: str = ""
    code: str = ""


class SessionOut(msgspec.Struct):
    """The rights of the viewer. `open`: the server has no keys. Times are in seconds since 1970; 0: never."""

    signed_in: bool
    open: bool
    version: str
    store: str | None
    id: str = ""
    scopes: list[str] = []
    stores: list[str] = []
    spaces: list[str] = []
    segments: list[str] = []
    expires: int = 0


def _out(request: Request, access: Access | None) -> SessionOut:
    service = request.service
    store = None if service.own_store is None else str(service.own_store)
    if access is None:
        return SessionOut(False, False, __version__, store)
    return SessionOut(
        True,
        service.is_open,
        __version__,
        store,
        access.id,
        sorted(access.scopes),
        sorted(map(str, access.stores)),
        list(access.spaces),
        list(access.segments),
        int(access.expires),
    )


async def get_session(request: Request) -> Answer:
    """The viewer's rights. A viewer without a session gets 200 too, with `signed_in` false."""
    access: Access | None = EVERYTHING
    if not request.service.is_open:
        session = None if is_foreign(request) else session_of(request)
        access = None if session is None else await request.service.session_access(session)
    return json_answer(_out(request, access), headers=(_NO_STORE,))


async def sign_in(request: Request) -> Answer:
    """Begin a session with a key."""
    check_origin(request)
    given = await body_of(request, SessionIn)
    service = request.service
    if service.is_open:
        raise Problem("conflict", "the server has no keys, so there is nothing to sign in to")
    if given.code:
        session = await service.redeem(given.code, LONGEST)
        if session is None:
            raise Problem("unauthenticated", "the link was used before; run `streamkit console` again for a new one")
    else:
        session = await service.make_session(given.key.strip(), LONGEST)
    access = None if session is None else await service.session_access(session)
    if session is None or access is None:
        raise refused()
    left = int(access.expires - time.time()) if access.expires else LONGEST
    return json_answer(_out(request, access), 201, (cookie_of(request, session, min(left, LONGEST)), _NO_STORE))


async def sign_out(request: Request) -> Answer:
    """End the session in this browser."""
    check_origin(request)
    return Answer(204, b"", (clear_cookie(request), _NO_STORE))


def register(router: Router) -> None:
    """Add the routes of sessions."""
    router.add("GET", "/console/session", get_session, "")
    router.add("POST", "/console/session", sign_in, "")
    router.add("DELETE", "/console/session", sign_out, "")
