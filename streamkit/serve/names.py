"""Names in paths: a part is the percent-encoded name, or `~` and the base64url of the name.

Some adapters decode the path before the application sees it. The second form survives that for every name.
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from .problems import Problem

__all__ = ["encode_name", "name_of"]


@lru_cache(maxsize=16384)
def name_of(part: bytes) -> str:
    """The name in a raw part of a path. A Problem if it is no UTF-8, or no base64url."""
    try:
        if part.startswith(b"~"):
            text = part[1:]
            return base64.b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True).decode()
        return (unquote_to_bytes(part) if b"%" in part else part).decode()
    except (UnicodeDecodeError, binascii.Error):
        raise Problem(
            "invalid-name",
            "a part of the path is no name: a name is percent-encoded UTF-8, or '~' and the base64url of its UTF-8",
        ) from None


@lru_cache(maxsize=16384)
def encode_name(name: str) -> str:
    """The part of a path for a name. It passes through adapters that decode paths."""
    quoted = quote(name, safe="")
    if quoted == name and not name.startswith("~") and name not in (".", ".."):
        return name
    return "~" + base64.urlsafe_b64encode(name.encode()).rstrip(b"=").decode()
