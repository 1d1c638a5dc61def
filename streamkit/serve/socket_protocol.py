"""uvicorn's protocol of WebSockets with additions: an end of clients that do not read, a refusal of requests that are
no handshake, and a drain that lets the application say goodbye."""

from __future__ import annotations

import asyncio

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS, Request

from .limits import Limits
from .problems import Problem
from .protocol import refusal

__all__ = ["socket_protocol_of"]


def socket_protocol_of(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol of a server with these limits."""
    no_handshake = refusal(
        Problem(
            "invalid-request",
            f"a WebSocket is opened by GET, without a body, with at most {MAX_NUM_HEADERS} headers and with lines of "
            f"at most {MAX_LINE_LENGTH} bytes",
        ),
        b"Bad Request",
    )

    class SocketProtocol(WebSocketsSansIOProtocol):
        """One connection."""

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.handshake_exc is not None and not self.handshake_initiated:
                # uvicorn would keep the connection without an answer, and could not shut it down.
                self.handshake_complete = self.close_sent = True
                self.transport.write(no_handshake)
                self.transport.close()

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
