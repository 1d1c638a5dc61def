"""One request or subscription of a WebSocket: the application handles it like one over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from ...decoders import json_decoder
from ..responses import Answer, Gone
from .call import Call

if TYPE_CHECKING:
    from .connection import Socket

__all__ = ["Exchange", "answer_text"]

_log = logging.getLogger("streamkit.serve")
_KEPT = frozenset((b"etag", b"location", b"idempotent-replayed", b"retry-after"))
"""The headers that an answer tells."""
_EVENTS = b"text/event-stream"


class Exchange:
    """A call, from its message to its last answer. `id`: the id of the message, as JSON."""

    def __init__(self, socket: Socket, id: bytes, call: Call) -> None:
        self.id = id
        self.call = call
        self.task: asyncio.Task[None] | None = None
        self.status = 0
        self.body = b""
        self._socket = socket
        self._headers: dict[str, str] = {}
        self._has_body = False
        self._left = asyncio.Event()
        self._is_stream = False
        self._said_bye = False
        self._by = b""

    # -- the application's side ---------------------------------------------------------------------------------

    @property
    def scope(self) -> MutableMapping[str, Any]:
        call, socket = self.call, self._socket
        headers = [*socket.headers, *call.headers]
        if call.streams:
            headers.append((b"accept", _EVENTS))
        if call.body:
            headers.append((b"content-type", b"application/json"))
        return {
            "type": "http",
            "method": call.method,
            "path": call.path,
            "raw_path": call.path.encode(),
            "query_string": call.query.encode(),
            "headers": headers,
            "streamkit.abort": socket.cut,
            "streamkit.access": socket.access,
        }

    async def receive(self) -> MutableMapping[str, Any]:
        """The body; then the end, once the client has left or does not want it any more."""
        if not self._has_body:
            self._has_body = True
            return {"type": "http.request", "body": self.call.body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    def leave(self, by: bytes = b"") -> None:
        """End the exchange: the rest of the answer is not wanted. `by`: the id of a message that is answered then."""
        self._by = by
        self._left.set()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Take a part of the answer, and write it to the client."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            for name, value in message["headers"]:
                if name in _KEPT:
                    self._headers[name.decode()] = value.decode("latin-1")
                elif name == b"content-type" and value == _EVENTS:
                    self._is_stream = True
            if self._is_stream:
                await self._answer(b"")
        elif self._is_stream:
            if message.get("body"):
                await self._events(message["body"])
        else:
            self.body += message.get("body", b"")

    # -- the client's side --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Have the application handle it, and answer."""
        try:
            await self._handle()
            if self._is_stream:
                if not self._said_bye:
                    await self._bye("unsubscribed" if self._left.is_set() else "end")
            elif self.status:
                self._socket.heed(self)
                await self._answer(self.body)
            if self._by:
                await self._socket.write_text(b'{"id":%b,"status":200}' % self._by)
        except Gone:
            return
        except Exception:
            _log.exception("a request of a WebSocket failed")
            if self._is_stream and not self._socket.gone:
                await self._bye("error")

    async def _handle(self) -> None:
        application = self._socket.application
        await application(self.scope, self.receive, self.send)
        if self.call.then and self.status < 300:
            found = json_decoder(dict[str, msgspec.Raw]).decode(self.body)
            path = json_decoder(str).decode(found[self.call.then])
            self.call = Call(method="GET", path=path, streams=True)
            self.body, self._has_body, self.status = b"", False, 0
            await application(self.scope, self.receive, self.send)

    async def _answer(self, body: bytes) -> None:
        headers = b',"headers":%b' % msgspec.json.encode(self._headers) if self._headers else b""
        body = b',"body":%b' % body if body else b""
        await self._socket.write_text(b'{"id":%b,"status":%d%b%b}' % (self.id, self.status, headers, body))

    async def _bye(self, reason: str) -> None:
        self._said_bye = True
        await self._socket.write_text(b'{"id":%b,"event":"bye","data":{"reason":"%b"}}' % (self.id, reason.encode()))

    async def _events(self, data: bytes) -> None:
        """Write server-sent events as messages. The lines of an event have no line ends within them."""
        for block in data.split(b"\n\n"):
            fields: dict[bytes, bytes] = {}
            for line in block.split(b"\n"):
                name, _, value = line.partition(b": ")
                fields[name] = value
            name = fields.get(b"event", b"")
            if not name:
                continue  # a heartbeat: the connection has its own
            self._said_bye = self._said_bye or name == b"bye"
            place = fields.get(b"id")
            told = b',"next":%b' % msgspec.json.encode(place.decode()) if place is not None else b""
            retry = fields.get(b"retry")
            if name == b"bye" and retry is not None:
                told += b',"retry":%b' % retry
            await self._socket.write_text(
                b'{"id":%b,"event":"%b"%b,"data":%b}' % (self.id, name, told, fields.get(b"data", b"null"))
            )


def answer_text(id: bytes, answer: Answer) -> bytes:
    """A whole answer as a message."""
    return b'{"id":%b,"status":%d,"body":%b}' % (id, answer.status, answer.body)
