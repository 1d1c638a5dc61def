"""Predicates on tags: `["tag", "Eq", "x"]`, `["tag", "Glob", "x*"]`, or a text, which is the same as Eq."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import Refused

__all__ = ["Predicate", "predicate_of"]

Predicate = Callable[[str | None], bool]


def predicate_of(given: Any) -> Predicate:
    """Return a function that is true for a matching tag. For None it is true for every tag. Refused if `given` is
    malformed."""
    if given is None:
        return lambda tag: True
    if isinstance(given, str):
        given = ["tag", "Eq", given]
    if not isinstance(given, (list, tuple)) or len(given) != 3 or not all(isinstance(part, str) for part in given):
        raise Refused("invalid_request", 'a predicate is ["tag", "Eq", text] or ["tag", "Glob", "prefix*"]')
    field, kind, text = given
    if field != "tag" or kind not in ("Eq", "Glob"):
        raise Refused("invalid_request", f"a predicate is about the tag, by Eq or Glob; not {field!r:.20} {kind!r:.20}")
    if kind == "Eq":
        return lambda tag: tag == text
    if not text.endswith("*") or "*" in text[:-1]:
        raise Refused("invalid_request", "a Glob is a prefix and one * at its end")
    prefix = text[:-1]
    return lambda tag: tag is not None and tag.startswith(prefix)
