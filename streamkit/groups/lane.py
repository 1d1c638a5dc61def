"""A lane of a group: which of its entries are fresh, pending, waiting or dead. A pure function of its records."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from ..decoders import msgpack_decoder
from .events import (
    Acked,
    Added,
    Claimed,
    Died,
    Doubted,
    EntryBlock,
    Extended,
    Held,
    LaneBatch,
    Nacked,
    Redriven,
    Released,
    Reset,
    Stream,
    StreamCursor,
    Vanished,
)
from .ranges import Range, numbers_of, ranges_of

__all__ = ["Dead", "LaneState", "Location", "Lot", "Open", "Wait"]

_GONE = 1000


class Lot(NamedTuple):
    """The entries that a consumer received at once; all its tickets share it."""

    number: int
    consumer: str
    deadline: int
    attempt: int


class Wait(NamedTuple):
    """Delivered before, or delayed; from `ready` on it may be delivered (again)."""

    ready: int
    attempt: int


class Location(NamedTuple):
    """The place of an entry: `position` in its stream. A read from `start` finds it."""

    stream: Stream
    position: int
    start: StreamCursor


class Dead(NamedTuple):
    attempt: int
    reason: str
    at: int
    key: int
    location: Location


class Open:
    """A block that is not finished, from ticket `first` to before `end`: its fresh entries begin at ticket `next`, and
    `left` are not finished. A fresh entry that vanishes divides it."""

    __slots__ = ("block", "end", "first", "left", "next")

    def __init__(self, block: EntryBlock, next: int, left: int, first: int, end: int) -> None:
        self.block = block
        self.first = first
        self.end = end
        self.next = next
        self.left = left


class _Saved(msgspec.Struct, array_like=True):
    """A snapshot."""

    now: int
    epoch: int
    reached: int
    lots: int
    bucket: int
    holder: tuple[str, int]
    acked: int
    blocks: list[tuple[EntryBlock, int, int]]
    pending: list[tuple[tuple[int, str, int, int], list[Range]]]
    waiting: list[tuple[int, int, int]]
    dead: list[tuple[int, int, str, int, int, tuple[Stream, int, StreamCursor]]]
    redriven: list[tuple[int, int, tuple[Stream, int, StreamCursor]]]
    gone: list[int]
    trimmed: list[tuple[Stream, int, int]]
    unfinished: list[tuple[int, list[Range]]]
    """key_shared: unfinished entries by key."""
    doubted: list[Range] = []
    alone: list[Range] = []
    errors: list[tuple[int, str, list[Range]]] = []
    parts: list[Range] = []
    """The first ticket of each of `blocks`, and its end; empty: they are whole."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgpack_decoder(_Saved)


