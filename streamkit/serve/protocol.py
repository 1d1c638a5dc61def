"""uvicorn's protocol, with what it lacks: limits of headers and of their time, and an end of stalled connections."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .limits import Limits
from .problems import Problem

__all__ = ["protocol_of"]


def _refusal(problem: Problem, reason: bytes) -> bytes:
    answer = problem.answer()
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body)), (b"connection", b"close")]
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (answer.status, reason, lines, answer.body)


def protocol_of(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol of a server with these limits."""
    too_large = _refusal(
        Problem("headers-too-large", f"the headers are larger than {limits.header_bytes} bytes; send fewer"),
        b"Request Header Fields Too Large",
    )
    not_http = _refusal(Problem("invalid-request", "the request is not HTTP/1.1"), b"Bad Request")

    class Protocol(HttpToolsProtocol):
        """One connection. `_head` counts the bytes of headers that are not complete yet."""

        _head = 0
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _expect_head(self) -> None:
            if limits.header_seconds and self._late is None:
                self._late = self.loop.call_later(limits.header_seconds, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def data_received(self, data: bytes) -> None:
            if self._late is not None:
                self._head += len(data)
            super().data_received(data)
            if self._late is not None and limits.header_bytes and self._head > limits.header_bytes:
                self.transport.write(too_large)
                self.transport.close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._expect_head()

        def on_headers_complete(self) -> None:
            self._stop_waiting()
            self._head = 0
            self.scope["streamkit.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
            if limits.header_bytes and sum([len(n) + len(v) for n, v in self.headers]) > limits.header_bytes:
                self.transport.write(too_large)
                self.transport.close()
                return
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            if not self.transport.is_closing():
                super().on_body(body)

        def on_message_complete(self) -> None:
            if not self.transport.is_closing():
                super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            if not self.transport.is_closing():
                self.transport.write(not_http)
                self.transport.close()

    return Protocol
