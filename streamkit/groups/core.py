"""A group as this process has it open: its feed, its lanes, its source. All its consumers here share it."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from ..errors import DeliveryLost, PermanentError, SequenceMismatch, StreamkitError
from ..model import Entry
from ..names import InternalName
from ..store import Store, inner
from ..warn import warn
from .chain import Chain, segment_on
from .decide import claim, has_due
from .events import (
    Absorbed,
    Acked,
    Added,
    Block,
    Cursor,
    Fed,
    FeedBatch,
    FeedEvent,
    Held,
    Joined,
    LaneBatch,
    LaneEvent,
    Skipped,
    Sourced,
    Stream,
    Vanished,
)
from .feed import FeedState
from .lane import LaneState, Site
from .ranges import ranges_of
from .settings import GroupSettings
from .source import DELAY, Source, key_hash, queue_class
from .values import Delivery

__all__ = ["Core", "Lane", "feed_chain"]

T = TypeVar("T")
_BLOCK = 1000
_BACKLOG = 5000
"""key_shared: a lane with more entries than that gets no more."""
_MOST_BLOCKS = 64
_FEEDS = 16
_TRIM = 1000
"""So often it is looked what is done, and so much is trimmed at once."""

_encoder = msgspec.msgpack.Encoder()
_feeds = msgspec.msgpack.Decoder(FeedState)


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
        """Appended by any thread; who holds the chain's lock takes from the front."""
        self.lost: list[Delivery] = []
        """Were refused after `ack` had returned; only counted."""
        self.seen = False
        """Whether it was looked at since this process opened it."""


