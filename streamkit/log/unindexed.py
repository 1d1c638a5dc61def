"""The part of a log that its index lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..backend import Etag
from .rows import Head, KeyRow, Piece, SegmentRow

__all__ = ["Unindexed"]


class Unindexed(msgspec.Struct, frozen=True):
    """Taken at one moment. It is empty if `first` is after the last transaction."""

    head: Head
    etag: Etag | None
    after: Head
    """The head that knows everything up to the last transaction. Its index and its packs are still those of `head`."""
    statuses: Mapping[str, SegmentRow]
    """The statuses of the segments that changed since."""
    pieces: Mapping[str, Sequence[Piece]]
    keys: Mapping[bytes, KeyRow]
    """Uses of idempotency keys."""
    records: dict[int, bytes]
    fences: Mapping[str, int]
    first: int
    """The first transaction that the index lacks."""
    asked: bool
    """The index had to be asked for some statuses."""
