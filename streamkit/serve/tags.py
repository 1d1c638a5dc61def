"""Entity tags in the headers If-Match and If-None-Match, as RFC 9110 compares them."""

from __future__ import annotations

import re

__all__ = ["has_tag", "has_tag_weakly"]

_TAG = re.compile(rb'(W/)?("[^"]*")')


def has_tag(header: bytes, tag: bytes) -> bool:
    """True if an If-Match names `tag`, a strong one: `"…"`. A weak tag names nothing here."""
    return header.strip() == b"*" or any(found[2] == tag and not found[1] for found in _TAG.finditer(header))


def has_tag_weakly(header: bytes, tag: bytes) -> bool:
    """True if an If-None-Match names `tag`, also as a weak one, because caches weaken tags."""
    return header.strip() == b"*" or any(found[2] == tag for found in _TAG.finditer(header))
