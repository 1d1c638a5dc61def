"""A group as this process has it open: its feed, its lanes, its source. All its consumers here share it."""

from __future__ import annotations

import os
import random
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..decoders import msgpack_decoder
from ..errors import DeliveryLost, OutcomeUnknown, PermanentError, SequenceMismatch, StreamkitError
from ..model import Entry
from ..names import InternalName
from ..removing.erasures import forget_late_failures
from ..store import Store, inner
from ..warn import warn
from .chain import Chain, segment_on
from .decide import Claim, claim, deliverable, has_due, lone_is_due
from .events import (
    Acked,
    Added,
    Claimed,
    Died,
    Doubted,
    EntryBlock,
    Extended,
    FeedBatch,
    FeedEvent,
    Finished,
    Held,
    LaneBatch,
    LaneEvent,
    Nacked,
    Released,
    Reset,
    Stream,
    Vanished,
)
from .failures import REJECTED, WORN_OUT
from .feed import FeedState
from .feeding import Feeder
from .lane import LaneState, Location
from .ranges import numbers_of, ranges_of
from .settings import GroupSettings
from .source import BLOCK, Source
from .values import LONE, SOLE, Delivery, tag_of

if TYPE_CHECKING:
    from .reception import Reception

__all__ = ["Core", "Lane", "feed_chain", "is_pending"]

T = TypeVar("T")

_AGAIN = 1.0
"""Seconds after which acknowledgements are written again that could not be."""
_LOADED = 100
"""Entries that are in memory at once while removed ones are looked for."""
_encoder = msgspec.msgpack.Encoder()
_feeds = msgpack_decoder(FeedState)


def feed_chain(store: Store, space: InternalName) -> Chain[FeedState, FeedBatch]:
    shared = inner(store)
    return Chain(
        store,
        shared.clock,
        space,
        segment_on("feed", 0, _partitions(store, space)),
        FeedBatch,
        lambda data: FeedState() if data is None else _feeds.decode(data),
        _encoder.encode,
        64 if shared.backend.limits.remote else 1024,
    )


def _partitions(store: Store, space: InternalName) -> int:
    found, _ = inner(store).look_up(space)
    return 1 if found is None else len(found.partitions)


class Lane:
    """A lane's chain, and acknowledgements that go with its next record."""

    def __init__(self, number: int, chain: Chain[LaneState, LaneBatch]) -> None:
        self.number = number
        self.chain = chain
        self.acks: list[Delivery] = []
        """Acknowledgements to be written. Any thread appends. The holder of the chain's lock takes from the front."""
        self.flush_at = 0.0
        """The latest time at which `acks` are written, by the monotonic clock."""
        self.seen = False
        """True if this process has looked at the lane."""
        self.wake_epoch = -1
        """The feed's `wake_epoch` before the latest look at it."""


def _is_about(events: Iterable[LaneEvent], done: Acked) -> bool:
    """True if an event settles or extends a delivery that is acknowledged."""
    told: set[int] = set()
    for event in events:
        if isinstance(event, (Claimed, Added)):
            continue
        if isinstance(event, Nacked):
            told.update(ticket for ticket, _ in event.tickets)
        elif isinstance(event, (Acked, Died, Doubted, Extended, Released, Vanished)):
            told.update(numbers_of(event.tickets))
    return bool(told) and not told.isdisjoint(numbers_of(done.tickets))


def _quoting(events: Iterable[LaneEvent]) -> list[int]:
    """The tickets of events with a text that may quote their entry."""
    found: list[int] = []
    for event in events:
        if isinstance(event, Nacked):
            found += [ticket for ticket, _ in event.tickets] if event.error else []
        elif isinstance(event, Died) and event.reason not in (WORN_OUT, REJECTED):
            found += numbers_of(event.tickets)
    return found


def is_pending(state: LaneState, delivery: Delivery) -> bool:
    """True if the delivery is still pending with its consumer."""
    lot = state.pending.get(delivery.ticket)
    return lot is not None and lot.number == delivery.lot and delivery.epoch == state.epoch


