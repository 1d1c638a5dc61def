"""The failure of an attempt as text: it is stored, so it is short, of one line, and never raises."""

from __future__ import annotations

__all__ = ["DEADLINE_PASSED", "REJECTED", "WORN_OUT", "failure_text", "worn_out"]

WORN_OUT = "max_deliveries"
"""The reason of a dead letter that used up its attempts. The last failures follow it, if they are known."""
REJECTED = "rejected"
"""The reason of a dead letter whose consumer named none."""
DEADLINE_PASSED = "the deadline passed"
_MOST = 400
"""Bytes of one failure."""


def failure_text(error: BaseException | str | None) -> str:
    """The type and message of an exception, or a text, in one line of at most 400 bytes; empty for None."""
    if error is None:
        return ""
    text = error if isinstance(error, str) else _described(error)
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * _MOST]).split())
    data = line.encode(errors="replace")
    return line if len(data) <= _MOST else data[: _MOST - 3].decode(errors="ignore") + "…"


def _described(error: BaseException) -> str:
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:
        return name
    return f"{name}: {message}" if message else name


def worn_out(error: str, attempt: int, most: int, before: tuple[int, str] | None) -> str:
    """The reason of a dead letter after attempt `attempt` of `most`. `before`: an earlier attempt and its failure."""
    if not error and before is None:
        return WORN_OUT
    reason = f"{WORN_OUT}: {error or 'given up'} (attempt {attempt} of {most})"
    return reason if before is None else f"{reason}; before: {before[1]} (attempt {before[0]} of {most})"
