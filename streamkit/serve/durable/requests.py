"""Requests of the protocol as values: headers and bodies are checked here, before any state is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from ...decoders import json_decoder
from ..arrays import is_longer
from .state import Refused, media_type, parse_offset

__all__ = ["Append", "Create", "ForkRequest", "Producer", "append_request", "create_request", "split_json"]

_WHOLE = re.compile(r"0|[1-9]\d{0,15}", re.ASCII)
_LARGEST = 2**53 - 1
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_LONGEST = 1024
"""Characters of a content type, a producer's id or a Stream-Seq."""
DEFAULT_TYPE = "application/octet-stream"
_split = json_decoder(list[msgspec.Raw]).decode
_check = json_decoder(msgspec.Raw).decode


class Producer(NamedTuple):
    id: str
    epoch: int
    seq: int


class ForkRequest(NamedTuple):
    source: str
    """The source's URL path, as the client wrote it."""
    offset: int | None
    sub: int


class Create(NamedTuple):
    content_type: str | None
    ttl: int | None
    expires: int | None
    expires_text: str | None
    closed: bool
    fork: ForkRequest | None
    body: bytes
    most: int = 0
    """Messages that it may have; 0 is no limit."""


class Append(NamedTuple):
    content_type: str | None
    body: bytes
    seq: str | None
    producer: Producer | None
    close: bool
    most: int = 0
    """Messages that it may have; 0 is no limit."""


def _whole(text: str, name: str) -> int:
    if not _WHOLE.fullmatch(text) or (number := int(text)) > _LARGEST:
        raise Refused(400, f"{name} must be a whole number from 0 to {_LARGEST}, without leading zeros")
    return number


def _short(text: str, name: str) -> str:
    if len(text) > _LONGEST:
        raise Refused(400, f"{name} has {len(text)} characters; at most {_LONGEST} are allowed")
    return text


def _is_true(headers: Mapping[str, str]) -> bool:
    return headers.get("stream-closed", "").lower() == "true"


def _content_type(headers: Mapping[str, str]) -> str | None:
    text = headers.get("content-type", "").strip()
    if text and "/" not in media_type(text):
        raise Refused(400, "Content-Type is malformed: expected type/subtype")
    return _short(text, "Content-Type") or None


def _expiry(headers: Mapping[str, str]) -> tuple[int | None, int | None, str | None]:
    ttl, expires = headers.get("stream-ttl"), headers.get("stream-expires-at")
    if ttl is not None and expires is not None:
        raise Refused(400, "Stream-TTL and Stream-Expires-At exclude each other: send one of them")
    if ttl is not None:
        return _whole(ttl, "Stream-TTL"), None, None
    if expires is None:
        return None, None, None
    try:
        if not _TIME.fullmatch(expires):
            raise ValueError
        return None, int(datetime.fromisoformat(expires.upper()).timestamp() * 1000), expires
    except (ValueError, OverflowError):
        raise Refused(400, "Stream-Expires-At must be an RFC 3339 time such as 2030-01-31T12:00:00Z") from None


def _fork(headers: Mapping[str, str]) -> ForkRequest | None:
    source = headers.get("stream-forked-from")
    offset, sub = headers.get("stream-fork-offset"), headers.get("stream-fork-sub-offset")
    if source is None:
        if offset is not None or sub is not None:
            raise Refused(400, "Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From")
        return None
    return ForkRequest(
        source,
        None if offset is None else parse_offset(offset),
        0 if sub is None else _whole(sub, "Stream-Fork-Sub-Offset"),
    )


def _producer(headers: Mapping[str, str]) -> Producer | None:
    id, epoch, seq = (headers.get(f"producer-{part}") for part in ("id", "epoch", "seq"))
    if id is None and epoch is None and seq is None:
        return None
    if id is None or epoch is None or seq is None:
        raise Refused(400, "Producer-Id, Producer-Epoch and Producer-Seq must be sent together")
    if not id:
        raise Refused(400, "Producer-Id is empty")
    return Producer(_short(id, "Producer-Id"), _whole(epoch, "Producer-Epoch"), _whole(seq, "Producer-Seq"))


def create_request(headers: Mapping[str, str], body: bytes) -> Create:
    """The request of a PUT. Refused with 400 if a header is malformed. Header names are in lower case."""
    return Create(_content_type(headers), *_expiry(headers), _is_true(headers), _fork(headers), body)


def append_request(headers: Mapping[str, str], body: bytes) -> Append:
    """The request of a POST. Refused with 400 if a header is malformed or the body is missing."""
    close = _is_true(headers)
    content_type = _content_type(headers) if body else None
    producer = _producer(headers)
    if not body and not close:
        raise Refused(400, "the body is empty: send data, or Stream-Closed: true to close the stream")
    if body and content_type is None:
        raise Refused(400, "Content-Type is missing: send the stream's content type")
    seq = headers.get("stream-seq")
    return Append(content_type, body, None if seq is None else _short(seq, "Stream-Seq"), producer, close)


def split_json(body: bytes, most: int) -> list[bytes]:
    """The messages of a JSON body: the elements of an array, else the value itself; each as it was sent.

    Refused with 400 if the body is not JSON, with 413 if it has more than `most` messages (0: any number).
    """
    if not is_longer(body, most):
        messages = _split_json(body)
        if not most or len(messages) <= most:
            return messages
    raise Refused(413, f"the body has more than {most} messages, which are allowed in one request: split it")


def _split_json(body: bytes) -> list[bytes]:
    try:
        text = body.strip(b" \t\r\n")
        text.decode()
        if text.startswith(b"["):
            return [bytes(item) for item in _split(text)]
        return [bytes(_check(text))]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise Refused(400, "the body is not valid JSON") from None
