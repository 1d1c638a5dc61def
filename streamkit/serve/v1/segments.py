"""Segments: their list with statuses, one status, deletion."""

from __future__ import annotations

from ...model import SegmentStatus
from ...store import Store
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from ..tags import has_tag_weakly
from .conditions import refuse_conditions
from .parameters import listing
from .values import SegmentsOut, status_out
from .writing import base_of

__all__ = ["delete_segment", "get_segment", "list_segments"]


async def list_segments(request: Request) -> Answer:
    """The segments of a space with their statuses, by prefix; those that the key is for."""
    store, space, wanted, prefixes = request.store(), request.name(1), listing(request), request.access.segments

    def read(plain: Store) -> list[SegmentStatus]:
        found: list[SegmentStatus] = []
        for status in plain.segment_statuses(space, prefix=wanted.prefix, after=wanted.after):
            if not prefixes or status.segment.startswith(prefixes):
                found.append(status)
                if len(found) > wanted.limit:
                    break
        return found

    found = await store.calls.call(read, store.sync)
    page, base = found[: wanted.limit], base_of(store, space)
    out = [status_out(status, base) for status in page]
    return json_answer(SegmentsOut(out, page[-1].segment if len(found) > len(page) else None))


async def get_segment(request: Request) -> Answer:
    """The status of a segment; its ETag is the last sequence."""
    request.query(())
    store, space, segment = request.store(), request.name(1), request.name(2)
    status = await store.segment_status(space, segment)
    if not status.last_sequence:
        raise Problem("not-found", f"the space has no segment {segment!r}", headers=((b"etag", b'"0"'),))
    tag = b'"%d"' % status.last_sequence
    held = request.joined(b"if-none-match")
    if held is not None and has_tag_weakly(held, tag):
        return Answer(304, b"", ((b"etag", tag),))
    return json_answer(status_out(status, base_of(store, space)), headers=((b"etag", tag),))


async def delete_segment(request: Request) -> Answer:
    """Remove all entries of a segment. A later write continues after its last sequence."""
    request.query(())
    refuse_conditions(request, "a deletion is not conditional; a trim with `before` removes what you have seen")
    return json_answer(await request.store().delete_segment(request.name(1), request.name(2)))
