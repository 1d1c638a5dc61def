"""The place of a moment in a partition."""

from __future__ import annotations

from .view import LogView

__all__ = ["first_at"]


def first_at(view: LogView, timestamp: int, first: int, end: int) -> int:
    """The first transaction from `first` on that is not older than `timestamp`; end + 1 if there is none."""
    first = max(first, view.floor.number)
    hot = max(first, min(view.cold_until, end) + 1)
    found, last = view.packs.narrow(timestamp, hot, end)
    while found < last:
        middle = (found + last) // 2
        if view.header(middle).timestamp < timestamp:
            found = middle + 1
        else:
            last = middle
    if found > hot or hot == first:
        return found
    return view.archive().first_at(view, timestamp, first, hot - 1)
