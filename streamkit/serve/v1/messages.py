"""The messages of the WebSocket `/v1/ws`: the request over HTTP that each of them stands for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ...decoders import json_decoder
from ..names import encode_name
from ..problems import Problem, problem_of
from ..responses import Answer
from ..sockets.call import Call, Interface, Message
from . import composite

__all__ = ["INTERFACE", "PATH", "call_of"]

PATH = b"/v1/ws"


class _Placed(Message, forbid_unknown_fields=True, kw_only=True):
    store: str = "_"


class Subscribe(_Placed, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """A subscription to a segment, a space, several `spaces`, statuses, or the deliveries of a group or queue."""

    space: str | UnsetType = UNSET
    segment: str | UnsetType = UNSET
    spaces: dict[str, str | None] | list[str] | UnsetType = UNSET
    after: int | UnsetType = UNSET
    offset: str | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    from_: str | int | UnsetType = UNSET
    gaps: str | UnsetType = UNSET
    statuses: bool = False
    group: str | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    limit: int | UnsetType = UNSET
    consumer: str | UnsetType = UNSET
    members: str | UnsetType = UNSET
    operation: str | UnsetType = UNSET


class Produce(_Placed, forbid_unknown_fields=True, kw_only=True):
    """Records of one segment, or `parts` of several, in one transaction."""

    space: str
    segment: str | UnsetType = UNSET
    records: Raw | UnsetType = UNSET
    parts: Raw | UnsetType = UNSET
    expected_sequence: int | None = None
    idempotency_key: str | None = None
    lease_token: str | None = None


class Jobs(_Placed, forbid_unknown_fields=True, kw_only=True):
    """Jobs of a queue."""

    queue: str
    jobs: Raw
    key: Raw | UnsetType = UNSET
    delay: Raw | UnsetType = UNSET
    priority: Raw | UnsetType = UNSET
    idempotency_key: str | None = None


class _OfGroup(_Placed, forbid_unknown_fields=True, kw_only=True):
    space: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    settle: Raw | UnsetType = UNSET


class Receive(_OfGroup, forbid_unknown_fields=True, kw_only=True):
    """A request for deliveries of a group or queue."""

    limit: Raw | UnsetType = UNSET
    wait: Raw | UnsetType = UNSET
    consumer: Raw | UnsetType = UNSET
    auto_ack: Raw | UnsetType = UNSET


class Settle(_OfGroup, forbid_unknown_fields=True, kw_only=True):
    """Settlements of deliveries of a group or queue."""


class Acquire(_Placed, forbid_unknown_fields=True, kw_only=True):
    """A lease to take, for `ttl` seconds."""

    lease: str
    ttl: Raw | UnsetType = UNSET


class OfLease(_Placed, forbid_unknown_fields=True, kw_only=True):
    """A lease that is held, by its token."""

    lease: str
    token: str


class _Part(msgspec.Struct):
    segment: str


_parts = json_decoder(list[_Part])


def _store(message: _Placed) -> str:
    return f"/v1/stores/{encode_name(message.store)}"


def _body(**fields: Any) -> bytes:
    """A JSON object without the members that are UNSET. Raw members stay byte for byte."""
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not UNSET})


def _header(name: bytes, value: str | None) -> list[tuple[bytes, bytes]]:
    if value is None:
        return []
    if not value.isprintable():
        raise Problem("invalid-argument", f"{name.decode().replace('-', '_')} has control characters")
    return [(name, value.encode())]


def _group(message: Any) -> str:
    """The path of the group or queue that a message names."""
    if message.queue is not UNSET and message.group is UNSET and message.space is UNSET:
        return f"{_store(message)}/queues/{encode_name(message.queue)}"
    if message.queue is UNSET and message.group is not UNSET and message.space is not UNSET:
        return f"{_store(message)}/spaces/{encode_name(message.space)}/groups/{encode_name(message.group)}"
    raise Problem("invalid-argument", "name a `queue`, or a `space` and its `group`")


def _query(message: Any, *names: str) -> str:
    """The query of these fields. A Problem for one that is given and has no place in it."""
    given = {name: getattr(message, "from_" if name == "from" else name) for name in _PLACES}
    found = {name: value for name, value in given.items() if value is not UNSET}
    for name in found:
        if name not in names:
            raise Problem("invalid-argument", f"this subscription takes no {name!r}; it takes {', '.join(names)}")
    return urlencode(found)


_PLACES = ("after", "offset", "cursor", "from", "gaps", "limit", "consumer")


def _subscribe(message: Subscribe) -> Call:
    base = _store(message)
    given = [
        name for name in ("spaces", "group", "queue", "members", "operation") if getattr(message, name) is not UNSET
    ]
    if len(given) + message.statuses > 1:
        raise Problem("invalid-argument", "a subscription is of a segment, a space, several spaces, or one group")
    if message.group is not UNSET or message.queue is not UNSET:
        path, query = f"{_group(message)}/deliveries", _query(message, "limit", "consumer")
    elif message.members is not UNSET:
        path, query = f"{base}/members/{encode_name(message.members)}", _query(message)
    elif message.operation is not UNSET:
        path, query = f"{base}/operations/{encode_name(message.operation)}", _query(message)
    elif message.spaces is not UNSET or message.space is UNSET:
        path, query = f"{base}/entries", _several(message)
    else:
        path = f"{base}/spaces/{encode_name(message.space)}"
        if message.statuses:
            path, query = f"{path}/statuses", _query(message)
        elif message.segment is UNSET:
            path, query = f"{path}/entries", _query(message, "offset", "from", "gaps")
        else:
            path = f"{path}/segments/{encode_name(message.segment)}/entries"
            query = _query(message, "after", "from", "gaps")
    return Call(method="GET", path=path, query=query, streams=True)


def _several(message: Subscribe) -> str:
    """The query of a subscription to several spaces: their names, or their offsets as a cursor."""
    query = _query(message, "cursor", "from", "gaps")
    spaces = message.spaces
    if isinstance(spaces, dict):
        if message.cursor is not UNSET:
            raise Problem("invalid-argument", "give either a cursor, or the offsets of spaces")
        offsets = {space: composite.offset_of(space, text) for space, text in spaces.items()}
        if any(offset is not None for offset in offsets.values()):
            return "&".join(filter(None, (query, urlencode({"cursor": composite.cursor_text(offsets)}))))
        spaces = list(offsets)
    names = [] if spaces is UNSET else [("space", space) for space in spaces]
    return "&".join(filter(None, (query, urlencode(names))))


def _produce(message: Produce) -> Call:
    base = f"{_store(message)}/spaces/{encode_name(message.space)}"
    headers = [
        *_header(b"idempotency-key", message.idempotency_key),
        *_header(b"lease-token", message.lease_token),
    ]
    expected = message.expected_sequence
    if message.parts is not UNSET:
        if message.segment is not UNSET or message.records is not UNSET or expected is not None:
            raise Problem("invalid-argument", "a message has either `parts`, or a `segment` and its `records`")
        segments: list[str] = []
        with contextlib.suppress(msgspec.DecodeError, RecursionError):  # it is refused when it is handled
            segments = [part.segment for part in _parts.decode(message.parts)]
        order = frozenset(f"{base}\0{segment}" for segment in segments)
        return Call(path=f"{base}/transactions", headers=headers, body=_body(parts=message.parts), order=order)
    if message.segment is UNSET or message.records is UNSET:
        raise Problem("invalid-argument", "a message has a `segment` and its `records`, or `parts`")
    body = bytes(message.records)
    if not body.startswith(b"["):
        raise Problem("invalid-argument", "records is a list")
    if expected is not None:
        if expected < 0:
            raise Problem("invalid-argument", "expected_sequence is 0 (a new segment) or more")
        headers.append((b"if-match", b'"%d"' % expected) if expected else (b"if-none-match", b"*"))
    path = f"{base}/segments/{encode_name(message.segment)}/entries"
    return Call(path=path, headers=headers, body=body, order=frozenset((f"{base}\0{message.segment}",)))


def _jobs(message: Jobs) -> Call:
    body = _body(jobs=message.jobs, key=message.key, delay=message.delay, priority=message.priority)
    path = f"{_store(message)}/queues/{encode_name(message.queue)}/jobs"
    return Call(path=path, headers=_header(b"idempotency-key", message.idempotency_key), body=body)


def _receive(message: Receive) -> Call:
    group = _group(message)
    fields = {name: getattr(message, name) for name in ("limit", "wait", "consumer", "auto_ack", "settle")}
    waits = message.wait is not UNSET and bytes(message.wait) not in (b"0", b"0.0")
    return Call(path=f"{group}/receive", body=_body(**fields), waits=waits, group=group)


def _settle(message: Settle) -> Call:
    group = _group(message)
    return Call(path=f"{group}/settle", body=_body(settle=message.settle), group=group)


def _acquire(message: Acquire) -> Call:
    return Call(path=f"{_store(message)}/leases/{encode_name(message.lease)}", body=_body(ttl=message.ttl))


def _of_lease(method: Literal["PUT", "DELETE"]) -> Callable[[Any], Call]:
    def call(message: OfLease) -> Call:
        path = f"{_store(message)}/leases/{encode_name(message.lease)}"
        return Call(method=method, path=path, headers=_header(b"lease-token", message.token))

    return call


_OPS: dict[str, tuple[msgspec.json.Decoder[Any], Callable[[Any], Call]]] = {
    "subscribe": (json_decoder(Subscribe), _subscribe),
    "produce": (json_decoder(Produce), _produce),
    "jobs": (json_decoder(Jobs), _jobs),
    "receive": (json_decoder(Receive), _receive),
    "settle": (json_decoder(Settle), _settle),
    "acquire": (json_decoder(Acquire), _acquire),
    "renew": (json_decoder(OfLease), _of_lease("PUT")),
    "release": (json_decoder(OfLease), _of_lease("DELETE")),
}


def call_of(op: str, data: bytes) -> Call:
    """The request over HTTP that a message stands for. A Problem if the message is not valid."""
    found = _OPS.get(op)
    if found is None:
        known = ", ".join([*_OPS, "unsubscribe", "ping"])
        raise Problem("invalid-argument", f"there is no op {op[:40]!r}; there are {known}")
    decoder, translate = found
    try:
        return translate(decoder.decode(data))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Problem("invalid-body", f"the message is not valid: {error}") from None


def _refusal(error: Exception) -> Answer:
    return problem_of(error).answer()


INTERFACE = Interface(call_of, _refusal)
