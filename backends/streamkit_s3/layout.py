"""Where a row is: partitions and keys as object names, in the same order and without collisions.

No part of a name between slashes is longer than 253 bytes: services that keep objects as files take 255. A key that is
longer goes on behind "!/", always at the same place, so that the order stays; as no other part ends with "!", none is
an object and a folder at once. Stores of format 1 were made without that: there `split` is False.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os.path
import re
from collections.abc import Sequence

__all__ = ["LONGEST_PREFIX", "check_address", "decode", "encode", "is_long", "is_own", "label", "listing"]

_LONGEST = 300
_STANDARD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# In ASCII order, so that text compares as the bytes do, and all safe in S3 keys and URLs.
_ORDERED = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_TO_ORDERED = bytes.maketrans(_STANDARD, _ORDERED)
_FROM_ORDERED = bytes.maketrans(_ORDERED, _STANDARD)
_ENCODED = re.compile(r"[-0-9A-Z_a-z]+")
_UNREADABLE = re.compile(rb"[^-0-9A-Z_a-z.]+")
_READABLE_MOST = 400
"""Format 1."""
_PART = 252
_SPLIT = "!/"
_READABLE_PART = 160
_LONG = _PART // 4 * 3
"""A key of more bytes does not fit into one part."""

_LONGEST_NAME = 1024
LONGEST_PREFIX = _LONGEST_NAME - len("//") - 36 - (2 + _READABLE_MOST) - len("/") - _READABLE_MOST
"""Bytes of a prefix under which the longest partition and key still have a name."""


def _base64(data: bytes) -> str:
    return base64.b64encode(data).translate(_TO_ORDERED).rstrip(b"=").decode()


def _readable(name: bytes) -> str:
    return _UNREADABLE.sub(lambda found: b"!%b!" % found[0].hex().encode(), name).decode()


def is_long(partition: bytes, keys: Sequence[bytes] = ()) -> bool:
    """Whether one of them has another name where names are split."""
    if len(partition) > _PART // 7 and len(_readable(partition)) > _PART - 2:
        return True
    return any(len(key) > _LONG for key in keys)


def encode(key: bytes, split: bool = True) -> str:
    """Row key to text in the same order."""
    # One character alone is the code of no bytes, and sorts before all others.
    text = _base64(key) or "-"
    if len(text) <= _PART or not split:
        return text
    return _SPLIT.join(text[at : at + _PART] for at in range(0, len(text), _PART))


def decode(text: str) -> bytes | None:
    """The inverse of `encode`, whether split or not; None for what it never makes."""
    if text == "-":
        return b""
    name = text
    if _SPLIT in text:
        text = text.replace(_SPLIT, "")
        if encode(decode(text) or b"") != name:
            return None
    if not _ENCODED.fullmatch(text):
        return None
    try:
        key = base64.b64decode(text.encode().translate(_FROM_ORDERED) + b"=" * (-len(text) % 4))
    except binascii.Error:
        return None
    return key if _base64(key) == text else None


def check_address(partition: bytes, keys: Sequence[bytes]) -> None:
    """ValueError for what is too long to be a row's address."""
    if len(partition) > _LONGEST:
        raise ValueError(f"a partition has at most {_LONGEST} bytes, not {len(partition)}")
    for key in keys:
        if len(key) > _LONGEST:
            raise ValueError(f"a key has at most {_LONGEST} bytes, not {len(key)}")


def label(name: bytes, split: bool = True) -> str:
    """A partition, or a lease, as one path segment: readable unless that is too long. In no particular order."""
    readable = _readable(name)
    if not split:
        return f"p.{readable}" if len(readable) <= _READABLE_MOST else f"b.{_base64(name)}"
    if len(readable) <= _PART - 2:
        return f"p.{readable}"
    return f"h.{readable[:_READABLE_PART]}.{_base64(hashlib.blake2b(name, digest_size=32).digest())}"


def listing(start: bytes, end: bytes, split: bool = True) -> tuple[str, str, str]:
    """How to list start <= key < end: (what all have in common, the text to start after, the text to stop at)."""
    first, stop = encode(start, split), encode(end, split)
    common = os.path.commonprefix((first, stop))  # noqa: RUF071 (these are no paths)
    # Less than `first`, with nothing that `encode` makes between the two.
    after = f"{first[:-1]}{chr(ord(first[-1]) - 1)}~" if start else ""
    return common, after, stop


def is_own(name: str) -> bool:
    """Whether the object `name`, below a store, was made by streamkit."""
    return name == "FORMAT" or name.startswith(("p.", "b.", "h.", "leases/", "probe/"))
