"""Reading for views and routes: chunks of entries in order, with the position after each chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import signature
from itertools import islice
from typing import Any, Protocol

import msgspec

from ..errors import InvalidOffset
from ..lexkey import LexKey
from ..log.offsets import Offset
from ..model import Entry
from ..store import Store

__all__ = [
    "RemovedEntries",
    "SpacePosition",
    "after",
    "chunks",
    "decode_offset",
    "is_behind",
    "is_loss",
    "reached",
    "same_space",
    "seconds_behind",
]

_MOST = 10_000
_LEAST = 500
_BYTES = 8 << 20


class SpacePosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place up to which one space was read."""

    offset: str = ""
    """Hex text; "" is before everything."""
    timestamp: int = 0
    """The timestamp of the last entry, in ms."""
    entries: int = 0
    """The number of entries that were read."""

    @property
    def key(self) -> LexKey | None:
        """The offset for `consume_space(offset=…)`."""
        return LexKey.from_hex(self.offset) if self.offset else None


class RemovedEntries(Protocol):
    """A Gap in the place of entries that are gone."""

    @property
    def space(self) -> str: ...
    @property
    def segment(self) -> str: ...
    @property
    def first_sequence(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def reason(self) -> str: ...


def is_loss(gap: RemovedEntries) -> bool:
    """True if trim or retention removed the entries, which others may have read; False for an erasure."""
    return gap.reason in ("trimmed", "expired")


_GAPS: dict[str, Any] = {"gaps": "yield"} if "gaps" in signature(Store.consume_space).parameters else {}
"""Readers that can tell of gaps are asked to."""


def chunks(
    store: Store, positions: Mapping[str, SpacePosition], most: int = _MOST
) -> Iterator[tuple[list[Entry], list[RemovedEntries]]]:
    """Read everything after `positions`: yield chunks of entries, each with the gaps before or among them.

    Several spaces are merged by timestamp.
    """
    found: Iterator[Any]
    if len(positions) == 1:
        [(space, position)] = positions.items()
        found = store.consume_space(space, offset=position.key, **_GAPS)
    else:
        found = store.consume({space: position.key for space, position in positions.items()}, **_GAPS)
    count = min(_LEAST, most)
    while items := list(islice(found, count)):
        chunk: list[Entry] = items
        gaps: list[Any] = []
        if _GAPS and set(map(type, items)) != {Entry}:
            gaps = [item for item in items if not isinstance(item, Entry)]
            chunk = [item for item in items if isinstance(item, Entry)]
        yield chunk, gaps
        if not chunk:
            continue
        sample = chunk[:: 1 + len(chunk) // 100]
        size = sum([len(entry.payload) for entry in sample]) // len(sample) + 200
        count = max(1, min(most, count * 4, _BYTES // size))


def after(positions: Mapping[str, SpacePosition], entries: Sequence[Entry]) -> dict[str, SpacePosition]:
    """The positions behind `entries`, which follow on `positions`."""
    found = dict(positions)
    if len(found) == 1:
        last = entries[-1]
        before = found[last.space]
        found[last.space] = SpacePosition(last.space_offset.hex(), last.timestamp, before.entries + len(entries))
        return found
    latest: dict[str, Entry] = {}
    counts: dict[str, int] = {}
    for entry in entries:
        latest[entry.space] = entry
        counts[entry.space] = counts.get(entry.space, 0) + 1
    for space, entry in latest.items():
        before = found[space]
        found[space] = SpacePosition(entry.space_offset.hex(), entry.timestamp, before.entries + counts[space])
    return found


def decode_offset(offset: LexKey | bytes | str, spaces: Sequence[str]) -> Offset:
    """Decode an offset of one of the spaces. Raises InvalidOffset if it belongs to none of them."""
    wrong: InvalidOffset | None = None
    for space in spaces:
        try:
            return Offset.decode(offset, space)
        except InvalidOffset as error:
            wrong = error
    assert wrong is not None
    raise wrong


def reached(position: SpacePosition, offset: Offset) -> bool:
    """True if all that is before `offset` is before `position`."""
    if not offset.positions:
        return True
    if not position.offset:
        return False
    here = Offset.decode(position.offset, offset.space)
    if here.incarnation != offset.incarnation:
        return False
    if not offset.whole:
        return here.positions[offset.partition] >= offset.positions[0]
    return all(mine >= wanted for mine, wanted in zip(here.positions, offset.positions, strict=True))


def is_behind(position: SpacePosition, end: Offset) -> bool:
    return not reached(position, end)


def seconds_behind(store: Store, position: SpacePosition, end: Offset) -> float:
    """Seconds from the last entry that was read, or else from the first one, until the newest one; 0 at the end.

    It is at least 1 ms before the end, even if all entries up to the end were erased.
    """
    if not is_behind(position, end):
        return 0.0
    try:
        first = next(store.consume_space(end.space, offset=position.key, limit=1, gaps="skip"), None)
    except InvalidOffset:  # the space was made again since
        first = next(store.consume_space(end.space, limit=1), None)
    if first is None:
        return 0.0
    return max((end.timestamp - (position.timestamp or first.timestamp)) / 1000, 0.001)


def same_space(position: SpacePosition, end: Offset) -> bool:
    """True if the position is of the space that ends at `end`, not of one of that name that was deleted."""
    return not position.offset or Offset.decode(position.offset, end.space).incarnation == end.incarnation
