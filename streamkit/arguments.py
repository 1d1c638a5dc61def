"""Arguments that callers hand in, checked: TypeError for a wrong type, ValueError for a wrong value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from .errors import InvalidName
from .log.batches import Bounds
from .log.floors import Gaps
from .names import check_name
from .seconds import check_seconds

__all__ = [
    "bounds_of",
    "check_count",
    "check_erasure",
    "check_gaps",
    "check_hours",
    "check_listing",
    "check_reverse",
    "check_sequence",
    "check_type",
    "newest_of",
]

_LATEST = (1 << 53) - 1
"""Milliseconds since the epoch. No clock goes above it, and other formats cannot hold more."""
_MOST_SEQUENCES = 1_000_000
"""Sequences that one erasure names."""


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
        check_type(value, int, f"{name} is an int", optional=True)
        if value is not None and value < 0:
            raise ValueError(f"{name} is 0 (no bound) or more, not {value}")
    low, high = min(min_timestamp or 0, _LATEST), min(max_timestamp or 0, _LATEST)
    return Bounds(min_sequence or 0, max_sequence or 0, low, high, check_gaps(gaps))


def check_type(value: Any, kind: Any, what: str, *, optional: bool = False) -> None:
    """TypeError unless `value` is of `kind`, or is None and `optional`. `what` names the argument in the error.

    A bool is no int.
    """
    if optional and value is None:
        return
    if not (type(value) is kind if kind in (int, bool) else isinstance(value, kind)):
        raise TypeError(f"{what}, not {type(value).__name__}")


def check_count(name: str, value: Any, least: int = 1, *, most: int | None = None) -> int:
    """`value`, an int from `least` up to `most`."""
    check_type(value, int, f"{name} is an int")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name} is {least} {'or more' if most is None else f'to {most}'}, not {value}")
    return int(value)


def newest_of(until: Any, min_age: Any, now: int) -> int:
    """The newest timestamp (ms) that both allow."""
    newest = 1 << 62
    if until is not None:
        check_type(until, int, "until is a timestamp in milliseconds")
        newest = until
    if min_age is not None:
        check_seconds("min_age", min_age)
        newest = min(newest, now - int(min_age * 1000))
    return newest


def check_gaps(gaps: Any) -> Gaps:
    check_type(gaps, str, "gaps is 'raise', 'skip' or 'yield'")
    if gaps not in ("raise", "skip", "yield"):
        raise ValueError(f"gaps is 'raise', 'skip' or 'yield', not {gaps!r}")
    return cast(Gaps, gaps)


def check_listing(prefix: Any, after: Any, limit: Any) -> None:
    """The bounds of a list of segments."""
    check_type(prefix, str, "prefix is str")
    try:
        prefix.encode()
    except UnicodeEncodeError:
        raise InvalidName("prefix has a lone surrogate, which is not text; no name begins with it") from None
    if after is not None:
        check_name(after, "segment")
    check_type(limit, int, "limit is an int")
    if limit < 0:
        raise ValueError(f"limit is 0 (no bound) or more, not {limit}")


def check_sequence(name: str, value: Any) -> int:
    check_type(value, int, f"{name} is a sequence")
    if value < 0:
        raise ValueError(f"{name} is a sequence, 0 for all, not {value}")
    return int(value)


def check_reverse(reverse: Any) -> None:
    check_type(reverse, bool, "reverse is True or False")


def check_hours(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number of hours, not {type(value).__name__}")
    if not 0 <= value < 1e9:
        raise ValueError(f"{name} is a number of hours from 0, not {value}")


def check_erasure(segment: Any, first: Any, last: Any, metadata: Any, sequences: Any = None) -> frozenset[int] | None:
    """The sequences that are named one by one. TypeError, or ValueError where nothing is named, or nothing can be."""
    if segment is None and metadata is None:
        raise ValueError("erase takes a segment, or a glob of segments, or metadata, or both: nothing was named")
    check_type(segment, str, "segment is the name of one, or a glob", optional=True)
    if segment == "":
        raise ValueError("segment is the name of one, or a glob; an empty text names none")
    _check_utf8("segment", segment or "")
    for name, value in (("first", first), ("last", last)):
        check_type(value, int, f"{name} is a sequence", optional=True)
        if value is not None and value < 1:
            raise ValueError(f"{name} is a sequence from 1, not {value}")
    if segment is None and (first != 1 or last is not None):
        raise ValueError("first and last are sequences of a segment: name one, or a glob")
    if metadata is not None:
        check_type(metadata, Mapping, "metadata is a mapping of text to text")
        if not metadata:
            raise ValueError("metadata names no pair: every entry has all of none")
        for name, value in metadata.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError("metadata is a mapping of text to text")
            _check_utf8("metadata", name + value)
    return None if sequences is None else _named_sequences(segment, first, last, sequences)


def _named_sequences(segment: Any, first: Any, last: Any, sequences: Any) -> frozenset[int]:
    if segment is None or first != 1 or last is not None:
        raise ValueError("sequences are of one segment: name it, and leave out first and last")
    if isinstance(sequences, (str, bytes)) or not isinstance(sequences, Iterable):
        raise TypeError(f"sequences is a list of numbers, not {type(sequences).__name__}")
    found = frozenset(sequences)
    for sequence in found:
        if type(sequence) is not int:
            raise TypeError(f"sequences is a list of numbers; there is a {type(sequence).__name__} in it")
        if sequence < 1:
            raise ValueError(f"a sequence is a number from 1, not {sequence}")
    if not 0 < len(found) <= _MOST_SEQUENCES:
        raise ValueError(f"sequences names 1 to {_MOST_SEQUENCES:,} entries, not {len(found):,}")
    return found


def _check_utf8(name: str, text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{name} is UTF-8, which has no lone surrogates: no entry has this {name}")
