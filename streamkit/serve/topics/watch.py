"""Watching many topics over one stream of events. The wid is a signed token: any process opens its stream."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec

from ...base64url import decode_base64url, encode_base64url
from ...decoders import json_decoder
from ...errors import SequenceMismatch
from ...model import Record
from ...names import internal_name
from ...store import Store
from .. import sse
from ..problems import Problem
from ..request import Request
from .bodies import nodes_of
from .config import check_topic_name
from .errors import Refused
from .reading import Part, Wanted, read_part
from .topics import SPACE, Topics

if TYPE_CHECKING:
    from .routers import Routers

__all__ = ["Watch", "WatchIn", "create", "opened", "stream"]

_SECRETS = internal_name("topics", "secrets")
_MOST = 256
TTL = 300_000
"""Milliseconds after its last event, or its making, for which a watch can be opened."""
_TIME = ""
"""The member of a cursor that has the time of its event. No topic has this name."""
_LONGEST_PAUSE = 5.0
"""Seconds between two looks for records that expired and topics that were deleted."""


class TopicIn(msgspec.Struct):
    """The start of the watch in one topic."""

    from_seq: int = 0
    tail: bool = False


class WatchIn(msgspec.Struct):
    """The body of a watch."""

    topics: dict[str, TopicIn]
    node: str | list[str] | None = None
    limit: int = 256
    max_batch_bytes: int = 262_144
    heartbeat_ms: int = 15_000
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    consistency: str = "eventual"


class Watch(msgspec.Struct):
    """The content of a wid."""

    key: str
    """The id of the key that made it."""
    topics: dict[str, int]
    nodes: list[str]
    limit: int
    max_bytes: int
    tags: bool
    meta: bool
    data: bool
    heartbeat_ms: int
    made: int = 0
    """The time of the item, in ms since 1970."""

    def wanted(self) -> Wanted:
        return Wanted(self.limit, self.max_bytes, frozenset(self.nodes), self.tags, self.meta, self.data)


def _secret(store: Store) -> bytes:
    """The key by which all processes sign, made by the first."""
    entry = store.peek(_SECRETS, "wid")
    if not entry.sequence:
        with contextlib.suppress(SequenceMismatch):
            store.produce(_SECRETS, "wid", [Record(secrets.token_bytes(32))], expected_sequence=0)
        entry = store.peek(_SECRETS, "wid")
    return entry.payload


def _mac(store: Store, body: bytes) -> bytes:
    return hmac.digest(_secret(store), body, "sha256")


def create(topics: Topics, given: WatchIn, key: str, lenient: bool) -> tuple[str, dict[str, Any]]:
    """Return (wid, where each topic begins)"""
    if not 1 <= len(given.topics) <= _MOST:
        raise Refused("invalid_request", f"topics names 1 to {_MOST} topics, not {len(given.topics)}")
    starts: dict[str, int] = {}
    told: dict[str, Any] = {}
    for name, options in given.topics.items():
        topic = topics.find(check_topic_name(name))
        if topic is None:
            if lenient:
                continue
            topic = topics.get(name)
        extent = topics.extent(topic)
        if options.from_seq < 0:
            raise Refused("invalid_request", f"from_seq is 0 or more, not {options.from_seq}")
        starts[name] = extent.head if options.tail else options.from_seq
        told[name] = {"from_seq": starts[name], "head_seq": extent.head, "earliest_seq": extent.earliest}
    watch = Watch(
        key,
        starts,
        sorted(nodes_of(given.node)),
        min(max(given.limit, 0), 1_000) or 256,
        min(max(given.max_batch_bytes, 0), 8 << 20) or 1 << 20,
        given.include_tags,
        given.include_meta,
        given.include_data,
        min(max(given.heartbeat_ms, 1_000), 60_000),
        _now(),
    )
    body = msgspec.json.encode(watch)
    return f"wid_{encode_base64url(body)}.{encode_base64url(_mac(topics.store, body))}", told


def opened(store: Store, wid: str, key: str, cursor: str | None) -> Watch:
    """The watch that a wid encodes. Refused if it was not signed for this store, if another key made it, or if it has
    ended: it was made too long ago, and so was the event of `cursor`."""
    try:
        if not wid.startswith("wid_"):
            raise ValueError
        first, _, second = wid[4:].partition(".")
        body, mac = decode_base64url(first), decode_base64url(second)
    except (ValueError, binascii.Error):
        raise Refused("not_found", "there is no such watch; POST /v0/watch makes one") from None
    if not hmac.compare_digest(mac, _mac(store, body)):
        raise Refused("not_found", "there is no such watch; POST /v0/watch makes one")
    watch = json_decoder(Watch).decode(body)
    if watch.key != key:
        raise Refused("unauthorized", "the watch was made by another key")
    seen = 0 if cursor is None else _decoded(cursor).get(_TIME, 0)
    if _now() - max(watch.made, min(seen, _now())) > TTL:
        raise Refused("not_found", "the watch has ended, because it was not followed; POST /v0/watch makes another one")
    return watch


def cursor_given(request: Request) -> str | None:
    """The cursor from which a client continues: the id of the last event that it got."""
    return request.text_header(b"last-event-id") or request.query().get("cursor")


def _now() -> int:
    return int(time.time() * 1000)


def _decoded(text: str) -> dict[str, int]:
    try:
        return json_decoder(dict[str, int]).decode(decode_base64url(text))
    except (ValueError, msgspec.DecodeError):
        raise Refused("invalid_request", "the cursor is not the id of an event of this stream") from None


def cursors_of(watch: Watch, text: str | None) -> dict[str, int]:
    """The cursor of each topic: from the id of an event, or else from the watch."""
    if text is None:
        return dict(watch.topics)
    given = _decoded(text)
    return {name: max(given.get(name, start), 0) for name, start in watch.topics.items()}


class _Stream:
    """The state of one connection."""

    def __init__(self, topics: Topics, routers: Routers, watch: Watch, cursors: dict[str, int]) -> None:
        self._topics = topics
        self._routers = routers
        self._wanted = watch.wanted()
        self.cursors = cursors
        self.live: set[str] = set()
        """Topics whose existing records were all sent."""
        self._segments: dict[str, str] = {}

    def event(self, name: str, data: dict[str, Any]) -> bytes:
        return sse.event(name, msgspec.json.encode(data), self.id)

    @property
    def id(self) -> str:
        """The cursor after the sent records, and the time."""
        return encode_base64url(msgspec.json.encode({**self.cursors, _TIME: _now()}))

    def look(self) -> tuple[list[bytes], bool]:
        """The next events of all topics, and whether there may be more by now."""
        written: list[bytes] = []
        more = False
        for name in list(self.cursors):
            self._routers.bring(name)
            topic = self._topics.find(name)
            if topic is None or self._segments.setdefault(name, topic.segment) != topic.segment:
                head = self.cursors.pop(name)
                self._segments.pop(name, None)
                written.append(self.event("topic-deleted", {"topic": name, "head_seq": head, "reason": "deleted"}))
                continue
            start = self.cursors[name]
            part = read_part(self._topics, topic, start, self._wanted)
            written += self._events(name, start, part)
            more = more or part.next < part.head
        return written, more

    def _events(self, name: str, start: int, part: Part) -> list[bytes]:
        written: list[bytes] = []
        if part.tombstone is not None:
            start = self.cursors[name] = part.tombstone["gap_to"]
            written.append(self.event("tombstone", {"topic": name, **part.tombstone}))
        self.cursors[name] = part.next
        if part.records:
            data = {
                "topic": name,
                "records": part.records,
                "from_seq": start,
                "to_seq": part.next,
                "head_seq": part.head,
            }
            written.append(self.event("record", data))
            self.live.discard(name)
        if part.next >= part.head and name not in self.live:
            self.live.add(name)
            written.append(self.event("caught-up", {"topic": name, "head_seq": part.head}))
        return written


async def stream(request: Request, topics: Topics, routers: Routers, watch: Watch) -> None:
    """Push the records of the topics, from where the last event was."""
    service = request.service
    if not request.accepts(b"text/event-stream"):
        raise Problem("not-acceptable", "a watch comes as text/event-stream")
    at = _Stream(topics, routers, watch, cursors_of(watch, cursor_given(request)))
    store = service.store(str(topics.store.id))
    rings = [
        await service.rings.of(store, SPACE, request.access),
        await service.rings.of(store, internal_name("topics"), request.access),
    ]
    open_ = await request.stream(200, sse.HEADERS)
    for ring in rings:
        ring.listen(open_)
    loop = asyncio.get_running_loop()
    beat = watch.heartbeat_ms / 1000
    try:
        await open_.write(b"retry: 2000\n\n")
        while not (service.is_draining or open_.is_over) and at.cursors:
            written, more = await store.calls.call(at.look)
            if written:
                await open_.write(b"".join(written))
            elif loop.time() - open_.written_at >= beat or open_.is_silent:
                await open_.write(b"id: %b\n: hb %d\n\n" % (at.id.encode(), _now()))
            if not more and not any(ring.error for ring in rings):
                await open_.wait_until(loop.time() + min(beat, _LONGEST_PAUSE))
            if any(ring.error for ring in rings):
                break
    finally:
        for ring in rings:
            ring.unlisten(open_)
