"""Receiving without a consumer object: each call claims for itself, and any process settles by receipts."""

from __future__ import annotations

import threading
from os import urandom
from typing import TYPE_CHECKING

from ..arguments import check_count, check_seconds
from ..names import check_name
from .consumer import Consumer
from .core import Lane
from .values import Delivery

if TYPE_CHECKING:
    from .group import Group

__all__ = ["Reception"]

_NAMELESS = "anonymous"


class _Claimer(Consumer):
    """A member of the group that claims for others and holds nothing itself."""

    def look(self, claimant: str, limit: int, auto_ack: bool) -> list[Delivery]:
        """Claim at most `limit` entries for `claimant`."""
        self.claimant = claimant
        return self._look(limit, auto_ack)

    def _is_idle(self) -> bool:
        return not any(self.claimant in lane.chain.state.held for lane in self._core.opened())

    def _is_kept_apart(self) -> bool:
        if self._is_idle():
            return False
        for lane in self._core.opened():
            with lane.chain.lock:
                state, at = lane.chain.state, lane.chain.now()
                lots = [state.pending[ticket] for ticket in state.alone if ticket in state.pending]
            if any(lot.consumer == self.claimant and lot.deadline > at for lot in lots):
                return True
        return self._core.lone_is_due(self.claimant)

    def _claim(self, lane: Lane, limit: int, auto_ack: bool, *, feeds: str = "") -> list[Delivery]:
        return self._core.claim(lane, self.claimant, limit, auto_ack=auto_ack, idle=self._is_idle(), feeds=feeds)


class Reception:
    """The claimers of a group in this process: one for each lane at most. Calls beyond that number wait for one."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._free: list[_Claimer] = []
        self._left = group.settings.lanes
        """The number of claimers that may still be made."""
        self._changed = threading.Condition()
        self.waiter = self._make()
        """Claims nothing; calls wait with it for entries."""

    def _make(self) -> _Claimer:
        claimer = _Claimer(self._group, _NAMELESS)
        claimer.claimant = ""
        return claimer

    def claimant(self, consumer: str | None) -> str:
        """The owner of the deliveries of a call. A named one is the same in every process. InvalidName, ValueError."""
        if consumer is not None:
            return check_name(consumer, "consumer") + "\x1f"
        if self._group.settings.mode == "exclusive":
            raise ValueError("a group with mode='exclusive' hands out to one consumer: name it with `consumer`")
        return f"{_NAMELESS}\x1f{urandom(6).hex()}"

    def receive(self, limit: int, wait: float, consumer: str | None, auto_ack: bool) -> list[Delivery]:
        """See `Group.receive`."""
        check_seconds("wait", wait, endless=True)
        claimant = self.claimant(consumer)
        return self.waiter.look_until(wait, lambda: self.look(claimant, limit, auto_ack))

    def look(self, claimant: str, limit: int, auto_ack: bool) -> list[Delivery]:
        """Claim the entries that can be delivered now."""
        check_count("limit", limit)
        claimer = self._take()
        try:
            return claimer.look(claimant, limit, auto_ack)
        finally:
            with self._changed:
                self._free.append(claimer)
                self._changed.notify()

    def _take(self) -> _Claimer:
        with self._changed:
            while not self._free:
                if self._left:
                    claimer = self._make()
                    self._left -= 1
                    return claimer
                self._changed.wait()
            return self._free.pop()  # the one that was used last: few calls need few lanes
