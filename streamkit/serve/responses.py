"""Whole answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import msgspec

__all__ = ["Answer", "Gone", "Headers", "Receive", "Send", "json_answer", "no_content"]

Headers = Iterable[tuple[bytes, bytes]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
SendWhole = Callable[[int, Headers, bytes], bool]
"""Sends a status, headers and a body. False if it did not, and `Send` has to."""

_encode = msgspec.json.Encoder().encode
_JSON = (b"content-type", b"application/json")


class Answer:
    """A whole answer: status, body, headers. `content-length` is added when it is sent."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        self.status = status
        self.body = body
        self.headers = headers

    async def send(
        self, send: Send, more: Headers = (), *, bodiless: bool = False, at_once: SendWhole | None = None
    ) -> None:
        """`more`: headers that every answer of the server has. `bodiless`: the answer to a HEAD. `at_once`: the
        server's own way to send a whole answer, if it has one."""
        headers = [*self.headers, *more]
        if self.status != 204 and self.status != 304:
            headers.append((b"content-length", b"%d" % len(self.body)))
        body = b"" if bodiless else self.body
        if at_once is None or not at_once(self.status, headers, body):
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})


def json_answer(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    """An answer with `value` as JSON; msgspec encodes it."""
    return Answer(status, _encode(value), (_JSON, *headers))


def no_content() -> Answer:
    """Done, and there is nothing to say."""
    return Answer(204, b"")


class Gone(Exception):
    """The client has closed the connection."""
