"""The formats of a page: JSON; or NDJSON, a batch of CloudEvents, or Arrow, with the other fields in headers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from ...aio import AsyncStore
from ...errors import MissingDependency
from ...gaps import Gap
from ...model import Entry
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from ..tags import has_tag_weakly
from . import cloudevents
from .pages import Found
from .parameters import Reading
from .values import Page, SeveralPage
from .writing import base_of

__all__ = ["NDJSON", "page_format", "send_page"]

NDJSON = b"application/x-ndjson"
_JSON = b"application/json"
_EVENTS = cloudevents.BATCH.encode()
_ARROW = b"application/vnd.apache.arrow.stream"
_KINDS = {
    NDJSON: NDJSON,
    b"application/ndjson": NDJSON,
    _EVENTS: _EVENTS,
    _ARROW: _ARROW,
    _JSON: _JSON,
    b"application/*": _JSON,
    b"*/*": _JSON,
}
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


def page_format(request: Request, query: Mapping[str, str], bounds: Reading) -> bytes:
    """The media type in which the caller wants a page. A Problem if there is none that it takes.

    Arrow has no place for gaps: `bounds` refuse them, unless the caller said that they are skipped.
    """
    accept = request.joined(b"accept")
    if accept is None:
        return _JSON
    kinds = [_KINDS.get(part.partition(b";")[0].strip().lower()) for part in accept.split(b",")]
    for kind in (NDJSON, _EVENTS, _ARROW, _JSON):
        if kind in kinds:
            break
    else:
        raise Problem(
            "not-acceptable",
            "entries come as application/json, application/x-ndjson, application/cloudevents-batch+json, "
            "application/vnd.apache.arrow.stream, or text/event-stream",
        )
    if kind == _ARROW and bounds.gaps == "yield":
        if "gaps" in query:
            raise Problem("invalid-argument", "Arrow has no place for gaps: pass gaps=skip or gaps=raise")
        bounds.gaps = "raise"
    return kind


async def send_page(
    request: Request, page: Page | SeveralPage, found: Found, kind: bytes, tag: str | None = None
) -> Answer:
    """The answer. `tag`: names a page that never changes; a caller that has it already gets 304."""
    headers: list[tuple[bytes, bytes]] = []
    if tag is not None:
        quoted = f'"{tag}"' if kind == _JSON else f'"{tag}-{list(_KINDS).index(kind)}"'
        headers = [(b"etag", quoted.encode()), (b"cache-control", b"no-cache"), (b"vary", b"accept")]
        held = request.joined(b"if-none-match")
        if held is not None and has_tag_weakly(held, quoted.encode()):
            return Answer(304, b"", headers)
    else:
        headers = [(b"cache-control", b"no-store")]
    if kind == _JSON:
        return json_answer(page, headers=headers)
    headers += [
        (b"content-type", kind),
        (b"streamkit-next", str(page.next if page.next is not None else "").encode()),
        (b"streamkit-caught-up", b"true" if page.caught_up else b"false"),
    ]
    if kind == NDJSON:
        body = _encode_lines(found.out)
    elif kind == _EVENTS:
        body = await asyncio.to_thread(_events, request.store(), found.items)
    else:
        body = await asyncio.to_thread(_arrow, [item for item in found.items if type(item) is Entry])
    return Answer(200, body, headers)


def _events(store: AsyncStore, items: Sequence[Entry | Gap]) -> bytes:
    return _encode([cloudevents.event_of(item, base_of(store, item.space)) for item in items])


def _arrow(entries: Sequence[Entry]) -> bytes:
    """A stream of Arrow IPC with one record batch."""
    try:
        import pyarrow as pa
    except ImportError as error:
        hint = "pip install 'streamkit-store[archive]'"
        raise MissingDependency(f"Arrow needs pyarrow: {hint}", name="pyarrow") from error
    text = pa.string()
    columns = {
        "space": pa.array([entry.space for entry in entries], text),
        "segment": pa.array([entry.segment for entry in entries], text),
        "sequence": pa.array([entry.sequence for entry in entries], pa.int64()),
        "timestamp": pa.array([entry.timestamp * 1000 for entry in entries], pa.timestamp("us", "UTC")),
        "offset": pa.array([entry.space_offset.hex() for entry in entries], text),
        "number": pa.array([entry.trx.number for entry in entries], pa.int64()),
        "trx_id": pa.array([str(entry.trx.id) for entry in entries], text),
        "trx_node": pa.array([str(entry.trx.node) for entry in entries], text),
        "payload": pa.array([entry.payload for entry in entries], pa.binary()),
        "metadata": pa.array([list(entry.metadata.items()) for entry in entries], pa.map_(text, text)),
        "tier": pa.array([entry.tier for entry in entries], text),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
