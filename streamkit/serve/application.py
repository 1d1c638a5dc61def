"""The ASGI application: from a connection's messages to a handler and back."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote

from .access import EVERYTHING
from .names import name_of
from .problems import Problem, problem_of
from .request import Request
from .responses import Gone, Receive, Send
from .routing import Route, Router
from .service import Service
from .streams import OpenStream

__all__ = ["Application"]

_log = logging.getLogger("streamkit.serve")


class Application:
    """An ASGI 3 application, from `streamkit.serve.app(…)`."""

    def __init__(self, service: Service, router: Router) -> None:
        self.service = service
        self.router = router

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(Request(self.service, scope, receive, send), send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.service.client  # noqa: B018  (connects, so that a wrong URL is told now)
                for begin in self.service.on_start:
                    begin(self.service)
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                self.service.drain()
                await self.service.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _serve(self, request: Request, send: Send) -> None:
        try:
            try:
                route, request.parts = self.router.find(request.method, _raw_path(request.scope))
                if request.access is not EVERYTHING:
                    check(request, route)
                answer = await route.handler(request)
            except Gone:
                return
            except Exception as error:
                problem = problem_of(error)
                if problem.code == "internal":
                    _log.exception("a request to %s failed", request.scope["method"])
                if isinstance(request.opened, OpenStream):
                    raise  # half an answer: the connection is cut, so that nobody takes it for the whole
                answer = problem.answer()
            if answer is not None:
                await answer.send(send, self.service.headers, bodiless=request.method == "HEAD")
            elif isinstance(request.opened, OpenStream):
                await request.opened.end()
        finally:
            if request.opened is not None:
                request.opened.close()


def check(request: Request, route: Route) -> None:
    """A Problem unless the caller may use this route, on what its path names."""
    if not route.scope:
        return
    access, named = request.access, dict(zip(route.names, request.parts, strict=True))
    store = request.service.store_id(name_of(named["st"])) if "st" in named else None
    space = name_of(named["sp"]) if "sp" in named else None
    segment = name_of(named["sg"]) if "sg" in named else None
    access.check(route.scope, store, space, segment)
    if space is not None and segment is None and not route.narrow:
        access.check_all_segments()


def _raw_path(scope: MutableMapping[str, Any]) -> bytes:
    """The path as it was sent. Adapters that know only the decoded one get it encoded again."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        raw = quote(scope["path"], safe="/~!$&'()*+,;=:@").encode()
    if not raw.startswith(b"/"):
        raise Problem("not-found", "the path does not begin with '/'")
    return raw.partition(b"?")[0]
