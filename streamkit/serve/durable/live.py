"""Live reading: long-poll and server-sent events."""

from __future__ import annotations

import asyncio
import base64
import random
import re
import time
from typing import TYPE_CHECKING

import msgspec

from ...model import Entry
from ..sse import HEARTBEAT
from .reading import Page, body_of, read_page
from .state import State, has_state, is_data, offset_text, state_of

if TYPE_CHECKING:
    from ..request import Request
    from ..ring import EncodedBatch, Ring
    from ..streams import OpenStream
    from .streams import Streams

__all__ = ["cursor_after", "next_page", "serve_events"]

_CONNECTION_SECONDS = 60.0
"""A connection of events ends after so long, so that caches can share the next one."""
_EPOCH = 1_728_432_000
"""The start of the cursor's intervals: 2024-10-09, 00:00 UTC."""
_INTERVAL = 20
_NEWLINE = re.compile(rb"\r\n|\r|\n")
_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_encode = msgspec.json.Encoder().encode


def cursor_after(text: str | None, now: float) -> str:
    """The cursor of a live answer: the number of the present interval, or one above the client's own."""
    present = int((now - _EPOCH) // _INTERVAL)
    if text is None or not re.fullmatch(r"\d{1,18}", text, re.ASCII) or int(text) < present:
        return str(present)
    return str(int(text) + max(1, random.randint(1, 3600) // _INTERVAL))


async def next_page(request: Request, streams: Streams, segment: str, after: int, wait: float) -> tuple[State, Page]:
    """The messages behind `after`; waits up to `wait` seconds for the first of them. An empty page: there were none."""
    loop = asyncio.get_running_loop()
    end = loop.time() + wait
    ring = await request.service.rings.of(streams.store, streams.space, request.access)
    waiter = await request.waiter()
    ring.listen(waiter, segment)
    watched = False
    try:
        while True:
            state = await streams.find(segment)
            page = await read_page(streams, segment, state, after)
            if page.messages or state.closed or request.service.is_draining or loop.time() >= end:
                return state, page
            if not watched:
                streams.expiry.watch(segment, state)
                watched = True
            await waiter.wait_until(end)
    finally:
        ring.unlisten(waiter, segment)
        if watched:
            streams.expiry.unwatch(segment)


def _event(name: bytes, lines: list[bytes]) -> bytes:
    """An event. A reader drops one space behind the colon, so a line that begins with a space gets one more."""
    data = [(b"data: " if line.startswith(b" ") else b"data:") + line + b"\n" for line in lines]
    return b"event: " + name + b"\n" + b"".join(data) + b"\n"


def _data(state: State, page: Page) -> bytes:
    """The event of a page. A payload cannot forge an event: each of its lines becomes a line of data."""
    if not state.is_text:
        return _event(b"data", [base64.b64encode(b"".join(page.messages))])
    if state.is_json:
        return _event(b"data", _NEWLINE.split(body_of(state, page.messages)))
    text = b"".join(page.messages).decode(errors="replace").encode()
    return _event(b"data", _NEWLINE.split(text))


def _control(state: State, page: Page, cursor: str) -> bytes:
    fields: dict[str, object] = {"streamNextOffset": offset_text(page.next)}
    if state.closed and page.at_tail:
        fields |= {"upToDate": True, "streamClosed": True}
    else:
        fields["streamCursor"] = cursor
        if page.at_tail:
            fields["upToDate"] = True
    return _event(b"control", [_encode(fields)])


class _Connection:
    """One connection of events: where it is, and how its events are made."""

    def __init__(self, segment: str, state: State, after: int, cursor: str | None) -> None:
        self.segment = segment
        self.state = state
        self.after = after
        self.ended = False
        self._least = int(cursor_after(cursor, time.time()))

    @property
    def cursor(self) -> str:
        return str(max(int(cursor_after(None, time.time())), self._least))

    def page(self, state: State, page: Page) -> bytes:
        """The events of a page that was read from the store."""
        self.state, self.after = state, page.next
        self.ended = state.closed and page.at_tail
        return (_data(state, page) if page.messages else b"") + _control(state, page, self.cursor)

    def batch(self, batch: EncodedBatch) -> bytes | None:
        """The events of the stream's entries in a batch of the ring. None if the store has to be read again."""
        items = batch.by_segment.get(self.segment)
        if items is None:
            return b""
        cursor, begin = self.cursor, self.after
        state, page = self.state, Page([], begin, False)
        for item in items:
            entry = item.what
            if type(entry) is not Entry:
                return None
            offset = entry.sequence + state.shift
            carries = has_state(entry)
            if is_data(entry) and offset > begin:
                page.messages.append(entry.payload)
                page = page._replace(next=offset)
            page = page._replace(at_tail=carries)
            if carries:
                after = state_of(entry)
                if after is None or after.base != state.base or after.gone:
                    return None
                state = after
        changed = bool(page.messages) or state.closed
        self.state, self.after = state, page.next
        self.ended = state.closed and page.at_tail
        if not changed:
            return b""
        key = "durable", self.segment, begin, cursor
        return batch.frame(key, items, lambda _: self._frame(state, page, cursor))

    @staticmethod
    def _frame(state: State, page: Page, cursor: str) -> bytes:
        return (_data(state, page) if page.messages else b"") + _control(state, page, cursor)


async def serve_events(
    request: Request, streams: Streams, segment: str, state: State, after: int, cursor: str | None
) -> None:
    """Send the messages behind `after` and those that come, each followed by its position, until it is time to end."""
    ring = await request.service.rings.of(streams.store, streams.space, request.access)
    headers = _HEADERS if state.is_text else (*_HEADERS, (b"stream-sse-data-encoding", b"base64"))
    out = await request.stream(200, headers)
    loop = asyncio.get_running_loop()
    end = loop.time() + _CONNECTION_SECONDS
    timer = loop.call_at(end, out.wake)
    connection = _Connection(segment, state, after, cursor)
    ring.listen(out, segment)
    streams.expiry.watch(segment, state)
    try:
        while not (request.service.is_draining or out.is_over):
            at = ring.end  # entries that are not on the page come in this batch, or in a later one
            state = await streams.find(segment)
            page = await read_page(streams, segment, state, connection.after)
            await out.write(connection.page(state, page))
            if connection.ended or (page.at_tail and await _live(request, out, ring, connection, at, end)):
                return
    finally:
        timer.cancel()
        streams.expiry.unwatch(segment)
        ring.unlisten(out, segment)


async def _live(request: Request, out: OpenStream, ring: Ring, connection: _Connection, at: int, end: float) -> bool:
    """Send the batches of the ring from number `at` on. True at the end, False if the store has to be read again."""
    loop = asyncio.get_running_loop()
    while at >= ring.first:
        for batch in ring.batches(at) if at < ring.end else ():
            at += 1
            data = connection.batch(batch)
            if data is None:
                return False
            if data:
                await out.write(data)
            if connection.ended:
                return True
        if at < ring.end:
            continue
        if request.service.is_draining or out.is_over or ring.error is not None or loop.time() >= end:
            return True
        if out.is_silent:
            await out.write(HEARTBEAT)
        await out.wait()
    return False
