"""Responses: a whole answer, or a stream that a handler writes piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeVar

import msgspec

__all__ = ["Answer", "Gone", "Headers", "OpenStream", "json_answer", "no_content"]

T = TypeVar("T")
Headers = Iterable[tuple[bytes, bytes]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_encode = msgspec.json.Encoder().encode
_JSON = (b"content-type", b"application/json")


class Answer:
    """A whole answer: status, body, headers. `content-length` is added when it is sent."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    async def send(self, send: Send, more: Headers = (), *, bodiless: bool = False) -> None:
        """`more`: headers that every answer of the server has. `bodiless`: the answer to a HEAD."""
        headers = [*self.headers, *more]
        if self.status != 204 and self.status != 304:
            headers.append((b"content-length", b"%d" % len(self.body)))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if bodiless else self.body})


def json_answer(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """`value`, whatever msgspec encodes, as JSON."""
    return Answer(status, _encode(value), (_JSON, *headers))


def no_content(headers: Headers = ()) -> Answer:
    """Done, and there is nothing to say."""
    return Answer(204, b"", headers)


class Gone(Exception):
    """The client has closed the connection."""


class OpenStream:
    """A response that is open: `write` sends a piece at once and waits while the client does not read.

    From `request.stream(…)`. A handler ends it by returning. Gone is raised when the client has left.
    """

    __slots__ = ("_bodiless", "_receive", "_send", "_watch", "gone", "writing_since")

    def __init__(self, send: Send, receive: Receive, bodiless: bool) -> None:
        self._send = send
        self._receive = receive
        self._bodiless = bodiless
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the client has left."""
        self.writing_since: float | None = None
        """Since when a write waits for the client, by the loop's clock."""
        self._watch: asyncio.Task[None] | None = None

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status and the headers."""
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})
        self._watch = asyncio.ensure_future(self._watch_client())

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.gone.done():
            self.gone.set_result(None)

    async def write(self, data: bytes) -> None:
        """Send `data`."""
        if self.gone.done():
            raise Gone
        if self._bodiless:
            return
        self.writing_since = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self.writing_since = None

    async def wait(self, future: asyncio.Future[T], timeout: float) -> bool:
        """Wait until `future` is done, or `timeout` seconds have passed; whether it is done. Gone if the client left.

        `future` is not cancelled.
        """
        if not future.done() and not self.gone.done():
            await asyncio.wait((future, self.gone), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if self.gone.done():
            raise Gone
        return future.done()

    async def end(self) -> None:
        """Complete the response."""
        if not self.gone.done():
            await self._send({"type": "http.response.body", "body": b""})

    def close(self) -> None:
        """Stop watching the client."""
        if self._watch is not None:
            self._watch.cancel()
