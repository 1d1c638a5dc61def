"""Reading: the messages of a stream, from its sources and its own segment, in pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, NamedTuple

from ...errors import EntriesRemoved
from .state import Part, Refused, State, is_data

if TYPE_CHECKING:
    from .streams import Streams

__all__ = ["PAGE_BYTES", "Page", "body_of", "read_page", "walk"]

PAGE_BYTES = 1 << 20
"""Payload of a page; one message may be larger."""


class Page(NamedTuple):
    """Messages in order, the offset behind the last of them, and whether the stream ended there."""

    messages: list[bytes]
    next: int
    at_tail: bool


async def walk(streams: Streams, parts: Iterable[Part], after: int) -> AsyncGenerator[tuple[int, bytes], None]:
    """Each message whose offset is above `after`, with its offset."""
    for part in parts:
        first, last = max(part.after, after) + 1, part.until
        if first > last:
            continue
        entries = streams.store.consume_segment(
            streams.space, part.segment, min_sequence=first - part.shift, max_sequence=last - part.shift
        )
        try:
            async for entry in entries:
                if is_data(entry):
                    yield entry.sequence + part.shift, entry.payload
        except EntriesRemoved as error:
            raise Refused(410, "messages behind this offset were removed", code="removed") from error
        finally:
            await entries.aclose()


async def read_page(streams: Streams, segment: str, state: State, after: int) -> Page:
    """The messages behind the offset `after`, up to about PAGE_BYTES."""
    parts = state.parts(segment)
    after = max(after, parts[0].after)
    messages: list[bytes] = []
    size, at = 0, after
    if after < state.tail:
        found = walk(streams, parts, after)
        try:
            async for offset, payload in found:
                messages.append(payload)
                size += len(payload)
                at = offset
                if size >= PAGE_BYTES:
                    break
        finally:
            await found.aclose()
    return Page(messages, at, at >= state.tail)


def body_of(state: State, messages: list[bytes]) -> bytes:
    """The body that holds `messages`: a JSON array, else their bytes one after the other."""
    return b"[" + b",".join(messages) + b"]" if state.is_json else b"".join(messages)
