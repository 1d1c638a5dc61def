"""Counters of requests and bytes, for the store whose thread sends them."""

from __future__ import annotations

import threading
from collections import Counter

from streamkit.backend import ServiceClock
from streamkit.reentry import Mutex

__all__ = ["Counts", "Meter"]

Meter = Counter[str]


class Counts:
    """The counters of one process. Each thread names a meter before it makes a request."""

    def __init__(self) -> None:
        self.lock = Mutex()
        self.thread = threading.local()
        self.clock = ServiceClock()

    def sent(self, kind: str, size: int) -> None:
        with self.lock():
            meter: Meter = self.thread.meter
            meter[kind] += 1
            meter["bytes_written"] += size

    def received(self, date: str | None, size: int) -> None:
        self.thread.date = date or ""
        self.clock.hear(date)
        with self.lock():
            self.thread.meter["bytes_read"] += size
