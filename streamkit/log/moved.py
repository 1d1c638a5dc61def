"""The exception of a walk over a view that is too old."""

from __future__ import annotations

from ..errors import CorruptData

__all__ = ["Moved"]


class Moved(CorruptData):
    """Something that a view names is not there: it was merged, packed, archived or trimmed since, or it is lost.

    A later view tells. The message is that of the error if it is lost.
    """
