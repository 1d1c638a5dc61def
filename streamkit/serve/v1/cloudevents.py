"""CloudEvents 1.0 over HTTP: structured, binary and batch. The data is the payload, the attributes are metadata.

An attribute `id` is the metadata `ce-id`, as in the binary form; `datacontenttype` is `content-type`.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from ...decoders import json_decoder
from ...gaps import Gap
from ...model import Entry, Record
from ..encoding import is_json
from ..names import encode_name
from ..problems import Problem
from ..request import Request

__all__ = ["BATCH", "STRUCTURED", "batch", "binary", "event_of", "is_binary", "structured"]

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
_REQUIRED = ("id", "source", "specversion", "type")
_NAME = re.compile(r"[a-z0-9]{1,64}")
_decode = json_decoder(dict[str, Raw]).decode
_decode_several = json_decoder(list[dict[str, Raw]]).decode
_decode_text = json_decoder(str).decode


def structured(body: bytes) -> Record:
    """The record of one event as JSON."""
    return _record(_fields(body, _decode))


def batch(body: bytes) -> list[Record]:
    """The records of several events as JSON."""
    return [_record(fields) for fields in _fields(body, _decode_several)]


def _fields(body: bytes, decode):  # type: ignore[no-untyped-def]
    try:
        body.decode()
        return decode(body)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        raise Problem("invalid-body", f"the body is no CloudEvent: {error}") from None


def _record(fields: dict[str, Raw]) -> Record:
    data, encoded = fields.pop("data", None), fields.pop("data_base64", None)
    metadata = {}
    for name, value in fields.items():
        if not _NAME.fullmatch(name):
            raise Problem("invalid-record", f"{name[:40]!r} is no name of an attribute of a CloudEvent")
        raw = bytes(value)
        if raw[:1] in (b"{", b"["):
            raise Problem("invalid-record", f"the attribute {name} of a CloudEvent is text, a number or a boolean")
        if raw != b"null":
            text = _decode_text(value) if raw[:1] == b'"' else raw.decode()
            metadata["content-type" if name == "datacontenttype" else f"ce-{name}"] = text
    _check(metadata)
    if data is not None and encoded is not None:
        raise Problem("invalid-record", "a CloudEvent has either data or data_base64")
    if encoded is not None:
        try:
            return Record(base64.b64decode(_decode_text(encoded), validate=True), metadata)
        except (binascii.Error, msgspec.DecodeError, ValueError):
            raise Problem("invalid-record", "data_base64 of a CloudEvent is no base64") from None
    payload = b"" if data is None else bytes(data)
    if payload[:1] == b'"' and not _is_json_type(metadata.get("content-type", "application/json")):
        payload = _decode_text(payload).encode()
    return Record(payload, metadata)


def event_of(item: Entry | Gap, base: str) -> dict[str, Any]:
    """An entry as an event in JSON: the one that was written, or one that is made for another payload.

    A gap is an event too. `base`: the path of the space.
    """
    source = f"{base}/segments/{encode_name(item.segment)}" if item.segment else base
    if isinstance(item, Gap):
        id = f"gap-{item.first_sequence}-{item.last_sequence}"
        return {"specversion": "1.0", "id": id, "source": source, "type": "streamkit.gap", "data": item}
    metadata = item.metadata
    if "ce-id" in metadata:
        event: dict[str, Any] = {
            name[3:]: value for name, value in metadata.items() if name[:3] == "ce-" and _NAME.fullmatch(name[3:])
        }
    else:
        time = datetime.fromtimestamp(item.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
        event = {"specversion": "1.0", "id": str(item.sequence), "source": source, "type": "streamkit.entry"}
        event |= {"time": time.replace("+00:00", "Z"), "subject": item.segment}
    kind, payload = metadata.get("content-type"), item.payload
    if kind is not None:
        event["datacontenttype"] = kind
    if not payload:
        return event
    if _is_json_type(kind or "application/json") and is_json(payload):
        event["data"] = Raw(payload)
        return event
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or (kind is not None and _is_json_type(kind)):
        event.setdefault("datacontenttype", "application/octet-stream")
        event["data_base64"] = payload
    else:
        event.setdefault("datacontenttype", "text/plain; charset=utf-8")
        event["data"] = text
    return event


def _is_json_type(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def _check(metadata: dict[str, str]) -> None:
    for name in _REQUIRED:
        if not metadata.get(f"ce-{name}"):
            raise Problem("invalid-record", f"a CloudEvent has the attribute {name}")
    if metadata["ce-specversion"] != "1.0":
        raise Problem("invalid-record", "the specversion of a CloudEvent is 1.0")


def is_binary(request: Request) -> bool:
    """True if the headers say that the body is the data of an event."""
    return any(key == b"ce-specversion" for key, _ in request.headers)


def binary(request: Request, body: bytes) -> Record:
    """The record of an event whose attributes are headers."""
    metadata: dict[str, str] = {}
    for key, value in request.headers:
        if key.startswith(b"ce-"):
            name = key.decode("latin-1")
            if name in metadata or not _NAME.fullmatch(name[3:]):
                raise Problem(
                    "invalid-request", f"the header {name[:40]} is no attribute of a CloudEvent, or occurs twice"
                )
            metadata[name] = unquote(value.decode("latin-1"), errors="replace")
    content_type = request.text_header(b"content-type")
    if content_type is not None:
        metadata["content-type"] = content_type
    _check(metadata)
    return Record(body, metadata)
