"""The gate limits the requests of each caller, at once and each second. Every request gives its slot back."""

from __future__ import annotations

import asyncio
import math
import time
from bisect import insort
from collections import Counter, OrderedDict
from itertools import count

from .access import Access
from .limits import Limits
from .problems import Problem

__all__ = ["Gate", "too_many"]

_BUSY = 16
"""The number of requests at once with which a process is busy. Streams, and requests that wait for entries, do not
count."""
_LAG = 0.02
"""Seconds of lateness of the event loop with which a process is busy."""
_STEP = 0.02
"""The most seconds that a request waits in a busy process for each step of its priority below the highest one."""
_LONGEST = 1.0
"""The most seconds that a request waits in a busy process."""
_FADE = 0.98
"""The share of the greatest lateness that is left after each look."""
_HOLD = 0.2
"""Seconds for which a request that has ended counts as present, while the event loop is late."""
_LOWEST = -(1 << 31)
_TICK = 0.01
"""Seconds between two looks at the event loop, while there are requests."""
_CALLERS = 10_000
"""Callers that are remembered; the state of one that does nothing is nothing."""


class _Caller:
    __slots__ = ("at", "requests", "streams", "tokens")

    def __init__(self, burst: float, now: float) -> None:
        self.requests = 0
        self.streams = 0
        self.tokens = burst
        self.at = now


class _Waiting:
    """A request that waits: its place among them, the event that ends the wait, and its latest end."""

    __slots__ = ("end", "future", "place")

    def __init__(self, place: tuple[int, int], future: asyncio.Future[None], end: float) -> None:
        self.place = place
        self.future = future
        self.end = end

    def __lt__(self, other: _Waiting) -> bool:
        return self.place < other.place


class Gate:
    """Counts the requests and streams of each key; holds a token bucket for each."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._burst = float(limits.burst or limits.requests_per_second)
        self._present: Counter[int] = Counter()
        """Requests by priority, without streams and without requests that wait for entries."""
        self._waiting: list[_Waiting] = []
        """Requests that wait for those of a higher priority, in the order in which they go on."""
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0
        self._lag = 0.0
        """Seconds by which the event loop was late, lately."""
        self._held = _LOWEST, 0.0
        """The highest priority of the requests that ended lately, and until when it counts."""
        self.resting = 0
        """The number of requests that wait for entries."""
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

    def enter(self, access: Access, priority: int | None = None) -> None:
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
        self._count(access.priority if priority is None else priority, 1)
        self._watch()

    def _count(self, priority: int, by: int) -> None:
        self._present[priority] += by
        if not self._present[priority]:
            del self._present[priority]
        if by < 0 and self._lag >= _LAG:
            self._hold(priority)
        if by < 0 and self._waiting:
            self._release()

    def _hold(self, priority: int) -> None:
        """Count a request as present for a moment longer: its caller may be about to send the next one."""
        now = time.monotonic()
        held, until = self._held
        if priority >= held or now >= until:
            self._held = priority, now + _HOLD

    def _highest(self) -> int:
        """The highest priority of the present requests and of recent ones."""
        highest = max(self._present, default=_LOWEST)
        held, until = self._held
        if held > highest and self._lag >= _LAG and time.monotonic() < until:
            return held
        return highest

    @property
    def is_busy(self) -> bool:
        """True if requests of a lower priority wait for others."""
        return self.requests - self.streams - self.resting - len(self._waiting) >= _BUSY or self._lag >= _LAG

    @property
    def waiting(self) -> int:
        """The number of requests that wait for those of a higher priority."""
        return len(self._waiting)

    def must_wait(self, priority: int) -> bool:
        """True if a request that has entered is to `wait` for those of a higher priority."""
        return priority < self._highest() and self.is_busy

    async def wait(self, priority: int) -> None:
        """Return when there is no request of a higher priority, when the process is not busy any more, or when the
        request has waited for the longest time of its priority. Waiting requests continue by priority, then in their
        order."""
        loop = asyncio.get_running_loop()
        patience = min((self._highest() - priority) * _STEP, _LONGEST)
        waiting = _Waiting((-priority, next(self._numbers)), loop.create_future(), time.monotonic() + patience)
        insort(self._waiting, waiting)
        self._watch()
        try:
            await waiting.future
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _release(self) -> None:
        """Let each request go on that need not wait any more, the highest priority first."""
        now = time.monotonic()
        for waiting in list(self._waiting):
            if waiting.future.done() or (self.is_busy and -waiting.place[0] < self._highest() and now < waiting.end):
                continue
            self._waiting.remove(waiting)
            waiting.future.set_result(None)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is None or loop is not self._loop:
            self._loop = loop
            self._due = time.monotonic() + _TICK  # the clock of uvloop stands still while it runs callbacks
            self._timer = loop.call_later(_TICK, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._lag = max(time.monotonic() - self._due, self._lag * _FADE)
        if self._waiting:
            self._release()
        if self.requests > self.streams + self.resting or self._lag >= _LAG:
            self._watch()
        else:
            self._lag = 0.0

    def rest(self, priority: int) -> None:
        """Note that a request waits for new entries, and does not count as busy meanwhile."""
        self.resting += 1
        self._count(priority, -1)

    def resume(self, priority: int) -> None:
        """Let the request continue."""
        self.resting -= 1
        self._count(priority, 1)

    def leave(self, access: Access, priority: int | None = None) -> None:
        """End the request."""
        self._caller(access).requests -= 1
        self.requests -= 1
        self._count(access.priority if priority is None else priority, -1)

    def open_stream(self, access: Access, priority: int | None = None) -> None:
        """Begin a stream. A Problem if there are too many."""
        limits, caller = self._limits, self._caller(access)
        if limits.streams and self.streams >= limits.streams:
            raise too_many("streams of the server", limits.streams, 5)
        if limits.streams_per_key and caller.streams >= limits.streams_per_key:
            raise too_many("streams at once", limits.streams_per_key, 5)
        caller.streams += 1
        self.streams += 1
        self._count(access.priority if priority is None else priority, -1)

    def close_stream(self, access: Access, priority: int | None = None) -> None:
        """End the stream."""
        self._caller(access).streams -= 1
        self.streams -= 1
        self._count(access.priority if priority is None else priority, 1)

    def take_bytes(self, size: int) -> None:
        """A body of `size` bytes is about to be taken. A Problem if there is no room for it beside the others."""
        most = self._limits.total_bytes
        if most and self.body_bytes + size > most:
            raise too_many("bytes of bodies at once", most, 1)
        self.body_bytes += size

    def give_bytes(self, size: int) -> None:
        """Give back the bytes of a body that has been handled."""
        self.body_bytes -= size


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
