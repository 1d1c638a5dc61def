"""Pages of other sites: the headers by which a browser lets them use the server. By default none may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .responses import Answer

if TYPE_CHECKING:
    from .request import Request

__all__ = ["cors_headers", "preflight"]


def cors_headers(request: Request) -> tuple[tuple[bytes, bytes], ...]:
    """Headers that permit the page that made the request, if its site is allowed."""
    origins = request.service.origins
    if not origins:
        return ()
    origin = request.joined(b"origin")
    if origin is None or origin not in origins:
        return ((b"vary", b"origin"),)
    return (
        (b"access-control-allow-origin", origin),
        (b"vary", b"origin"),
        (b"access-control-expose-headers", b"*"),
    )


def preflight(request: Request) -> Answer | None:
    """The answer to a browser's preflight request; None if it is another request, or no site is allowed."""
    origins = request.service.origins
    if not origins or request.method != "OPTIONS" or request.header(b"access-control-request-method") is None:
        return None
    allowed = (
        (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE, QUERY"),
        (b"access-control-allow-headers", request.header(b"access-control-request-headers") or b"*"),
        (b"access-control-max-age", b"600"),
    )
    return Answer(204, b"", (*cors_headers(request), *(allowed if request.joined(b"origin") in origins else ())))
