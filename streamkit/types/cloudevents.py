"""CloudEvents 1.0 as an envelope: an entry as an event in JSON, and an event as a record. Typed readers read both."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..arguments import check_type
from ..causation import CAUSATION, CORRELATION, entry_id
from ..errors import InvalidRecord
from ..eventsourcing.codecs import JsonCodec
from ..eventsourcing.versions import EVENT, VERSION
from ..model import Entry, Record

__all__ = ["CE_TYPE", "from_cloudevent", "to_cloudevent"]

CE_TYPE = "ce-type"
"""The metadata of a CloudEvent's type. A registry reads it from entries that name no type of their own."""
_REQUIRED = ("id", "source", "specversion", "type")
_NAME = re.compile(r"[a-z0-9]{1,64}")
_json: JsonCodec[Any] = JsonCodec()


def to_cloudevent(entry: Entry, source: str) -> dict[str, Any]:
    """The entry as a CloudEvent in structured JSON form. `source`: a URI of the space, for entries that have none.

    An entry that was written as a CloudEvent keeps its attributes. Another one gets them from its type, its segment and
    its timestamp; the attributes `causationid` and `correlationid` are those of `streamkit.causation`.
    """
    check_type(entry, Entry, "a CloudEvent is made of an Entry")
    metadata = entry.metadata
    time = datetime.fromtimestamp(entry.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": entry_id(entry),
        "source": source,
        "type": metadata.get(EVENT, "streamkit.entry"),
        "time": time.replace("+00:00", "Z"),
        "subject": entry.segment,
    }
    for attribute, name in (("typeversion", VERSION), ("causationid", CAUSATION), ("correlationid", CORRELATION)):
        if name in metadata:
            event[attribute] = metadata[name]
    if "ce-id" in metadata:
        event = {name[3:]: value for name, value in metadata.items() if name.startswith("ce-")}
    content_type = metadata.get("content-type")
    try:
        event["data"] = msgspec.json.decode(entry.payload) if _is_json(content_type) else entry.payload.decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        event["data_base64"] = b64encode(entry.payload).decode()
        content_type = content_type or "application/octet-stream"
    event["datacontenttype"] = content_type or "application/json"
    return event


def from_cloudevent(event: Mapping[str, Any] | bytes) -> Record:
    """The record of a CloudEvent in structured JSON form, as the server writes it: the attributes are metadata `ce-…`.

    InvalidRecord for anything that is no CloudEvent 1.0.
    """
    fields: Any = event
    if isinstance(event, bytes):
        try:
            fields = msgspec.json.decode(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRecord(f"the bytes are no CloudEvent in JSON: {error}") from None
    if not isinstance(fields, Mapping):
        raise InvalidRecord(f"a CloudEvent is an object with attributes, not {type(fields).__name__}")
    metadata: dict[str, str] = {}
    for name, value in fields.items():
        if name in ("data", "data_base64") or value is None:
            continue
        if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(value, (str, int, bool)):
            raise InvalidRecord(
                f"{name!r:.40} is no attribute of a CloudEvent: a-z and 0-9, with text, number or boolean"
            )
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        metadata["content-type" if name == "datacontenttype" else f"ce-{name}"] = text
    missing = [name for name in _REQUIRED if not metadata.get(f"ce-{name}")]
    if missing or metadata["ce-specversion"] != "1.0":
        raise InvalidRecord(f"a CloudEvent 1.0 has id, source, type and specversion 1.0; missing: {missing or 'none'}")
    if "data" in fields and "data_base64" in fields:
        raise InvalidRecord("a CloudEvent has either data or data_base64")
    return Record(_payload(fields, metadata.get("content-type")), metadata)


def _payload(fields: Mapping[str, Any], content_type: str | None) -> bytes:
    if "data_base64" in fields:
        try:
            return b64decode(fields["data_base64"], validate=True)
        except (TypeError, ValueError):
            raise InvalidRecord("data_base64 of a CloudEvent is no base64") from None
    data = fields.get("data")
    if data is None:
        return b""
    try:
        return data.encode() if isinstance(data, str) and not _is_json(content_type) else _json.encode(data)
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"the data of a CloudEvent is no text or JSON: {error}") from None


def _is_json(content_type: str | None) -> bool:
    kind = (content_type or "application/json").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")
