"""Interrupts (Ctrl-C, a handler that raises) at every place of some code at which one may come."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Interrupt"]


class Interrupt:
    """An exception at the n-th place in the files of `folder` where the interpreter looks for signals: at the beginning
    of a function, and after each call of a function in C. SQLite takes one in its own callback (`authorize`) for a
    refusal."""

    def __init__(self, folder: Path, at: int) -> None:
        self._folder = str(folder)
        self._left = at

    @property
    def came(self) -> bool:
        return self._left <= 0

    def __call__(self, frame: FrameType, what: str, told: Any) -> None:
        code = frame.f_code
        if what in ("call", "c_return") and code.co_filename.startswith(self._folder) and code.co_name != "authorize":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt

    def within(self, work: Callable[[], object]) -> None:
        before = sys.getprofile()
        sys.setprofile(self)
        try:
            work()
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before)
