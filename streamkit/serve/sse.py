"""Server-sent events: how they are written, and the loop that follows a ring for one connection."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import msgspec

from .problems import problem_of
from .request import Request
from .ring import Batch, Ring
from .streams import OpenStream

__all__ = ["HEADERS", "HEARTBEAT", "Cursor", "event", "follow", "goodbye"]

HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
HEARTBEAT = b":\n\n"
_ENOUGH = 256 << 10
"""Bytes of one write to a connection that is behind."""
_SPREAD = 5_000
"""Milliseconds over which the clients of a process that ends come back to the others."""


def event(name: str, data: bytes, id: str | None = None) -> bytes:
    """One event. `data` has no line ends."""
    if id is None:
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode(), id.encode(), data)


def goodbye(reason: str, **fields: object) -> bytes:
    """The last event of a stream, with the time after which the client connects again."""
    retry = random.randrange(100, _SPREAD)
    return b"retry: %d\n%b" % (retry, event("bye", msgspec.json.encode({"reason": reason, **fields})))


class Cursor(Protocol):
    """Where a connection is. It moves when it gives something."""

    @property
    def segment(self) -> str | None:
        """The one that it follows; None for the whole space."""

    async def page(self) -> tuple[bytes, bool]:
        """The events of the next entries from the store, and whether there are no more by now."""

    def batch(self, batch: Batch) -> bytes:
        """The events of those entries of a batch that were not given yet."""

    def caught_up(self) -> bytes:
        """The event that says so."""


async def follow(request: Request, stream: OpenStream, ring: Ring, cursor: Cursor) -> None:
    """Write all that `cursor` gives, from the store until it has caught up, then from the ring, until the end."""
    ring.listen(stream, cursor.segment)
    try:
        while not request.service.is_draining:
            at = ring.end  # whatever is not on the page comes in this batch, or in a later one
            data, is_end = await cursor.page()
            if data:
                await stream.write(data)
            if is_end:
                await stream.write(cursor.caught_up())
                if await _live(request, stream, ring, cursor.batch, at):
                    return
                ring.misses += 1
        await stream.write(goodbye("drain"))
    finally:
        ring.unlisten(stream, cursor.segment)


async def _live(request: Request, stream: OpenStream, ring: Ring, make: Callable[[Batch], bytes], at: int) -> bool:
    """Write what comes in the ring from batch `at` on. True at the end of the stream, False if it fell behind."""
    service = request.service
    while at >= ring.first:
        if at < ring.end:
            written: list[bytes] = []
            size = 0
            for batch in ring.batches(at):
                at += 1
                data = make(batch)
                if data:
                    written.append(data)
                    size += len(data)
                    if size >= _ENOUGH:
                        break
            if written:
                await stream.write(written[0] if len(written) == 1 else b"".join(written))
            continue
        if service.is_draining:
            await stream.write(goodbye("drain"))
            return True
        if ring.error is not None:
            problem = problem_of(ring.error)
            await stream.write(goodbye("error", type=f"urn:streamkit:{problem.code}", detail=problem.detail))
            return True
        if stream.is_silent:
            await stream.write(HEARTBEAT)
        await stream.wait()
    return False
