"""Numbers of seconds that callers hand in, checked."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["check_poll", "check_seconds"]


_MOST = 1e15
"""More than 30 million years. The milliseconds still fit a stored integer."""


def check_seconds(name: str, value: Any, *, positive: bool = False, endless: bool = False) -> float:
    """Return `value` as a float: from 0, or above 0 if `positive`; infinity only if `endless`. TypeError or
    ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of seconds, not {type(value).__name__}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if math.isnan(seconds) or seconds < 0 or (positive and seconds == 0):
        raise ValueError(f"{name} is a {'positive ' if positive else ''}number of seconds from 0, not {value}")
    if _MOST < seconds < math.inf and not endless:
        raise ValueError(f"{name} is at most {_MOST:g} seconds, not {value}")
    if math.isinf(seconds) and not endless:
        raise ValueError(f"{name} is a finite number of seconds, not {seconds}")
    return seconds


def check_poll(poll: Any) -> tuple[float, float] | None:
    """(at first, at most) in seconds, or None."""
    if poll is None:
        return None
    if not isinstance(poll, (tuple, list)) or len(poll) != 2:
        raise TypeError(f"poll is two numbers of seconds, between looks at first and at most, not {poll!r:.60}")
    least, most = (check_seconds("poll", value, positive=True) for value in poll)
    if least > most:
        raise ValueError(f"poll is the pause at first, and the longest one: {least:g} is more than {most:g}")
    return least, most
