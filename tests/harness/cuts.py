"""Cuts: an exception of the program's own, raised in a thread at any step of the engine, as a signal handler does.

    with Cut(17) as cut:            # at the 17th step that this thread makes inside of streamkit and its backends
        store.produce(…)

A signal handler runs, and may raise, when a call of a C function has returned and when a Python function begins. A
profile function is called at the same two places, and what it raises is raised there.
"""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Cut", "Interrupt"]

_FILES = ("/streamkit/", "/streamkit_", "/threading.py")


class Interrupt(BaseException):
    """The error of a signal handler. It is not an Exception, and streamkit does not know it."""


def _is_the_harness(frame: FrameType | None) -> bool:
    """An event of the harness's own, which may not be left locked."""
    while frame is not None and frame.f_code.co_filename.endswith("/threading.py"):
        frame = frame.f_back
    return frame is not None and "/harness/" in frame.f_code.co_filename


class Cut:
    """Raises `error` in the thread that enters it, after so many steps. `where` says at which, "" if it never came."""

    def __init__(self, after: int, error: type[BaseException] = Interrupt) -> None:
        self._left = after
        self._error = error
        self.where = ""

    def _step(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_return"):
            return
        path = frame.f_code.co_filename
        if any(part in path for part in _FILES) and not path.endswith("cuts.py") and not _is_the_harness(frame):
            self._left -= 1
            if self._left < 0:
                self.where = f"{path}:{frame.f_lineno} {frame.f_code.co_name}, {event} {argument}"
                sys.setprofile(None)
                raise self._error

    def __enter__(self) -> Cut:
        sys.setprofile(self._step)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)
