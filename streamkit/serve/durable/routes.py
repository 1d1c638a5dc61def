"""HTTP of the protocol: requests to the streams of a store, and their answers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING
from uuid import UUID

from ..names import name_of, raw_path
from ..problems import Problem
from ..responses import Answer
from ..tags import has_tag_weakly
from .control import Control
from .forks import source_segment
from .live import cursor_after, next_page, serve_events
from .reading import Page, body_of, read_page
from .requests import append_request, create_request
from .state import Refused, State, offset_text, parse_offset
from .streams import Streams, check_path

if TYPE_CHECKING:
    from ...aio import AsyncStore
    from ...clock import Clock
    from ..limits import Limits
    from ..request import Request
    from ..routing import Router
    from ..service import Service

__all__ = ["StreamRoutes"]

_ALLOWED = b"GET, HEAD, PUT, POST, DELETE, OPTIONS"
_PREFLIGHT = (
    (b"allow", _ALLOWED),
    (b"access-control-allow-methods", _ALLOWED),
    (
        b"access-control-allow-headers",
        b"authorization, content-type, if-none-match, producer-epoch, producer-id, producer-seq, stream-closed, "
        b"stream-expires-at, stream-fork-offset, stream-fork-sub-offset, stream-forked-from, stream-seq, stream-ttl",
    ),
)
_COMMON = ((b"cross-origin-resource-policy", b"same-origin"),)
_FIXED = "private, max-age=60, stale-while-revalidate=300"
"""Caching of a page that never changes. A page at the tail is asked for again by its ETag."""

Handler = Callable[["StreamRoutes", "Request"], Awaitable[Answer | None]]


def _answers(handler: Handler) -> Handler:
    """Turn a refusal into the protocol's answer."""

    @wraps(handler)
    async def handle(self: StreamRoutes, request: Request) -> Answer | None:
        try:
            return await handler(self, request)
        except Refused as refused:
            if request.opened is not None:
                return None  # the stream was deleted while it was read: the client asks again, and learns it
            return _answer(refused.status, refused.headers, refused.reason.encode() + b"\n", "text/plain")

    return handle


def _answer(status: int, headers: Mapping[str, str], body: bytes = b"", content_type: str | None = None) -> Answer:
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    if content_type is not None:
        pairs.append((b"content-type", content_type.encode()))
    return Answer(status, body, (*pairs, *_COMMON))


class StreamRoutes:
    """The handlers of one application. They keep the streams of the stores that are open."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._limits = limits
        self._open: dict[UUID, Control] = {}

    def register(self, router: Router) -> None:
        """Add the protocol's routes: those of the server's own store, and those of any store."""
        for prefix in ("/v1/stream", "/v1/stores/{st}/stream"):
            for methods, scope in (("GET HEAD", "read"), ("PUT POST", "write"), ("DELETE", "delete")):
                router.add(methods, prefix + "/__ds/{path*}", self.control, scope)
            for what in ("ack", "callback", "release"):
                # The token of the wake allows these, because their callers have no key.
                router.add("POST", f"{prefix}/__ds/subscriptions/{{id}}/{what}", self.by_token, "")
            pattern = prefix + "/{path*}"
            router.add("PUT", pattern, self.create, "write")
            router.add("POST", pattern, self.append, "write")
            router.add("GET", pattern, self.read, "read")
            router.add("HEAD", pattern, self.head, "read")
            router.add("DELETE", pattern, self.delete, "delete")
            router.add("OPTIONS", pattern, self.options, "")

    def _find(self, request: Request) -> tuple[Streams, str]:
        """The streams of the request's store, and the segment that the path names."""
        streams = self._of(request).streams
        segment = name_of(request.parts[-1])
        check_path(segment)
        return streams, segment

    def start(self, service: Service) -> None:
        """Wake the subscriptions of the server's own store, and remove its expired streams, without a request."""
        if service.own_store is not None:
            self._keep(service, service.store("_"))

    def close(self) -> None:
        """End the background work."""
        for control in self._open.values():
            control.close()

    def _of(self, request: Request, *, begin: bool = True) -> Control:
        store = request.service.store(name_of(request.parts[0]) if len(request.parts) > 1 else "_")
        return self._keep(request.service, store, begin=begin)

    def _keep(self, service: Service, store: AsyncStore, *, begin: bool = True) -> Control:
        """The streams of a store, while the service keeps the store open. `begin`: also begin background work."""
        found = self._open.get(store.id)
        if found is None or found.streams.store is not store:
            for id, other in list(self._open.items()):
                if other.streams.store.calls.closed or id == store.id:
                    self._open.pop(id).close()
            streams = Streams(store, self._clock)
            is_open = service.keys is None and service.tokens is None
            found = self._open[store.id] = Control(streams, loopback=is_open)
        if begin:
            found.start(self._limits.upkeep_seconds)
        return found

    async def control(self, request: Request) -> Answer:
        """The reserved resources below `__ds`."""
        base, _, path = stream_url(request).partition("/__ds/")
        return await self._of(request).answer(request, path, base)

    async def by_token(self, request: Request) -> Answer:
        """The reserved resources, for a caller with the token of a wake. It starts no work in the background."""
        base, _, path = stream_url(request).partition("/__ds/")
        return await self._of(request, begin=False).answer_wake(request, path, base)

    @_answers
    async def create(self, request: Request) -> Answer:
        """PUT: create a stream, or a fork of one."""
        streams, segment = self._find(request)
        created = create_request(_headers(request), await request.body())._replace(most=self._limits.records)
        if created.fork is not None:
            request.access.check("read")
            request.access.check_segment(source_segment(created.fork.source))
        status, state = await streams.create(segment, created)
        headers = _state_headers(state, expiry=False)
        if status == 201:
            headers["Location"] = stream_url(request)
        return _answer(status, headers, content_type=state.content_type)

    @_answers
    async def append(self, request: Request) -> Answer:
        """POST: append to a stream, or close it."""
        streams, segment = self._find(request)
        append = append_request(_headers(request), await request.body())._replace(most=self._limits.records)
        answer = await streams.append(segment, append)
        return _answer(answer.status, answer.headers)

    @_answers
    async def head(self, request: Request) -> Answer:
        """HEAD: the state of a stream. This is no use that extends its time to live."""
        streams, segment = self._find(request)
        state = await streams.find(segment)
        return _answer(200, {**_state_headers(state), "Cache-Control": "no-store"}, content_type=state.content_type)

    @_answers
    async def delete(self, request: Request) -> Answer:
        """DELETE: remove a stream, or keep it for its forks only."""
        streams, segment = self._find(request)
        await streams.delete(segment)
        return _answer(204, {})

    async def options(self, request: Request) -> Answer:
        """OPTIONS: methods and headers. Which origins may use them is up to the server's own setting."""
        return Answer(204, b"", (*_PREFLIGHT, *_COMMON))

    @_answers
    async def read(self, request: Request) -> Answer | None:
        """GET: a page, a long-poll, or a stream of events."""
        streams, segment = self._find(request)
        query = request.query()
        live, text = query.get("live"), query.get("offset")
        if live not in (None, "long-poll", "sse"):
            raise Refused(400, "live must be long-poll or sse")
        if live is not None and text is None:
            raise Refused(400, "a live read needs an offset: one that this server returned, -1 or now")
        asked = None if text in (None, "-1", "now") else parse_offset(text or "")
        state = await streams.find(segment)
        streams.expiry.used(segment, state)
        after = state.tail if text == "now" else _checked(state, segment, asked)
        cursor = query.get("cursor")
        if live == "sse":
            await serve_events(request, streams, segment, state, after, cursor)
            return None
        if live == "long-poll":
            wait = request.service.limits.long_poll_seconds
            state, page = await next_page(request, streams, segment, after, wait)
            return _page_answer(request, segment, state, after, page, cursor_after(cursor, time.time()))
        if text == "now":
            headers = _state_headers(state, expiry=False) | {"Stream-Up-To-Date": "true", "Cache-Control": "no-store"}
            return _answer(200, headers, body_of(state, []), state.content_type)
        page = await read_page(streams, segment, state, after)
        return _page_answer(request, segment, state, after, page, None)


