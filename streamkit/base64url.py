"""Bytes as text of letters, digits, `-` and `_` (RFC 4648, section 5), without padding."""

from __future__ import annotations

import base64

__all__ = ["decode_base64url", "encode_base64url"]


def encode_base64url(data: bytes) -> str:
    """The text of `data`."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str | bytes) -> bytes:
    """The bytes of a text of `encode_base64url`. ValueError for characters that such a text does not have."""
    data = text.encode() if isinstance(text, str) else text
    return base64.b64decode(data + b"=" * (-len(data) % 4), b"-_", validate=True)
