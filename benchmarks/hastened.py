"""Time that passes faster than it does: a process sees hours go by in minutes.

Clocks, sleeps and waits of the process are hastened, and so are the timers of a `HastenedLoop`. Import this module, and
call `hasten`, before the modules that take functions out of `time`.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from typing import Any

__all__ = ["HastenedLoop", "hasten"]

_factor = 1.0


def hasten(factor: float, begun: float, wall: float) -> None:
    """Have `factor` seconds pass in each real one. `begun`, `wall`: when it began, by both clocks: processes that are
    given the same values agree about the time."""
    global _factor
    _factor = factor
    monotonic, sleep, wait = time.monotonic, time.sleep, threading.Condition.wait
    gettime_ns = time.clock_gettime_ns
    starts = {clock: gettime_ns(clock) for clock in (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME)}

    def now() -> float:
        return begun + (monotonic() - begun) * factor

    def passed() -> float:
        return wall + (monotonic() - begun) * factor

    def gettime(clock: int) -> int:
        return starts[clock] + int((gettime_ns(clock) - starts[clock]) * factor)

    def wait_hastened(self: threading.Condition, timeout: float | None = None) -> bool:
        return wait(self, None if timeout is None else timeout / factor)

    time.monotonic, time.monotonic_ns = now, lambda: int(now() * 1e9)
    time.time, time.time_ns = passed, lambda: int(passed() * 1e9)
    time.clock_gettime_ns = gettime
    time.sleep = lambda seconds: sleep(seconds / factor)
    threading.Condition.wait = wait_hastened  # type: ignore[method-assign]


class _Selector(selectors.DefaultSelector):  # type: ignore[valid-type, misc]
    def select(self, timeout: float | None = None) -> Any:
        return super().select(None if timeout is None else timeout / _factor)


class HastenedLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers are hastened."""

    def __init__(self) -> None:
        super().__init__(_Selector())