class Core:
    def __init__(self, store: Store, space: str, internal: InternalName) -> None:
        self.store = store
        self.shared = inner(store)
        self.clock = self.shared.clock
        self.remote = self.shared.backend.limits.remote
        self.space = space
        self.internal = internal
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
        self._timer: threading.Timer | None = None
        self._feeds = 0
        self._trimmed: dict[Stream, int] = {}

    @property
    def settings(self) -> GroupSettings:
        return self.feed.state.settings

    def check(self) -> None:
        """PermanentError if the group is gone."""
        state = self.feed.state
        if state.deleted or state.created != self.generation:
            raise PermanentError(f"the group was deleted: make it again with store.group({self.space!r}, …)")
        if not self.source.is_same(state.incarnation):
            raise PermanentError(
                f"the space {self.space!r} was deleted and made again, and the group is of the one before: make it "
                f"again with store.group({self.space!r}, …)"
            )

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

    def opened(self) -> list[Lane]:
        """Those that were used here."""
        return [lane for lane in list(self._lanes.values()) if lane.chain.loaded]

    def is_stale(self) -> bool:
        """Whether it is of a group that was deleted since, as far as is known, or of a store that was closed."""
        state = self.feed.state
        if state.deleted or state.created != self.generation or self.shared.closed:
            return True
        return not self.source.is_same(state.incarnation)

    def has_due(self, lane: Lane) -> bool:
        with lane.chain.lock:
            return has_due(lane.chain.state, lane.chain.now())

    def backlog_of_fresh(self, lane: Lane) -> int:
        state = lane.chain.state
        return state.fresh() + sum([len(list(state.own(block))) for block in self.waiting_blocks(lane)])

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, lane: Lane, decide: Callable[[LaneState, int], tuple[list[LaneEvent], T]]) -> T:
        """Write what `decide` says of the lane's state and the time, together with what was acknowledged meanwhile.

        It is asked again, where another process was faster.
        """
        chain = lane.chain
        losses = 0
        with chain.lock:
            if not chain.loaded:
                chain.catch_up()
            while True:
                at = chain.now()
                acks = lane.acks[:]
                events, lost = self._acknowledge(chain.state, acks) if acks else ([], [])
                # What is decided by the state must not be about what the same record says is done.
                alone = bool(events) and self._may_be_taken(chain.state, acks, at)
                if not alone:
                    more, result = decide(chain.state, at)
                    events += more
                try:
                    if events:
                        chain.commit(at, events)
                except SequenceMismatch:
                    losses += 1
                    if losses > 2:
                        self.clock.sleep(random.random() * 0.002 * min(losses, 32) * (10 if self.remote else 1))
                    continue
                del lane.acks[: len(acks)]
                lane.lost += lost
                if not alone:
                    return result

    def write_feed(self, decide: Callable[[FeedState, int], tuple[list[FeedEvent], T]]) -> T:
        losses = 0
        with self.feed.lock:
            while True:
                at = self.feed.now()
                events, result = decide(self.feed.state, at)
                if not events:
                    return result
                try:
                    self.feed.commit(at, events)
                except SequenceMismatch:
                    losses += 1
                    if losses > 2:
                        self.clock.sleep(random.random() * 0.002 * min(losses, 32) * (10 if self.remote else 1))
                    continue
                return result

    @staticmethod
    def _acknowledge(state: LaneState, acks: Sequence[Delivery]) -> tuple[list[LaneEvent], list[Delivery]]:
        tickets: list[int] = []
        lost: list[Delivery] = []
        pending, epoch = state.pending, state.epoch
        for delivery in acks:
            lot = pending.get(delivery.ticket)
            if lot is not None and lot.number == delivery.lot and delivery.epoch == epoch:
                tickets.append(delivery.ticket)
            elif delivery.ticket not in state.gone or delivery.epoch != epoch:
                lost.append(delivery)
        return ([Acked(ranges_of(tickets))] if tickets else []), lost

    @staticmethod
    def _may_be_taken(state: LaneState, acks: Sequence[Delivery], at: int) -> bool:
        """Whether the time of one of them is over, so that others may have it too."""
        if state.expires > at:
            return False
        lots = [state.pending.get(delivery.ticket) for delivery in acks]
        return any(lot is not None and lot.deadline <= at for lot in lots)

    def settle(self, delivery: Delivery, decide: Callable[[LaneState, int], tuple[list[LaneEvent], T]]) -> T:
        """Write what becomes of a delivery. DeliveryLost if it is another consumer's by now, or finished by one."""

        def checked(state: LaneState, at: int) -> tuple[list[LaneEvent], T]:
            self.check()
            self.check_held(state, delivery)
            return decide(state, at)

        return self.write(self.lane(delivery.lane), checked)

    def check_held(self, state: LaneState, delivery: Delivery) -> None:
        lot = state.pending.get(delivery.ticket)
        if lot is None or lot.number != delivery.lot or delivery.epoch != state.epoch:
            entry = delivery.entry
            raise DeliveryLost(
                f"the delivery of sequence {entry.sequence} of {entry.segment!r} to {delivery.consumer!r} is over: its "
                "deadline passed and it went to another consumer, or it was given back, or the group was moved. Make "
                "ack_timeout longer, or extend the delivery in time"
            )

    def acknowledge_later(self, delivery: Delivery, linger: float) -> None:
        """With the lane's next record, in `linger` seconds at the latest."""
        self.lane(delivery.lane).acks.append(delivery)
        if self._timer is None:
            with self._lock:
                if self._timer is None:
                    self._timer = threading.Timer(linger, self._flush_later)
                    self._timer.name = "streamkit-acks"
                    self._timer.daemon = True
                    self._timer.start()

    def _flush_later(self) -> None:
        self._timer = None
        try:
            self.flush()
        except StreamkitError as error:
            warn("acknowledgements could not be written, and go with the next ones: %s", error)

    def flush(self) -> None:
        """Write what was acknowledged."""
        for lane in list(self._lanes.values()):
            if lane.acks:
                self.write(lane, lambda state, at: ([], None))

    # -- feeding ------------------------------------------------------------------------------------------------

    def waiting_blocks(self, lane: Lane) -> list[Block]:
        """Blocks of the lane that its own log does not have yet."""
        with lane.chain.lock:
            reached = lane.chain.state.reached
        return [block for block in self.feed.state.lanes.get(lane.number, ()) if block.ticket >= reached]

    def backlog(self, lane: Lane, priority: int | None = None) -> int:
        """How many entries of the lane were never delivered."""
        state = lane.chain.state
        blocks = self.waiting_blocks(lane)
        with lane.chain.lock:
            if self.keyed:
                return len(state.keys) + sum([len(list(state.own(block))) for block in blocks])
            if priority is None:
                return state.fresh() + sum([block.count for block in blocks])
            opened = [each for each in state.blocks.values() if each.block.priority >= priority]
            found = sum([each.block.end - each.next for each in opened])
        return found + sum([block.count for block in blocks if block.priority >= priority and not block.ready])

    def feed_lane(self, lane: Lane, consumer: str, limit: int) -> bool:
        """Give the lane what comes next of the source, if it has less than `limit`. Whether there was something."""
        self.check()
        ends = self.source.ends()
        self.check()
        ready = self._streams(ends)
        if not ready:
            return False

        def decide(state: FeedState, at: int) -> tuple[list[FeedEvent], bool]:
            self.check()
            streams = self._streams(ends)
            want = self._wanted(lane, state, streams, limit, at)
            blocks: list[Block] = []
            cursors: list[tuple[Stream, Cursor]] = []
            gaps: list[tuple[Stream, int, int]] = []
            ticket = state.tickets
            for stream, start, count in want:
                block, after = self._block(stream, start, count, ticket, state)
                if after != start:
                    cursors.append((stream, after))
                if block is None:
                    continue
                if block.start.position > start.position and self._is_reported(stream, start):
                    gaps.append((stream, start.position, block.start.position - start.position))
                blocks.append(block)
                ticket = block.end
            if not blocks and not cursors:
                return [], False
            events: list[FeedEvent] = [Fed(-1 if self.keyed else lane.number, blocks, cursors)]
            if gaps:
                events.append(Skipped(gaps))
            if not state.incarnation:
                events.append(Sourced(self.source.incarnation()))
            events += self._membership(state, lane, consumer, at)
            if not self.keyed and lane.chain.loaded:
                events.append(Absorbed(lane.number, lane.chain.state.reached))
            return events, bool(blocks)

        fed = self.write_feed(decide)
        if fed and self.settings.queue:
            self._feeds += 1
            if self._feeds % _FEEDS == 0:
                self._trim_done()
        return fed

    def _trim_done(self) -> None:
        """Trim what is done at the front of each segment of a queue."""
        try:
            for stream, position in self.done().items():
                if position - self._trimmed.get(stream, 1) >= _TRIM:
                    self._trimmed[stream] = position
                    self.store.trim(self.space, str(stream), before=position)
        except StreamkitError as error:
            warn("the queue %r could not be trimmed, and will be later: %s", self.space, error)

    def done(self) -> dict[Stream, int]:
        """By stream, the position up to which everything is done: below it nothing is needed any more."""
        # The feed first: what it hands out later is behind these.
        self.feed.catch_up()
        done = {stream: cursor.position for stream, cursor in self.feed.state.cursors.items()}
        handed = {number: list(blocks) for number, blocks in self.feed.state.lanes.items()}
        waiting: list[Block] = []
        for lane in self.lanes():
            lane.chain.catch_up()
            with lane.chain.lock:
                state = lane.chain.state
                waiting += [block for block in handed.get(lane.number, ()) if block.ticket >= state.reached]
                sites = [state.site(ticket) for ticket in (*state.pending, *state.waiting, *state.dead)]
                opened = [each for each in state.blocks.values() if each.next < each.block.end]
                sites += [state.site(each.next) for each in opened]
            for site in sites:
                done[site.stream] = min(done[site.stream], site.position)
        for block in waiting:
            done[block.stream] = min(done[block.stream], block.start.position)
        return done

    def _is_reported(self, stream: Stream, start: Cursor) -> bool:
        """What was trimmed before the group began is not its gap."""
        return start != self.source.beginning(stream) and self.source.is_trimmed(stream, start.position)

    def _streams(self, ends: dict[Stream, Cursor]) -> list[tuple[Stream, Cursor, int]]:
        """(stream, cursor, how many are available) of those with any."""
        cursors = self.feed.state.cursors
        found = []
        for stream, end in ends.items():
            cursor = cursors.get(stream)
            if cursor is None:
                cursor = self.source.beginning(stream)
            if end.position > cursor.position:
                found.append((stream, cursor, end.position - cursor.position))
        return found

    def _wanted(
        self, lane: Lane, state: FeedState, streams: list[tuple[Stream, Cursor, int]], limit: int, at: int
    ) -> list[tuple[Stream, Cursor, int]]:
        """Which entries to hand out: (stream, from where, how many)."""
        if not self.settings.queue:
            if not streams or self.backlog(lane) >= (_BACKLOG if self.keyed else limit):
                return []
            return self._shares(streams, state, limit, at)
        wanted: list[tuple[Stream, Cursor, int]] = []
        priorities: dict[int, list[tuple[Stream, Cursor, int]]] = {}
        for each in streams:
            priority, _, delayed = queue_class(str(each[0]))
            if delayed:
                wanted.append((each[0], each[1], min(each[2], _BLOCK)))
            else:
                priorities.setdefault(priority, []).append(each)
        more = 0
        for priority in sorted(priorities, reverse=True):
            if self.backlog(lane, priority) + more >= limit:
                break
            shares = self._shares(priorities[priority], state, limit, at)
            more += sum(count for _, _, count in shares)
            wanted += shares
        return wanted

    def _shares(
        self, streams: list[tuple[Stream, Cursor, int]], state: FeedState, limit: int, at: int
    ) -> list[tuple[Stream, Cursor, int]]:
        if len(streams) > _MOST_BLOCKS:
            streams = random.sample(streams, _MOST_BLOCKS)
        users = max(1, len(state.alive(at)))
        available = sum(count for _, _, count in streams)
        size = max(limit, min(_BLOCK, available // (2 * users)))
        share = max(1, size // len(streams))
        return [(stream, cursor, min(count, share)) for stream, cursor, count in streams]

    def _block(
        self, stream: Stream, start: Cursor, count: int, ticket: int, state: FeedState
    ) -> tuple[Block | None, Cursor]:
        entries, after = self.source.read(stream, start, count)
        if not entries:
            return None, after
        priority = bucket = 0
        keys: tuple[int, ...] = ()
        ready: tuple[int, ...] = ()
        if self.settings.queue:
            priority, bucket, delayed = queue_class(str(stream))
            if delayed:
                ready = tuple(entry.timestamp + int(entry.metadata.get(DELAY, "0")) for entry in entries)
        if self.keyed:
            keys = tuple(key_hash(entry, self.settings.key) for entry in entries)
        begin = self.source.start_of(stream, entries[0])
        return Block(ticket, len(entries), stream, begin, state.epoch, priority, bucket, keys, ready), after

    def _membership(self, state: FeedState, lane: Lane, consumer: str, at: int) -> list[FeedEvent]:
        present = state.members.get(consumer)
        stale = present is None or present.lane != lane.number or at - present.at > self.settings.ack_timeout * 1000
        return [Joined(consumer, lane.number)] if stale else []

    # -- claiming -----------------------------------------------------------------------------------------------

    def claim(self, lane: Lane, consumer: str, limit: int, *, auto_ack: bool = False) -> list[Delivery]:
        """What the lane has for the consumer, at most `limit`, by what is known of it."""

        def decide(state: LaneState, at: int) -> tuple[list[LaneEvent], list[Delivery] | None]:
            self.check()
            settings = self.settings
            events: list[LaneEvent] = []
            if settings.mode == "exclusive":
                holder, until = state.holder
                if holder and holder != consumer and until > at:
                    return [], []
                events.append(Held(consumer, at + int(settings.ack_timeout * 1000)))
            blocks = self.waiting_blocks(lane)
            if blocks:
                if self.keyed or any(block.ready or block.epoch > state.epoch for block in blocks):
                    return [Added(blocks)], None
                events.append(Added(blocks))
            freed = sum([delivery.session == consumer for delivery in lane.acks]) if lane.acks else 0
            got = claim(state, settings, consumer, limit, at, blocks, freed)
            if not got.tickets and not got.dead:
                # What is acknowledged may make room, or let a key go on.
                return ([Added(blocks)] if blocks else []), (None if lane.acks else [])
            entries = self.source.load(self._sites(state, blocks, got.tickets))
            gone = [ticket for (ticket, _), entry in zip(got.tickets, entries, strict=True) if entry is None]
            events += got.events
            if gone:
                events += self._vanished(state, blocks, gone)
            deliveries = self._deliveries(lane, consumer, at, got.event, got.tickets, entries, blocks)
            if auto_ack and deliveries:
                events.append(Acked(ranges_of(delivery.ticket for delivery in deliveries)))
            return events, deliveries or None

        for _ in range(64):
            found = self.write(lane, decide)
            if found is not None:
                return found
        return []

    def _deliveries(
        self,
        lane: Lane,
        consumer: str,
        at: int,
        event: Any,
        tickets: list[tuple[int, int]],
        entries: list[Entry | None],
        blocks: list[Block],
    ) -> list[Delivery]:
        if event is None:
            return []
        deadline, lot, epoch, number = event.deadline, event.lot, lane.chain.state.epoch, lane.number
        expires = self.clock.monotonic() + (deadline - at) / 1000
        keys = lane.chain.state.keys
        return [
            Delivery(entry, attempt, deadline, consumer, number, ticket, lot, epoch, expires, keys.get(ticket, 0))
            for (ticket, attempt), entry in zip(tickets, entries, strict=True)
            if entry is not None
        ]

    @staticmethod
    def _sites(state: LaneState, blocks: list[Block], tickets: Iterable[tuple[int, int]]) -> list[Site]:
        found = []
        block: Block | None = None
        for ticket, _ in tickets:
            if block is None or not block.ticket <= ticket < block.end:
                opened = state.block_of(ticket)
                block = opened.block if opened is not None else None
                if block is None:
                    block = next((added for added in blocks if added.ticket <= ticket < added.end), None)
            if block is None:
                found.append(state.site(ticket))
            else:
                found.append(Site(block.stream, block.start.position + ticket - block.ticket, block.start))
        return found

    def _vanished(self, state: LaneState, blocks: list[Block], tickets: list[int]) -> list[LaneEvent]:
        trimmed: list[int] = []
        erased: list[int] = []
        for ticket, site in zip(tickets, self._sites(state, blocks, [(each, 0) for each in tickets]), strict=True):
            (trimmed if self.source.is_trimmed(site.stream, site.position) else erased).append(ticket)
        return [Vanished(ranges_of(found), flag) for found, flag in ((trimmed, True), (erased, False)) if found]
