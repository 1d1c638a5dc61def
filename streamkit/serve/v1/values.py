"""The values of the native interface, as JSON has them. The OpenAPI document is made from these types."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ...gaps import Gap
from ...model import TRX, Entry, Record, SegmentStatus
from ..names import encode_name
from ..problems import Problem

__all__ = [
    "EntryOut",
    "GapOut",
    "Page",
    "RecordIn",
    "StatusOut",
    "TransactionName",
    "entry_out",
    "gap_out",
    "status_out",
]


class RecordIn(msgspec.Struct, forbid_unknown_fields=True):
    """A record to write: exactly one of `json`, `text` and `base64`."""

    json: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    metadata: dict[str, str] | None = None
    sequence: int | None = None

    def record(self) -> Record:
        """The record of the library."""
        if type(self.json) is Raw and self.text is UNSET and self.base64 is UNSET:
            payload = bytes(self.json)
        elif type(self.text) is str and self.json is UNSET and self.base64 is UNSET:
            payload = self.text.encode()
        elif type(self.base64) is bytes and self.json is UNSET and self.text is UNSET:
            payload = self.base64
        else:
            raise Problem("invalid-record", "a record has exactly one of the fields json, text and base64")
        return Record(payload, self.metadata, self.sequence)


class TransactionName(msgspec.Struct):
    """The name of a transaction."""

    id: str
    node: str
    number: int


class EntryOut(msgspec.Struct, omit_defaults=True):
    """An entry: one of `json`, `text` and `base64` is its payload."""

    segment: str
    sequence: int
    timestamp: int
    offset: str
    trx: TransactionName | Raw
    json: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET
    metadata: Any = msgspec.field(default_factory=dict)
    tier: str = "hot"
    space: str | UnsetType = UNSET
    """In a read of several spaces."""


class GapOut(msgspec.Struct):
    """Entries that were removed, in their place among the entries."""

    gap: Gap


class Page(msgspec.Struct):
    """A page of entries."""

    entries: list[EntryOut | GapOut]
    next: str | int | None
    """What to pass as `after` or `offset` to read on."""
    caught_up: bool
    end: str | int
    lag: int


class StatusOut(msgspec.Struct):
    """The status of a segment, `offset` being the offset of its space after it."""

    space: str
    segment: str
    first_sequence: int
    first_timestamp: int
    last_sequence: int
    last_timestamp: int
    offset: str
    href: str
    trx: TransactionName | None = None


def _uuid(raw: bytes) -> str:
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def name_of_transaction(trx: TRX) -> TransactionName:
    return TransactionName(_uuid(trx.raw_id), _uuid(trx.raw_node), trx.number)


_validate = msgspec.json.Decoder(Raw).decode
_JSON_STARTS = frozenset(b'{["-0123456789tfn \t\r\n')


def entry_out(entry: Entry, trx: TransactionName) -> EntryOut:
    """`entry` for JSON. `trx`: the name of its transaction, which neighbours share."""
    payload = entry.payload
    found = EntryOut(entry.segment, entry.sequence, entry.timestamp, entry.space_offset.hex(), trx)
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        found.base64 = payload
    else:
        if payload and payload[0] in _JSON_STARTS:
            try:
                _validate(payload)
                found.json = Raw(payload)
            except msgspec.DecodeError:
                found.text = text
        else:
            found.text = text
    if entry.metadata:
        found.metadata = dict(entry.metadata)
    found.tier = entry.tier
    return found


def gap_out(gap: Gap) -> GapOut:
    return GapOut(gap)


def status_out(status: SegmentStatus, base: str) -> StatusOut:
    """`base`: the path of the space."""
    return StatusOut(
        status.space,
        status.segment,
        status.first_sequence,
        status.first_timestamp,
        status.last_sequence,
        status.last_timestamp,
        status.space_offset.hex(),
        f"{base}/segments/{encode_name(status.segment)}",
        None if status.trx is None else name_of_transaction(status.trx),
    )