class LaneState:
    """The state of a lane. It holds no lock: the chain that applies records to it does. `lanes`: their number, for
    key_shared."""

    def __init__(self, lane: int = 0, lanes: int = 1, keyed: bool = False) -> None:
        self.lane = lane
        self.lanes = lanes
        self.keyed = keyed
        self.now = 0
        self.epoch = 0
        self.reached = 0
        """Blocks with tickets below are in this lane's own log."""
        self.lots = 0
        self.bucket = 0
        """Served last."""
        self.holder = ("", 0)
        """exclusive: the receiving consumer, and the end of its hold."""
        self.acked = 0
        self.blocks: dict[int, Open] = {}
        self.order: list[int] = []
        """The keys of `blocks`, whose order is the same."""
        self.pending: dict[int, Lot] = {}
        self.waiting: dict[int, Wait] = {}
        self.dead: dict[int, Dead] = {}
        self.redriven: dict[int, tuple[int, Location]] = {}
        """Redriven: of no block any more. (key, where it is)"""
        self.gone: deque[int] = deque(maxlen=_GONE)
        """Erased while they were pending: a late acknowledgement of one is fine."""
        self.trimmed: list[tuple[Stream, int, int]] = []
        self.held: dict[str, int] = {}
        """Number of pending entries, by consumer."""
        self.doubted: set[int] = set()
        """Waiting: the last attempt failed together with others, so that it may not have been handled."""
        self.alone: set[int] = set()
        """Pending: its consumer has nothing else."""
        self.errors: dict[int, tuple[int, str]] = {}
        """The last failure that was named of each entry that is not finished, and the attempt."""
        self.expires = 0
        """No pending delivery's deadline is before."""
        self.keys: dict[int, int] = {}
        """key_shared: the key of each ticket that is not finished."""
        self.unfinished: dict[int, list[int]] = {}
        """key_shared: by key, its tickets in order."""
        self.busy: dict[int, int] = {}
        """key_shared: how many of a key are pending."""
        self.free: dict[int, None] = {}
        """key_shared: keys with none pending."""

    # -- places -------------------------------------------------------------------------------------------------

    def block_of(self, ticket: int) -> Open | None:
        at = bisect_right(self.order, ticket) - 1
        if at < 0:
            return None
        found = self.blocks[self.order[at]]
        return found if ticket < found.end else None

    def location(self, ticket: int) -> Location:
        if ticket in self.dead:
            return self.dead[ticket].location
        if ticket in self.redriven:
            return self.redriven[ticket][1]
        found = self.block_of(ticket)
        assert found is not None, "a ticket of no block"
        block = found.block
        return Location(block.stream, block.start.position + ticket - block.ticket, block.start)

    def key_of(self, ticket: int) -> int:
        return self.keys.get(ticket, 0)

    def is_fresh(self, ticket: int) -> bool:
        """key_shared: whether a ticket that is not finished was never delivered."""
        return ticket not in self.pending and ticket not in self.waiting

    def fresh(self) -> int:
        """Count the entries that were never delivered."""
        if self.keyed:
            return len(self.keys) - len(self.pending) - len(self.waiting)
        # Also called without the lock, so that no thread waits for a write.
        return sum([block.end - block.next for block in list(self.blocks.values())])

    def is_finished(self, epoch: int) -> bool:
        """True if the epoch has nothing left to deliver; dead letters may remain."""
        return self.epoch == epoch and not (self.blocks or self.pending or self.waiting or self.redriven)

    def is_empty(self) -> bool:
        return not (self.blocks or self.pending or self.waiting or self.dead or self.redriven)

    def own(self, block: EntryBlock) -> Iterable[int]:
        """The tickets of a block that are this lane's."""
        if not self.keyed:
            return range(block.ticket, block.end)
        lane, lanes, first = self.lane, self.lanes, block.ticket
        return [first + at for at, key in enumerate(block.keys) if key % lanes == lane]

    # -- records ------------------------------------------------------------------------------------------------

    def apply(self, batch: LaneBatch) -> None:
        """Apply a record, in the order of the log. Its events were decided before it was written."""
        self.now = max(self.now, batch.at)
        for event in batch.events:
            _APPLY[type(event)](self, event)

    def _added(self, event: Added) -> None:
        for block in event.blocks:
            if block.epoch > self.epoch:
                self._reset(Reset(block.epoch))
            self.reached = max(self.reached, block.end)
            if block.epoch < self.epoch:
                continue
            own = self.own(block)
            left = block.count if not self.keyed else len(list(own))
            if not left:
                continue
            self.blocks[block.ticket] = Open(
                block, block.end if self.keyed or block.ready else block.ticket, left, block.ticket, block.end
            )
            insort(self.order, block.ticket)
            for ticket, ready in zip(range(block.ticket, block.end), block.ready, strict=False):
                self.waiting[ticket] = Wait(ready, 0)
            if self.keyed:
                for ticket in own:
                    self._queue(ticket, block.keys[ticket - block.ticket])

    def _queue(self, ticket: int, key: int) -> None:
        self.keys[ticket] = key
        tickets = self.unfinished.get(key)
        if tickets is None:
            self.unfinished[key] = [ticket]
        else:
            insort(tickets, ticket)
        if key not in self.busy:
            self.free[key] = None

    def _claimed(self, event: Claimed) -> None:
        consumer, number, deadline = event.consumer, event.lot, event.deadline
        self.lots = max(self.lots, number)
        self.bucket = event.bucket
        pending = self.pending
        lot = Lot(number, consumer, deadline, 1)
        count = 0
        for first, size in event.fresh:
            pending.update(dict.fromkeys(range(first, first + size), lot))
            count += size
            if not self.keyed:
                self._advance(first, first + size)
        if event.again:
            lots = {1: lot}
            for ticket in numbers_of(event.again):
                attempt = self._unclaim(ticket) + 1
                self.doubted.discard(ticket)
                self.alone.discard(ticket)
                if event.alone:
                    attempt = event.alone
                if attempt not in lots:
                    lots[attempt] = Lot(number, consumer, deadline, attempt)
                pending[ticket] = lots[attempt]
                count += 1
        if event.alone:
            self.alone.update(numbers_of(event.fresh or event.again))
        self.held[consumer] = self.held.get(consumer, 0) + count
        self.expires = min(self.expires, deadline) if len(pending) > count else deadline
        if self.keyed:
            for ranges in (event.fresh, event.again):
                for ticket in numbers_of(ranges):
                    key = self.keys[ticket]
                    self.busy[key] = self.busy.get(key, 0) + 1
                    self.free.pop(key, None)

    def _advance(self, first: int, end: int) -> None:
        """Advance over neighbouring blocks."""
        while first < end:
            found = self.block_of(first)
            if found is None:
                return
            found.next = max(found.next, min(end, found.end))
            first = found.end

    def _unclaim(self, ticket: int) -> int:
        """Forget a pending or waiting ticket. Returns the number of its attempts."""
        lot = self.pending.pop(ticket, None)
        if lot is None:
            wait = self.waiting.pop(ticket, None)
            return 0 if wait is None else wait.attempt
        held = self.held[lot.consumer] - 1
        if held:
            self.held[lot.consumer] = held
        else:
            del self.held[lot.consumer]
        if self.keyed:
            key = self.keys[ticket]
            busy = self.busy[key] - 1
            if busy:
                self.busy[key] = busy
            else:
                del self.busy[key]
                self.free[key] = None
        return lot.attempt

    def _finish(self, ranges: Iterable[Range]) -> None:
        """Note the entries of `ranges` as done, in any state."""
        if self.doubted or self.alone or self.errors:
            for ticket in numbers_of(ranges):
                self.doubted.discard(ticket)
                self.alone.discard(ticket)
                self.errors.pop(ticket, None)
        for first, count in ranges:
            for ticket in range(first, first + count):
                self._unclaim(ticket)
                if self.keyed:
                    self._unqueue(ticket)
            end = first + count
            while first < end:
                if first in self.redriven:
                    # Its block, if that is still there, was done with it when it died.
                    del self.redriven[first]
                    first += 1
                    continue
                found = self.block_of(first)
                assert found is not None, "a ticket of no block was finished"
                size = min(end, found.end) - first
                if self.redriven:
                    size = next((at for at in range(1, size) if first + at in self.redriven), size)
                if found.next >= first:
                    found.next = max(found.next, first + size)
                else:
                    self._divide(found, first, first + size)
                found.left -= size
                if found.left <= 0:
                    del self.blocks[found.first]
                    self.order.remove(found.first)
                first += size

    def _divide(self, found: Open, first: int, end: int) -> None:
        """Let fresh entries that are not the next ones be the last of their block; those after them are another."""
        if end < found.end:
            self.blocks[end] = Open(found.block, end, found.end - end, end, found.end)
            insort(self.order, end)
            found.left -= found.end - end
        found.end = first

    def _unqueue(self, ticket: int) -> None:
        key = self.keys.pop(ticket, None)
        if key is not None:
            tickets = self.unfinished[key]
            tickets.remove(ticket)
            if not tickets:
                del self.unfinished[key]
                self.free.pop(key, None)

    def _acked(self, event: Acked) -> None:
        for _, count in event.tickets:
            self.acked += count
        self._finish(event.tickets)

    def _nacked(self, event: Nacked) -> None:
        for ticket, ready in event.tickets:
            attempt = self._unclaim(ticket)
            self.alone.discard(ticket)
            if event.error:
                self.errors[ticket] = (attempt, event.error)
            self.waiting[ticket] = Wait(ready, attempt)

    def _doubted(self, event: Doubted) -> None:
        for ticket in numbers_of(event.tickets):
            self.alone.discard(ticket)
            if ticket in self.waiting:
                self.doubted.add(ticket)

    def _released(self, event: Released) -> None:
        for ticket in numbers_of(event.tickets):
            if ticket in self.alone:  # the next delivery is to be as this one was
                self.alone.remove(ticket)
                self.doubted.add(ticket)
            self.waiting[ticket] = Wait(self.now, self._unclaim(ticket) - 1)

    def _extended(self, event: Extended) -> None:
        for ticket in numbers_of(event.tickets):
            self.pending[ticket] = self.pending[ticket]._replace(deadline=event.deadline)
        self.expires = min(self.expires, event.deadline)

    def _died(self, event: Died) -> None:
        for first, count in event.tickets:
            for ticket in range(first, first + count):
                location, key = self.location(ticket), self.key_of(ticket)
                lot = self.pending.get(ticket) or self.waiting.get(ticket)
                self.dead[ticket] = Dead(lot.attempt if lot else 0, event.reason, self.now, key, location)
                self._finish([(ticket, 1)])

    def _vanished(self, event: Vanished) -> None:
        for ticket in numbers_of(event.tickets):
            dead = self.dead.pop(ticket, None)
            location = dead.location if dead is not None else self.location(ticket)
            if event.trimmed:
                self._trim(location)
            if ticket in self.pending:
                self.gone.append(ticket)
            if dead is None:
                self._finish([(ticket, 1)])
        self.blocks = {ticket: self.blocks[ticket] for ticket in self.order}

    def _trim(self, location: Location) -> None:
        self.acked += 1
        if self.trimmed:
            stream, first, count = self.trimmed[-1]
            if stream == location.stream and first + count == location.position:
                self.trimmed[-1] = (stream, first, count + 1)
                return
        self.trimmed.append((location.stream, location.position, 1))

    def _redriven(self, event: Redriven) -> None:
        for ticket in numbers_of(event.tickets):
            dead = self.dead.pop(ticket)
            self.redriven[ticket] = (dead.key, dead.location)
            self.waiting[ticket] = Wait(self.now, 0)
            if self.keyed:
                self._queue(ticket, dead.key)

    def _held(self, event: Held) -> None:
        self.holder = (event.consumer, event.until)

    def _reset(self, event: Reset) -> None:
        if event.epoch <= self.epoch:
            return
        self.epoch = event.epoch
        for entries in (self.blocks, self.pending, self.waiting, self.dead, self.redriven, self.held):
            entries.clear()
        for keys in (self.keys, self.unfinished, self.busy, self.free):
            keys.clear()
        for marks in (self.doubted, self.alone, self.errors):
            marks.clear()
        self.order.clear()
        self.trimmed.clear()
        self.gone.clear()

    # -- snapshots ----------------------------------------------------------------------------------------------

    def save(self) -> bytes:
        """All of it, for `restore`."""
        lots: dict[Lot, list[int]] = {}
        for ticket, lot in self.pending.items():
            lots.setdefault(lot, []).append(ticket)
        errors: dict[tuple[int, str], list[int]] = {}
        for ticket, error in self.errors.items():
            errors.setdefault(error, []).append(ticket)
        return _encoder.encode(
            _Saved(
                self.now,
                self.epoch,
                self.reached,
                self.lots,
                self.bucket,
                self.holder,
                self.acked,
                [(found.block, found.next, found.left) for found in self.blocks.values()],
                [(tuple(lot), ranges_of(tickets)) for lot, tickets in lots.items()],  # type: ignore[misc]
                [(ticket, *wait) for ticket, wait in self.waiting.items()],
                [(ticket, *dead) for ticket, dead in self.dead.items()],
                [(ticket, key, location) for ticket, (key, location) in self.redriven.items()],
                list(self.gone),
                self.trimmed,
                [(key, ranges_of(tickets)) for key, tickets in self.unfinished.items()],
                ranges_of(self.doubted),
                ranges_of(self.alone),
                [(attempt, error, ranges_of(tickets)) for (attempt, error), tickets in errors.items()],
                [(found.first, found.end) for found in self.blocks.values()],
            )
        )

    def restore(self, data: bytes) -> None:
        saved = _decoder.decode(data)
        self.now, self.epoch, self.reached, self.lots = saved.now, saved.epoch, saved.reached, saved.lots
        self.bucket, self.holder, self.acked = saved.bucket, saved.holder, saved.acked
        parts = saved.parts or [(block.ticket, block.end) for block, _, _ in saved.blocks]
        self.blocks = {
            part[0]: Open(block, next, left, *part)
            for (block, next, left), part in zip(saved.blocks, parts, strict=True)
        }
        self.order = sorted(self.blocks)
        self.pending, self.held = {}, {}
        for fields, ranges in saved.pending:
            lot = Lot(*fields)
            tickets = list(numbers_of(ranges))
            self.pending.update(dict.fromkeys(tickets, lot))
            self.held[lot.consumer] = self.held.get(lot.consumer, 0) + len(tickets)
        self.expires = min([lot.deadline for lot in self.pending.values()], default=0)
        self.waiting = {ticket: Wait(ready, attempt) for ticket, ready, attempt in saved.waiting}
        self.dead = {
            ticket: Dead(attempt, reason, at, key, Location(*location))
            for ticket, attempt, reason, at, key, location in saved.dead
        }
        self.redriven = {ticket: (key, Location(*location)) for ticket, key, location in saved.redriven}
        self.gone = deque(saved.gone, maxlen=_GONE)
        self.trimmed = saved.trimmed
        self.unfinished = {key: list(numbers_of(ranges)) for key, ranges in saved.unfinished}
        self.keys = {ticket: key for key, tickets in self.unfinished.items() for ticket in tickets}
        self.busy = {}
        for ticket in self.pending if self.keyed else ():
            key = self.keys[ticket]
            self.busy[key] = self.busy.get(key, 0) + 1
        self.free = dict.fromkeys(key for key in self.unfinished if key not in self.busy)
        self.doubted, self.alone = set(numbers_of(saved.doubted)), set(numbers_of(saved.alone))
        self.errors = {
            ticket: (attempt, error) for attempt, error, ranges in saved.errors for ticket in numbers_of(ranges)
        }


_APPLY: dict[type, Callable[[LaneState, Any], None]] = {
    Added: LaneState._added,
    Claimed: LaneState._claimed,
    Acked: LaneState._acked,
    Nacked: LaneState._nacked,
    Extended: LaneState._extended,
    Released: LaneState._released,
    Died: LaneState._died,
    Vanished: LaneState._vanished,
    Redriven: LaneState._redriven,
    Held: LaneState._held,
    Reset: LaneState._reset,
    Doubted: LaneState._doubted,
}
