"""Sessions of the console: a cookie that stands for a key or a token. Only pages of this server may use it.

A session of a key is signed with the stored hash of the key. So every process accepts it, it ends when the key is
revoked, and nothing about it is stored. A session of a JWT is the token itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .problems import Problem

if TYPE_CHECKING:
    from .request import Request

__all__ = ["LONGEST", "check_origin", "clear_cookie", "cookie_of", "is_foreign", "session_of"]

LONGEST = 12 * 3600
"""Seconds after which a viewer signs in again."""
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def _name(request: Request) -> bytes:
    """The name of the cookie. Browsers send the cookies of a host to all of its ports, so the name has the port."""
    port = (request.header(b"host") or b"").rpartition(b":")[2]
    return b"streamkit_session_%b" % (port if port.isdigit() else b"0")


def session_of(request: Request) -> str | None:
    """The session that the request's cookie holds; None if it has none."""
    wanted = _name(request)
    for key, value in request.headers:
        if key == b"cookie":
            for part in value.split(b";"):
                name, _, held = part.strip().partition(b"=")
                if name == wanted and held:
                    return held.decode("latin-1")
    return None


def cookie_of(request: Request, session: str, seconds: int) -> tuple[bytes, bytes]:
    """The header that gives a browser a session. No script reads it, and no page of another site sends it."""
    secure = b"; Secure" if request.scope.get("scheme") == "https" else b""
    text = b"%b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict%b"
    return b"set-cookie", text % (_name(request), session.encode("latin-1"), seconds, secure)


def clear_cookie(request: Request) -> tuple[bytes, bytes]:
    """The header that ends it."""
    return cookie_of(request, "", 0)


def is_foreign(request: Request) -> bool:
    """True if a page of another origin has made the request, as the browser says. Other clients say nothing."""
    origin = request.joined(b"origin")
    if origin is not None:
        host = request.header(b"host") or b""
        scheme = str(request.scope.get("scheme", "http")).encode()
        return origin.lower() not in (b"%b://%b" % (scheme, host.lower()), b"https://%b" % host.lower())
    return request.header(b"sec-fetch-site") not in (None, b"same-origin", b"none")


def check_origin(request: Request) -> None:
    """Raise a Problem unless a page of this server has made the request, which a cookie accompanies."""
    unnamed = request.method not in _SAFE_METHODS and request.joined(b"origin") is None
    if unnamed or is_foreign(request):
        raise Problem(
            "forbidden",
            "only the pages of this server use the session of the console; other programs send a key as "
            "`Authorization: Bearer sk_…`",
        )
