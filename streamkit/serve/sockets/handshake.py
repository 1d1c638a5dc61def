"""The beginning of a WebSocket: the check of its key and origin, and the refusals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from ..names import raw_path
from ..problems import Problem, problem_of
from ..request import Request
from ..responses import Receive, Send
from .connection import Socket

if TYPE_CHECKING:
    from ..application import Application

__all__ = ["serve_socket"]

_log = logging.getLogger("streamkit.serve")
PROTOCOL = "streamkit"
"""The subprotocol that a client offers beside the one that holds its key; the server answers with it."""
BEARER = "streamkit.bearer."


async def serve_socket(application: Application, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    """Serve one connection, from the handshake to its end."""
    await receive()  # websocket.connect
    service = application.service
    scope = {"method": "GET", **scope}
    request = Request(service, scope, receive, send)
    entered = counted = False
    socket: Socket | None = None
    try:
        try:
            path = raw_path(scope)
            application.check_host(request)
            interface = application.sockets.get(path)
            if interface is None:
                raise Problem("not-found", "there is no WebSocket here; there is one at /v1/ws")
            _check_origin(request)
            offered = list(scope.get("subprotocols", ()))
            access = await service.authenticate(_token(request, offered), request.take_ticket(), path)
            if service.is_draining:
                raise Problem("draining", "the process is about to end; connect again")
            service.gate.enter(access)
            entered = True
            service.gate.open_stream(access)
            counted = True
        except Exception as error:
            problem = problem_of(error)
            if problem.code == "internal":
                _log.exception("the handshake of a WebSocket failed")
            service.metrics.refusals[problem.code] += 1
            await _refuse(problem, scope, send)
            return
        host = request.header(b"host")
        headers = [] if host is None else [(b"host", host)]
        chosen = PROTOCOL if PROTOCOL in offered else None
        await send({"type": "websocket.accept", "subprotocol": chosen, "headers": list(service.headers)})
        socket = Socket(application, send, receive, scope.get("streamkit.abort"), access, headers, interface)
        await socket.run()
    except asyncio.CancelledError:
        if socket is None or not socket.was_cut:
            raise
    finally:
        if socket is not None:
            socket.close()
        if counted:
            service.gate.close_stream(access)
        if entered:
            service.gate.leave(access)


def _token(request: Request, offered: list[str]) -> bytes | None:
    """The key, by the header Authorization, or by a subprotocol: a browser can set nothing else."""
    header = request.header(b"authorization")
    if header is not None:
        return header
    keys = [name.removeprefix(BEARER) for name in offered if name.startswith(BEARER)]
    return f"Bearer {keys[0]}".encode("latin-1", "replace") if len(keys) == 1 else None


def _check_origin(request: Request) -> None:
    """Raise a Problem if a page of a site that is not allowed opens the connection: a browser does not ask before."""
    origin = request.joined(b"origin")
    if origin is None or origin in request.service.origins:
        return
    scheme, _, host = origin.partition(b"://")
    if scheme not in (b"http", b"https") or host != request.header(b"host"):
        raise Problem("forbidden", "a page of another site may not open this; allow it with --allow-origin")


async def _refuse(problem: Problem, scope: MutableMapping[str, Any], send: Send) -> None:
    if "websocket.http.response" in (scope.get("extensions") or {}):
        answer = problem.answer()
        headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
        await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": answer.body})
    else:
        await send({"type": "websocket.close", "code": 1008})
