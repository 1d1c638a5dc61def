"""The layout of rows: partitions and keys as object names, in the same order and without collisions.

No part of a name between slashes is longer than 253 bytes: services that keep objects as files take 255. A longer key
continues after "!/", always at the same place, so that the order stays. No other part ends with "!", so no name is an
object and a folder at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os.path
import re
from collections.abc import Iterable

__all__ = ["LONGEST_PREFIX", "check_address", "decode", "encode", "is_own", "label", "listing"]

_LONGEST = 300
_STANDARD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# In ASCII order, so that text compares as the bytes do, and all safe in S3 keys and URLs.
_ORDERED = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_TO_ORDERED = bytes.maketrans(_STANDARD, _ORDERED)
_FROM_ORDERED = bytes.maketrans(_ORDERED, _STANDARD)
_ENCODED = re.compile(r"[-0-9A-Z_a-z]+")
_UNREADABLE = re.compile(rb"[^-0-9A-Z_a-z.]+")
_PART = 252
_SPLIT = "!/"
_READABLE_PART = 160

_LONGEST_NAME = 1024
_LONGEST_KEY = _LONGEST // 3 * 4 + len(_SPLIT)
LONGEST_PREFIX = _LONGEST_NAME - len("//") - 36 - _PART - len("/") - _LONGEST_KEY
"""Bytes of a prefix under which the longest partition and key still have a name."""


def _base64(data: bytes) -> str:
    return base64.b64encode(data).translate(_TO_ORDERED).rstrip(b"=").decode()


def _readable(name: bytes) -> str:
    return _UNREADABLE.sub(lambda found: b"!%b!" % found[0].hex().encode(), name).decode()


def encode(key: bytes) -> str:
    """Row key to text in the same order."""
    # One character alone is the code of no bytes, and sorts before all others.
    text = _base64(key) or "-"
    if len(text) <= _PART:
        return text
    return _SPLIT.join(text[at : at + _PART] for at in range(0, len(text), _PART))


def decode(text: str) -> bytes | None:
    """The inverse of `encode`; None for a name that it never makes."""
    if text == "-":
        return b""
    joined = text.replace(_SPLIT, "")
    if not _ENCODED.fullmatch(joined):
        return None
    try:
        key = base64.b64decode(joined.encode().translate(_FROM_ORDERED) + b"=" * (-len(joined) % 4))
    except binascii.Error:
        return None
    return key if encode(key) == text else None


def check_address(partition: bytes, keys: Iterable[bytes]) -> None:
    """Raise ValueError for a partition or key that is too long."""
    if len(partition) > _LONGEST:
        raise ValueError(f"a partition has at most {_LONGEST} bytes, not {len(partition)}")
    for key in keys:
        if len(key) > _LONGEST:
            raise ValueError(f"a key has at most {_LONGEST} bytes, not {len(key)}")


def label(name: bytes) -> str:
    """A partition, or a lease, as one path segment: readable unless that is too long. In no particular order."""
    readable = _readable(name)
    if len(readable) <= _PART - 2:
        return f"p.{readable}"
    return f"h.{readable[:_READABLE_PART]}.{_base64(hashlib.blake2b(name, digest_size=32).digest())}"


def listing(start: bytes, end: bytes) -> tuple[str, str, str]:
    """Return the list request for start <= key < end: (common prefix, text to start after, text to stop at)."""
    first, stop = encode(start), encode(end)
    common = os.path.commonprefix((first, stop))  # noqa: RUF071 (these are no paths)
    # Less than `first`, with nothing that `encode` makes between the two.
    after = f"{first[:-1]}{chr(ord(first[-1]) - 1)}~" if start else ""
    return common, after, stop


def is_own(name: str) -> bool:
    """True if the object `name`, below a store, was made by streamkit."""
    return name == "FORMAT" or name.startswith(("p.", "h.", "leases/", "probe/"))
