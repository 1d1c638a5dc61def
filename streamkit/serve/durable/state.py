"""The state of a stream, which its last entry carries. A stream is one segment, its messages are entries."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from ...decoders import json_decoder
from ...errors import CorruptData, UnsupportedVersion
from ...model import Entry, Record

__all__ = [
    "Foreign",
    "Fork",
    "Part",
    "Refused",
    "State",
    "control",
    "has_state",
    "is_data",
    "message",
    "offset_text",
    "parse_offset",
    "state_of",
]

_STATE, _KIND = "ds", "ds-kind"
"""Metadata of an entry: the state after it; and, for an entry that is no message, the reason for which it exists."""
_VERSION = 1
_OFFSET = re.compile(r"(\d{16})(?:_0{16})?", re.ASCII)
MOST_PRODUCERS = 64
"""Producers whose state the last entry carries. The state of earlier ones is in segments of their own."""

Kind = Literal["create", "close", "touch", "fork", "delete"]


class Refused(Exception):
    """A request that the protocol refuses: its status, the reason, and headers that the protocol demands.

    `fields`: further members of the error's object, for the reserved resources.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        headers: dict[str, str] | None = None,
        code: str = "refused",
        fields: dict[str, object] | None = None,
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers or {}
        self.code = code
        self.fields = fields or {}


class Foreign(Refused):
    """The segment's last entry is not one of this interface."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Messages of one segment that a stream consists of: those whose offset is above `after` and at most `until`."""

    segment: str
    shift: int
    """An entry's offset is its sequence plus the shift."""
    after: int
    until: int


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """The source of a fork, and the position that was asked for, by which a repeated creation is recognized."""

    source: str
    base: int
    """Sequence of the source's first entry: a stream that was created again is another source."""
    asked: int | None
    sub: int


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a decision needs to know of a stream. Offsets are numbers here; times are in milliseconds since 1970."""

    content_type: str = msgspec.field(name="t")
    base: int = msgspec.field(name="b")
    """Sequence of the entry that created the stream."""
    tail: int = msgspec.field(name="e")
    """Offset of the last message; before the first message, the offset at which the stream began."""
    shift: int = msgspec.field(name="s", default=0)
    ttl: int | None = msgspec.field(name="l", default=None)
    """Seconds without a read or write after which the stream expires."""
    expires: int | None = msgspec.field(name="x", default=None)
    expires_text: str | None = msgspec.field(name="xt", default=None)
    """The expiry as the client wrote it."""
    touched: int = msgspec.field(name="u", default=0)
    """Time of the last read or write that is recorded."""
    closed: bool = msgspec.field(name="c", default=False)
    closed_by: tuple[str, int, int] | None = msgspec.field(name="k", default=None)
    """Producer, epoch and sequence of the request that closed the stream."""
    seq: str | None = msgspec.field(name="q", default=None)
    """The last Stream-Seq."""
    producers: dict[str, tuple[int, int]] = msgspec.field(name="p", default_factory=dict)
    """Epoch and last sequence by producer, the latest writer last."""
    moved: bool = msgspec.field(name="m", default=False)
    """True if the state of producers was moved to segments of their own."""
    fork: Fork | None = msgspec.field(name="f", default=None)
    inherited: tuple[Part, ...] = msgspec.field(name="i", default=())
    forks: int = msgspec.field(name="r", default=0)
    """Forks of this stream that exist."""
    gone: Literal[0, 1, 2] = msgspec.field(name="g", default=0)
    """1: deleted, and kept for its forks. 2: deleted."""
    version: int = msgspec.field(name="v", default=_VERSION)

    @property
    def is_json(self) -> bool:
        return media_type(self.content_type) == "application/json"

    @property
    def is_text(self) -> bool:
        return self.is_json or media_type(self.content_type).startswith("text/")

    def expiry(self, used: int = 0) -> int | None:
        """Time at which the stream expires, if its last use was at `used` or at the recorded time; None: never."""
        if self.ttl is not None:
            return max(self.touched, used) + self.ttl * 1000
        return self.expires

    def parts(self, segment: str) -> tuple[Part, ...]:
        """The stream's messages, in order."""
        return (*self.inherited, Part(segment, self.shift, self.base + self.shift, self.tail))


def media_type(content_type: str) -> str:
    """The type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


_encode = msgspec.json.Encoder().encode
_decode = json_decoder(State).decode


def _metadata(state: State | None, kind: Kind | None) -> dict[str, str] | None:
    metadata: dict[str, str] = {} if kind is None else {_KIND: kind}
    if state is not None:
        metadata[_STATE] = _encode(state).decode()
    return metadata or None


def message(payload: bytes, state: State | None = None) -> Record:
    """The record of a message. The last record of a transaction carries the state after it."""
    return Record(payload, _metadata(state, None))


def control(kind: Kind, state: State | None = None) -> Record:
    """The record of a change that is no message."""
    return Record(b"", _metadata(state, kind))


def is_data(entry: Entry) -> bool:
    """True for a message, False for a change of the stream's state."""
    return _KIND not in entry.metadata


def has_state(entry: Entry) -> bool:
    """True if the entry is the last one of its transaction, which carries the stream's state."""
    return _STATE in entry.metadata


def state_of(entry: Entry) -> State | None:
    """The state that a segment's last entry carries. None if the segment is empty.

    Refused if the entry was not written by this interface; UnsupportedVersion if a later release wrote it.
    """
    if entry.sequence == 0:
        return None
    text = entry.metadata.get(_STATE)
    if text is None:
        raise Foreign(
            409, "something else than the Durable Streams interface wrote to this segment; DELETE removes all of it"
        )
    try:
        state = _decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"the state of stream {entry.segment!r} at sequence {entry.sequence} is damaged") from error
    if state.version > _VERSION:
        raise UnsupportedVersion(
            f"stream {entry.segment!r} was written by a later release (version {state.version}): upgrade streamkit"
        )
    return state


def offset_text(offset: int) -> str:
    """An offset as clients see it: 16 digits, which sort as the numbers do."""
    return f"{offset:016d}"


def parse_offset(text: str) -> int:
    """The number of an offset. Refused if it is malformed."""
    found = _OFFSET.fullmatch(text)
    if found is None:
        raise Refused(400, "the offset is malformed: expected one that this server returned, -1 or now")
    return int(found[1])
