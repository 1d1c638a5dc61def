"""uvicorn's protocol with additions: limits of headers, of trailers and of their time; an end of clients that do not
read; refusals of messages that proxies may understand in another way; whole answers in one write."""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial

from uvicorn import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .limits import Limits
from .problems import Problem
from .responses import Headers
from .unread import CutsUnread

__all__ = ["protocol_of", "refusal"]

_Plain = HttpToolsProtocol
"""The base class by name, because `super()` took some microseconds of each request."""


def refusal(problem: Problem, reason: bytes) -> bytes:
    """The answer to a message that never becomes a request; the connection ends after it."""
    answer = problem.answer()
    headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body)), (b"connection", b"close")]
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (answer.status, reason, lines, answer.body)


def _answer(cycle: RequestResponseCycle, status: int, headers: Headers, body: bytes) -> bool:
    """Write a whole answer at once: uvicorn would write the head and the body one by one, each a packet of its own.

    False, and nothing is written, if it is uvicorn's turn: the client reads too slowly, has left, or closes the
    connection after this answer; or a header is malformed.
    """
    if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
        return False
    head = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        if name == b"connection":
            return False
        head += name, b": ", value, b"\r\n"
    head.append(b"\r\n")
    data = b"".join(head)
    lines = len(head) // 4 + 2
    if data.count(b"\n") != lines or data.count(b"\r") != lines or b"\0" in data:
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.transport.writelines((data, body))
    cycle.message_event.set()
    cycle.on_response()
    return True


def protocol_of(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol of a server with these limits."""
    too_large = refusal(
        Problem("headers-too-large", f"the headers are larger than {limits.header_bytes} bytes; send fewer"),
        b"Request Header Fields Too Large",
    )
    ambiguous = refusal(
        Problem("invalid-request", "a request has one Host, and no Transfer-Encoding but chunked"), b"Bad Request"
    )
    not_http = refusal(Problem("invalid-request", "the request is not HTTP/1.1"), b"Bad Request")

    @lru_cache(1)
    def proxied(config: Config) -> ProxyHeadersMiddleware:
        """The application, which learns from proxies that it trusts whether their clients use TLS."""
        return ProxyHeadersMiddleware(config.loaded_app, config.forwarded_allow_ips)

    class Protocol(CutsUnread, HttpToolsProtocol):
        """One connection.

        `_head` counts the bytes of headers that are not complete yet, `_extra` those of a body that are not its
        content: sizes of chunks, extensions, trailers. `_in_body`: the headers of a message are complete, the message
        is not. `_is_refused`: the connection is closed, and bytes after the refused request are ignored.
        """

        _head = 0
        _is_in_head = False
        _extra = 0
        _content = 0
        _in_body = False
        _is_refused = False
        write_seconds = limits.write_seconds
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
            was_in_body, content = self._in_body, self._content
            _Plain.data_received(self, data)
            if self._is_in_head:
                self._expect_head()  # mostly the headers come at once, and no timer is needed
            if not (was_in_body or self._head or self._extra) or self._is_refused or not limits.header_bytes:
                return
            if was_in_body and self._in_body:
                self._extra += len(data) - (self._content - content)
            # Chunks of one byte have five more.
            if self._head > limits.header_bytes or self._extra > limits.header_bytes + 8 * self._content:
                self._refuse(too_large)

        def _refuse(self, answer: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(answer)
                self.transport.close()
            self._is_refused = True

        def on_message_begin(self) -> None:
            _Plain.on_message_begin(self)
            self._in_body = False
            self._is_in_head = True

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._in_body:  # a trailer would become a header of a request that is already handled
                _Plain.on_header(self, name, value.rstrip(b" \t"))  # the parser removes white space before a value only

        def on_headers_complete(self) -> None:
            if self._late is not None:
                self._stop_waiting()
            self._head = self._extra = self._content = 0
            self._is_in_head, self._in_body = False, True
            if self._is_refused:
                return
            self.scope["streamkit.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
            size = hosts = 0
            app = self.config.loaded_app
            for name, value in self.headers:
                size += len(name) + len(value)
                if name == b"host":
                    hosts += 1
                elif name == b"x-forwarded-proto":
                    app = proxied(self.config)
                elif name == b"transfer-encoding" and value.lower() != b"chunked":
                    hosts = -1
                    break
            if hosts != 1 and (hosts or self.parser.get_http_version() != "1.0"):
                self._refuse(ambiguous)
            elif limits.header_bytes and size > limits.header_bytes:
                self._refuse(too_large)
            else:
                self.app = app
                _Plain.on_headers_complete(self)
                self.scope["streamkit.answer"] = partial(_answer, self.cycle)  # type: ignore[typeddict-unknown-key]

        def on_body(self, body: bytes) -> None:
            self._content += len(body)
            if not self._is_refused:
                _Plain.on_body(self, body)

        def on_message_complete(self) -> None:
            self._in_body = False
            if not self._is_refused:
                _Plain.on_message_complete(self)

        def handle_websocket_upgrade(self) -> None:
            if not self._is_refused:
                super().handle_websocket_upgrade()

        def send_400_response(self, msg: str) -> None:
            self._refuse(not_http)

    return Protocol
