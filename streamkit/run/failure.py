"""The failure of a user's function as text that can be stored."""

from __future__ import annotations

__all__ = ["failure_text"]

_MOST = 2000
"""Characters of a message."""


def failure_text(error: BaseException) -> str:
    """The class and the message of an exception, with lone surrogates spelled out: UTF-8 has none."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except Exception:  # the user's class raises it
        return name
    return text[:_MOST].encode(errors="backslashreplace").decode()
