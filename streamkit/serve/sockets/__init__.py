"""WebSocket: many requests and subscriptions over one connection. Each is handled like the same request over HTTP."""

from __future__ import annotations

from .call import Call, Interface
from .handshake import serve_socket

__all__ = ["Call", "Interface", "serve_socket"]
