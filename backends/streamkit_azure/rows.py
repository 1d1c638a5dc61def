"""A row as a table entity: what is in it, and which of a write's values are too big for it.

| property | is |
|---|---|
| `f` | the format version |
| `v0` `v1` … | the value, 64 KiB each, as many as it needs |
| `b` | instead of them: `name:size` of the blob that holds the value |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamkit.backend import Delete, Op
from streamkit.errors import CorruptData, UnsupportedVersion

from .keys import encode_key_length

__all__ = ["BATCH_BYTES", "OPS", "Body", "Stored", "columns", "decode", "encode", "part", "spilled"]

FORMAT = 1
OPS = 100
"""Operations in one entity-group transaction."""
BATCH_BYTES = 2_800_000
"""Keys and values in one: sent as base64 with what surrounds each operation, they stay below Azure's 4 MiB."""

_COLUMN = 64 << 10
_ENTITY = 11 * _COLUMN
"""Bytes of a value in a row: Azure allows 1 MiB an entity, Azurite 1 MiB of its JSON."""
_PAYLOAD = 4 * 1024 * 1024 - 16 * 1024
_ENVELOPE = 1000
"""Bytes around an operation in a batch beside its keys, which are there twice, and its value: at most 800 measured."""


class Body(NamedTuple):
    """A value that is in a blob."""

    name: str
    size: int

    @classmethod
    def of(cls, text: str) -> Body | None:
        """The inverse of str(); None for anything else."""
        name, _, size = text.rpartition(":")
        return cls(name, int(size)) if name.isalnum() and size.isdecimal() else None

    def __str__(self) -> str:
        return f"{self.name}:{self.size}"


class Stored(NamedTuple):
    """A row's value and etag as an entity has them."""

    data: bytes
    etag: str
    body: Body | None


def encode(partition: str, row: str, value: bytes, body: Body | None) -> dict[str, Any]:
    """The entity to send."""
    entity: dict[str, Any] = {"PartitionKey": partition, "RowKey": row, "f": FORMAT}
    if body is not None:
        entity["b"] = str(body)
        return entity
    for column, start in enumerate(range(0, len(value), _COLUMN)):
        entity[f"v{column}"] = value[start : start + _COLUMN]
    return entity


def decode(entity: Mapping[str, Any], etag: str | None, key: bytes) -> Stored:
    """What an entity holds; only some columns of it if only some were asked for."""
    version = entity.get("f")
    if not isinstance(version, int):
        raise CorruptData(f"the row {key!r} was not written by streamkit; its table belongs to another program")
    if version != FORMAT:
        raise UnsupportedVersion(
            f"the row {key!r} has format {version}, this release reads {FORMAT}; install a newer streamkit"
        )
    text = entity.get("b")
    if text is None:
        return Stored(_columns(entity), etag or "", None)
    body = Body.of(text)
    if body is None:
        raise CorruptData(f"the row {key!r} refers to a blob by {text[:80]!r}, expected name:size")
    return Stored(b"", f"{etag} {body}", body)


def _columns(entity: Mapping[str, Any]) -> bytes:
    if "v1" not in entity:
        return entity.get("v0") or b""
    return b"".join(entity.get(f"v{column}") or b"" for column in range(_ENTITY // _COLUMN))


def columns(ranges: Sequence[tuple[int, int]]) -> list[str]:
    """The properties to ask for to read the ranges (start, length)."""
    wanted = {column for start, length in ranges for column in _span(start, length)}
    return ["f", "b", *(f"v{column}" for column in sorted(wanted))]


def _span(start: int, length: int) -> range:
    return range(start // _COLUMN, -(-min(start + length, _ENTITY) // _COLUMN))


def part(entity: Mapping[str, Any], start: int, length: int) -> bytes:
    """`length` bytes of the value from `start`, of an entity that has the columns for it."""
    found = []
    for column in _span(start, length):
        data = entity.get(f"v{column}") or b""
        base = column * _COLUMN
        found.append(data[max(0, start - base) : max(0, start + length - base)])
    return b"".join(found)


def spilled(partition: bytes, ops: Sequence[Op], endpoint: str) -> set[int]:
    """The operations whose values go to blobs: those too big for an entity, then the biggest until the batch fits."""
    sizes = {at: len(op.value) for at, op in enumerate(ops) if not isinstance(op, Delete)}
    out = {at for at, size in sizes.items() if size > _ENTITY}
    around = _ENVELOPE + len(endpoint) + 2 * encode_key_length(len(partition))
    payload = sum(around + 2 * encode_key_length(len(op.key)) for op in ops)
    payload += sum(_sent(size) for at, size in sizes.items() if at not in out)
    for at in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if payload <= _PAYLOAD:
            break
        if at not in out:
            out.add(at)
            payload -= _sent(sizes[at])
    return out


def _sent(size: int) -> int:
    """Bytes of JSON that a value of `size` bytes takes: base64, and a name and type for each column."""
    return size * 4 // 3 + 48 * (size // _COLUMN + 1)
