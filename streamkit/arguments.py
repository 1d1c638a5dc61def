"""Arguments that callers hand in, checked: TypeError for a wrong type, ValueError for a wrong value."""

from __future__ import annotations

from typing import Any

from .errors import InvalidName
from .log.batches import Bounds
from .log.floors import Gaps
from .names import check_name
from .seconds import check_seconds

__all__ = [
    "bounds_of",
    "check_count",
    "check_file_bytes",
    "check_gaps",
    "check_hours",
    "check_listing",
    "check_reverse",
    "check_sequence",
    "newest_of",
]

_LATEST = (1 << 53) - 1
"""Milliseconds since the epoch. No clock goes above it, and other formats cannot hold more."""


def bounds_of(
    min_sequence: Any, max_sequence: Any, min_timestamp: Any, max_timestamp: Any, limit: Any, gaps: Any
) -> Bounds:
    """The bounds of a reading; `limit` is checked with them."""
    for name, value in (
        ("min_sequence", min_sequence),
        ("max_sequence", max_sequence),
        ("min_timestamp", min_timestamp),
        ("max_timestamp", max_timestamp),
        ("limit", limit),
    ):
        if value is not None and type(value) is not int:
            raise TypeError(f"{name} is an int, not {type(value).__name__}")
        if value is not None and value < 0:
            raise ValueError(f"{name} is 0 (no bound) or more, not {value}")
    low, high = min(min_timestamp or 0, _LATEST), min(max_timestamp or 0, _LATEST)
    return Bounds(min_sequence or 0, max_sequence or 0, low, high, check_gaps(gaps))


def check_count(name: str, value: Any) -> int:
    """`value`, 1 or more."""
    if type(value) is not int:
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} is 1 or more, not {value}")
    return value


def newest_of(until: Any, min_age: Any, now: int) -> int:
    """The newest timestamp (ms) that both allow."""
    newest = 1 << 62
    if until is not None:
        if type(until) is not int:
            raise TypeError(f"until is a timestamp in milliseconds, not {type(until).__name__}")
        newest = until
    if min_age is not None:
        check_seconds("min_age", min_age)
        newest = min(newest, now - int(min_age * 1000))
    return newest


def check_gaps(gaps: Any) -> Gaps:
    if not isinstance(gaps, str):
        raise TypeError(f"gaps is 'raise', 'skip' or 'yield', not {type(gaps).__name__}")
    if gaps not in ("raise", "skip", "yield"):
        raise ValueError(f"gaps is 'raise', 'skip' or 'yield', not {gaps!r}")
    return gaps  # type: ignore[return-value]


def check_listing(prefix: Any, after: Any, limit: Any) -> None:
    """The bounds of a list of segments."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix is str, not {type(prefix).__name__}")
    try:
        prefix.encode()
    except UnicodeEncodeError:
        raise InvalidName("prefix has a lone surrogate, which is not text; no name begins with it") from None
    if after is not None:
        check_name(after, "segment")
    if type(limit) is not int:
        raise TypeError(f"limit is an int, not {type(limit).__name__}")
    if limit < 0:
        raise ValueError(f"limit is 0 (no bound) or more, not {limit}")


def check_sequence(name: str, value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{name} is a sequence, not {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{name} is a sequence, 0 for all, not {value}")
    return value


def check_reverse(reverse: Any) -> None:
    if type(reverse) is not bool:
        raise TypeError(f"reverse is True or False, not {type(reverse).__name__}")


def check_file_bytes(value: Any) -> None:
    if type(value) is not int:
        raise TypeError(f"target_file_bytes is an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"target_file_bytes is 1 or more, not {value}")


def check_hours(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of hours, not {type(value).__name__}")
    if not 0 <= value < 1e9:
        raise ValueError(f"{name} is a number of hours from 0, not {value}")
