"""The frames of other threads, without a deadlock of CPython 3.11."""

from __future__ import annotations

import gc
import sys
from types import FrameType

__all__ = ["frame_of"]


def frame_of(thread: int | None) -> FrameType | None:
    """Return what the thread with this identifier executes; None if it does not run.

    `sys._current_frames()` of CPython 3.11 holds the interpreter's list of threads while it makes frames. A collection
    of garbage at that moment waits for the same list for ever (python/cpython#106883).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread or 0)
    finally:
        if was_enabled:
            gc.enable()