class Core:
    """An open group. It lasts as long as the store is open here and the group exists."""

    def __init__(self, store: Store, space: str, internal: InternalName) -> None:
        self.store = store
        self.shared = inner(store)
        self.clock = self.shared.clock
        self.remote = self.shared.backend.limits.remote
        self.space = space
        self.internal = internal
        self.tag = tag_of(store.id, internal)
        self.pid = os.getpid()
        self.feed = feed_chain(store, internal)
        self.feed.catch_up()
        self.generation = self.feed.state.created
        self._lanes: dict[int, Lane] = {}
        self._lock = threading.Lock()
        self._partitions = _partitions(store, internal)
        settings = self.settings
        self.keyed = settings.mode == "key_shared"
        self.source = Source(store, space, settings.segments, settings.queue)
        self.feeder = Feeder(self)
        self._timer: threading.Timer | None = None
        self._fires = 0.0
        """The time at which the timer fires, by the monotonic clock."""
        self._looked = float("-inf")
        self.reception: Reception | None = None
        """Made when it is first needed."""

    @property
    def settings(self) -> GroupSettings:
        return self.feed.state.settings

    def check(self) -> None:
        """Raise PermanentError if the group is gone."""
        state = self.feed.state
        if state.deleted or state.created != self.generation or not self.feed.is_there():
            raise self._gone("was deleted")
        inner(self.store)
        if not self.source.is_same(state.incarnation):
            raise self._gone("belongs to an earlier space of this name, which was deleted")

    def _gone(self, how: str) -> PermanentError:
        space, name = self.space, self.feed.state.name
        again = f"create it again with store.group({space!r}, {name!r}, …)"
        return PermanentError(f"the group {name!r} of {space!r} {how}: {again}")

    def lane(self, number: int) -> Lane:
        found = self._lanes.get(number)
        if found is None:
            partition = 1 + number % (self._partitions - 1) if self._partitions > 1 else 0
            lanes, keyed = self.settings.lanes, self.keyed

            def make(data: bytes | None) -> LaneState:
                state = LaneState(number, lanes, keyed)
                if data is not None:
                    state.restore(data)
                return state

            chain = Chain(
                self.store,
                self.clock,
                self.internal,
                segment_on(f"lane-{number}.{self.generation}", partition, self._partitions),
                LaneBatch,
                make,
                LaneState.save,
                64 if self.remote else 2048,
            )
            with self._lock:
                found = self._lanes.setdefault(number, Lane(number, chain))
        return found

    def lanes(self) -> list[Lane]:
        return [self.lane(number) for number in range(self.settings.lanes)]

    def look_at(self, lane: Lane) -> None:
        """Read the records that other processes have written to the lane."""
        lane.wake_epoch = self.feed.state.wake_epoch
        lane.chain.catch_up()

    def is_finished(self, lane: Lane) -> bool:
        """True if the lane is known to have nothing, without a look at it."""
        return not lane.chain.loaded and lane.number in self.feed.state.finished

    def finished(self, state: FeedState) -> list[FeedEvent]:
        """To be said of lanes that were seen to have nothing left."""
        found = []
        for lane in self.opened():
            if lane.number not in state.finished and lane.wake_epoch == state.wake_epoch:
                with lane.chain.lock:
                    if lane.chain.state.is_finished(state.epoch) and not self.waiting_blocks(lane):
                        found.append(lane.number)
        return [Finished(found)] if found else []

    def opened(self) -> list[Lane]:
        """The lanes that this process has used."""
        return [lane for lane in list(self._lanes.values()) if lane.chain.loaded]

    def is_stale(self) -> bool:
        """True if the group is known to be deleted, or its store to be closed."""
        state = self.feed.state
        if state.deleted or state.created != self.generation or self.shared.closed:
            return True
        return not self.source.is_same(state.incarnation) or not self.feed.is_there()

    def look_at_feed(self) -> bool:
        """Read the new records of the feed. If a look is a network request, one in a part of ack_timeout is enough.
        True if the look was skipped for that."""
        now = self.clock.monotonic()
        if self.remote and now - self._looked < self.settings.ack_timeout / 4:
            return True
        self._looked = now
        self.feed.catch_up()
        return False

    def may_have(self, lane: Lane, recent: bool) -> bool:
        """True if there may be entries in a lane that was seen before. `recent`: the look was not long ago, so pending
        entries of other consumers are no reason to look again before their deadline."""
        state = lane.chain.state
        if (state.blocks and state.fresh()) or self.waiting_blocks(lane):
            return True
        return self.has_due(lane) if recent else bool(state.pending or state.waiting or state.keys)

    def has_due(self, lane: Lane) -> bool:
        with lane.chain.lock:
            return has_due(lane.chain.state, lane.chain.now())

    def backlog_of_fresh(self, lane: Lane) -> int:
        state = lane.chain.state
        return state.fresh() + sum([len(list(state.own(block))) for block in self.waiting_blocks(lane)])

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, lane: Lane, decide: Callable[[LaneState, int], tuple[list[LaneEvent], T]]) -> T:
        """Write the events that `decide` makes from the lane's state and the time, together with new acknowledgements.
        `decide` is called again if another process was faster.
        """
        chain = lane.chain
        losses = 0
        with chain.lock:
            if not chain.loaded:
                self.look_at(lane)
            chain.renew()
            while True:
                at = chain.now()
                acks = lane.acks[:]
                done, lost = self._acknowledge(chain.state, acks) if acks else (None, 0)
                events: list[LaneEvent] = [] if done is None else [done]
                # A decision must not be about an entry that the same record acknowledges.
                alone = done is not None and self._may_be_taken(chain.state, acks, at)
                if not alone:
                    more, result = decide(chain.state, at)
                    alone = done is not None and _is_about(more, done)
                    if not alone:
                        events += more
                try:
                    if events:
                        chain.commit(at, events)
                except SequenceMismatch:
                    losses += 1
                    self._back_off(losses)
                    continue
                del lane.acks[: len(acks)]
                if lost:
                    name = self.feed.state.name
                    why = "others may have the entries, or the group was deleted"
                    message = f"%d acknowledgements in the group %r came too late: {why}"
                    warn(message, lost, name, store=self.store.id, space=self.space)
                if not alone:
                    quoted = self._locations(chain.state, [], [(ticket, 0) for ticket in _quoting(events)])
                    break
        if quoted:
            self._forget_if_erased(quoted)
        return result

    def _forget_if_erased(self, quoted: list[Location]) -> None:
        """Remove the texts of failures that were just written if their entries were erased meanwhile. The erasure may
        have searched the lane before. It finds the texts if it comes after this look."""
        try:
            self.source.look()
            entries = self.source.load(quoted)
            gone = [location for location, entry in zip(quoted, entries, strict=True) if entry is None]
            if not all(self.source.is_trimmed(location.stream, location.position) for location in gone):
                forget_late_failures(self.store, self.space)
        except StreamkitError as error:
            message = "the group %r may keep the text of a failure that quotes an erased entry: erase again (%s)"
            warn(message, self.feed.state.name, error, store=self.store.id, space=self.space)

    def write_feed(self, decide: Callable[[FeedState, int], tuple[list[FeedEvent], T]]) -> T:
        losses = 0
        with self.feed.lock:
            self.feed.renew()
            while True:
                at = self.feed.now()
                events, result = decide(self.feed.state, at)
                if not events:
                    return result
                try:
                    self.feed.commit(at, events)
                except SequenceMismatch:
                    losses += 1
                    self._back_off(losses)
                    continue
                return result

    def _back_off(self, losses: int) -> None:
        """Sleep for a random time if another process was faster more than twice."""
        if losses > 2:
            self.clock.sleep(random.random() * 0.002 * min(losses, 32) * (10 if self.remote else 1))

    @staticmethod
    def _acknowledge(state: LaneState, acks: Sequence[Delivery]) -> tuple[Acked | None, int]:
        """The events of acknowledgements, and the number of deliveries that are lost."""
        tickets: set[int] = set()  # two threads may have acknowledged the same one
        lost = 0
        pending, epoch = state.pending, state.epoch
        for delivery in acks:
            lot = pending.get(delivery.ticket)
            if lot is not None and lot.number == delivery.lot and delivery.epoch == epoch:
                tickets.add(delivery.ticket)
            elif delivery.ticket not in state.gone or delivery.epoch != epoch:
                lost += 1
        return (Acked(ranges_of(tickets)) if tickets else None), lost

    @staticmethod
    def _may_be_taken(state: LaneState, acks: Sequence[Delivery], at: int) -> bool:
        """True if the deadline of one of the deliveries has passed, so that another consumer may have it too."""
        if state.expires > at:
            return False
        lots = [state.pending.get(delivery.ticket) for delivery in acks]
        return any(lot is not None and lot.deadline <= at for lot in lots)

    def settle(self, delivery: Delivery, decide: Callable[[LaneState, int], tuple[list[LaneEvent], T]]) -> T:
        """Write the events that settle a delivery. DeliveryLost if another consumer has it, or has finished it."""

        def checked(state: LaneState, at: int) -> tuple[list[LaneEvent], T]:
            self.check()
            self.check_held(state, delivery)
            return decide(state, at)

        return self.write(self.lane(delivery.lane), checked)

    def check_held(self, state: LaneState, delivery: Delivery) -> None:
        if not is_pending(state, delivery):
            entry = delivery.entry
            raise DeliveryLost(
                f"the delivery of sequence {entry.sequence} of {entry.segment!r} to {delivery.consumer!r} is over: its "
                "deadline passed and it went to another consumer, or it was given back, or the group was moved. Make "
                "ack_timeout longer, or extend the delivery in time"
            )

    def give_back(self, lane: Lane, deliveries: Sequence[Delivery]) -> None:
        """Release those that are still their consumer's."""

        def decide(state: LaneState, at: int) -> tuple[list[LaneEvent], None]:
            tickets = [delivery.ticket for delivery in deliveries if is_pending(state, delivery)]
            return ([Released(ranges_of(tickets))] if tickets else []), None

        self.write(lane, decide)

    def still_there(self, lane: Lane, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """The deliveries that are still pending with their consumer, and whose entries were not removed."""
        with lane.chain.lock:
            state = lane.chain.state
            held = [delivery for delivery in deliveries if is_pending(state, delivery)]
            locations = self._locations(state, [], [(delivery.ticket, 0) for delivery in held])
        there = self.source.load(locations)
        if None in there:

            def decide(state: LaneState, at: int) -> tuple[list[LaneEvent], None]:
                pending = [delivery.ticket for delivery in deliveries if is_pending(state, delivery)]
                return self.vanished(state, pending), None

            self.write(lane, decide)
        return [delivery for delivery, entry in zip(held, there, strict=True) if entry is not None]

    def acknowledge_later(self, delivery: Delivery, linger: float) -> None:
        """Acknowledge a delivery with the lane's next record, in `linger` seconds at the latest."""
        lane = self.lane(delivery.lane)
        due = self.clock.monotonic() + linger
        if not lane.acks or due < lane.flush_at:
            lane.flush_at = due
        lane.acks.append(delivery)
        if self._timer is None or due < self._fires:
            with self._lock:
                if self._timer is None or due < self._fires:
                    self._start_timer(linger)

    def _start_timer(self, seconds: float) -> None:
        """Start the timer; it replaces a running one."""
        if self._timer is not None:
            self._timer.cancel()
        self._fires = self.clock.monotonic() + seconds
        self._timer = threading.Timer(seconds, self._flush_later)
        self._timer.name = "streamkit-acks"
        self._timer.daemon = True
        self._timer.start()

    def _flush_later(self) -> None:
        """Write the acknowledgements that no other record has taken along in time."""
        self._timer = None
        now = self.clock.monotonic()
        rest: list[float] = []
        for lane in [lane for lane in list(self._lanes.values()) if lane.acks]:
            if lane.flush_at > now:
                rest.append(lane.flush_at - now)
                continue
            try:
                self.write(lane, lambda state, at: ([], None))
            except StreamkitError as error:
                again = error.retryable or isinstance(error, OutcomeUnknown)
                then = ", and go with the next ones" if again else ""
                message = f"acknowledgements in the group %r could not be written{then}: %s"
                warn(message, self.feed.state.name, error, store=self.store.id, space=self.space)
                if again:
                    rest.append(_AGAIN)
        with self._lock:
            if rest and self._timer is None and not self.shared.closed:
                self._start_timer(max(0.001, min(rest)))

    def flush(self) -> None:
        """Write the acknowledgements."""
        for lane in list(self._lanes.values()):
            if lane.acks:
                self.write(lane, lambda state, at: ([], None))
        if self._timer is not None:
            with self._lock:
                # Its thread would wait for nothing. Acknowledgements that came since get another timer: their thread
                # adds them before it looks for one, and this one forgets the timer before it looks for them.
                timer, self._timer = self._timer, None
                if timer is not None:
                    timer.cancel()
                if any(lane.acks for lane in list(self._lanes.values())) and not self.shared.closed:
                    self._start_timer(0.001)

    # -- feeding ------------------------------------------------------------------------------------------------

    def waiting_blocks(self, lane: Lane) -> list[EntryBlock]:
        """Blocks of the lane that its own log does not have yet."""
        blocks = self.feed.state.lanes.get(lane.number)
        reached = lane.chain.state.reached
        if not blocks or blocks[-1].ticket < reached or self.is_finished(lane):  # they are in order
            return []
        return [block for block in blocks if block.ticket >= reached]

    def backlog(self, lane: Lane, priority: int | None = None) -> int:
        """Count the entries of the lane that were never delivered."""
        state = lane.chain.state
        blocks = self.waiting_blocks(lane)
        with lane.chain.lock:
            if priority is None:
                return state.fresh() + sum([block.count for block in blocks])
            opened = [each for each in state.blocks.values() if each.block.priority >= priority]
            found = sum([each.end - each.next for each in opened])
        return found + sum([block.count for block in blocks if block.priority >= priority and not block.ready])

    def needs_more(self, lane: Lane, limit: int) -> bool:
        """True if fewer entries than that were never delivered."""
        with lane.chain.lock:
            if lane.chain.state.fresh() >= limit:
                return False
        return self.backlog(lane) < limit

    def backlog_by_key(self) -> int:
        """key_shared: count the entries in all lanes that are neither done nor with a consumer, as far as is known.
        Without the locks, so that no thread waits for a write."""
        count = 0
        for lane in self.lanes():
            state = lane.chain.state
            count += len(state.keys) - len(state.pending)
            count += sum([len(list(state.own(block))) for block in self.waiting_blocks(lane)])
        return count

    # -- claiming -----------------------------------------------------------------------------------------------

    def lone_is_due(self, consumer: str) -> bool:
        """True if this process knows of an entry that waits to be delivered alone."""
        for lane in self.opened():
            with lane.chain.lock:
                if lone_is_due(lane.chain.state, self.settings, consumer, lane.chain.now()):
                    return True
        return False

    def doubt(self, delivery: Delivery) -> None:
        """Record that its consumer gets other entries at the same time."""

        def decide(state: LaneState, at: int) -> tuple[list[LaneEvent], None]:
            return ([Doubted([(delivery.ticket, 1)])] if is_pending(state, delivery) else []), None

        self.write(self.lane(delivery.lane), decide)

    def claim(
        self,
        lane: Lane,
        consumer: str,
        limit: int,
        *,
        auto_ack: bool = False,
        idle: bool = True,
        sole: Delivery | None = None,
        feeds: str = "",
    ) -> list[Delivery]:
        """Claim at most `limit` entries of the lane for the consumer, by the state that is known here.

        `idle`: the consumer has nothing. `sole`: the one delivery that it has, and that was the only one so far.
        `feeds`: the member for which the lane gets other entries if some that it had were removed.
        """
        doubt: Delivery | None = None
        gone: list[int] = []

        def decide(state: LaneState, at: int) -> tuple[list[LaneEvent], list[Delivery] | None]:
            nonlocal doubt, gone
            gone = []
            self.check()
            if state.epoch < (epoch := self.feed.state.epoch) and not state.is_empty():
                return [Reset(epoch)], None  # the group was moved by a process that did not reach this lane
            settings = self.settings
            events: list[LaneEvent] = []
            if settings.mode == "exclusive":
                holder, until = state.holder
                if holder and holder != consumer and until > at:
                    return [], []
                # Not before the extended deadline has passed.
                until = max(at + int(settings.ack_timeout * 1000), until if holder == consumer else 0)
                events.append(Held(consumer, until))
            blocks = self.waiting_blocks(lane)
            if blocks:
                if self.keyed or any(block.ready or block.epoch > state.epoch for block in blocks):
                    return [Added(blocks)], None
                events.append(Added(blocks))
            freed = sum([delivery.session == consumer for delivery in lane.acks]) if lane.acks else 0
            got = claim(state, settings, consumer, limit, at, blocks, freed, idle)
            if not got.tickets and not got.dead:
                # An acknowledgement may make room, or release the next entry of a key.
                return ([Added(blocks)] if blocks else []), (None if lane.acks else [])
            entries = self.source.load(self._locations(state, blocks, got.tickets))
            if None in entries:
                # One record for all: those that would come next may be removed as well.
                gone = self._removed(state, blocks, [ticket for ticket, _ in got.tickets], at)
                return [*events, *self._vanished(state, blocks, gone)], None
            if got.tickets and sole is not None:
                if sole.lane != lane.number and doubt is None:
                    doubt = sole  # that is in the log of its own lane before this record is written
                    return [], None
                if sole.lane == lane.number and is_pending(state, sole):
                    events.append(Doubted([(sole.ticket, 1)]))
            events += got.events
            deliveries = self._deliveries(lane, consumer, at, got, entries)
            if auto_ack and deliveries:
                events.append(Acked(ranges_of(delivery.ticket for delivery in deliveries)))
            return events, deliveries or None

        for _ in range(64):
            found = self.write(lane, decide)
            if found is not None:
                return found
            if doubt is not None:
                self.doubt(doubt)
            if gone and feeds and self.needs_more(lane, limit):
                self.feeder.feed(lane, feeds, limit)
        return []

    def _removed(self, state: LaneState, blocks: list[EntryBlock], chosen: list[int], at: int) -> list[int]:
        """The removed ones of `chosen` tickets, and of as many as a block has of those that may come next."""
        tickets = sorted({*chosen, *islice(deliverable(state, at, blocks), BLOCK)})
        found: list[int] = []
        for first in range(0, len(tickets), _LOADED):
            some = tickets[first : first + _LOADED]
            entries = self.source.load(self._locations(state, blocks, [(ticket, 0) for ticket in some]))
            found += [ticket for ticket, entry in zip(some, entries, strict=True) if entry is None]
        return found

    def _deliveries(
        self,
        lane: Lane,
        consumer: str,
        at: int,
        got: Claim,
        entries: list[Entry | None],
    ) -> list[Delivery]:
        event, tickets = got.event, got.tickets
        if event is None:
            return []
        company = LONE if got.lone else SOLE if event.alone else 0
        deadline, lot, epoch, number = event.deadline, event.lot, lane.chain.state.epoch, lane.number
        expires = self.clock.monotonic() + (deadline - at) / 1000
        keys = lane.chain.state.keys
        return [
            Delivery(
                entry,
                attempt,
                deadline,
                consumer,
                number,
                ticket,
                lot,
                epoch,
                expires,
                keys.get(ticket, 0),
                self.tag,
                company,
            )
            for (ticket, attempt), entry in zip(tickets, entries, strict=True)
            if entry is not None
        ]

    @staticmethod
    def _locations(state: LaneState, blocks: list[EntryBlock], tickets: Iterable[tuple[int, int]]) -> list[Location]:
        found = []
        block: EntryBlock | None = None
        for ticket, _ in tickets:
            if block is None or not block.ticket <= ticket < block.end:
                opened = state.block_of(ticket)
                block = opened.block if opened is not None else None
                if block is None:
                    block = next((added for added in blocks if added.ticket <= ticket < added.end), None)
            if block is None:
                found.append(state.location(ticket))
            else:
                found.append(Location(block.stream, block.start.position + ticket - block.ticket, block.start))
        return found

    def vanished(self, state: LaneState, tickets: list[int]) -> list[LaneEvent]:
        """Return the events for those of `tickets` whose entries were removed."""
        entries = self.source.load(self._locations(state, [], [(ticket, 0) for ticket in tickets]))
        return self._vanished(state, [], [each for each, entry in zip(tickets, entries, strict=True) if entry is None])

    def _vanished(self, state: LaneState, blocks: list[EntryBlock], tickets: list[int]) -> list[LaneEvent]:
        trimmed: list[int] = []
        erased: list[int] = []
        streams: dict[Stream, list[tuple[int, int]]] = {}
        locations = self._locations(state, blocks, [(each, 0) for each in tickets])
        for ticket, location in zip(tickets, locations, strict=True):
            streams.setdefault(location.stream, []).append((location.position, ticket))
        for stream, places in streams.items():
            places.sort()
            # What was trimmed comes before what is not: a few looks find the end of it.
            count = bisect_left(places, True, key=lambda each: not self.source.is_trimmed(stream, each[0]))
            trimmed += [ticket for _, ticket in places[:count]]
            erased += [ticket for _, ticket in places[count:]]
        return [Vanished(ranges_of(found), flag) for found, flag in ((trimmed, True), (erased, False)) if found]
