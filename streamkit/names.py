"""Legal names of spaces and segments, and the partition of a segment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from .digest import blake2b
from .errors import InvalidName

__all__ = ["InternalName", "check_name", "check_names", "internal_name", "partition_of"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LIMIT = 255
_DIGEST = 20


class InternalName(str):
    """The name of an internal space, from `internal_name`: taken wherever a space is named, and never a user's.

    It begins with a control character, and all of them sort before every name that a user may give.
    """

    __slots__ = ()


def internal_name(kind: str, *parts: str) -> InternalName:
    """The name of the internal space for `parts`, any text, of one `kind`: short words in lower case, such as "view".

    Different parts give different names. Names of one kind begin with `internal_name(kind)`. If the parts are too long
    for a name, the last part is a digest of all of them.
    """
    name = "\x01" + "\x1f".join((kind, *(part.replace("\x1f", "\x1f\x1e") for part in parts)))
    if len(name.encode()) > _LIMIT:
        digest = blake2b(name.encode(), digest_size=_DIGEST).hexdigest()
        name = f"\x01{kind}\x1f\x1d{digest}"
    return InternalName(name)


@lru_cache(maxsize=4096)
def _fault(name: str) -> str | None:
    if not name:
        return "it is empty"
    if name == "*":
        return "'*' is reserved"
    if _CONTROL.search(name):
        return "it has a control character"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "it has a lone surrogate, which is not text"
    return f"it has {size} bytes of UTF-8" if size > _LIMIT else None


def check_name(name: str, what: str) -> str:
    """Return `name` if it is legal. TypeError if it is no str, InvalidName (a ValueError) if it is not legal.

    `what` is "space" or "segment", for the message.
    """
    if not isinstance(name, str):
        raise TypeError(f"the {what} name must be str, not {type(name).__name__}")
    if 0 < len(name) <= _LIMIT and name.isascii() and name.isprintable() and name != "*":
        return name  # most names; asking the cache of the others takes longer
    fault = _fault(name)
    if fault is not None:
        if type(name) is InternalName and what == "space":
            return name
        raise InvalidName(
            f"{what} name {name[:40]!r} is not legal: {fault}; a name has 1 to {_LIMIT} bytes of UTF-8, "
            "no control characters, and is not '*'"
        )
    return name


def check_names(names: Sequence[str], what: str) -> None:
    """Check many names as `check_name` does. Short ASCII names, as nearly all are, are checked together."""
    if names and {*map(type, names)} == {str} and "*" not in names:
        sizes = [*map(len, names)]
        text = "".join(names)
        if min(sizes) and max(sizes) <= _LIMIT and text.isascii() and not _CONTROL.search(text):
            return
    for name in names:
        check_name(name, what)


def partition_of(segment: str, partitions: int) -> int:
    """The partition, 0 to partitions - 1, that `segment` lives on.

    It is the hash of the name, or of the part in the first braces if that is not empty, as in Redis Cluster.
    """
    if partitions == 1:
        return 0
    return _hash(segment) % partitions


@lru_cache(maxsize=65536)
def _hash(segment: str) -> int:
    start = segment.find("{")
    if start >= 0:
        end = segment.find("}", start + 1)
        if end > start + 1:
            segment = segment[start + 1 : end]
    return int.from_bytes(blake2b(segment.encode(), digest_size=8).digest(), "big")
