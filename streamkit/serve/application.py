"""The ASGI application: from a connection's messages to a handler and back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any
from uuid import UUID

from .access import Access
from .cors import cors_headers, preflight
from .durable.streams import SPACE
from .names import name_of, raw_path
from .problems import Problem, problem_of
from .request import Request
from .responses import Gone, Receive, Send
from .routing import Route, Router
from .service import Service
from .sessions import check_origin, is_foreign, session_of
from .sockets import Interface, serve_socket
from .streams import OpenStream
from .topics.errors import error_answer

__all__ = ["Application"]

_log = logging.getLogger("streamkit.serve")


class Application:
    """An ASGI 3 application, from `streamkit.serve.app(…)`."""

    def __init__(self, service: Service, router: Router) -> None:
        self.service = service
        self.router = router
        self.sockets: dict[bytes, Interface] = {}
        """The meaning of the messages of each WebSocket, by its path."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(Request(self.service, scope, receive, send), send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await serve_socket(self, scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.service.client  # noqa: B018  (connects, so that a wrong URL is refused now)
                for begin in self.service.on_start:
                    begin(self.service)
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                self.service.drain()
                await self.service.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def check_host(self, request: Request) -> None:
        """Raise a Problem unless the request is for one of its names: a page of another site may have its name lead
        here."""
        hosts = self.service.hosts
        if hosts and not _is_served(request.header(b"host") or b"", hosts):
            raise Problem(
                "misdirected-host",
                "the server does not accept this name in the Host header; allow it with --allow-host",
            )

    async def _serve(self, request: Request, send: Send) -> None:
        service = self.service
        begun = time.perf_counter()
        route: Route | None = None
        status = 499
        entered = False
        # Taken out: it refers to the scope, and such a ring of objects would have to wait for the garbage collector.
        at_once = request.scope.pop("streamkit.answer", None)
        try:
            try:
                path = raw_path(request.scope)
                self.check_host(request)
                if service.origins and (answer := preflight(request)) is not None:
                    await answer.send(send, service.headers)
                    return
                route, request.parts = self.router.find(request.method, path)
                if route.scope:
                    if (known := request.scope.get("streamkit.access")) is not None:
                        request.access = known
                        check(request, route)
                    elif not service.is_open:
                        request.access = await _access_of(request, path)
                        check(request, route)
                    elif request.method not in ("GET", "HEAD") and is_foreign(request):
                        _check_foreign(request)
                    request.priority = service.priorities.of(request, route)
                    service.gate.enter(request.access, request.priority)
                    entered = True
                    if service.gate.must_wait(request.priority):
                        await service.gate.wait(request.priority)
                answer = await route.handler(request)
            except Gone:
                return
            except asyncio.CancelledError:
                if isinstance(request.opened, OpenStream) and request.opened.was_cut:
                    return
                raise
            except Exception as error:
                problem = problem_of(error)
                if problem.code == "store-closed" and route is not None:
                    store_id = _store_of(request, route)
                    if store_id is not None:
                        service.reopen(store_id)
                if problem.code == "internal":
                    _log.exception("a request to %s failed", "an unknown resource" if route is None else route.pattern)
                service.metrics.refusals[problem.code] += 1
                if isinstance(request.opened, OpenStream):
                    raise  # half an answer: the connection is cut, so that no client takes it for the whole
                is_topics = request.scope["path"].startswith("/v0/")
                answer = error_answer(problem) if is_topics else problem.answer()
                del problem  # it refers to this frame, which refers to it
            if answer is not None:
                status = answer.status
                more = service.headers if not service.origins else (*service.headers, *cors_headers(request))
                await answer.send(send, more, bodiless=request.method == "HEAD", at_once=at_once)
            elif isinstance(request.opened, OpenStream):
                status = 200
                await request.opened.end()
        finally:
            request.end()
            if entered:
                service.gate.leave(request.access, request.priority)
            service.metrics.answered(
                request.method if route is not None else "-",
                "-" if route is None else route.pattern,
                status,
                time.perf_counter() - begun,
            )


async def _access_of(request: Request, path: bytes) -> Access:
    """The rights of the caller, by its key, ticket or token, or by its session of the console."""
    service = request.service
    token, ticket = request.header(b"authorization"), request.take_ticket()
    if service.has_console and token is None and ticket is None:
        session = session_of(request)
        if session is not None:
            check_origin(request)
            access = await service.session_access(session)
            if access is not None:
                return access
    return await service.authenticate(token, ticket, path)


def _check_foreign(request: Request) -> None:
    """Raise a Problem if a page of a site that is not allowed wants to change a store of a server without keys."""
    if request.joined(b"origin") not in request.service.origins:
        raise Problem("forbidden", "a page of another site may not change anything here; allow it with --allow-origin")


@lru_cache(64)
def _is_served(header: bytes, hosts: frozenset[str]) -> bool:
    host = header.decode("latin-1").lower()
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
    return name in hosts or host in hosts


def _store_of(request: Request, route: Route) -> UUID | None:
    """The store that a request is about; None if it is about none."""
    if route.names[:1] == ("st",):
        return request.service.store_id(name_of(request.parts[0]))
    return request.service.own_store if route.names else None


def check(request: Request, route: Route) -> None:
    """Raise a Problem unless the caller may use this route, on the store and the names in its path."""
    if not route.scope:
        return
    access = request.access
    access.check(route.scope)
    if not (access.stores or access.spaces or access.segments):
        return
    named = dict(zip(route.names, request.parts, strict=True))
    store = None
    if "st" in named:
        store = request.service.store_id(name_of(named["st"]))
    elif "path" in named:
        store = request.service.own_store
    space = name_of(named["sp"]) if "sp" in named else None
    segment = name_of(named["sg"]) if "sg" in named else None
    if "path" in named:
        space = SPACE
        segment = None if "/__ds/" in route.pattern else name_of(named["path"])
    if "st" in named or "path" in named:
        access.check_place(store, space, segment)
    if space is not None and segment is None and not route.narrow:
        access.check_all_segments()
