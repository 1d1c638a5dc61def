"""Statuses of a space as a stream of events: a snapshot, then the latest of each segment that changed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ...model import SegmentStatus
from ...store import Store
from .. import sse
from ..problems import Problem
from ..request import Request
from ..ring import Ring
from ..streams import OpenStream
from .values import status_out
from .writing import base_of

__all__ = ["watch_statuses"]

_PAGE = 500


async def watch_statuses(request: Request) -> None:
    """The statuses of a space's segments, as they change. A slow reader gets fewer, newer ones."""
    request.query(())
    if not request.accepts(b"text/event-stream"):
        raise Problem("not-acceptable", "statuses come as text/event-stream")
    store, space = request.store(), request.name(1)
    ring = await request.service.rings.of(store, space, request.access)
    stream = await request.stream(200, sse.HEADERS)
    ring.listen(stream)
    try:
        at = await _snapshot(request, stream, ring, space)
        while not (request.service.is_draining or stream.is_over) and ring.error is None:
            if at < ring.first:
                at = await _snapshot(request, stream, ring, space)
            elif at < ring.end:
                touched = dict.fromkeys([name for batch in ring.batches(at) for name in batch.by_segment if name])
                at = ring.end
                await _write(request, stream, await store.calls.call(_statuses, store.sync, space, touched))
            else:
                if stream.is_silent:
                    await stream.write(sse.HEARTBEAT)
                await stream.wait()
        await stream.write(sse.goodbye("error" if ring.error else "rotate" if stream.is_over else "drain"))
    finally:
        ring.unlisten(stream)


async def _snapshot(request: Request, stream: OpenStream, ring: Ring, space: str) -> int:
    """Write the statuses of all segments; from which batch on they may have changed."""
    at, store, after = ring.end, request.store(), None
    while True:
        page: list[SegmentStatus] = await store.calls.call(_page, store.sync, space, after)
        await _write(request, stream, page)
        if len(page) < _PAGE:
            await stream.write(sse.event("caught-up", b"{}"))
            return at
        after = page[-1].segment


def _page(store: Store, space: str, after: str | None) -> list[SegmentStatus]:
    return list(store.segment_statuses(space, after=after, limit=_PAGE))


def _statuses(store: Store, space: str, segments: Iterable[str]) -> list[SegmentStatus]:
    return [store.segment_status(space, segment) for segment in segments]


async def _write(request: Request, stream: OpenStream, statuses: Iterable[SegmentStatus]) -> None:
    base, allowed = base_of(request.store(), request.name(1)), request.access.segments
    out = [status_out(status, base) for status in statuses if not allowed or status.segment.startswith(allowed)]
    if out:
        await stream.write(sse.event("statuses", msgspec.json.encode(out)))
