"""Text that a terminal, or a reader of lines, would take for more than text."""

from __future__ import annotations

import re

__all__ = ["amount", "json_escaped", "visible"]

_MEANINGFUL = (
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: they move the cursor, set colours and titles, and more
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # they change the direction of the following text
    "\u2028\u2029"  # they end a line
    "\ud800-\udfff"  # they are no text, and could not be written
)
_pattern = re.compile(f"[{_MEANINGFUL}]")


def amount(count: int, noun: str) -> str:
    """A number with its noun, for people: `1 entry`, `2,000 entries`. The noun is given in the singular."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


def visible(text: str) -> str:
    r"""`text` on one line, with control characters written as Python writes them: \x1b, \u202e, \n."""
    if text.isascii() and text.isprintable():
        return text
    return _pattern.sub(lambda found: repr(found[0])[1:-1], text)


def json_escaped(line: bytes) -> bytes:
    """An equivalent line of valid JSON, in which the characters that a terminal interprets are \\uXXXX."""
    if line.isascii() and b"\x7f" not in line:
        return line
    return _pattern.sub(lambda found: f"\\u{ord(found[0]):04x}", line.decode()).encode()
