"""The values of the native interface, as JSON has them. The OpenAPI document is made from these types."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from ...model import Record, SegmentStatus
from ..encoding import EntryOut, GapOut, TransactionName, name_of_transaction
from ..names import encode_name
from ..problems import Problem

__all__ = ["Page", "RecordIn", "SeveralPage", "StatusOut", "status_out"]


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


_ITEMS = {"anyOf": [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in (EntryOut, GapOut)]}
Entries = Annotated[list[Any], Meta(extra_json_schema={"items": _ITEMS})]
"""A list of EntryOut and GapOut."""


class Page(msgspec.Struct):
    """A page of entries."""

    entries: Entries
    next: str | int | None
    """The value of `after` or `offset` to read on."""
    caught_up: bool
    end: str | int
    lag: int


class SeveralPage(msgspec.Struct):
    """A page of entries of several spaces; `next` is the cursor of all of them."""

    entries: Entries
    next: str
    caught_up: bool


class StatusOut(msgspec.Struct):
    """The status of a segment; `offset` is the offset of its space after it."""

    space: str
    segment: str
    first_sequence: int
    first_timestamp: int
    last_sequence: int
    last_timestamp: int
    offset: str
    href: str
    trx: TransactionName | None = None


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


class SegmentsOut(msgspec.Struct):
    """A page of segments; `next` is the `after` of the next page."""

    segments: list[StatusOut]
    next: str | None


class SpaceName(msgspec.Struct):
    """A space."""

    name: str
    href: str


class SpacesOut(msgspec.Struct):
    """A page of spaces; `next` is the `after` of the next page."""

    spaces: list[SpaceName]
    next: str | None


class StoresOut(msgspec.Struct):
    """A page of stores; `next` is the `after` of the next page."""

    stores: list[str]
    next: str | None


class TierOut(msgspec.Struct):
    """Stored bytes of one tier: "log", "index" or "archive"."""

    name: str
    bytes: int


class SizeOut(msgspec.Struct):
    """The size of a space or of a store."""

    entries: int
    segments: int
    payload_bytes: int
    stored_bytes: int
    tiers: list[TierOut]


class RetentionIn(msgspec.Struct, forbid_unknown_fields=True):
    """The retention of a space; null is no bound. `max_age` is in seconds."""

    max_age: float | None = None
    max_entries: int | None = None
    max_bytes: int | None = None
    per: str = "segment"
    when_full: str = "drop_oldest"


class SettingsIn(msgspec.Struct, forbid_unknown_fields=True):
    """The settings of a new space. Times are in seconds."""

    partitions: int = 1
    durability: str = "committed"
    idempotency_window: float = 86_400.0
    archive_grace: float = 3600.0
    retention: RetentionIn | None = None
