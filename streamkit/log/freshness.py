"""Freshness: a look at a partition's head counts only for a while, because archived transactions are removed.

A transaction's number is free again once the transaction was archived and, a grace later, removed from the log. So a
look at the head counts for a small part of the grace only. Everything is told by one clock, the service's: the look is
as old as the last answer before it was sent, the write or the look that relies on it as new as its own answer, and the
remover judges its grace by the service's answers too. No machine's clock is compared with another's, and a function
that was frozen in between finds out. This process's own clocks may only ever say that a look is older than that.

The grace may be changed. Nobody who reads or writes needs to know: a look counts for a thirtieth of the grace that the
space was created with, always, and a row stays for a tenth of that, at the least. So whoever has not heard of a change
yet, and for however long, is as safe as before, whether he looks or removes.
"""

from __future__ import annotations

from typing import NamedTuple

from ..backend import Backend
from ..clock import Clock

__all__ = ["MARGIN", "Freshness", "Look"]

_SHARE = 1 / 30
"""The part of the grace for which a look counts."""
MARGIN = 1.0
"""Seconds: a service's answers are dated in whole ones."""


class Look(NamedTuple):
    """When a look at the store was sent, at the latest."""

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

        Where a backend has no service, all who use it are on this machine, and its clock is theirs.
        """
        told = self._backend.service_time()
        if told is not None:
            return told.latest
        return None if self._remote else self._clock.now() / 1000

    def begin(self) -> Look:
        """Before a look is sent."""
        told, wall = self._backend.service_time(), self._clock.now()
        if told is None:
            return Look(None if self._remote else wall / 1000, self._clock.monotonic(), wall)
        return Look(told.latest, self._clock.monotonic(), wall)

    def complete(self, look: Look) -> Look:
        """After its answer is known here. Before the very first answer the service had told nothing: then the look is
        as old as the first one of all, which is its own or was dated before it."""
        if look.told is None:
            told = self._backend.service_time()
            if told is not None:
                return look._replace(told=told.earliest)
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
