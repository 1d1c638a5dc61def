"""The time that a storage service tells in its answers: the one clock that all who use it share."""

from __future__ import annotations

import threading
from typing import NamedTuple

__all__ = ["ServiceClock", "ServiceTime"]


class ServiceTime(NamedTuple):
    """The service's time as its answers have told it, in seconds of the service's own clock, whatever its epoch."""

    earliest: float
    latest: float
    """Never goes back."""


class ServiceClock:
    """For a backend whose service dates its answers, as HTTP does. One a process; safe between its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = ""
        self.time: ServiceTime | None = None
        """None until an answer was dated."""

    def hear(self, date: str | None) -> None:
        """An answer came with this `Date` header. One that is missing or damaged tells nothing."""
        if not date or date == self._last:
            return
        from email.utils import parsedate_to_datetime  # who gets here has loaded an SDK, which is much larger

        try:
            told = parsedate_to_datetime(date).timestamp()
        except (TypeError, ValueError, OverflowError):
            return
        with self._lock:
            time = self.time
            self.time = ServiceTime(told, told) if time is None else ServiceTime(min(time[0], told), max(time[1], told))
            self._last = date
