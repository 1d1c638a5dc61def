"""Names in paths: a part is the percent-encoded name, or `~` and the base64url of the name.

Some adapters decode the path before the application sees it. The second form survives that for every name.
"""

from __future__ import annotations

import binascii
from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from ..base64url import decode_base64url, encode_base64url
from .problems import Problem

__all__ = ["encode_name", "name_of", "raw_path"]


_LONGEST = 1_024
"""Bytes of the longest part that is remembered; every legal name fits, however it is encoded."""


def name_of(part: bytes) -> str:
    """The name in a raw part of a path. A Problem if it is no UTF-8, or no base64url."""
    return _name_of(part) if len(part) <= _LONGEST else _name_of.__wrapped__(part)


@lru_cache(maxsize=16384)
def _name_of(part: bytes) -> str:
    try:
        if part.startswith(b"~"):
            return decode_base64url(part[1:]).decode()
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
    return "~" + encode_base64url(name.encode())


def raw_path(scope: MutableMapping[str, Any]) -> bytes:
    """The path as it was sent. Adapters that know only the decoded one get it encoded again."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        raw = quote(scope["path"], safe="/~!$&'()*+,;=:@").encode()
    if not raw.startswith(b"/"):
        raise Problem("not-found", "the path does not begin with '/'")
    return raw.partition(b"?")[0]
