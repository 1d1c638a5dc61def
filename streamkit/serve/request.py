"""A request as handlers see it. Nothing is parsed before a handler asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Generator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from .access import EVERYTHING
from .cors import cors_headers
from .names import name_of
from .problems import Problem
from .responses import Gone, Headers, Receive, Send
from .streams import OpenStream
from .waiting import Waiter

if TYPE_CHECKING:
    from ..aio import AsyncStore
    from .service import Service

__all__ = ["Request"]


class Request:
    """One HTTP request, for the handler of its route."""

    __slots__ = (
        "_body",
        "_has_repeated",
        "_is_counted",
        "_is_resting",
        "_named",
        "_query",
        "_receive",
        "_send",
        "_taken",
        "access",
        "headers",
        "method",
        "opened",
        "parts",
        "priority",
        "scope",
        "service",
    )

    def __init__(self, service: Service, scope: Any, receive: Receive, send: Send) -> None:
        self.service = service
        self.scope = scope
        self.method: str = scope["method"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._named = dict(self.headers)
        """The last value of each header."""
        self._has_repeated = len(self._named) != len(self.headers)
        self.parts: list[bytes] = []
        """The raw parts of the path that the route's pattern names."""
        self.access = EVERYTHING
        """The rights of the caller."""
        self.priority = 0
        """The request's priority among the requests of the process."""
        self.opened: Waiter | None = None
        """The watcher of the client's connection, once it exists."""
        self._receive = receive
        self._send = send
        self._body: bytes | None = None
        self._query: dict[str, str] | None = None
        self._is_counted = False
        self._is_resting = False
        self._taken = 0
        """Bytes of the body that the gate knows of."""

    # -- the address --------------------------------------------------------------------------------------------

    def name(self, at: int) -> str:
        """The name in the path's part number `at`, counted from 0."""
        return name_of(self.parts[at])

    def store(self, at: int = 0) -> AsyncStore:
        """The store that the path's part number `at` names: a UUID, or `_` for the server's own."""
        return self.service.store(name_of(self.parts[at]))

    def query(self, allowed: Collection[str] | None = None) -> dict[str, str]:
        """The parameters of the query. A Problem for one that is given twice, or that is not in `allowed`."""
        query = self._query
        if query is None:
            raw = self.scope["query_string"]
            query = self._query = _unique(_pairs(raw)) if raw else {}
        if allowed is not None:
            for name in query:
                if name not in allowed:
                    known = ", ".join(sorted(allowed)) or "none"
                    raise Problem(
                        "invalid-request", f"unknown query parameter {name[:40]!r}; this resource takes {known}"
                    )
        return query

    def query_all(self, name: str) -> list[str]:
        """All values of a parameter that may be given several times; `query` takes none of them then."""
        pairs = _pairs(self.scope["query_string"])
        self._query = _unique([pair for pair in pairs if pair[0] != name])
        return [value for key, value in pairs if key == name]

    def take_ticket(self) -> str | None:
        """The parameter `ticket`, which no handler sees."""
        raw: bytes = self.scope["query_string"]
        if b"ticket=" not in raw:
            return None
        pairs = raw.split(b"&")
        tickets = [pair for pair in pairs if pair.startswith(b"ticket=")]
        self.scope["query_string"] = b"&".join([pair for pair in pairs if not pair.startswith(b"ticket=")])
        return _unique(_pairs(b"&".join(tickets))).get("ticket")

    # -- headers ------------------------------------------------------------------------------------------------

    def header(self, name: bytes) -> bytes | None:
        """The value of a header, by its name in lower case; None if it is absent. A Problem if it occurs twice."""
        found = self._named.get(name)
        if found is not None and self._has_repeated and sum([key == name for key, _ in self.headers]) > 1:
            raise Problem("invalid-request", f"the header {name.decode()} is given more than once")
        return found

    def joined(self, name: bytes) -> bytes | None:
        """The values of a header that is a list, with commas between them; None if it is absent."""
        values = [value for key, value in self.headers if key == name]
        return b", ".join(values) if values else None

    def text_header(self, name: bytes) -> str | None:
        """The value of a header as UTF-8 text; None if it is absent."""
        value = self.header(name)
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Problem("invalid-request", f"the header {name.decode()} is not UTF-8") from None

    @property
    def media_type(self) -> str:
        """The type of the body without its parameters, in lower case; "" if none is given."""
        value = self.header(b"content-type")
        return "" if value is None else value.partition(b";")[0].strip().decode("latin-1").lower()

    def accepts(self, media_type: bytes) -> bool:
        """True if `Accept` names exactly this type."""
        for key, value in self.headers:
            if key == b"accept" and any(
                part.partition(b";")[0].strip().lower() == media_type for part in value.split(b",")
            ):
                return True
        return False

    # -- the body -----------------------------------------------------------------------------------------------

    async def body(self, most: int = 0) -> bytes:
        """The whole body. A Problem if it is larger than `most` (0: than the server takes) or comes too slowly; Gone if
        the client left before its end."""
        if self._body is None:
            if b"content-encoding" in self._named and (self.joined(b"content-encoding") or b"").lower() != b"identity":
                raise Problem(
                    "unsupported-media-type",
                    "the server takes bodies without a Content-Encoding; send the body as it is",
                    headers=((b"accept-encoding", b"identity"),),
                )
            self._body = await self._read_body(most)
        return self._body

    async def _read_body(self, most: int) -> bytes:
        limits = self.service.limits
        most = min(most, limits.body_bytes or most) if most else limits.body_bytes
        length = self.header(b"content-length")
        if length is not None and most and length.isdigit() and int(length[:20]) > most:
            raise _too_large(most, limits.body_bytes)
        receiving = self._receive().__await__()
        try:
            waits_for = next(receiving)
        except StopIteration as received:
            # It had arrived already, as is usual: no timer is needed.
            first: Any = received.value
            if first["type"] == "http.request" and not first.get("more_body"):
                data: bytes = first.get("body", b"")
                if most and len(data) > most:
                    raise _too_large(most, limits.body_bytes) from None
                return data
        else:
            first = None
        try:
            async with asyncio.timeout(limits.body_seconds or None):
                message = await _Resumed(waits_for, receiving) if first is None else first
                chunks: list[bytes] = []
                size = 0
                while True:
                    if message["type"] == "http.disconnect":
                        raise Gone
                    chunk = message.get("body", b"")
                    size += len(chunk)
                    if most and size > most:
                        raise _too_large(most, limits.body_bytes)
                    self.service.gate.take_bytes(len(chunk))
                    self._taken += len(chunk)
                    chunks.append(chunk)
                    if not message.get("more_body"):
                        return b"".join(chunks)
                    message = await self._receive()
        except TimeoutError:
            raise Problem(
                "body-timeout",
                f"the body did not come within {limits.body_seconds:g} seconds; send it faster, or in parts",
                headers=((b"connection", b"close"),),
            ) from None

    # -- answering ----------------------------------------------------------------------------------------------

    async def stream(self, status: int, headers: Headers) -> OpenStream:
        """Begin a response that is written piece by piece; the handler returns None at its end."""
        if self._body is None:
            await self.body()
        if "aws.event" in self.scope or "azure_functions.function_name" in self.scope:
            raise Problem(
                "not-acceptable", "this server cannot stream, because its platform buffers answers: read with wait=20"
            )
        self.service.gate.open_stream(self.access, self.priority)
        self._is_counted = True
        stream = OpenStream(
            self._send,
            self._receive,
            self.service.ticker,
            self.method == "HEAD",
            self.scope.get("streamkit.abort"),
            self.access,
        )
        self.opened = stream
        await stream.start(status, (*headers, *self.service.headers, *cors_headers(self)))
        return stream

    def end(self) -> None:
        """Release the resources of the request, however it ended."""
        if self.opened is not None:
            self.opened.close()
        if self._is_counted:
            self.service.gate.close_stream(self.access, self.priority)
        if self._is_resting:
            self.service.gate.resume(self.priority)
        if self._taken:
            self.service.gate.give_bytes(self._taken)

    async def waiter(self) -> Waiter:
        """The wait of a long-poll. It ends when the client leaves."""
        if self._body is None:
            await self.body()
        self.service.gate.rest(self.priority)
        self._is_resting = True
        waiter = self.opened = Waiter(self._receive)
        waiter.watch()
        return waiter


