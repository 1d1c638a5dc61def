"""Records of a request's body, by its media type."""

from __future__ import annotations

import msgspec

from ...model import Record
from ..problems import Problem
from ..request import Request
from .values import RecordIn

__all__ = ["records_of"]


class _Body(RecordIn, forbid_unknown_fields=True):
    """A JSON body: `records`, or one record."""

    records: list[RecordIn] | None = None


_decode_object = msgspec.json.Decoder(_Body).decode
_decode_list = msgspec.json.Decoder(list[RecordIn]).decode
_decode_record = msgspec.json.Decoder(RecordIn).decode
_NDJSON = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})


async def records_of(request: Request) -> list[Record]:
    """The records that a request's body holds. A Problem if it is damaged, or holds too many."""
    media_type = request.media_type
    body = await request.body()
    if media_type == "application/json":
        records = _of_json(body)
    elif media_type in _NDJSON:
        records = _of_ndjson(body)
    elif not media_type:
        raise Problem("unsupported-media-type", "the request has no Content-Type; name the format of the body")
    else:
        records = [Record(body, metadata_of(request))]
    most = request.service.limits.records
    if most and len(records) > most:
        raise Problem("transaction-too-large", f"{len(records)} records in one write; the server takes {most}")
    return records


def check_text(body: bytes) -> None:
    """A Problem unless it is UTF-8: msgspec does not look into what it keeps as it is."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Problem("invalid-body", f"the body is not UTF-8 (byte {error.start})") from None


def _of_json(body: bytes) -> list[Record]:
    check_text(body)
    try:
        if body.lstrip()[:1] == b"[":
            return [record.record() for record in _decode_list(body)]
        found = _decode_object(body)
    except msgspec.DecodeError as error:
        raise Problem("invalid-body", f"the body is not valid: {error}") from None
    if found.records is None:
        return [found.record()]
    if found != _Body(records=found.records):
        raise Problem("invalid-record", "the body has either `records`, or the fields of one record")
    return [record.record() for record in found.records]


def _of_ndjson(body: bytes) -> list[Record]:
    check_text(body)
    records = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line and not line.isspace():
            try:
                records.append(_decode_record(line).record())
            except msgspec.DecodeError as error:
                raise Problem("invalid-body", f"line {number} of the body is not valid: {error}") from None
    return records


def metadata_of(request: Request) -> dict[str, str] | None:
    """The metadata of a raw body's record: the headers `Metadata-<name>`."""
    found: dict[str, str] = {}
    for key, value in request.headers:
        if key.startswith(b"metadata-"):
            name = key[9:].decode("latin-1")
            if name in found:
                raise Problem("invalid-request", f"the header Metadata-{name} is given more than once")
            try:
                found[name] = value.decode()
            except UnicodeDecodeError:
                raise Problem("invalid-request", f"the header Metadata-{name} is not UTF-8") from None
    return found or None
