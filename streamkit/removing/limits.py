"""Check a caller's retention."""

from __future__ import annotations

from typing import Any

from ..arguments import check_seconds, check_type
from ..log.floors import Retained
from ..log.offsets import Offset
from ..retention import Retention
from .trim import Limit

__all__ = ["check_shares", "limit_of", "stored"]


def limit_of(space: str, segment: str | None, before: Any, keep_entries: Any, keep_bytes: Any, max_age: Any) -> Limit:
    """Raise TypeError or ValueError unless exactly one bound is given, and is one."""
    given = [
        name
        for name, value in (
            ("before", before),
            ("keep_entries", keep_entries),
            ("keep_bytes", keep_bytes),
            ("max_age", max_age),
        )
        if value is not None
    ]
    if len(given) != 1:
        raise ValueError(
            "trim takes exactly one of before, keep_entries, keep_bytes and max_age, not "
            + (" and ".join(given) or "none of them")
        )
    _count(keep_entries, "keep_entries")
    _count(keep_bytes, "keep_bytes")
    if max_age is not None:
        check_seconds("max_age", max_age)
    if before is not None and segment is not None:
        check_type(before, int, "before is a sequence of the segment")
        if before < 0:
            raise ValueError(f"before is a sequence, not {before}")
    elif before is not None:
        before = Offset.decode(before, space)
    return Limit(before, keep_entries, keep_bytes, max_age)


def stored(retention: Retention) -> Retained:
    """Convert a retention to its stored form. Raises TypeError or ValueError for an invalid one."""
    if not isinstance(retention, Retention):
        raise TypeError(
            f"retention is a streamkit.Retention, not {type(retention).__name__}; Retention() without bounds ends it"
        )
    if retention.max_age is not None:
        check_seconds("max_age", retention.max_age, positive=True)
    _count(retention.max_entries, "max_entries", 1)
    _count(retention.max_bytes, "max_bytes", 1)
    for name, value, words in (
        ("per", retention.per, ("segment", "space")),
        ("when_full", retention.when_full, ("drop_oldest", "reject")),
    ):
        check_type(value, str, f"{name} is {words[0]!r} or {words[1]!r}")
        if value not in words:
            raise ValueError(f"{name} is {words[0]!r} or {words[1]!r}, not {value!r}")
    return Retained(
        float(retention.max_age or 0),
        retention.max_entries or 0,
        retention.max_bytes or 0,
        retention.per,
        retention.when_full,
    )


def check_shares(space: str, retention: Retained, partitions: int) -> None:
    """Raise ValueError if a partition's share of a bound of the space is nothing: then no entry could stay."""
    for name in ("max_entries", "max_bytes"):
        bound = getattr(retention, name)
        if retention.per == "space" and 0 < bound < partitions:
            raise ValueError(
                f"the space {space!r} has {partitions} partitions, and each has its share of {name}: choose "
                f"{partitions} or more, not {bound}"
            )


def _count(value: Any, name: str, least: int = 0) -> None:
    if value is None:
        return
    check_type(value, int, f"{name} is an int")
    if not least <= value < 1 << 63:
        raise ValueError(f"{name} is a number from {least} to {(1 << 63) - 1}, not {value}")