class _Resumed:
    """The rest of an awaitable that was begun by hand, and waits for something."""

    __slots__ = ("_rest", "_waits_for")

    def __init__(self, waits_for: Any, rest: Generator[Any, Any, Any]) -> None:
        self._waits_for = waits_for
        self._rest = rest

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            yield self._waits_for
        except BaseException as error:
            # Cancelled meanwhile: the awaitable is cancelled as if it had been awaited all the time.
            try:
                waits_for = self._rest.throw(error)
            except StopIteration as ended:
                return ended.value
            yield waits_for
        return (yield from self._rest)


def _too_large(most: int, limit: int) -> Problem:
    """The problem of a body with more than `most` bytes; `limit` is the server's own."""
    detail = f"the body is larger than {most} bytes; send it in parts"
    if most < limit or not limit:
        return Problem("body-too-large", detail)  # the rest is passed over, so that the client gets the answer
    detail += ", or raise the limit of the server"
    return Problem("body-too-large", detail, headers=((b"connection", b"close"),))


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for pair in raw.split(b"&"):
        if not pair:
            continue
        key, _, value = pair.replace(b"+", b" ").partition(b"=")
        try:
            found.append((unquote_to_bytes(key).decode(), unquote_to_bytes(value).decode()))
        except UnicodeDecodeError:
            raise Problem("invalid-request", "the query is not percent-encoded UTF-8") from None
    return found


def _unique(pairs: list[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise Problem("invalid-request", f"the query parameter {name[:40]!r} is given more than once")
        found[name] = value
    return found
