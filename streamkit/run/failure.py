"""The failure of a user's function as text that can be stored."""

from __future__ import annotations

__all__ = ["described", "storable"]

_MOST = 2000
"""Characters of a description."""


def described(error: BaseException) -> str:
    """The class and the message of an exception, in at most 2,000 characters that can be stored."""
    name = type(error).__name__
    try:
        text = f"{name}: {error}"
    except Exception:  # the user's class raises it
        return name
    return storable(text[:_MOST])


def storable(text: str) -> str:
    """The text with its lone surrogates spelled out: they are not UTF-8, and an entry is rejected all the same."""
    return text.encode(errors="backslashreplace").decode()
