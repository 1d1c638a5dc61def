"""Parameters of a query, and how a read begins and ends."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..problems import Problem
from ..request import Request

__all__ = ["LISTING", "READING", "Listing", "Reading", "flag", "listing", "number", "reading"]

MOST = (1 << 53) - 1
LISTING = ("prefix", "after", "limit")
READING = ("from", "until", "limit", "max_bytes", "wait", "reverse", "gaps")


def number(query: Mapping[str, str], name: str, default: int, most: int = MOST, least: int = 0) -> int:
    """The parameter `name`, a whole number."""
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 16 or not least <= int(text) <= most:
        raise Problem("invalid-argument", f"{name} is a number from {least} to {most}, not {text[:40]!r}")
    return int(text)


def flag(query: Mapping[str, str], name: str) -> bool:
    """The parameter `name`, true or false; false if it is absent."""
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise Problem("invalid-argument", f"{name} is true or false, not {text[:40]!r}")
    return text == "true"


class Listing(msgspec.Struct):
    """The requested part of a list."""

    prefix: str
    after: str | None
    limit: int


def listing(request: Request) -> Listing:
    """The part of a list that a query asks for."""
    query = request.query(LISTING)
    return Listing(query.get("prefix", ""), query.get("after"), number(query, "limit", 100, 1_000, 1))


class Reading(msgspec.Struct, kw_only=True):
    """The bounds of a read."""

    from_end: bool = False
    min_timestamp: int = 0
    max_timestamp: int = 0
    limit: int = 256
    max_bytes: int = 1 << 20
    wait: float = 0.0
    reverse: bool = False
    gaps: str = "yield"


def reading(query: Mapping[str, str], *, starts: bool) -> Reading:
    """The bounds that a query has. `starts`: it names a place to begin at as well, beside which `from` is refused."""
    found = Reading(
        limit=number(query, "limit", 256, 10_000, 1),
        max_bytes=number(query, "max_bytes", 1 << 20, 8 << 20, 1),
        max_timestamp=number(query, "until", 0),
        reverse=flag(query, "reverse"),
        gaps=query.get("gaps", "yield"),
    )
    if found.gaps not in ("raise", "skip", "yield"):
        raise Problem("invalid-argument", f"gaps is raise, skip or yield, not {found.gaps[:40]!r}")
    begin = query.get("from")
    if begin is not None:
        if starts:
            raise Problem("invalid-argument", "a read begins at one place: after, offset, or from")
        if begin == "end":
            found.from_end = True
        elif begin != "beginning":
            if not (begin.isascii() and begin.isdecimal() and len(begin) <= 16):
                raise Problem("invalid-argument", "from is beginning, end, or a time in milliseconds")
            found.min_timestamp = number(query, "from", 0)
    wait = query.get("wait")
    if wait is not None:
        try:
            found.wait = float(wait)
        except ValueError:
            found.wait = -1.0
        if not 0 <= found.wait <= 30:
            raise Problem("invalid-argument", f"wait is a number of seconds from 0 to 30, not {wait[:40]!r}")
        if found.wait and (found.reverse or found.max_timestamp):
            raise Problem("invalid-argument", "a read with wait takes no until and no reverse")
    return found
