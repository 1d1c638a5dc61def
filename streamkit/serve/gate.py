"""The gate limits the requests of each caller, at once and each second. Every request gives its slot back."""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict

from .access import Access
from .limits import Limits
from .problems import Problem

__all__ = ["Gate", "too_many"]

_BUSY = 16
"""Requests at once that make a process busy,"""
_STEP = 0.02
"""and the seconds that a request waits then for each step of its key's priority below the highest one among them."""
_LONGEST = 1.0
_CALLERS = 10_000
"""Callers that are remembered; the state of one that does nothing is nothing."""


class _Caller:
    __slots__ = ("at", "requests", "streams", "tokens")

    def __init__(self, burst: float, now: float) -> None:
        self.requests = 0
        self.streams = 0
        self.tokens = burst
        self.at = now


class Gate:
    """Counts the requests and streams of each key; holds a token bucket for each."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._burst = float(limits.burst or limits.requests_per_second)
        self._present: Counter[int] = Counter()
        """Requests, streams apart, by the priority of their keys."""
        self._callers: OrderedDict[str, _Caller] = OrderedDict()
        self.requests = 0
        self.streams = 0
        self.body_bytes = 0
        """Bytes of the bodies that are being received."""

    def _caller(self, access: Access) -> _Caller:
        caller = self._callers.get(access.id)
        if caller is None:
            caller = self._callers[access.id] = _Caller(self._burst, time.monotonic())
            if len(self._callers) > _CALLERS:
                for id, other in list(self._callers.items()):
                    if not other.requests and not other.streams and id != access.id:
                        del self._callers[id]
                        break
        return caller

    def enter(self, access: Access) -> None:
        """Begin a request. A Problem if its caller has too many at once, or too many each second."""
        limits, caller = self._limits, self._caller(access)
        if limits.requests_per_key and caller.requests - caller.streams >= limits.requests_per_key:
            raise too_many("requests at once", limits.requests_per_key, 1)
        if limits.requests_per_second:
            now = time.monotonic()
            caller.tokens = min(self._burst, caller.tokens + (now - caller.at) * limits.requests_per_second)
            caller.at = now
            if caller.tokens < 1:
                pause = math.ceil((1 - caller.tokens) / limits.requests_per_second)
                raise too_many("requests a second", limits.requests_per_second, pause)
            caller.tokens -= 1
        caller.requests += 1
        self.requests += 1
        self._count(access, 1)

    def _count(self, access: Access, by: int) -> None:
        self._present[access.priority] += by
        if not self._present[access.priority]:
            del self._present[access.priority]

    def delay(self, access: Access) -> float:
        """Seconds that a request waits before it is handled, so that those of a higher priority pass it."""
        if self.requests - self.streams < _BUSY or len(self._present) == 1:
            return 0.0
        return min((max(self._present) - access.priority) * _STEP, _LONGEST)

    def leave(self, access: Access) -> None:
        """It has ended."""
        self._caller(access).requests -= 1
        self.requests -= 1
        self._count(access, -1)

    def open_stream(self, access: Access) -> None:
        """Begin a stream. A Problem if there are too many."""
        limits, caller = self._limits, self._caller(access)
        if limits.streams and self.streams >= limits.streams:
            raise too_many("streams of the server", limits.streams, 5)
        if limits.streams_per_key and caller.streams >= limits.streams_per_key:
            raise too_many("streams at once", limits.streams_per_key, 5)
        caller.streams += 1
        self.streams += 1
        self._count(access, -1)

    def close_stream(self, access: Access) -> None:
        """It has ended."""
        self._caller(access).streams -= 1
        self.streams -= 1
        self._count(access, 1)

    def take_bytes(self, count: int) -> None:
        """A body of `count` bytes is about to be taken. A Problem if there is no room for it beside the others."""
        most = self._limits.total_bytes
        if most and self.body_bytes + count > most:
            raise too_many("bytes of bodies at once", most, 1)
        self.body_bytes += count

    def give_bytes(self, count: int) -> None:
        """It has been dealt with."""
        self.body_bytes -= count


def too_many(what: str, most: float, pause: int) -> Problem:
    """The problem of a caller that wants more than a limit allows, and may try again after `pause` seconds."""
    return Problem(
        "too-many-requests",
        f"more than {most:g} {what}; try again in {pause} s",
        headers=(
            (b"retry-after", b"%d" % pause),
            (b"ratelimit", b'"default";r=0;t=%d' % pause),
            (b"ratelimit-policy", b'"default";q=%d' % most),
        ),
    )
