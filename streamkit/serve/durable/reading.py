"""Reading: the messages of a stream, from its sources and its own segment, in pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ...aio.reading import items
from ...errors import EntriesRemoved
from .state import Part, Refused, State, is_data

if TYPE_CHECKING:
    from ...model import Entry
    from ...store import Store
    from .streams import Streams

__all__ = ["PAGE_BYTES", "Page", "body_of", "read_page", "walk"]

PAGE_BYTES = 1 << 20
"""Payload of a page; one message may be larger."""


class Page(NamedTuple):
    """Messages in order, the offset behind the last of them, and whether the stream ended there."""

    messages: list[bytes]
    next: int
    at_tail: bool


def walk(streams: Streams, parts: Iterable[Part], after: int) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield each message whose offset is above `after`, with its offset."""
    return items(streams.store.calls, _walk(streams.store.sync, streams.space, parts, after))


def _walk(store: Store, space: str, parts: Iterable[Part], after: int) -> Iterator[tuple[int, bytes]]:
    """Yield the messages as `walk` does, in a thread."""
    with _refusing():
        for part in parts:
            for entry in _entries(store, space, part, after):
                if is_data(entry):
                    yield entry.sequence + part.shift, entry.payload


def _entries(store: Store, space: str, part: Part, after: int) -> Iterable[Entry]:
    first, last = max(part.after, after) + 1, part.until
    if first > last:
        return ()
    return store.consume_segment(space, part.segment, min_sequence=first - part.shift, max_sequence=last - part.shift)


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except EntriesRemoved as error:
        raise Refused(410, "messages after this offset were removed: read from -1", code="removed") from error


async def read_page(streams: Streams, segment: str, state: State, after: int) -> Page:
    """The messages behind the offset `after`, up to about PAGE_BYTES."""
    parts = state.parts(segment)
    after = max(after, parts[0].after)
    if after >= state.tail:
        return Page([], after, True)
    store = streams.store
    messages, at = await store.calls.call(_page, store.sync, streams.space, parts, after)
    return Page(messages, at, at >= state.tail)


def _page(store: Store, space: str, parts: Iterable[Part], at: int) -> tuple[list[bytes], int]:
    """The messages, and the offset behind them. All are read in one thread, without a generator on the way: a page has
    thousands of them."""
    messages: list[bytes] = []
    size = 0
    with _refusing():
        for part in parts:
            shift = part.shift
            for entry in _entries(store, space, part, at):
                if is_data(entry):
                    payload = entry.payload
                    messages.append(payload)
                    at = entry.sequence + shift
                    size += len(payload)
                    if size >= PAGE_BYTES:
                        return messages, at
            at = max(at, part.until)  # messages at the end of the part may have been erased
    return messages, at


def body_of(state: State, messages: list[bytes]) -> bytes:
    """The body that holds `messages`: a JSON array, else their bytes one after the other."""
    return b"[" + b",".join(messages) + b"]" if state.is_json else b"".join(messages)
