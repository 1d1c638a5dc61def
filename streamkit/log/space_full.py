"""The check for room, where a retention rejects writes. Decided without I/O."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import SpaceFull, StreamkitError, TransactionTooLarge
from .floors import Retained
from .partition import Partition
from .request import Request
from .rows import SegmentRow

__all__ = ["check_room"]


def check_room(
    partition: Partition,
    retention: Retained,
    request: Request,
    added: Mapping[str, tuple[int, int]],
    before: Mapping[str, SegmentRow],
) -> StreamkitError | None:
    """SpaceFull, or TransactionTooLarge, if a space whose `retention` rejects has no room for `request`; else None.

    `added`: (entries, bytes) that the transaction has already, by segment and "" for all. The bounds of a space of
    several partitions are shared out among them.
    """
    wanted: dict[str, tuple[int, int]] = {}
    for part in request.parts:
        if part.body is not None:
            name = part.segment if retention.per == "segment" else ""
            count, size = wanted.get(name, (0, 0))
            wanted[name] = count + part.body.count, size + part.size
    share = 1 if retention.per == "segment" else partition.settings.partitions
    most, most_bytes = retention.max_entries // share, retention.max_bytes // share
    for name, (count, size) in wanted.items():
        what = f"segment {name!r} of space {partition.space!r}" if name else f"space {partition.space!r}"
        if share > 1:
            what = f"partition {partition.partition} of {what}, which has one of {share} shares,"
        if (retention.max_entries and count > most) or (retention.max_bytes and size > most_bytes):
            return TransactionTooLarge(
                f"{count} entries with {size} bytes can never fit: {what} holds at most {_bounds(most, most_bytes)}"
            )
        if name:
            row = before[name]
            first = partition.floor.number
            gone = row.empty or (row.last_number and row.last_number < first)
            there = 0 if gone else row.last_sequence - row.first_sequence + 1
            stored = 0 if gone else row.size - row.first_size
        else:
            there, stored = partition.position - partition.floor.position, partition.size - partition.floor.size
        more, more_bytes = added.get(name, (0, 0))
        if (retention.max_entries and there + more + count > most) or (
            retention.max_bytes and stored + more_bytes + size > most_bytes
        ):
            return SpaceFull(
                f"{what} is full: it holds {there} entries with {stored} bytes, and its retention of "
                f"{_bounds(most, most_bytes)} rejects {count} more with {size} bytes. Trim it, or set another retention"
            )
    return None


def _bounds(entries: int, size: int) -> str:
    return " and ".join([f"{entries} entries"] * bool(entries) + [f"{size} bytes"] * bool(size))
