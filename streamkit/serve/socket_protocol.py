"""uvicorn's protocol of WebSockets with additions: an end of clients that do not read, and a drain that lets the
application say goodbye."""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from .limits import Limits

__all__ = ["socket_protocol_of"]


def socket_protocol_of(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol of a server with these limits."""

    class SocketProtocol(WebSocketsSansIOProtocol):
        """One connection."""

        def handle_connect(self, event: Request) -> None:
            super().handle_connect(event)
            if hasattr(self, "scope"):
                self.scope["streamkit.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]

        async def send(self, message: ASGISendEvent) -> None:
            await super().send(message)
            if message["type"] == "websocket.http.response.body":
                self.handshake_complete = True  # uvicorn would log an error

        def shutdown(self) -> None:
            """Begin to end: the application closes the connection. uvicorn would close it before a goodbye."""
            if not self.handshake_complete or self.close_sent:
                super().shutdown()

    return SocketProtocol
