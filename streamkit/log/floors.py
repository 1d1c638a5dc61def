"""Removed entries: control records, and the floors that follow from them. Values only.

A removal is a transaction like any other, so every process learns of it at its place in the order. It names the first
entry of a segment, or of the whole partition, that can still be read. Readers obey at once; storage follows later.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Literal

import msgspec

__all__ = [
    "REMOVED",
    "Changed",
    "Control",
    "Erasure",
    "Floor",
    "Gaps",
    "Reason",
    "Removal",
    "Removed",
    "Retained",
    "join_controls",
    "joined",
    "overlapping",
]

Gaps = Literal["raise", "skip", "yield"]
"""The reaction of a reader to missing entries."""
Reason = str
""" "trimmed", "expired", "erased" or "deleted"."""


class Removed(bytes):
    """Stands for the payload of a removed entry, within batches. It is empty; its type identifies it."""

    __slots__ = ()
    reason: Reason = ""


class _Erased(Removed):
    reason = "erased"


class _Trimmed(Removed):
    reason = "trimmed"


REMOVED: dict[Reason, Removed] = {"erased": _Erased(), "trimmed": _Trimmed()}
"""The payload of a removed entry, by reason. "trimmed": it is below a floor."""


class Removal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The entries of a segment up to sequence `last` are gone."""

    segment: str
    last: int
    reason: Reason
    timestamp: int = 0
    """The timestamp of the first entry that is left; 0 if none is."""
    number: int = 0
    """The transaction of that entry."""
    size: int = 0
    """Bytes of payload that the segment was given before it."""


class Floor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first transaction of a partition that can be read."""

    number: int = 1
    reason: Reason = "trimmed"
    end: tuple[int, int] = (0, 0)
    """(number, index) after the last entry that is gone: an offset from there on misses nothing."""
    position: int = 0
    """Entries before it."""
    size: int = 0
    """Bytes of payload before it."""
    timestamp: int = 0
    """The timestamp of the transaction before it."""
    timestamp_at: int = 0
    """The timestamp of the transaction `number`, as far as it is known."""


class Erasure(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The entries first..last of a segment are erased, by the transaction `number`; 0 in that transaction itself."""

    segment: str
    first: int
    last: int
    number: int = 0


class Retained(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A retention, as it is stored. 0 is no bound."""

    max_age: float = 0.0
    max_entries: int = 0
    max_bytes: int = 0
    per: str = "segment"
    when_full: str = "drop_oldest"


class Changed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Settings of a space in the place of those that it was created with; 0 for one that is as it was."""

    idempotency_window: float = 0.0
    archive_grace: float = 0.0
    trimmed_rows: str = ""
    """The archive's table keeps rows of trimmed entries ("keep", the default) or loses them ("remove")."""

    def then(self, later: Changed) -> Changed:
        return Changed(
            later.idempotency_window or self.idempotency_window,
            later.archive_grace or self.archive_grace,
            later.trimmed_rows or self.trimmed_rows,
        )


class Control(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A transaction's changes to the partition itself. They apply before the entries of the same transaction."""

    removals: tuple[Removal, ...] = ()
    floor: Floor | None = None
    retention: Retained | None = None
    erasures: tuple[Erasure, ...] = ()
    changed: Changed = Changed()


def join_controls(controls: Iterable[Control]) -> Control | None:
    """The controls of several requests, as one; None if there is none."""
    joined: Control | None = None
    for control in controls:
        if joined is None:
            joined = control
            continue
        floors = [floor for floor in (joined.floor, control.floor) if floor is not None]
        joined = Control(
            joined.removals + control.removals,
            max(floors, key=lambda floor: floor.number) if floors else None,
            control.retention or joined.retention,
            joined.erasures + control.erasures,
            joined.changed.then(control.changed),
        )
    return joined


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The sequences of `ranges` as ranges in order that do not touch. Two erasures may name the same sequences."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return found


def overlapping(ranges: Sequence[tuple[int, int]], first: int, last: int) -> Sequence[tuple[int, int]]:
    """The ranges that hold one of first..last. `ranges` are in order and do not touch: see `joined`."""
    low = bisect_left(ranges, first, key=itemgetter(1))
    return ranges[low : bisect_right(ranges, last, low, key=itemgetter(0))]
