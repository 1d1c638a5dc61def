"""Watermarks: the numbers that a process had reached at some moments. They tell the number that it had reached one
grace ago.

A watermark is (number, ms): everything up to the number has been reached since then, by the service's clock. A later
moment, or a smaller number, is as true, so a watermark may be moved or dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Watermarks", "reached", "with_watermark"]

Watermarks = tuple[tuple[int, int], ...]
_SHARES = 8
"""The shares of a grace. Each has two marks, so the end of a grace is noticed late by one share at most."""
_MOST = 2 * _SHARES


def with_watermark(marks: Sequence[tuple[int, int]], number: int, now: float, grace: float) -> Watermarks:
    """Return `marks`, oldest first, with the mark that `number` has been reached `now`, in seconds. `grace` is in
    seconds.

    Marks later than now are dropped: a machine's clock was ahead. They would not count until that time has come.
    """
    kept = [mark for mark in marks if mark[1] <= now * 1000]
    if len(kept) > 1 and now * 1000 - kept[-2][1] < grace * 1000 / _SHARES:
        kept.pop()
    return (*kept[-_MOST:], (number, int(now * 1000)))


def reached(marks: Sequence[tuple[int, int]], until: float) -> int:
    """The number that had been reached by `until`, in seconds; 0 if no mark says so."""
    return max((number for number, since in marks if since <= until * 1000), default=0)
