"""The current frames of the threads of this process."""

from __future__ import annotations

import gc
import sys
from types import FrameType

__all__ = ["frames_of_threads"]


def frames_of_threads() -> dict[int, FrameType]:
    """The current frame of each thread, by the thread's identifier.

    `sys._current_frames()` of CPython 3.11 holds the interpreter's list of threads while it makes frames. A garbage
    collection at that moment waits for the same list for ever (python/cpython#106883), so there is none.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()
