"""Settling many deliveries by their receipts, also those of other processes: one record for each lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from ..arguments import check_choice, check_seconds, check_type
from ..run.failure import storable
from .core import Core
from .decide import behind, give_up
from .events import Acked, Died, Extended, Held, LaneEvent, Released
from .failures import REJECTED, failure_text
from .lane import LaneState
from .ranges import numbers_of, ranges_of

__all__ = ["Receipt", "Settled", "Settlement", "settle"]

Action = Literal["ack", "nack", "extend", "reject", "release"]


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """The settlement of one delivery. `action` names the method of `Consumer` that it is like."""

    receipt: str
    """`delivery.receipt`."""
    action: Action = "ack"
    delay: float | None = None
    """nack: seconds; None: the group's retry_delay, doubled with each attempt."""
    error: str | None = None
    """nack: the failure; at most 400 bytes are kept."""
    seconds: float | None = None
    """extend: seconds from now."""
    reason: str = REJECTED
    """reject: the reason."""


class Settled(msgspec.Struct, frozen=True):
    """The result of one settlement of `Group.settle`."""

    receipt: str
    lost: bool
    """Nothing was changed: the delivery was settled before, or its deadline passed and it went to another consumer."""
    deadline: int = 0
    """extend: the new deadline, in milliseconds since the epoch."""


class Receipt(NamedTuple):
    """A receipt in parts."""

    epoch: int
    lane: int
    ticket: int
    lot: int

    @classmethod
    def of(cls, text: str, core: Core) -> Receipt:
        """Parse a receipt. ValueError if it is no receipt, or one of another group."""
        try:
            epoch, lane, ticket, lot, tag = text.split(".")
            found = cls(int(epoch), int(lane), int(ticket), int(lot))
        except (ValueError, AttributeError, TypeError):
            raise ValueError(f"{text!r:.60} is no receipt: pass the text of `delivery.receipt`") from None
        if tag != core.tag or not 0 <= found.lane < core.settings.lanes:
            raise ValueError(f"{text!r:.60} is a receipt of another group or queue: settle it with that one")
        return found

    def is_pending(self, state: LaneState) -> bool:
        lot = state.pending.get(self.ticket)
        return lot is not None and lot.number == self.lot and state.epoch == self.epoch


def _check(settlement: Settlement) -> None:
    check_type(settlement, Settlement, "settle() takes Settlements")
    check_choice("action", settlement.action, *get_args(Action))
    if settlement.delay is not None:
        check_seconds("delay", settlement.delay)
    if settlement.action == "extend":
        check_seconds("seconds", settlement.seconds, positive=True)
    if not isinstance(settlement.reason, str) or not isinstance(settlement.error, (str, type(None))):
        raise TypeError("reason is a str, and error a str or None")


def settle(core: Core, settlements: Sequence[Settlement]) -> list[Settled]:
    """See `Group.settle`."""
    lanes: dict[int, list[tuple[int, Receipt, Settlement]]] = {}
    for at, settlement in enumerate(settlements):
        _check(settlement)
        receipt = Receipt.of(settlement.receipt, core)
        lanes.setdefault(receipt.lane, []).append((at, receipt, settlement))
    found: dict[int, Settled] = {}
    for number, wanted in lanes.items():
        lane = core.lane(number)

        def decide(
            state: LaneState, at: int, wanted: list[tuple[int, Receipt, Settlement]] = wanted
        ) -> tuple[list[LaneEvent], dict[int, Settled]]:
            core.check()
            return _decide(core, state, at, wanted)

        with lane.chain.lock:
            state = lane.chain.state
            if not lane.chain.loaded or not all(receipt.is_pending(state) for _, receipt, _ in wanted):
                core.look_at(lane)  # another process received it
        found.update(core.write(lane, decide))
    return [found[at] for at in range(len(settlements))]


def _decide(
    core: Core, state: LaneState, at: int, wanted: list[tuple[int, Receipt, Settlement]]
) -> tuple[list[LaneEvent], dict[int, Settled]]:
    events: list[LaneEvent] = []
    found: dict[int, Settled] = {}
    over: set[int] = set()
    """The tickets that are no longer pending after `events`."""
    acked: set[int] = set()
    for index, receipt, settlement in wanted:
        ticket, text = receipt.ticket, settlement.receipt
        if not receipt.is_pending(state) or ticket in over:
            same_epoch = receipt.epoch == state.epoch
            fine = settlement.action == "ack" and (ticket in acked or (ticket in state.gone and same_epoch))
            found[index] = Settled(text, not fine)
            continue
        found[index] = Settled(text, False)
        if settlement.action == "extend":
            assert settlement.seconds is not None
            deadline = at + int(settlement.seconds * 1000)
            events.append(Extended([(ticket, 1)], deadline))
            holder, until = state.holder
            if holder == state.pending[ticket].consumer:
                events.append(Held(holder, max(until, deadline)))
            found[index] = Settled(text, False, deadline)
            continue
        over.add(ticket)
        if settlement.action == "ack":
            acked.add(ticket)
        elif settlement.action == "reject":
            events.append(Died([(ticket, 1)], storable(settlement.reason)))
        elif settlement.action == "release":
            lost = [other for other in behind(state, ticket) if other not in over] if state.keyed else []
            events.append(Released(ranges_of([ticket, *lost])))
            over.update(lost)
        else:
            error = failure_text(settlement.error)
            given, _ = give_up(state, core.settings, [ticket], at, settlement.delay, error)
            for event in given:
                if isinstance(event, Released):  # later entries of its key, unless they are settled by now
                    lost = [other for other in numbers_of(event.tickets) if other not in over]
                    over.update(lost)
                    if lost:
                        events.append(Released(ranges_of(lost)))
                else:
                    events.append(event)
    if acked:
        events.append(Acked(ranges_of(acked)))
    return events, found
