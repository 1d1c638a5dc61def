"""The timers of groups, which write what was acknowledged: they fire when a test says so."""

from __future__ import annotations

import threading

import pytest

from streamkit.testing import ManualClock

__all__ = ["Timers"]


class Timers:
    """A replacement for `threading.Timer`: its timers fire when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._running: list[threading.Timer] = []
        running = self._running

        class Timer(threading.Timer):
            def start(self) -> None:
                running.append(self)

            def cancel(self) -> None:
                running.remove(self)

        monkeypatch.setattr("streamkit.groups.core.threading.Timer", Timer)

    def wait(self, clock: ManualClock, seconds: float) -> None:
        """Let `seconds` pass. Timers whose time has come fire."""
        for timer in [timer for timer in self._running if timer.interval <= seconds]:
            self._running.remove(timer)
            clock.sleep(timer.interval)
            seconds -= timer.interval
            timer.function()
        clock.sleep(seconds)
