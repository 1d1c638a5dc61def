"""Freshness: a look at a partition's head counts only for a while, because archived transactions are removed.

A transaction's number is free again once the transaction was archived and, a grace later, removed from the log. So a
look at the head counts for a small part of the grace only. One clock measures everything, the service's. A look is as
old as the last answer before it was sent. The write or the look that relies on it is as new as its own answer. The
remover measures its grace by the service's answers, too. No machine's clock is compared with another's, and a function
that was frozen in between finds out. This process's own clocks can only make a look count as older.

The grace may be changed, and no reader or writer needs to know. A look always counts for a thirtieth of the grace that
the space was created with, and a row stays for at least a tenth of that. So a process that has not heard of a change is
as safe as before, whether it looks or removes.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ..backend import Backend
from ..clock import Clock

__all__ = ["MARGIN", "Freshness", "Look"]

_SHARE = 1 / 30
"""The part of the grace for which a look counts."""
MARGIN = 1.0
"""Seconds: a service's answers are dated in whole ones."""


class Look(msgspec.Struct, frozen=True, gc=False):
    """The latest time at which a look at the store was sent."""

    told: float | None
    """Seconds of the service's clock; None if it never told the time."""
    monotonic: float
    wall: int


class Freshness:
    """Stateless; shared by the threads of a partition."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._remote = backend.limits.remote
        self.margin = MARGIN if self._remote else 0.0

    def now(self) -> float | None:
        """Seconds of the service's clock, as of its latest answer: it is that late already. None if it tells no time.

        Without a service, every user of the backend is on this machine, and has its clock.
        """
        told = self._backend.service_time()
        if told is not None:
            return told.latest
        return None if self._remote else self._clock.now() / 1000

    def begin(self) -> Look:
        """The time of a look that is about to be sent."""
        told, wall = self._backend.service_time(), self._clock.now()
        if told is None:
            return Look(None if self._remote else wall / 1000, self._clock.monotonic(), wall)
        return Look(told.latest, self._clock.monotonic(), wall)

    def complete(self, look: Look) -> Look:
        """The time of a look whose answer is known. Without an earlier time of the service, it is the time of the
        service's first answer."""
        if look.told is None:
            told = self._backend.service_time()
            if told is not None:
                return replace(look, told=told.earliest)
        return look

    def limit(self, grace: float) -> float:
        """Seconds of the service's clock after which no look counts any more."""
        return grace * _SHARE + self.margin

    def holds(self, look: Look | None, grace: float) -> bool:
        """True if nothing that was in the log at `look` can have been removed before the service's latest answer."""
        limit = grace * _SHARE
        if look is None or self._clock.monotonic() - look.monotonic >= limit:
            return False
        told = self._backend.service_time()
        if told is None:
            if self._remote:
                return False  # else there is one machine, and one clock
        elif look.told is None or told.latest - look.told + self.margin >= limit:
            return False
        return abs(self._clock.now() - look.wall) < limit * 1000
