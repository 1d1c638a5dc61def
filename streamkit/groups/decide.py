"""Decide which events a lane's state allows. The functions do no I/O and change no state; the caller writes the
events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from .events import Claimed, Died, Doubted, EntryBlock, LaneEvent, Nacked, Released
from .failures import DEADLINE_PASSED, worn_out
from .lane import LaneState
from .ranges import Range, ranges_of
from .settings import GroupSettings
from .source import queue_class

__all__ = ["Claim", "behind", "claim", "deliverable", "give_up", "has_due", "lone_is_due", "next_change"]

_MOST_DEAD = 1000
_LONGEST = 3_600_000
"""Milliseconds beyond which no pause is doubled."""


class Claim(NamedTuple):
    """Tickets for a consumer: in the order in which they are to be handed out, with their attempts."""

    tickets: list[tuple[int, int]]
    event: Claimed | None
    dead: list[int]
    died: list[LaneEvent]
    """The events of `dead`."""
    lone: bool = False
    """Nothing else may be delivered to the consumer until this one entry is settled."""

    @property
    def events(self) -> list[LaneEvent]:
        return self.died if self.event is None else [*self.died, self.event]


class _Deliverable(NamedTuple):
    """Entries that may be delivered: tickets of earlier attempts, ranges of fresh ones, and the bucket served last."""

    again: list[int]
    fresh: list[Range]
    bucket: int = 0
    lone: bool = False


def claim(
    state: LaneState,
    settings: GroupSettings,
    consumer: str,
    limit: int,
    at: int,
    blocks: Sequence[EntryBlock] = (),
    freed: int = 0,
    idle: bool = True,
) -> Claim:
    """Choose at most `limit` entries that may be delivered at `at`: redeliveries first, then fresh entries, in order; a
    higher priority comes before all others.

    `blocks` are added by the same record; not for key_shared. `freed`: the count of the consumer's entries that the
    record acknowledges.

    An entry that may become a dead letter after its next attempt, and may not have been handled in earlier ones, is
    delivered alone: to a consumer that is `idle`, in a delivery without other entries."""
    room = min(limit, settings.max_pending - state.held.get(consumer, 0) + freed)
    dead: list[int] = []
    if room <= 0:
        return Claim([], None, dead, [])
    if settings.mode == "key_shared":
        found = _by_key(state, settings, room, at, dead, idle)
    else:
        found = _by_priority(state, settings, room, at, dead, blocks, idle)
    again, fresh, bucket, lone = found
    died: list[LaneEvent] = [
        Died(ranges_of(tickets), reason) for reason, tickets in _reasons(state, settings, dead).items()
    ]
    if not again and not fresh:
        return Claim([], None, dead, died)
    most = settings.max_deliveries
    if lone:
        # An attempt that failed together with others is never the last one.
        tickets = [(again[0], min(_attempts(state, again[0]) + 1, most))]
    else:
        tickets = [(ticket, _attempts(state, ticket) + 1) for ticket in again]
    for first, count in fresh:
        tickets += [(ticket, 1) for ticket in range(first, first + count)]
    if settings.mode == "key_shared":
        tickets.sort()
    elif settings.queue and again and fresh:
        tickets.sort(key=lambda each: -_priority(state, settings, each[0], blocks))
    deadline = at + int(settings.ack_timeout * 1000)
    alone = tickets[0][1] if lone or (idle and len(tickets) == 1 and tickets[0][1] >= most) else 0
    event = Claimed(consumer, state.lots + 1, deadline, fresh, ranges_of(again), bucket, alone)
    return Claim(tickets, event, dead, died, lone)


def deliverable(state: LaneState, at: int, blocks: Sequence[EntryBlock]) -> Iterator[int]:
    """Yield the tickets that may be delivered at `at`, or once others are settled. `blocks`: as in `claim`."""
    yield from _due(state, at)
    if state.keyed:
        yield from filter(state.is_fresh, list(state.keys))
    for opened in state.blocks.values():
        yield from range(opened.next, opened.end)
    for block in blocks:
        yield from range(block.ticket, block.end)


def lone_is_due(state: LaneState, settings: GroupSettings, consumer: str, at: int) -> bool:
    """True if the consumer would now get an entry alone if it were idle."""
    if not state.doubted and (not state.pending or state.expires > at):
        return False
    return claim(state, settings, consumer, 1, at).lone


_DELIVER, _ALONE, _DEAD = range(3)


def _fate(state: LaneState, settings: GroupSettings, ticket: int) -> int:
    """The fate of a due ticket: deliver it, deliver it alone, or make it a dead letter."""
    lot, most = state.pending.get(ticket), settings.max_deliveries
    if lot is not None:
        attempts, doubted = lot.attempt, ticket not in state.alone
    elif (wait := state.waiting.get(ticket)) is not None:
        attempts, doubted = wait.attempt, ticket in state.doubted
    else:
        return _DELIVER
    if doubted:
        return _ALONE if attempts + 1 >= most else _DELIVER
    return _DEAD if attempts >= most else _DELIVER


def _reasons(state: LaneState, settings: GroupSettings, dead: list[int]) -> dict[str, list[int]]:
    """Tickets that used up their attempts, by the reason of their death."""
    found: dict[str, list[int]] = {}
    for ticket in dead:
        attempt, error = _attempts(state, ticket), ""
        before = state.errors.get(ticket)
        if ticket in state.pending:
            error = DEADLINE_PASSED
        elif before is not None and before[0] == attempt:
            error, before = before[1], None
        found.setdefault(worn_out(error, attempt, settings.max_deliveries, before), []).append(ticket)
    return found


def _attempts(state: LaneState, ticket: int) -> int:
    lot = state.pending.get(ticket)
    if lot is not None:
        return lot.attempt
    wait = state.waiting.get(ticket)
    return 0 if wait is None else wait.attempt


def _due(state: LaneState, at: int) -> list[int]:
    """Return the tickets that may be delivered again: their delay or their deadline is over."""
    found = [ticket for ticket, wait in state.waiting.items() if wait.ready <= at] if state.waiting else []
    if state.pending and state.expires <= at:
        expires = 1 << 62
        for ticket, lot in state.pending.items():
            if lot.deadline <= at:
                found.append(ticket)
            if lot.deadline < expires:
                expires = lot.deadline
        state.expires = expires  # only a bound of it was known
    found.sort()
    return found


def _by_priority(
    state: LaneState,
    settings: GroupSettings,
    room: int,
    at: int,
    dead: list[int],
    added: Sequence[EntryBlock],
    idle: bool,
) -> _Deliverable:
    again: dict[int, list[int]] = {}
    alone: dict[int, int] = {}
    due = _due(state, at)
    if not due and (first := _of_one_bucket(state, room, added)) is not None:
        return _Deliverable([], *first)
    for ticket in due:
        fate = _fate(state, settings, ticket)
        if fate == _DEAD:
            if len(dead) < _MOST_DEAD:
                dead.append(ticket)
        elif fate == _DELIVER:
            again.setdefault(_priority(state, settings, ticket), []).append(ticket)
        elif idle:
            alone.setdefault(_priority(state, settings, ticket), ticket)
    fresh: dict[int, dict[int, list[tuple[int, int]]]] = {}
    for opened in state.blocks.values():
        if opened.next < opened.end:
            queued = fresh.setdefault(opened.block.priority, {}).setdefault(opened.block.bucket, [])
            queued.append((opened.next, opened.end))
    for block in added:
        if not block.ready and block.epoch >= state.epoch:
            fresh.setdefault(block.priority, {}).setdefault(block.bucket, []).append((block.ticket, block.end))
    taken: list[int] = []
    ranges: list[Range] = []
    bucket = state.bucket
    for priority in sorted({*again, *fresh, *alone}, reverse=True):
        if priority in alone:
            if taken or ranges:
                break  # it comes next
            return _Deliverable([alone[priority]], [], bucket, True)
        part = again.get(priority, ())[:room]
        taken += part
        room -= len(part)
        if room and priority in fresh:
            some, bucket, room = _in_turn(fresh[priority], bucket, room)
            ranges += some
        if not room:
            break
    return _Deliverable(taken, ranges, bucket)


def _priority(state: LaneState, settings: GroupSettings, ticket: int, added: Sequence[EntryBlock] = ()) -> int:
    found = state.block_of(ticket)
    if found is not None:
        return found.block.priority
    for block in added:
        if block.ticket <= ticket < block.end:
            return block.priority
    # It was redriven, and its neighbours are done.
    return queue_class(str(state.location(ticket).stream))[0] if settings.queue else 0


def _of_one_bucket(state: LaneState, room: int, added: Sequence[EntryBlock]) -> tuple[list[Range], int] | None:
    """Choose as `_by_priority` does, for fresh entries of one priority and one bucket. None if they have several."""
    ranges: list[Range] = []
    kind: tuple[int, int] | None = None
    fresh = [(each.next, each.end, each.block) for each in state.blocks.values() if each.next < each.end]
    fresh += [(block.ticket, block.end, block) for block in added if not block.ready and block.epoch >= state.epoch]
    for first, end, block in fresh:
        if kind is None:
            kind = block.priority, block.bucket
        elif kind != (block.priority, block.bucket):
            return None
        if room:
            count = min(room, end - first)
            ranges.append((first, count))
            room -= count
    return _joined(ranges) if len(ranges) > 1 else ranges, state.bucket if kind is None else kind[1]


def _in_turn(buckets: dict[int, list[tuple[int, int]]], last: int, room: int) -> tuple[list[Range], int, int]:
    """A share of each bucket, beginning after the one that was served last."""
    found: list[Range] = []
    latest: dict[int, int] = {}  # by bucket, where in `found` its latest range is
    while room and buckets:
        names = sorted(buckets, key=lambda bucket: (bucket <= last, bucket))
        share = max(1, room // len(names))
        for name in names:
            queued = buckets[name]
            rest = min(share, room)
            while rest and queued:
                first, end = queued[0]
                count = min(rest, end - first)
                at = latest.get(name)
                if at is not None and sum(found[at]) == first:
                    found[at] = (found[at][0], found[at][1] + count)
                else:
                    latest[name] = len(found)
                    found.append((first, count))
                rest -= count
                room -= count
                if first + count < end:
                    queued[0] = (first + count, end)
                else:
                    queued.pop(0)
            last = name
            if not queued:
                del buckets[name]
            if not room:
                break
    return found, last, room


def _joined(ranges: list[Range]) -> list[Range]:
    joined: dict[int, Range] = {}  # by the end
    order: list[int] = []
    for first, count in ranges:
        before = joined.pop(first, None)
        if before is not None:
            order[order.index(first)] = first + count
            joined[first + count] = (before[0], before[1] + count)
        else:
            order.append(first + count)
            joined[first + count] = (first, count)
    return [joined[end] for end in order]


def _by_key(state: LaneState, settings: GroupSettings, room: int, at: int, dead: list[int], idle: bool) -> _Deliverable:
    """Choose the first entries of each key without a pending delivery, up to the limits."""
    again: list[int] = []
    fresh: list[int] = []
    for key in (*_expired_keys(state, at), *state.free):
        for ticket in state.unfinished[key]:
            wait = state.waiting.get(ticket)
            if wait is not None and wait.ready > at:
                break  # it holds back those behind it
            fate = _fate(state, settings, ticket)
            if fate == _DEAD:
                dead.append(ticket)
                continue
            if fate == _ALONE:
                if not idle:
                    break
                if again or fresh:  # it comes next
                    return _Deliverable(again, ranges_of(fresh))
                return _Deliverable([ticket], [], lone=True)
            (fresh if state.is_fresh(ticket) else again).append(ticket)
            room -= 1
            if not room:
                return _Deliverable(again, ranges_of(fresh))
        if len(dead) >= _MOST_DEAD:
            break
    return _Deliverable(again, ranges_of(fresh))


def _expired_keys(state: LaneState, at: int) -> list[int]:
    """Keys with pending deliveries, if the deadlines of all of them have passed."""
    if not state.pending or state.expires > at:
        return []
    state.expires = min(lot.deadline for lot in state.pending.values())
    over: dict[int, bool] = {}
    for ticket, lot in state.pending.items():
        key = state.keys[ticket]
        over[key] = over.get(key, True) and lot.deadline <= at
    return sorted([key for key, expired in over.items() if expired], key=lambda key: state.unfinished[key][0])


def give_up(
    state: LaneState,
    settings: GroupSettings,
    tickets: Iterable[int],
    at: int,
    delay: float | None,
    error: str = "",
    together: bool = False,
) -> tuple[list[LaneEvent], list[int]]:
    """Return the events of a nack of the pending `tickets`, and the other deliveries that end with them. In key_shared
    these are the same consumer's later deliveries of the same key. `together`: it is unknown which of the consumer's
    entries failed, so none becomes a dead letter."""
    waits: list[tuple[int, int]] = []
    dead: dict[str, list[int]] = {}
    given = set(tickets)
    lost: set[int] = set()
    for ticket in sorted(given):
        attempt = state.pending[ticket].attempt
        if attempt >= settings.max_deliveries and not together:
            reason = worn_out(error, attempt, settings.max_deliveries, state.errors.get(ticket))
            dead.setdefault(reason, []).append(ticket)
            continue
        pause = delay * 1000 if delay is not None else _pause(settings.retry_delay * 1000, attempt)
        waits.append((ticket, at + int(pause)))
        if state.keyed:
            lost.update(behind(state, ticket))
    lost -= given
    events: list[LaneEvent] = []
    if waits:
        events.append(Nacked(waits, error))
    if waits and together:
        events.append(Doubted(ranges_of(ticket for ticket, _ in waits)))
    events += [Died(ranges_of(tickets), reason) for reason, tickets in dead.items()]
    if lost:
        events.append(Released(ranges_of(lost)))
    return events, sorted(lost)


def _pause(first: float, attempt: int) -> float:
    return min(first * 2.0 ** (attempt - 1), max(first, _LONGEST))


def behind(state: LaneState, ticket: int) -> list[int]:
    """Return the pending tickets of the same key that come after `ticket`."""
    key = state.keys[ticket]
    pending = (other for other in state.unfinished[key] if other in state.pending)
    # Thousands that were never delivered may come after the last pending one.
    return [other for other in islice(pending, state.busy.get(key, 0)) if other > ticket]


def has_due(state: LaneState, at: int) -> bool:
    """True if something may be delivered again now."""
    if any(wait.ready <= at for wait in state.waiting.values()):
        return True
    return state.expires <= at and any(lot.deadline <= at for lot in state.pending.values())


def next_change(state: LaneState, at: int) -> int | None:
    """The next time at which another entry of the lane may be delivered; None if time alone changes nothing."""
    times = [wait.ready for wait in state.waiting.values()]
    times += [lot.deadline for lot in set(state.pending.values())]
    times = [time for time in times if time > at]
    return min(times, default=None)
