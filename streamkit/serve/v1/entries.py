"""Entries of a segment: append and read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...gaps import Gap
from ...store import Store
from .. import sse
from ..encoding import EntryOut, GapOut, TransactionName, entry_out, gap_out, name_of_transaction
from ..names import encode_name
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from .conditions import expected_sequence, idempotency_key
from .cursors import SegmentCursor
from .records import records_of
from .values import Page, status_out

__all__ = ["append", "read_segment"]


async def append(request: Request) -> Answer:
    """Append the records of the body to a segment, as one transaction."""
    request.query(())
    store, space, segment = request.store(), request.name(1), request.name(2)
    expected, key = expected_sequence(request), idempotency_key(request)
    records = await records_of(request)
    status = await store.produce(space, segment, records, expected_sequence=expected, idempotency_key=key)
    base = f"/v1/stores/{store.id}/spaces/{encode_name(space)}"
    tag = (b"etag", b'"%d"' % status.last_sequence)
    return json_answer(status_out(status, base), 201 if records else 200, (tag,))


def number(query: dict[str, str], name: str, default: int, most: int = (1 << 63) - 1) -> int:
    """The parameter `name`, 0 to `most`."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > most:
        raise Problem("invalid-argument", f"{name} is a number from 0 to {most}")
    return int(text)


async def read_segment(request: Request) -> Answer | None:
    """A page of a segment's entries, or all that come as a stream of events."""
    if request.accepts(b"text/event-stream"):
        await _stream_segment(request)
        return None
    query = request.query(("after", "limit", "max_bytes"))
    store, space, segment = request.store(), request.name(1), request.name(2)
    after = number(query, "after", 0)
    limit = number(query, "limit", 256, 10_000)
    max_bytes = number(query, "max_bytes", 1 << 20, 8 << 20)
    page = await store.calls.call(_segment_page, store.sync, space, segment, after, limit, max_bytes)
    return json_answer(page)


async def _stream_segment(request: Request) -> None:
    query = request.query(("after",))
    store, space, segment = request.store(), request.name(1), request.name(2)
    after = number(query, "after", 0)
    last = request.header(b"last-event-id")
    if last is not None:
        after = number({"Last-Event-ID": last.decode("latin-1")}, "Last-Event-ID", 0)
    ring = await request.service.rings.of(store, space)
    stream = await request.stream(200, sse.HEADERS)
    await sse.follow(request, stream, ring, SegmentCursor(store, space, segment, after))


def _segment_page(store: Store, space: str, segment: str, after: int, limit: int, max_bytes: int) -> Page:
    entries = store.consume_segment(space, segment, min_sequence=after + 1, limit=limit + 1, gaps="yield")
    found, caught_up = page_of(entries, limit, max_bytes)
    next_after = after
    if found:
        last = found[-1]
        next_after = last.sequence if isinstance(last, EntryOut) else last.gap.last_sequence
    end = store.segment_status(space, segment).last_sequence
    return Page(found, next_after, caught_up, end, max(end - next_after, 0))


def page_of(entries: Iterator[Any], limit: int, max_bytes: int) -> tuple[list[EntryOut | GapOut], bool]:
    """The first entries, and whether there are no more."""
    found: list[EntryOut | GapOut] = []
    size = 0
    trx, name = None, TransactionName("", "", 0)
    for entry in entries:
        if len(found) >= limit or (found and size >= max_bytes):
            return found, False
        if type(entry) is Gap:
            found.append(gap_out(entry))
            continue
        size += len(entry.payload)
        if entry.trx is not trx:
            trx = entry.trx
            name = name_of_transaction(trx)
        found.append(entry_out(entry, name))
    return found, True
