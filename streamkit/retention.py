"""Retention: bounds for what a space keeps."""

from __future__ import annotations

import msgspec

__all__ = ["Retention"]


class Retention(msgspec.Struct, frozen=True):
    """Bounds for what a space keeps. None is no bound: nothing is dropped.

    `max_age` is in seconds; `max_entries` and `max_bytes` (of payload) are for each segment, or for the space. What is
    more is dropped, the oldest first; or, with `when_full="reject"`, a write that would exceed it is SpaceFull.
    """

    max_age: float | None = None
    max_entries: int | None = None
    max_bytes: int | None = None
    per: str = "segment"
    when_full: str = "drop_oldest"
