"""A row as a table entity. A large value is in a blob.

| property | is |
|---|---|
| `f` | the format version |
| `v0` `v1` … | the value, 64 KiB each, as many as it needs |
| `b` | instead of them: `name:size` of the blob that holds the value |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from streamkit.backend import Etag, Expect, Range
from streamkit.errors import CorruptData, UnsupportedVersion

__all__ = ["FORMAT", "MOST", "Blob", "Stored", "columns", "decode", "encode", "part"]

FORMAT = 3
_COLUMN = 64 << 10
MOST = 11 * _COLUMN
"""Bytes of a value in a row: Azure allows 1 MiB an entity, Azurite 1 MiB of its JSON. A blob would cost as much again
to read, and a hundred times as much to write."""


class Blob(NamedTuple):
    """A value that is in a blob."""

    name: str
    size: int

    @classmethod
    def of(cls, text: str) -> Blob | None:
        """The inverse of str(); None for anything else."""
        name, _, size = text.rpartition(":")
        return cls(name, int(size)) if name.isalnum() and size.isdecimal() else None

    @classmethod
    def of_etag(cls, etag: Etag | Expect | None) -> Blob | None:
        """The blob of the row that has `etag`: a row's etag says where its value is."""
        return cls.of(etag.partition(" ")[2]) if isinstance(etag, str) else None

    def __str__(self) -> str:
        return f"{self.name}:{self.size}"


class Stored(NamedTuple):
    """A row's value and etag as an entity has them."""

    data: bytes
    etag: str
    blob: Blob | None


def encode(partition: str, row: str, value: bytes, blob: Blob | None) -> dict[str, Any]:
    """The entity to send."""
    entity: dict[str, Any] = {"PartitionKey": partition, "RowKey": row, "f": FORMAT}
    if blob is not None:
        entity["b"] = str(blob)
        return entity
    for column, start in enumerate(range(0, len(value), _COLUMN)):
        entity[f"v{column}"] = value[start : start + _COLUMN]
    return entity


def decode(entity: Mapping[str, Any], etag: str | None, key: bytes) -> Stored:
    """Decode an entity, or the columns of it that were asked for."""
    version = entity.get("f")
    if not isinstance(version, int):
        raise CorruptData(f"the row {key!r} was not written by streamkit; its table belongs to another program")
    if version != FORMAT:
        raise UnsupportedVersion(
            f"the row {key!r} has format {version}, this release reads {FORMAT}; "
            + ("install a newer streamkit" if version > FORMAT else "read it with the release that wrote it")
        )
    text = entity.get("b")
    if text is None:
        return Stored(_columns(entity), etag or "", None)
    blob = Blob.of(text)
    if blob is None:
        raise CorruptData(f"the row {key!r} refers to a blob by {text[:80]!r}, expected name:size")
    return Stored(b"", f"{etag} {blob}", blob)


def _columns(entity: Mapping[str, Any]) -> bytes:
    if "v1" not in entity:
        return entity.get("v0") or b""
    return b"".join(entity.get(f"v{column}") or b"" for column in range(MOST // _COLUMN))


def columns(ranges: Iterable[Range]) -> list[str]:
    """The properties to ask for to read the ranges."""
    wanted = {column for part in ranges for column in _span(part)}
    return ["f", "b", *(f"v{column}" for column in sorted(wanted))]


def _span(part: Range) -> range:
    return range(part.start // _COLUMN, -(-min(part.start + part.length, MOST) // _COLUMN))


def part(entity: Mapping[str, Any], wanted: Range) -> bytes:
    """A range of the value, of an entity that has the columns for it."""
    found = []
    for column in _span(wanted):
        data = entity.get(f"v{column}") or b""
        start = wanted.start - column * _COLUMN
        found.append(data[max(0, start) : max(0, start + wanted.length)])
    return b"".join(found)
