"""Entries as JSON. The payload is one of `json`, `text` and `base64`, by its content."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ..decoders import json_decoder
from ..gaps import Gap
from ..log.offsets import text_of_one
from ..model import TRX, Entry

__all__ = [
    "EntryOut",
    "GapOut",
    "TransactionName",
    "entry_line",
    "entry_out",
    "gap_out",
    "is_json",
    "name_of_transaction",
]


class TransactionName(msgspec.Struct):
    """The name of a transaction."""

    id: str
    node: str
    number: int


class EntryOut(msgspec.Struct, omit_defaults=True):
    """An entry: exactly one of `json`, `text` and `base64` is its payload."""

    segment: str
    sequence: int
    timestamp: int
    offset: str
    trx: TransactionName
    json: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    metadata: Any = None
    tier: str | UnsetType = UNSET
    space: str | UnsetType = UNSET
    """The entry's space, in a read of several spaces."""


class GapOut(msgspec.Struct):
    """Entries that were removed, in their place among the entries."""

    gap: Gap


def _uuid(raw: bytes) -> str:
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_node = lru_cache(1024)(_uuid)
"""The text of a node's id. Few nodes have many transactions each, so the texts are kept."""


def name_of_transaction(trx: TRX) -> TransactionName:
    """The name of `trx` for JSON."""
    return TransactionName(_uuid(trx.raw_id), _node(trx.raw_node), trx.number)


_validate = json_decoder(Raw).decode
_encode = msgspec.json.Encoder().encode
_JSON_STARTS = frozenset(b'{["-0123456789tfn \t\r\n')
_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")
_NO_METADATA: dict[str, str] = {}


def entry_out(entry: Entry, trx: TransactionName, line: bool = False) -> EntryOut:
    """`entry` for JSON. `trx`: the name of its transaction, which neighbours share. `line`: it has no line ends."""
    payload, origin = entry.payload, entry.origin
    if origin.partitions == 1:
        index = origin.index + entry.sequence - origin.first_sequence + 1
        offset = text_of_one(entry.space, entry.timestamp, entry.trx.number, index, origin.incarnation)
    else:
        offset = entry.space_offset.hex()
    json: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    try:
        decoded = payload.decode()
    except UnicodeDecodeError:
        base64 = payload
    else:
        if is_json(payload):
            # Within JSON line ends are only ever white space.
            json = Raw(payload.translate(_LINE_ENDS) if line else payload)
        else:
            text = decoded
    metadata = dict(entry.metadata) if entry.metadata else _NO_METADATA
    return EntryOut(
        entry.segment, entry.sequence, entry.timestamp, offset, trx, json, text, base64, metadata, origin.tier
    )


def is_json(payload: bytes) -> bool:
    """True if a payload is JSON."""
    if not payload or payload[0] not in _JSON_STARTS:
        return False
    try:
        _validate(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def gap_out(gap: Gap) -> GapOut:
    """`gap` for JSON."""
    return GapOut(gap)


def entry_line(entry: Entry | Gap) -> bytes:
    """An entry, or a gap, as JSON without line ends."""
    if type(entry) is Gap:
        return _encode(gap_out(entry))
    assert type(entry) is Entry
    return _encode(entry_out(entry, name_of_transaction(entry.trx), True))
