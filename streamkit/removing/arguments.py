"""Arguments of an erasure, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..arguments import check_type

__all__ = ["check_erasure"]


_MOST = 1_000_000
"""Sequences that one call names."""


def check_erasure(segment: Any, first: Any, last: Any, metadata: Any, sequences: Any = None) -> frozenset[int] | None:
    """The sequences that are named one by one. TypeError, or ValueError where nothing is named, or nothing can be."""
    if segment is None and metadata is None:
        raise ValueError("erase takes a segment, or a glob of segments, or metadata, or both: nothing was named")
    check_type(segment, str, "segment is the name of one, or a glob", optional=True)
    if segment == "":
        raise ValueError("segment is the name of one, or a glob; an empty text names none")
    _check_text("segment", segment or "")
    for name, value in (("first", first), ("last", last)):
        check_type(value, int, f"{name} is a sequence", optional=True)
        if value is not None and value < 1:
            raise ValueError(f"{name} is a sequence from 1, not {value}")
    if segment is None and (first != 1 or last is not None):
        raise ValueError("first and last are sequences of a segment: name one, or a glob")
    if metadata is not None:
        check_type(metadata, Mapping, "metadata is a mapping of text to text")
        if not metadata:
            raise ValueError("metadata names no pair: every entry has all of none")
        for name, value in metadata.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError("metadata is a mapping of text to text")
            _check_text("metadata", name + value)
    return None if sequences is None else _sequences(segment, first, last, sequences)


def _sequences(segment: Any, first: Any, last: Any, sequences: Any) -> frozenset[int]:
    if segment is None or first != 1 or last is not None:
        raise ValueError("sequences are of one segment: name it, and leave out first and last")
    if isinstance(sequences, (str, bytes)) or not isinstance(sequences, Iterable):
        raise TypeError(f"sequences is a list of numbers, not {type(sequences).__name__}")
    found = frozenset(sequences)
    for sequence in found:
        if type(sequence) is not int:
            raise TypeError(f"sequences is a list of numbers; there is a {type(sequence).__name__} in it")
        if sequence < 1:
            raise ValueError(f"a sequence is a number from 1, not {sequence}")
    if not 0 < len(found) <= _MOST:
        raise ValueError(f"sequences names 1 to {_MOST:,} entries, not {len(found):,}")
    return found


def _check_text(name: str, text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{name} is UTF-8, which has no lone surrogates: no entry has this {name}")
