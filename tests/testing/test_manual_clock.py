"""The clock for tests: it is the engine's Clock, and time passes only where someone sleeps."""

from __future__ import annotations

import threading

import pytest

from streamkit.clock import Clock
from streamkit.testing import ManualClock


def test_time_passes_by_sleeping_only() -> None:
    clock: Clock = ManualClock(50.0)
    assert (clock.monotonic(), clock.now()) == (50.0, 50_000)
    clock.sleep(3600)
    assert (clock.monotonic(), clock.now()) == (3650.0, 3_650_000)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        ManualClock().sleep(-1)


def test_a_wait_that_nobody_ends_takes_its_seconds() -> None:
    clock = ManualClock(0.0)
    condition = threading.Condition()
    with condition:
        assert not clock.wait(condition, 30)
    assert clock() == 30
