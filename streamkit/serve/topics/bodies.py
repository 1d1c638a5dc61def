"""The bodies of requests: decoded, checked, with the refusals of topics."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ...decoders import json_decoder
from ...model import Record
from ..request import Request
from .config import check_text
from .errors import Refused
from .topics import META, NODE, TAG

__all__ = ["DiffIn", "RecordIn", "WriteIn", "body_of", "nodes_of", "object_of", "records_of"]

T = TypeVar("T")
_RECORD_BYTES = 1 << 20
_META_BYTES, _META_KEYS = 16 << 10, 64
_TAG_BYTES, _NODE_BYTES = 256, 128


class RecordIn(msgspec.Struct):
    """A record to append."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None


class WriteIn(msgspec.Struct):
    """The body of an append."""

    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: dict[str, Any] | None = None
    disable_backpressure: bool = False


class DiffIn(msgspec.Struct):
    """The body of a read."""

    from_seq: int = 0
    limit: int = 256
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = 1 << 20


async def body_of(request: Request, kind: type[T]) -> T:
    """The body as JSON of a type. Refused if it is not."""
    data = await _json(request)
    try:
        return json_decoder(kind).decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused("invalid_request", f"the body is not valid: {error}") from None


async def object_of(request: Request) -> dict[str, Any]:
    """The body as a JSON object; without one, an empty object."""
    if not await request.body():
        return {}
    return await body_of(request, dict[str, Any])


async def _json(request: Request) -> bytes:
    from ..problems import Problem

    if request.media_type != "application/json":
        raise Problem("unsupported-media-type", "the body of this request is application/json")
    data = await request.body()
    try:
        data.decode()
    except UnicodeDecodeError:
        raise Refused("invalid_request", "the body is not UTF-8") from None
    return data


def nodes_of(given: Any) -> frozenset[str]:
    """The nodes whose records a reader skips."""
    if given is None:
        return frozenset()
    found = [given] if isinstance(given, str) else given
    for node in found:
        check_text("node", node, _NODE_BYTES)
    return frozenset(found)


def node_of(given: str | None) -> str:
    """The node of a worker. Refused if there is none."""
    node = check_text("node", given, _NODE_BYTES)
    if node is None:
        raise Refused("invalid_request", "node is the name of the worker")
    return node


def records_of(given: WriteIn, most: int) -> list[Record]:
    """The records of an append, as they are stored."""
    if not given.records:
        raise Refused("invalid_request", "records is a list with at least one record")
    if most and len(given.records) > most:
        raise Refused("batch_too_large", f"a write has at most {most} records, not {len(given.records)}", max=most)
    default = check_text("node", given.node, _NODE_BYTES)
    return [_record(record, default) for record in given.records]


def _record(given: RecordIn, default: str | None) -> Record:
    metadata: dict[str, str] = {}
    if (tag := check_text("tag", given.tag, _TAG_BYTES)) is not None:
        metadata[TAG] = tag
    node = check_text("node", given.node, _NODE_BYTES)
    if (node := default if node is None else node) is not None:
        metadata[NODE] = node
    payload = bytes(given.data)
    size = len(payload)
    if given.meta is not None:
        meta = msgspec.json.encode(given.meta)
        if len(meta) > _META_BYTES or len(given.meta) > _META_KEYS:
            raise Refused("invalid_request", f"meta has at most {_META_KEYS} keys and {_META_BYTES} bytes")
        metadata[META] = meta.decode()
        size += len(meta)
    if size > _RECORD_BYTES:
        raise Refused("record_too_large", f"a record has at most {_RECORD_BYTES} bytes, not {size}", max=_RECORD_BYTES)
    return Record(payload, metadata or None)
