"""The lines of an export: NDJSON, one JSON object a line, with the kind of the line in `type`.

| type | |
|---|---|
| export | the first line: the format, and the names of the spaces |
| space | a space begins: its settings and its retention |
| partition | a partition begins: the end of its log, and its floor |
| key | an idempotency key: digests of key and content, and the result of its first use |
| gap | removed sequences of a segment, before the segment's next entry or at its end |
| entry | an entry |
| checkpoint | the digest of all lines before it: a stopped export or import continues here |
| end | the last line: the digest of all lines before it |

The lines of a partition are in commit order. They say what a reader sees, whatever the log, packs and archive hold, so
two stores with equal entries give equal lines.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from typing import Any, Literal
from uuid import UUID

import msgspec

from ..decoders import json_decoder
from ..errors import CorruptData, UnsupportedVersion

__all__ = [
    "CHECKPOINT_BYTES",
    "CHECKPOINT_LINES",
    "FORMAT",
    "Checkpoint",
    "Digest",
    "End",
    "EntryLine",
    "Export",
    "FloorLine",
    "Gap",
    "Key",
    "Line",
    "Partition",
    "Space",
    "Trx",
    "decode_line",
    "encode_line",
    "encode_payload",
    "payload_of",
]

FORMAT = 1
CHECKPOINT_LINES = 20_000
CHECKPOINT_BYTES = 16 << 20
"""Lines, and bytes of lines, after which a checkpoint follows."""


class _Line(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, gc=False):
    pass


class Export(_Line, frozen=True, tag="export"):
    format: int
    spaces: list[str]


class Space(_Line, frozen=True, tag="space"):
    space: str
    partitions: int
    durability: Literal["committed", "buffered"]
    idempotency_window: float | None
    """Seconds; None: for ever."""
    archive_grace: float
    incarnation: str
    """Hexadecimal. Offsets name it, so it is kept: offsets of the exported space are valid in the imported one."""
    changed: dict[str, Any]
    retention: dict[str, Any] | None


class FloorLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first transaction that can be read, and the totals before it."""

    number: int
    reason: str
    end: tuple[int, int]
    position: int
    timestamp: int


class Partition(_Line, frozen=True, tag="partition"):
    partition: int
    end: int
    """The last transaction."""
    timestamp: int
    floor: FloorLine


class Trx(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    id: UUID
    node: UUID
    number: int


class Key(_Line, frozen=True, tag="key"):
    key: str
    content: str
    timestamp: int
    trx: Trx
    segments: list[tuple[str, int]]


class Gap(_Line, frozen=True, tag="gap"):
    segment: str
    first: int
    last: int
    reason: Literal["trimmed", "expired", "erased", "deleted"]


class EntryLine(_Line, frozen=True, tag="entry"):
    segment: str
    sequence: int
    timestamp: int
    index: int
    """Entries of the transaction before this one."""
    trx: Trx
    metadata: dict[str, str]
    encoding: Literal["json", "text", "base64"]
    payload: msgspec.Raw


class Checkpoint(_Line, frozen=True, tag="checkpoint"):
    lines: int
    entries: int
    sha256: str


class End(_Line, frozen=True, tag="end"):
    lines: int
    entries: int
    sha256: str


Line = Export | Space | Partition | Key | Gap | EntryLine | Checkpoint | End

_encoder = msgspec.json.Encoder(order="deterministic")
_decode: Callable[[bytes], Line] = json_decoder(Line).decode
_check_json = json_decoder(msgspec.Raw).decode
_text = json_decoder(str).decode
_format = json_decoder(dict[str, Any]).decode


def encode_line(line: Line) -> bytes:
    return _encoder.encode(line) + b"\n"


def decode_line(data: bytes, number: int) -> Line:
    """The line in `data`, the `number`th of its file. CorruptData, or UnsupportedVersion for another format."""
    if not data.endswith(b"\n"):
        raise CorruptData(f"line {number} of the export is cut short: export again, or fetch the whole file")
    if number == 1:
        _check_format(data)
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData(f"line {number} of the export is damaged: {error}") from error


def _check_format(data: bytes) -> None:
    try:
        first = _format(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptData("the file is no export of streamkit: its first line is no JSON object") from error
    if first.get("type") != "export":
        raise CorruptData("the file is no export of streamkit: its first line does not have the type 'export'")
    if first.get("format") != FORMAT:
        raise UnsupportedVersion(
            f"the export has format {first.get('format')!r}; this release reads {FORMAT}. Upgrade streamkit."
        )


def encode_payload(payload: bytes) -> tuple[Literal["json", "text", "base64"], msgspec.Raw]:
    """The encoding, and the JSON value. JSON stands as it is, byte for byte, if it fits on a line."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return "base64", msgspec.Raw(b'"' + base64.b64encode(payload) + b'"')
    if payload[:1] not in b" \t" and payload[-1:] not in b" \t" and b"\n" not in payload and b"\r" not in payload:
        try:
            _check_json(payload)
            return "json", msgspec.Raw(payload)
        except (msgspec.MsgspecError, RecursionError):
            pass
    return "text", msgspec.Raw(_encoder.encode(text))


def payload_of(line: EntryLine, number: int) -> bytes:
    """The payload of an entry, byte for byte."""
    raw = bytes(line.payload)
    if line.encoding == "json":
        return raw
    try:
        text = _text(raw)
        return text.encode() if line.encoding == "text" else base64.b64decode(text, validate=True)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptData(f"line {number} of the export: its payload is not {line.encoding}: {error}") from error


class Digest:
    """The running digest of the lines of a file."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.lines = self.entries = self.bytes = 0
        self.checkpoint = (0, 0)
        """Lines and bytes up to the latest checkpoint."""

    def add(self, data: bytes, *, entry: bool) -> None:
        self._hash.update(data)
        self.lines += 1
        self.entries += entry
        self.bytes += len(data)

    def take(self, data: bytes, line: Line) -> None:
        """Add a line of a file. CorruptData if it tells another digest of the lines before it."""
        if isinstance(line, Checkpoint | End):
            if (line.sha256, line.lines, line.entries) != (self.hex(), self.lines, self.entries):
                raise CorruptData(
                    f"line {self.lines + 1} of the export: lines before it were changed, are missing or are in another "
                    "order: export again, or fetch the whole file"
                )
            self.add(data, entry=False)
            self.checkpoint = (self.lines, self.bytes)
        else:
            self.add(data, entry=isinstance(line, EntryLine))

    @property
    def due(self) -> bool:
        """True if a checkpoint is to follow."""
        lines, size = self.checkpoint
        return self.lines - lines >= CHECKPOINT_LINES or self.bytes - size >= CHECKPOINT_BYTES

    def mark(self, kind: type[Checkpoint] | type[End]) -> bytes:
        """The line that tells the digest of the lines before it."""
        data = encode_line(kind(self.lines, self.entries, self.hex()))
        self.add(data, entry=False)
        self.checkpoint = (self.lines, self.bytes)
        return data

    def hex(self) -> str:
        return self._hash.hexdigest()
