"""The time in a storage service's answers: the one clock that all its users share."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime
from typing import NamedTuple

__all__ = ["ServiceClock", "ServiceTime"]


class ServiceTime(NamedTuple):
    """The service's time as its answers gave it, in seconds of the service's own clock, with any epoch."""

    earliest: float
    latest: float
    """Never goes back."""


class ServiceClock:
    """The clock of a service that dates its answers, as HTTP does. One in each process; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = ""
        self.time: ServiceTime | None = None
        """None until an answer was dated."""

    def hear(self, date: str | None) -> None:
        """An answer came with this `Date` header. One that is missing or damaged tells nothing."""
        if not date or date == self._last:
            return
        told = _seconds(date)
        if told is None:
            return
        with self._lock:
            time = self.time
            self.time = ServiceTime(told, told) if time is None else ServiceTime(min(time[0], told), max(time[1], told))
            self._last = date


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_USUAL = re.compile(r"[A-Z][a-z]{2}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT")


def _seconds(date: str) -> float | None:
    """The moment that a header names, in seconds since the epoch; None if it names none."""
    usual = _USUAL.fullmatch(date)
    try:
        if usual is not None:
            # All services write dates in this form. The parser for the other forms takes longer to load than a request.
            day, month, *rest = usual.groups()
            year, hour, minute, second = map(int, rest)
            moment = datetime(year, _MONTHS.index(month) + 1, int(day), hour, minute, second, tzinfo=UTC)
        else:
            from email.utils import parsedate_to_datetime

            moment = parsedate_to_datetime(date)
        return moment.timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