def _checked(state: State, segment: str, asked: int | None) -> int:
    begin = state.parts(segment)[0].after
    if asked is None or asked == 0:
        return begin
    if asked < begin:
        raise Refused(410, "the offset belongs to a stream that was deleted: read from -1", code="removed")
    if asked > state.tail:
        raise Refused(400, "the offset is beyond the end of the stream")
    return asked


def _page_answer(request: Request, segment: str, state: State, after: int, page: Page, cursor: str | None) -> Answer:
    """The answer of a page; `cursor`: of a long-poll."""
    headers = {"Stream-Next-Offset": offset_text(page.next)}
    if page.at_tail:
        headers["Stream-Up-To-Date"] = "true"
    closed = state.closed and page.at_tail
    if closed:
        headers["Stream-Closed"] = "true"
    elif cursor is not None:
        headers["Stream-Cursor"] = cursor
    if cursor is not None and not page.messages:
        return _answer(204, headers | {"Cache-Control": "no-store"})
    stream = hashlib.blake2b(f"{state.base}:{segment}".encode(), digest_size=9).hexdigest()
    etag = f'"{stream}:{after}:{page.next}{":c" if closed else ""}"'
    headers |= {"ETag": etag, "Cache-Control": "private, no-cache" if page.at_tail else _FIXED}
    if cursor is None and has_tag_weakly(request.joined(b"if-none-match") or b"", etag.encode()):
        return _answer(304, headers)
    return _answer(200, headers, body_of(state, page.messages), state.content_type)


def _state_headers(state: State, *, expiry: bool = True) -> dict[str, str]:
    headers = {"Stream-Next-Offset": offset_text(state.tail)}
    if state.closed:
        headers["Stream-Closed"] = "true"
    if expiry and state.ttl is not None:
        headers["Stream-TTL"] = str(state.ttl)
    elif expiry and state.expires_text is not None:
        headers["Stream-Expires-At"] = state.expires_text
    return headers


def _headers(request: Request) -> dict[str, str]:
    """The headers by name in lower case. A Problem if a header of the protocol occurs twice or is not ASCII."""
    found: dict[str, str] = {}
    for name, value in request.headers:
        key = name.decode("latin-1")
        if key.startswith(("stream-", "producer-")) or key == "content-type":
            if key in found:
                raise Problem("invalid-request", f"the header {key} is given more than once")
            try:
                found[key] = value.decode("ascii")
            except UnicodeDecodeError:
                raise Problem("invalid-request", f"the header {key} is not ASCII") from None
    return found


def stream_url(request: Request) -> str:
    """The absolute URL that the client used."""
    scope = request.scope
    host = (request.header(b"host") or b"localhost").decode("latin-1")
    return f"{scope.get('scheme', 'http')}://{host}{raw_path(scope).decode('latin-1')}"
