"""A stream's offset, as Spark keeps it in the checkpoint: how far each partition of each space was read.

    {"version": 2, "rows": 100000, "named": true,
     "spaces": {"[store, space]": {"incarnation": "…", "read": [17, [4, 2]], "tasks": [[9, 17], []]}}}

For each partition stands the last transaction that was read, or a pair: that transaction, and how many entries of the
one after it were read too, as an offset of the log may have said. `tasks` has the last transaction of each task of the
batch that ends there, by partition. So a repeated batch has the same tasks, also with other options, and if
transactions were trimmed meanwhile. Earlier releases noted no tasks: then `rows` makes them. `named`: a 0 is a place
like any other, behind which nothing may be missing; without it, of earlier releases, it may be the beginning of a
partition that had been trimmed already. Version 1 has one number for each [store, space, partition], no incarnation.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from ..decoders import convert, json_decoder

__all__ = ["SpaceOffset", "StreamOffset", "decode", "encode"]

_VERSION = 2
_ROWS = 100_000


class SpaceOffset(NamedTuple):
    incarnation: str | None
    """The incarnation in hex; None in a checkpoint of version 1, which lacks it."""
    read: tuple[tuple[int, int], ...]
    """The last transaction read of each partition, and the number of entries read of the next one."""
    tasks: tuple[tuple[int, ...], ...] | None = None
    """The last transaction of each task, by partition; None if they were not noted."""

    def of(self, partition: int) -> tuple[int, int]:
        return self.read[partition] if partition < len(self.read) else (0, 0)


class StreamOffset(NamedTuple):
    spaces: dict[tuple[UUID, str], SpaceOffset]
    rows: int = _ROWS
    named: bool = False
    """True if entries missing after (0, 0) are a loss too."""


def encode(offset: StreamOffset) -> dict[str, Any]:
    """Equal offsets give the same text."""
    spaces: dict[str, dict[str, Any]] = {}
    for (store, space), (incarnation, read, tasks) in sorted(offset.spaces.items()):
        name = json.dumps([str(store), space])
        spaces[name] = {
            "incarnation": incarnation or "",
            "read": [[number, skip] if skip else number for number, skip in read],
        }
        if tasks is not None:
            spaces[name]["tasks"] = [[*ends] for ends in tasks]
    named = {"named": True} if offset.named else {}
    return {"version": _VERSION, "rows": offset.rows, **named, "spaces": spaces}


class _SpaceOffset(msgspec.Struct):
    """A space of an offset, as it is stored."""

    incarnation: str
    read: list[int | tuple[int, int]]
    tasks: tuple[tuple[int, ...], ...] | None = None


class _Stored(msgspec.Struct):
    """An offset of version 2, as it is stored."""

    rows: int
    spaces: dict[str, _SpaceOffset]
    named: bool = False


def decode(offset: dict[str, Any]) -> StreamOffset:
    """Raise ValueError for an offset of a newer release, and for one that is damaged."""
    version = offset.get("version")
    if version == 1:
        return _decode_first(offset)
    if version != _VERSION:
        raise ValueError(
            f"the checkpoint's offset has version {version!r}; this release reads {_VERSION}. Upgrade streamkit, or "
            "begin with a new checkpoint"
        )
    stored = convert(offset, _Stored)
    spaces = {}
    for name, place in stored.spaces.items():
        read = tuple((at, 0) if isinstance(at, int) else at for at in place.read)
        spaces[json_decoder(tuple[UUID, str]).decode(name)] = SpaceOffset(place.incarnation, read, place.tasks)
    return StreamOffset(spaces, stored.rows, stored.named)


def _decode_first(offset: dict[str, Any]) -> StreamOffset:
    read: dict[tuple[UUID, str], dict[int, int]] = {}
    for name, number in convert(offset, dict[str, int]).items():
        if name != "version":
            store, space, partition = json_decoder(tuple[UUID, str, int]).decode(name)
            read.setdefault((store, space), {})[partition] = number
    spaces = {}
    for key, numbers in read.items():
        spaces[key] = SpaceOffset(None, tuple((numbers.get(at, 0), 0) for at in range(max(numbers) + 1)))
    return StreamOffset(spaces)
