"""Signals that stop a running program."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

__all__ = ["on_signals"]


@contextlib.contextmanager
def on_signals(stop: Callable[[], object], *numbers: int) -> Iterator[None]:
    """Call `stop` when one of the signals comes. In the main thread only: Python raises ValueError in others.

    A handler that was not installed from Python cannot be put back: the default one is then.
    """
    before = [(number, signal.getsignal(number)) for number in numbers]
    try:
        for number in numbers:
            signal.signal(number, lambda number, frame: stop())
        yield
    finally:
        for number, handler in before:
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
