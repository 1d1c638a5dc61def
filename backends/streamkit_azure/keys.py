"""The seam's bytes as PartitionKey and RowKey: ASCII that Azure accepts, in the same order as the bytes.

The letter k, then base32hex in lower case without padding. The first letter keeps the empty key and keys of digits
alone ordinary strings, and leaves room for rows of another kind.
"""

from __future__ import annotations

import base64
from functools import lru_cache

from streamkit.errors import CorruptData

__all__ = ["LONGEST", "decode_key", "encode_bound", "encode_key", "encode_partition"]

LONGEST = 300
"""Bytes of a partition or key: 481 characters of the 512 that are safe for Azure."""


def encode_key(key: bytes) -> str:
    """The RowKey of `key`. ValueError if it is too long."""
    if len(key) > LONGEST:
        raise ValueError(f"a partition or key has at most {LONGEST} bytes, not {len(key)}")
    return _encode(key)


def encode_bound(bound: bytes) -> str:
    """The RowKey that every key compares to as to `bound`, which may be longer than a key."""
    return _encode(bound[: LONGEST + 1])


def _encode(key: bytes) -> str:
    return "k" + base64.b32hexencode(key).decode().rstrip("=").lower()


encode_partition = lru_cache(maxsize=1024)(encode_key)


def decode_key(text: str) -> bytes:
    """The inverse of `encode_key`. CorruptData for a key that it did not make."""
    bits = 5 * (len(text) - 1)
    try:
        # int() reads base 32 with the same digits, a hundred times faster than base64 does.
        key = (int(text[1:] or "0", 32) >> bits % 8).to_bytes(bits // 8, "big")
    except (ValueError, OverflowError):
        key = None
    if key is None or encode_key_length(len(key)) != len(text) or text[0] != "k":
        raise CorruptData(f"the table holds a row {text[:80]!r} that streamkit did not write; move it elsewhere")
    return key


def encode_key_length(size: int) -> int:
    """Characters of a key of `size` bytes."""
    return 1 + (8 * size + 4) // 5
