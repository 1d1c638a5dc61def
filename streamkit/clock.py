"""Time, as something that a test can replace."""

from __future__ import annotations

import threading
import time
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock"]


class Clock(Protocol):
    """A source of time that a program or a test may inject. `ManualClock` is one for tests."""

    def now(self) -> int:
        """Return the wall time in milliseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Pause this thread for `seconds`."""
        ...

    def wait(self, condition: threading.Condition, seconds: float) -> bool:
        """Return condition.wait(seconds), with this clock's seconds; the caller holds the condition."""
        ...


class _SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def wait(self, condition: threading.Condition, seconds: float) -> bool:
        return condition.wait(seconds)


SYSTEM_CLOCK: Clock = _SystemClock()
