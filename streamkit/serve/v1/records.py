"""Records of a request's body, by its media type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from ...decoders import json_decoder
from ...model import Record
from ..arrays import is_longer
from ..problems import Problem
from ..request import Request
from . import cloudevents
from .values import RecordIn

__all__ = ["body_of", "check_count", "check_length", "list_of", "optional_body_of", "records_of", "segment_records_of"]

T = TypeVar("T")
_SMALL = 1 << 20
"""Bytes of a body without records: its values take many times the memory."""
_LINE = re.compile(rb"[^ \t\r\n][^\n]*")
_NDJSON = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})


class _Body(RecordIn, forbid_unknown_fields=True):
    """A JSON body: `records`, or one record."""

    records: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Placed(RecordIn, forbid_unknown_fields=True, kw_only=True):
    """A record and its segment."""

    segment: str


_FORM = 'a record is {"json": …}, {"text": …} or {"base64": …}, with `metadata` and `sequence` if you like'
_decode_object = json_decoder(_Body).decode
_decode_list = json_decoder(list[RecordIn]).decode
_decode_record = json_decoder(RecordIn).decode
_decode_placed = json_decoder(_Placed).decode
_decode_fields = json_decoder(dict[str, msgspec.Raw]).decode
_decode_text = json_decoder(str).decode


async def body_of(request: Request, kind: type[T], most: int = _SMALL) -> T:
    """The body as JSON of a type. A Problem if it is not, or has more than `most` bytes."""
    if request.media_type != "application/json":
        raise Problem("unsupported-media-type", "the body of this request is application/json")
    body = await request.body(most)
    _check_text(body)
    try:
        return json_decoder(kind).decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        fields = ", ".join(getattr(kind, "__struct_encode_fields__", ()))
        known = f"; the fields of the body are {fields}" if fields else ""
        raise Problem("invalid-body", f"the body is not valid: {error}{known}") from None


async def optional_body_of(request: Request, kind: type[T]) -> T:
    """The body as `body_of` reads it; without one, the defaults of the type."""
    return await body_of(request, kind) if await request.body(_SMALL) else kind()


def _invalid(error: Exception, line: int = 0) -> Problem:
    where = f"line {line} of the body" if line else "the body"
    return Problem("invalid-body", f"{where} is not valid: {error}; {_FORM}")


def check_count(request: Request, count: int) -> None:
    """A Problem for more records than one write may have."""
    most = request.service.limits.records
    if most and count > most:
        raise _too_many(most)


def _too_many(most: int) -> Problem:
    return Problem("transaction-too-large", f"the write has more than {most} records, which the server takes: split it")


def check_length(request: Request, array: bytes | msgspec.Raw) -> None:
    """Raise a Problem if a JSON array has more elements than one write may have records. Its elements are not made."""
    most = request.service.limits.records
    if is_longer(array, most):
        raise _too_many(most)


async def records_of(request: Request) -> list[Record]:
    """The records that a request's body holds. A Problem if it is damaged, or holds too many."""
    media_type = request.media_type
    is_event = cloudevents.is_binary(request)
    if not media_type and not is_event:
        raise Problem("unsupported-media-type", "the request has no Content-Type; name the format of the body")
    body = await request.body()
    if media_type == cloudevents.STRUCTURED:
        records = [cloudevents.structured(body)]
    elif media_type == cloudevents.BATCH:
        check_length(request, body)
        records = cloudevents.batch(body)
    elif is_event:  # its Content-Type is that of its data, also JSON
        records = [cloudevents.binary(request, body)]
    elif media_type == "application/json":
        records = _of_json(request, body)
    elif media_type in _NDJSON:
        records = _of_ndjson(request, body)
    else:
        records = [Record(body, _metadata_of(request))]
    check_count(request, len(records))
    return records


def _check_text(body: bytes) -> None:
    """Raise a Problem unless it is UTF-8: msgspec does not check raw members."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise Problem("invalid-body", f"the body is not UTF-8 (byte {error.start})") from None


def _of_json(request: Request, body: bytes) -> list[Record]:
    _check_text(body)
    try:
        array: bytes | msgspec.Raw = body
        if body.lstrip()[:1] != b"[":
            found = _decode_object(body)
            if type(found.records) is not msgspec.Raw:
                return [found.record()]
            if found != _Body(records=found.records):
                raise Problem("invalid-record", "the body has either `records`, or the fields of one record")
            array = found.records
        return [record.record() for record in list_of(request, array)]
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(error) from None


def list_of(request: Request, array: bytes | msgspec.Raw) -> list[RecordIn]:
    """The records in a JSON array. A Problem for too many; msgspec's error if it is damaged."""
    check_length(request, array)
    return _decode_list(array)


def _lines(request: Request, body: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of an NDJSON body that are not empty, each with where it begins. A Problem for too many of them."""
    _check_text(body)
    most = request.service.limits.records
    for count, line in enumerate(_LINE.finditer(body), 1):
        if most and count > most:
            raise _too_many(most)
        yield line.start(), line[0]


def _of_ndjson(request: Request, body: bytes) -> list[Record]:
    records = []
    for at, line in _lines(request, body):
        try:
            records.append(_decode_record(line).record())
        except (msgspec.DecodeError, RecursionError) as error:
            raise _invalid(error, body.count(b"\n", 0, at) + 1) from None
    return records


async def segment_records_of(request: Request, key_field: str | None) -> dict[str, list[Record]]:
    """Records by segment, of an NDJSON body. Each line names its `segment`; or, with `key_field`, it is a JSON object
    that becomes the payload, and this field of it is the segment."""
    if request.media_type not in _NDJSON:
        raise Problem("unsupported-media-type", "records of several segments come as application/x-ndjson")
    body = await request.body()
    found: dict[str, list[Record]] = {}
    for at, line in _lines(request, body):
        try:
            if key_field is None:
                placed = _decode_placed(line)
                segment, record = placed.segment, placed.record()
            else:
                fields = _decode_fields(line)
                if key_field not in fields:
                    number = body.count(b"\n", 0, at) + 1
                    raise Problem("invalid-body", f"line {number} of the body has no field {key_field[:40]!r}")
                segment, record = _decode_text(fields[key_field]), Record(line.strip())
        except (msgspec.DecodeError, RecursionError) as error:
            raise _invalid(error, body.count(b"\n", 0, at) + 1) from None
        found.setdefault(segment, []).append(record)
    return found


def _metadata_of(request: Request) -> dict[str, str] | None:
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
