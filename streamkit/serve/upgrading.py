"""The answer to a plain request at the path of a WebSocket."""

from __future__ import annotations

from .problems import Problem
from .request import Request
from .responses import Answer

__all__ = ["upgrade_required"]


async def upgrade_required(request: Request) -> Answer:
    """A WebSocket; a request without an upgrade to it gets 426."""
    raise Problem(
        "upgrade-required",
        "this is a WebSocket: open it with a client for WebSockets, over HTTP/1.1",
        headers=((b"upgrade", b"websocket"),),
    )
