"""The state of a partition that a commit builds on."""

from __future__ import annotations

import msgspec

from .floors import Retained
from .freshness import Look
from .rows import SegmentRow

__all__ = ["CommitBase", "LoneBase", "SharedBase"]

LoneBase = tuple[SegmentRow, int, int, int, int, Look]
"""The segment's status, and the number, timestamp, position, size and look of a `CommitBase`."""
SharedBase = tuple[list[SegmentRow], int, int, int, int, Look]
"""The fields of `LoneBase`, with the statuses of several segments."""


class CommitBase(msgspec.Struct, frozen=True, gc=False):
    """Taken at one moment. The precondition of the commit states it."""

    completed: int
    """The last look at the end of the log whose findings are included."""
    generation: int
    number: int
    """The last transaction."""
    timestamp: int
    position: int
    """Entries up to `number`."""
    size: int
    """Bytes of payload up to `number`."""
    retention: Retained | None
    looked: Look | None
    """The look by which `number` + 1 was free."""
