"""A clock that moves only when it is told to."""

from __future__ import annotations

import threading

__all__ = ["ManualClock"]


class ManualClock:
    """Call it for the time in seconds. `sleep` returns at once and moves the clock. Safe between threads."""

    def __init__(self, start: float = 1000.0) -> None:
        self._lock = threading.Lock()
        self._now = start

    def __call__(self) -> float:
        return self._now

    def __repr__(self) -> str:
        return f"ManualClock({self._now})"

    def sleep(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} seconds")
        with self._lock:
            self._now += seconds
