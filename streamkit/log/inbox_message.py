"""Inbox messages: requests of one process in the inbox of a partition, for the writer of the next transaction.

| key | value |
|---|---|
| incarnation, number, id, node, *requests* | |
| incarnation, number, id, node | *requests* |

`number`: the last transaction when they were posted. `node`: 4 bytes of the process's. *requests* = crc32 of key and
rest, version u8, msgpack. Few small ones are in the key: then a list, which has to be made anyway, brings them along.
A message without requests is a candidacy: a process with much to write asks for the lead, instead of sending it twice.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from ..checksum import crc32
from ..decoders import Decoders
from ..errors import CorruptData
from .record_format import Body
from .request import Part, Request

__all__ = [
    "InboxMessage",
    "Posted",
    "decode_message",
    "encode_message",
    "is_in_key",
    "message_range",
    "posted_at",
    "posted_by",
]

VERSION = 1
_LONGEST_KEY = 300
_HEAD = struct.Struct(">Q16s4s")
_CRC = struct.Struct("<I")


class _Part(msgspec.Struct, frozen=True, array_like=True):
    segment: str
    expected: int | None
    count: int
    raw: int
    flags: int
    size: int
    """Bytes of payload."""
    data: bytes | None


class _Request(msgspec.Struct, frozen=True, array_like=True):
    id: bytes
    """Empty if it is the message's id."""
    parts: tuple[_Part, ...]
    key: bytes | None
    content: bytes
    fence: tuple[str, int] | None


_encoder = msgspec.msgpack.Encoder()
_REQUESTS = tuple[_Request, ...]
_decoders = Decoders()


class Posted(Request):
    """A request out of a message. Its caller waits in another process, and reads the log."""

    def __init__(self, id: bytes, since: int, found: _Request) -> None:
        super().__init__([_part(part) for part in found.parts])
        self.foreign = True
        self.id = id
        self.since = self.checked = since
        self.key, self.content, self.fence = found.key, found.content, found.fence


class InboxMessage(msgspec.Struct, frozen=True):
    key: bytes
    id: bytes
    node: bytes
    requests: tuple[Posted, ...]

    def ids(self) -> set[bytes]:
        """The ids of its requests; for a candidacy, its own id."""
        return {request.id or self.id for request in self.requests} or {self.id}


def _part(part: _Part) -> Part:
    data = part.data
    body = None if data is None else Body(data, part.raw, part.flags, part.count)
    return Part(part.segment, body, part.size, part.expected)


def message_range(incarnation: bytes, since: int) -> tuple[bytes, bytes]:
    """Return (start, end) of the messages that were posted when `since` or a later transaction was the last one."""
    return incarnation + since.to_bytes(8, "big"), incarnation + b"\xff" * 8


def posted_at(incarnation: bytes, key: bytes) -> int:
    """The last transaction when a message was posted."""
    return int.from_bytes(key[len(incarnation) : len(incarnation) + 8], "big")


def posted_by(incarnation: bytes, key: bytes) -> tuple[bytes, bytes]:
    """Return (the message's id, which is that of its first request; the first bytes of the node of its process)."""
    _, id, node = _HEAD.unpack_from(key, len(incarnation))
    return id, node


def encode_message(
    incarnation: bytes, seed: int, since: int, id: bytes, node: bytes, requests: Sequence[Request]
) -> tuple[bytes, bytes]:
    """Return (key, value) of `requests`, whose ids are set."""
    packed = _encoder.encode(tuple(_packed(request, id) for request in requests))
    front = incarnation + _HEAD.pack(since, id, node)
    body = bytes((VERSION,)) + packed
    whole = _CRC.pack(crc32(body, crc32(front, seed))) + body
    return (front + whole, b"") if len(front) + len(whole) <= _LONGEST_KEY else (front, whole)


def _packed(request: Request, id: bytes) -> _Request:
    assert request.id is not None
    return _Request(
        b"" if request.id == id else request.id,
        tuple(
            _Part(part.segment, part.expected, 0, 0, 0, 0, None)
            if part.body is None
            else _Part(
                part.segment,
                part.expected,
                part.body.count,
                part.body.raw,
                part.body.flags,
                part.size,
                bytes(part.body.data),
            )
            for part in request.parts
        ),
        request.key,
        request.content,
        request.fence,
    )


def is_in_key(incarnation: bytes, key: bytes) -> bool:
    """True if the requests are in the message's key, False if they are in its value."""
    return len(key) > len(incarnation) + _HEAD.size


def decode_message(incarnation: bytes, seed: int, key: bytes, value: bytes) -> InboxMessage:
    """Raise CorruptData for one that is damaged, or of another release."""
    at = len(incarnation) + _HEAD.size
    front, whole = (key[:at], key[at:]) if len(key) > at else (key, value)
    body = whole[4:]
    if len(body) < 2 or crc32(body, crc32(front, seed)) != _CRC.unpack_from(whole)[0] or body[0] != VERSION:
        raise CorruptData(f"the message {key!r} is damaged, or another release wrote it")
    since, id, node = _HEAD.unpack_from(front, at - _HEAD.size)
    try:
        found = _decoders[_REQUESTS].decode(memoryview(body)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptData(f"the message {key!r} is damaged") from error
    return InboxMessage(key, id, node, tuple(Posted(request.id or id, since, request) for request in found))
