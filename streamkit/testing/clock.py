"""A clock that moves only when someone sleeps by it."""

from __future__ import annotations

import threading

__all__ = ["ManualClock"]


class ManualClock:
    """A `streamkit.clock.Clock` whose sleeps return at once and move it. Safe between threads.

    A call returns its seconds, like `time.monotonic`: `MemoryDriver(clock=clock, sleep=clock.sleep)`.
    """

    def __init__(self, start: float = 1000.0) -> None:
        self._lock = threading.Lock()
        self._now = start

    def __call__(self) -> float:
        return self._now

    def __repr__(self) -> str:
        return f"ManualClock({self._now})"

    def now(self) -> int:
        """Return milliseconds since the epoch; at first, `start` seconds after it."""
        return int(self._now * 1000)

    def monotonic(self) -> float:
        """Return the seconds, like `time.monotonic`."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Move the clock by `seconds`, and return at once. ValueError if `seconds` is negative."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} seconds")
        with self._lock:
            self._now += seconds

    def wait(self, condition: threading.Condition, seconds: float) -> bool:
        """True if another thread notified the condition. Otherwise the clock moves by `seconds`."""
        if condition.wait(0.001):
            return True
        self.sleep(seconds)
        return False
