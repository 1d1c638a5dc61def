"""Retention: bounds for the entries that a space keeps."""

from __future__ import annotations

import msgspec

__all__ = ["Retention"]


class Retention(msgspec.Struct, frozen=True):
    """Bounds for the entries that a space keeps. None is no bound: nothing is dropped.

    `max_age` is in seconds; `max_entries` and `max_bytes` (of payload) are for each segment, or for the space. Entries
    beyond a bound are dropped, the oldest first. With `when_full="reject"`, a write beyond it raises SpaceFull instead.
    """

    max_age: float | None = None
    max_entries: int | None = None
    max_bytes: int | None = None
    per: str = "segment"
    when_full: str = "drop_oldest"
