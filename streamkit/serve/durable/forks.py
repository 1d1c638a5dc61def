"""Forks: the state of a new stream that begins with the messages of another one. Messages are not copied."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from .reading import walk
from .requests import Create
from .state import Fork, Part, Refused, State, media_type

if TYPE_CHECKING:
    from .streams import Known, Streams

__all__ = ["fork_of", "source_segment"]


async def fork_of(
    streams: Streams, segment: str, base: int, request: Create
) -> tuple[State, tuple[str, Known], list[bytes]]:
    """The state of the fork, its source, and the messages that the fork holds itself.

    A boundary within a message leaves the first bytes of that message in the fork.
    """
    assert request.fork is not None
    name = source_segment(request.fork.source)
    known = await streams.load(name)
    try:
        source = streams.live(name, known)
    except Refused as refused:
        if refused.status == 410:
            raise Refused(409, "the source stream was deleted", code="gone") from None
        raise Refused(404, "there is no such source stream", code="not_found") from None
    content_type = request.content_type or source.content_type
    if media_type(content_type) != media_type(source.content_type):
        raise Refused(409, f"the source's content type is {source.content_type}", code="content_type")
    asked = request.fork.offset
    if asked is not None and asked > source.tail:
        raise Refused(400, "Stream-Fork-Offset is beyond the end of the source")
    begin = source.parts(name)[0].after
    offset = source.tail if asked is None else max(asked, begin)
    offset, head = await _advance(streams, source, name, offset, request.fork.sub)
    parts = tuple(
        Part(part.segment, part.shift, part.after, min(part.until, offset))
        for part in source.parts(name)
        if part.after < offset
    )
    ttl, expires, text = request.ttl, request.expires, request.expires_text
    if ttl is None and expires is None:
        ttl, expires, text = source.ttl, source.expires, source.expires_text
    state = State(
        content_type,
        base,
        offset,
        shift=offset - base,
        ttl=ttl,
        expires=expires,
        expires_text=text,
        fork=Fork(request.fork.source, source.base, asked, request.fork.sub),
        inherited=parts,
    )
    return state, (name, known), [head] if head else []


async def _advance(streams: Streams, source: State, name: str, offset: int, sub: int) -> tuple[int, bytes]:
    """The offset that is `sub` messages (JSON) or bytes past `offset`, and the bytes of a message that is cut."""
    if sub == 0:
        return offset, b""
    async for at, payload in walk(streams, source.parts(name), offset):
        step = 1 if source.is_json else len(payload)
        if step > sub:
            return offset, payload[:sub]
        offset, sub = at, sub - step
        if sub == 0:
            return offset, b""
    raise Refused(400, "Stream-Fork-Sub-Offset is beyond the end of the source")


def source_segment(path: str) -> str:
    """The segment that the URL path in Stream-Forked-From names."""
    _, found, rest = path.partition("/stream/")
    if not found or not rest:
        raise Refused(400, "Stream-Forked-From must be the URL path of a stream of this server")
    return unquote(rest)
