"""Moments: timestamps of one store follow cause and effect across its partitions.

A partition's timestamps never go back. Across partitions they come from the clocks of different processes. A process
that reads an entry and then writes elsewhere must not give its own transaction an earlier timestamp: all transactions
up to one timestamp are then a state in which no effect is without its cause. A backup relies on that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["SKEW", "Moments"]

SKEW = 60_000
"""Milliseconds. A timestamp that is further ahead comes from a wrong clock and does not spread to other partitions."""


class Moments:
    """The latest timestamp that a process has seen in any partition of a store. Shared by its threads."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self.latest = 0
        self._lock = threading.RLock()

    def see(self, timestamp: int) -> None:
        """Remember the timestamp of a transaction that was read or written. That of a wrong clock would hide others."""
        if timestamp > self.latest and timestamp <= self._now() + SKEW:
            with self._lock:
                self.latest = max(self.latest, timestamp)

    def after(self, now: int) -> int:
        """The earliest timestamp (ms) of a transaction that is written at `now`."""
        latest = self.latest
        return latest if now < latest <= now + SKEW else now
