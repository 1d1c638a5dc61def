"""Server-sent events: how they are written, and the loop that follows a ring for one connection."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from ..errors import StreamkitError
from .problems import problem_of
from .request import Request
from .ring import EncodedBatch, Ring
from .streams import OpenStream

if TYPE_CHECKING:
    from .service import Service

__all__ = ["HEADERS", "HEARTBEAT", "Cursor", "event", "follow", "goodbye"]

HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)
HEARTBEAT = b":\n\n"
_ENOUGH = 256 << 10
"""Bytes of one write to a connection that is behind."""
_RETRY = 500, 1_500
"""Milliseconds after which a client connects again if its connection breaks: spread, as all break if a process does."""
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


def _with_retry(events: bytes) -> bytes:
    """Add the pause before a reconnection to the last event. Otherwise a browser waits 3 s, or for the pause of the
    last bye."""
    return b"%bretry: %d\n\n" % (events[:-1], random.randrange(*_RETRY))


class Cursor(Protocol):
    """The position of a connection. It moves with each item that it gives."""

    @property
    def segment(self) -> str | None:
        """The segment that it follows; None for whole spaces."""

    async def page(self) -> tuple[bytes, bool]:
        """The events of the next entries from the store, and True if there are no more by now."""

    def batch(self, at: int, batch: EncodedBatch) -> bytes:
        """The events of those entries that were not given yet, of a batch of ring number `at`."""

    def caught_up(self) -> bytes:
        """The event that says so."""


async def follow(request: Request, rings: Sequence[Ring], cursor: Cursor) -> None:
    """Stream all entries of `cursor`: from the store until it has caught up, then from the rings, until the end.

    A wrong beginning is raised before the answer begins.
    """
    service = request.service
    places = [ring.end for ring in rings]  # entries that are not on the page come in these batches, or in later ones
    data, is_end = await cursor.page()
    stream = await request.stream(200, HEADERS)
    for ring in rings:
        ring.listen(stream, cursor.segment)
    is_first = True
    try:
        while not (service.is_draining or stream.is_over):
            if data:
                await stream.write(_with_retry(data) if is_first else data)
                is_first = False
            if is_end:
                await stream.write(_with_retry(cursor.caught_up()) if is_first else cursor.caught_up())
                is_first = False
                await _live(service, stream, rings, places, cursor)
            places = [ring.end for ring in rings]
            data, is_end = await cursor.page()
        await stream.write(goodbye("drain" if service.is_draining else "rotate"))
    except StreamkitError as error:
        problem = problem_of(error)
        await stream.write(goodbye("error", type=f"urn:streamkit:{problem.code}", detail=problem.detail))
    finally:
        for ring in rings:
            ring.unlisten(stream, cursor.segment)


async def _live(service: Service, stream: OpenStream, rings: Sequence[Ring], places: list[int], cursor: Cursor) -> None:
    """Write the batches of the rings from the numbers `places` on, until it falls behind or the process ends."""
    while not (service.is_draining or stream.is_over):
        written: list[bytes] = []
        size = 0
        for at, ring in enumerate(rings):
            if places[at] < ring.first:
                ring.misses += 1
                return
            if places[at] == ring.end:
                if ring.error is not None:
                    raise ring.error
                continue
            for batch in ring.batches(places[at]):
                places[at] += 1
                data = cursor.batch(at, batch)
                if data:
                    written.append(data)
                    size += len(data)
                    if size >= _ENOUGH:
                        break
        if written:
            await stream.write(written[0] if len(written) == 1 else b"".join(written))
        elif all(place == ring.end for place, ring in zip(places, rings, strict=True)):
            if stream.is_silent:
                await stream.write(HEARTBEAT)
            await stream.wait()
