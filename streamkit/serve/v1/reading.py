"""Reading: pages, long-polls and streams of a segment, of a space, and of several spaces."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...gaps import Gap
from ...lexkey import LexKey
from ...model import Entry
from ...store import Store
from .. import sse
from ..encoding import entry_out, name_of_transaction
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from . import cloudevents, composite
from .cursors import SegmentCursor, SeveralCursor, SpaceCursor
from .formats import NDJSON, page_format, send_page
from .pages import Found, segment_page, several_page, space_page
from .parameters import READING, Reading, number, reading
from .polling import poll
from .values import Page, SeveralPage
from .writing import base_of

__all__ = ["read_entry", "read_segment", "read_several", "read_space"]

_EVENTS = b"text/event-stream"
_STREAMING = ("from", "gaps")


async def read_segment(request: Request) -> Answer | None:
    """A segment's entries after a sequence: a page, or all that come as a stream of events."""
    store, space, segment = request.store(), request.name(1), request.name(2)
    streams = request.accepts(_EVENTS)
    query = request.query(("after", *_STREAMING) if streams else ("after", "before", *READING))
    after = number(query, "after", 0)
    bounds = reading(query, starts="after" in query)
    if streams:
        last = request.text_header(b"last-event-id")
        if last:
            after = number({"Last-Event-ID": last}, "Last-Event-ID", 0)
            bounds = Reading()
        ring = await request.service.rings.of(store, space, request.access)
        if bounds.from_end:
            after = (await store.segment_status(space, segment)).last_sequence
        await sse.follow(request, [ring], SegmentCursor(store, space, segment, after, bounds))
        return None
    before = number(query, "before", 0)
    if before and bounds.wait:
        raise Problem("invalid-argument", "a read with wait takes no before")
    kind = page_format(request, query, bounds)
    line = kind == NDJSON
    state = [after]

    def read(plain: Store) -> tuple[Page, Found]:
        page, found = segment_page(plain, space, segment, state[0], before, bounds, line)
        if bounds.wait and not found.items:
            state[0], bounds.from_end = int(page.next or 0), False
        return page, found

    page, found = await poll(request, store, (space,), segment, bounds.wait, read)
    return await send_page(request, page, found, kind, None if found.caught_up else _tag(found))


def _tag(found: Found) -> str | None:
    """Return the tag of a full page: its entries never change, but some of them may be removed."""
    last, first = found.last, found.items[0]
    if last is None:
        return None
    start = first.first_sequence if type(first) is Gap else first.sequence  # type: ignore[union-attr]
    return f"{last.trx.raw_id.hex()}-{start}-{last.sequence}-{len(found.items)}"


async def read_space(request: Request) -> Answer | None:
    """A space's entries after an offset: a page, or all that come as a stream of events."""
    store, space = request.store(), request.name(1)
    streams = request.accepts(_EVENTS)
    query = request.query(("offset", *_STREAMING) if streams else ("offset", *READING))
    offset = query.get("offset")
    bounds = reading(query, starts=offset is not None)
    if streams:
        last = request.text_header(b"last-event-id")
        if last:
            offset, bounds = last, Reading()
        ring = await request.service.rings.of(store, space, request.access)
        if bounds.from_end:
            offset = (await store.end_offset(space)).hex()
        await sse.follow(request, [ring], SpaceCursor(store, space, composite.offset_of(space, offset), bounds))
        return None
    kind = page_format(request, query, bounds)
    line = kind == NDJSON
    state: list[str | None] = [offset]

    def read(plain: Store) -> tuple[Page, Found]:
        page, found = space_page(plain, space, state[0], bounds, line)
        if bounds.wait and not found.items:
            state[0], bounds.from_end = str(page.next), False
        return page, found

    page, found = await poll(request, store, (space,), None, bounds.wait, read)
    return await send_page(request, page, found, kind, None if found.caught_up else _tag(found))


async def read_entry(request: Request) -> Answer:
    """One entry of a segment, by its sequence."""
    request.query(())
    store, space, segment = request.store(), request.name(1), request.name(2)
    wanted = number({"sequence": request.name(3)}, "sequence", 0, least=1)

    def read(plain: Store) -> Entry | Gap | None:
        entries = plain.consume_segment(space, segment, min_sequence=wanted, max_sequence=wanted, gaps="yield")
        return next(iter(entries), None)

    found: Entry | Gap | None = await store.calls.call(read, store.sync)
    if found is None:
        raise Problem("not-found", f"the segment {segment!r} has no entry {wanted}")
    if type(found) is Gap:
        raise Problem("entries-removed", str(found), gap=found)
    assert type(found) is Entry
    if request.accepts(cloudevents.STRUCTURED.encode()):
        event = cloudevents.event_of(found, base_of(store, space))
        return Answer(200, msgspec.json.encode(event), ((b"content-type", cloudevents.STRUCTURED.encode()),))
    return json_answer(entry_out(found, name_of_transaction(found.trx)))


async def read_several(request: Request) -> Answer | None:
    """Several spaces with one cursor: GET for EventSource, QUERY and POST for pages."""
    store = request.store()
    if request.method == "GET":
        spaces = request.query_all("space")
        streams = request.accepts(_EVENTS)
        query = request.query(("cursor", "space", *_STREAMING) if streams else ("cursor", "space", *READING))
        cursor = query.get("cursor")
    else:
        spaces, query, cursor = await composite.asked(request)
        streams = False
    last = request.text_header(b"last-event-id") if streams else None
    bounds = reading(query, starts=cursor is not None)
    if last:
        cursor, bounds = last, Reading()
    offsets = composite.cursor_of(spaces, cursor)
    request.access.check_all_segments()
    for space in offsets:
        request.access.check_space(space)
    if streams:
        await _stream_several(request, offsets, bounds)
        return None
    if bounds.reverse:
        raise Problem("invalid-argument", "a read of several spaces takes no reverse")
    kind = page_format(request, query, bounds)
    line = kind == NDJSON
    state = [offsets]

    def read(plain: Store) -> tuple[SeveralPage, Found]:
        after, found = several_page(plain, state[0], bounds, line)
        if bounds.wait and not found.items:
            state[0], bounds.from_end = after, False
        return SeveralPage(found.out, composite.cursor_text(after), found.caught_up), found

    page, found = await poll(request, store, offsets, None, bounds.wait, read)
    return await send_page(request, page, found, kind)


async def _stream_several(request: Request, offsets: Mapping[str, LexKey | None], bounds: Reading) -> None:
    store = request.store()
    rings = [await request.service.rings.of(store, space, request.access) for space in offsets]
    if bounds.from_end:
        offsets = {space: await store.end_offset(space) for space in offsets}
    await sse.follow(request, rings, SeveralCursor(store, offsets, bounds))
