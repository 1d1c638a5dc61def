"""HTTP/2 on the same port: with prior knowledge, and over TLS by ALPN.

It adds to uvicorn's protocol: limits of headers and of resets; responses that wait for their client's credit; an end of
clients that do not read.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar
from urllib.parse import unquote

import zttp
from uvicorn._types import ASGISendEvent, HTTPScope
from uvicorn.protocols.http.auto_zttp_impl import AutoZttpProtocol
from uvicorn.protocols.http.zttp_h2_impl import RequestResponseCycle, ZttpH2Protocol

from .limits import Limits
from .problems import Problem
from .protocol import protocol_of
from .unread import CutsUnread

__all__ = ["dual_protocol_of"]

_PIECE = 64 << 10
"""Bytes of a response that may wait for the client's credit. The rest waits in its handler."""
_UNREAD = 4 << 20
"""Bytes of frames, apart from responses, that a client may leave unread."""
_RESETS = 200
"""The number by which the streams that a client resets may exceed those that end."""
_CALM = 11
"""ENHANCE_YOUR_CALM of RFC 9113."""
_CONNECT = 8
"""SETTINGS_ENABLE_CONNECT_PROTOCOL: WebSockets over HTTP/2, which uvicorn does not have."""


class _Cycle(RequestResponseCycle):
    """One stream."""

    write_seconds = 0.0

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.credit = asyncio.Event()
        self.scope["streamkit.abort"] = self._abort  # type: ignore[typeddict-unknown-key]

    def _abort(self) -> None:
        if not self.response_complete:
            self.abort_stream()
        self.leave()

    def leave(self) -> None:
        """Have everything that waits for the client end."""
        self.disconnected = True
        self.message_event.set()
        self.credit.set()

    async def send(self, message: ASGISendEvent) -> None:
        body: Any = message.get("body", b"")
        if message["type"] == "http.response.body" and len(body) > _PIECE:
            for at in range(0, len(body), _PIECE):
                piece = body[at : at + _PIECE]
                await super().send({"type": "http.response.body", "body": piece, "more_body": True})
                await self._credit()
            message = {"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)}
        await super().send(message)
        await self._credit()

    async def _credit(self) -> None:
        """Wait until the client has taken the written bytes. A client that takes nothing is given up."""
        while not self.disconnected and (before := self._parked()) >= _PIECE:
            self.credit.clear()
            try:
                async with asyncio.timeout(self.write_seconds or None):
                    await self.credit.wait()
            except TimeoutError:
                if self._parked() >= before:
                    self._abort()

    def _parked(self) -> int:
        if self.response_complete or self.transport.is_closing():
            return 0
        return self.stream.pending_bytes or 0


class _Http2(CutsUnread, ZttpH2Protocol):
    """One connection."""

    limits = Limits()
    _resets = 0
    _ended = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.conn.initiate_connection()
        transport.write(_without_connect(self.conn.data_to_send()))
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self.cycles.values():
            assert isinstance(cycle, _Cycle)
            cycle.credit.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        for cycle in self.cycles.values():
            assert isinstance(cycle, _Cycle)
            cycle.credit.set()
        if self.transport.get_write_buffer_size() > _UNREAD:
            self.transport.abort()

    def on_response_complete(self, stream_id: int) -> None:
        self._ended += 1
        super().on_response_complete(stream_id)

    def handle_rst_stream(self, event: zttp.RstStream) -> None:
        cycle = self.cycles.get(event.stream_id)
        if isinstance(cycle, _Cycle):
            cycle.leave()
        self._resets += 1
        super().handle_rst_stream(event)
        if self._resets - self._ended > _RESETS and not self.transport.is_closing():
            self.conn.close(_CALM)
            self.flush()
            self.transport.close()

    def handle_request(self, event: zttp.Request) -> None:
        headers = [(name.lower(), value) for name, value in event.headers]
        problem = self._problem_of(headers)
        if problem is not None:
            self._refuse(event.stream_id, problem)
            return
        scope: HTTPScope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "2",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "method": event.method.decode("ascii"),
            "root_path": "",
            "path": unquote(event.path.decode("latin-1")),
            "raw_path": event.path,
            "query_string": event.query,
            "headers": headers,
            "state": self.app_state.copy(),
            "extensions": {},
        }
        cycle = _Cycle(
            scope=scope,
            conn=self.conn,
            stream=self.conn.stream(event.stream_id),
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            on_response=self.on_response_complete,
            resume_reading=self.resume_reading_if_idle,
        )
        cycle.write_seconds = self.write_seconds
        if event.end_stream:
            cycle.more_body = False
            cycle.message_event.set()
        self.cycles[event.stream_id] = cycle
        task = self.loop.create_task(cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _problem_of(self, headers: list[tuple[bytes, bytes]]) -> Problem | None:
        most = self.limits.header_bytes
        if most and sum([len(name) + len(value) for name, value in headers]) > most:
            return Problem("headers-too-large", f"the headers are larger than {most} bytes; send fewer")
        if sum([name == b"host" for name, _ in headers]) != 1:
            return Problem("invalid-request", "a request has one :authority, or one Host")
        if self.shutdown_requested:
            return Problem("draining", "the process is about to end; send the request again")
        return None

    def _refuse(self, stream_id: int, problem: Problem) -> None:
        answer = problem.answer()
        stream = self.conn.stream(stream_id)
        stream.send_response(answer.status, [*answer.headers, (b"content-length", b"%d" % len(answer.body))])
        stream.send_data(answer.body)
        stream.end_message()
        self.flush()


def _without_connect(data: bytes) -> bytes:
    """The first SETTINGS frame without the offer of WebSockets: a browser would open one and fail."""
    length = int.from_bytes(data[:3], "big")
    params = [data[at : at + 6] for at in range(9, 9 + length, 6)]
    kept = b"".join([param for param in params if int.from_bytes(param[:2], "big") != _CONNECT])
    return len(kept).to_bytes(3, "big") + data[3:9] + kept + data[9 + length :]


def dual_protocol_of(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol of a server with these limits that speaks HTTP/2 to clients that begin with its preface."""
    plain = protocol_of(limits)

    class Http2(_Http2):
        """A connection with the limits of the server."""

    Http2.limits, Http2.write_seconds = limits, limits.write_seconds

    class Dual(AutoZttpProtocol):
        """A connection before its first bytes."""

        alpn_protocols: ClassVar[list[str]] = ["h2", "http/1.1"]

        def _switch(self, http2: bool, initial_data: bytes = b"") -> None:
            kind: Any = Http2 if http2 else plain
            protocol = kind(
                config=self.config, server_state=self.server_state, app_state=self.app_state, _loop=self.loop
            )
            self.transport.set_protocol(protocol)
            protocol.connection_made(self.transport)
            if initial_data:
                protocol.data_received(initial_data)

    return Dual
