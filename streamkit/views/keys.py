"""Keys of views, as SQLite orders them: numbers, then text by code point, then bytes, then tuples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..lexkey import LexKey

__all__ = ["end_of_prefix", "stored", "values"]

_PLAIN = (str, int, float, bytes)


def stored(key: Any) -> Any:
    """The key as a column holds it. TypeError for what is no key."""
    if type(key) in _PLAIN:
        return key
    if type(key) is tuple:
        return bytes(LexKey.encode(*key))
    if isinstance(key, (str, int, float, bytes)):
        return int(key) if isinstance(key, bool) else key
    raise TypeError(f"a key is str, int, float, bytes or a tuple of these, not {type(key).__name__}")


def values(found: Any) -> Iterable[Any]:
    """What a function gave that may give none, one, or several."""
    if found is None:
        return ()
    if isinstance(found, (str, int, float, bytes, tuple)):
        return (found,)
    return found  # type: ignore[no-any-return]


def end_of_prefix(prefix: str | bytes) -> str | bytes | None:
    """The first key above all that begin with `prefix`; None if there is none."""
    if isinstance(prefix, bytes):
        trimmed = prefix.rstrip(b"\xff")
        return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at]) + 1
        if code <= 0x10FFFF:
            return prefix[:at] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
    return None
