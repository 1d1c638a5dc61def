"""The formats of a page: JSON, or NDJSON with the other fields in headers."""

from __future__ import annotations

import msgspec

from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from ..tags import has_tag_weakly
from .pages import Found
from .values import Page, SeveralPage

__all__ = ["NDJSON", "is_lines", "send_page"]

NDJSON = b"application/x-ndjson"
_KNOWN = (b"application/json", b"*/*", b"application/*")
_encode_lines = msgspec.json.Encoder().encode_lines


def is_lines(request: Request) -> bool:
    """Whether the caller wants NDJSON. A Problem if it wants neither that nor JSON."""
    accept = request.joined(b"accept")
    if accept is None:
        return False
    kinds = [part.partition(b";")[0].strip().lower() for part in accept.split(b",")]
    if NDJSON in kinds or b"application/ndjson" in kinds:
        return True
    if not any(kind in _KNOWN for kind in kinds):
        raise Problem("not-acceptable", "entries come as application/json, application/x-ndjson, or text/event-stream")
    return False


def send_page(request: Request, page: Page | SeveralPage, found: Found, line: bool, tag: str | None = None) -> Answer:
    """The answer. `tag`: names a page that never changes; a caller that has it already gets 304."""
    headers: list[tuple[bytes, bytes]] = []
    if tag is not None:
        headers = [(b"etag", f'"{tag}"'.encode()), (b"cache-control", b"no-cache")]
        held = request.joined(b"if-none-match")
        if held is not None and has_tag_weakly(held, f'"{tag}"'.encode()):
            return Answer(304, b"", headers)
    else:
        headers = [(b"cache-control", b"no-store")]
    if not line:
        return json_answer(page, headers=headers)
    headers += [
        (b"content-type", NDJSON),
        (b"streamkit-next", str(page.next if page.next is not None else "").encode()),
        (b"streamkit-caught-up", b"true" if page.caught_up else b"false"),
    ]
    return Answer(200, _encode_lines(found.out), headers)
