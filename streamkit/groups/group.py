"""A group: consumers share the entries of a space, and the group keeps the outcomes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Literal, TypeVar, Unpack

import msgspec

from ..arguments import check_count, check_several, check_type
from ..errors import DeliveryLost, GroupExists, InvalidOffset, SequenceMismatch, SpaceExists, StoreClosed
from ..lexkey import LexKey
from ..model import Entry
from ..names import InternalName, check_name, internal_name
from ..places import Place, offset_of
from ..store import Store, complete_deletion, inner
from .chain import Chain, ChainDeleted
from .consumer import Consumer
from .core import Core, Lane, feed_chain, is_pending
from .events import (
    Changed,
    Created,
    CursorsMoved,
    Deleted,
    FeedBatch,
    FeedEvent,
    LaneEvent,
    Redriven,
    Reset,
    Stream,
    StreamCursor,
    Woken,
)
from .feed import FeedState
from .lane import Dead, LaneState, Location, Lot
from .ranges import ranges_of
from .reception import Reception
from .run import RunReport, Stop, run
from .settings import CHANGEABLE, GroupChanges, GroupSettings, checked
from .settling import Receipt, Settled, Settlement, settle
from .source import Source
from .values import (
    ConsumerStatus,
    DeadLetter,
    Delivery,
    GroupGap,
    GroupStatus,
    Pending,
    consumer_of,
    letter_id,
    receipt_of,
)

__all__ = ["Group", "find_group", "group_names", "is_of_space", "open_group", "queue_names"]

T = TypeVar("T")
AnyOffset = LexKey | bytes | str
_making = threading.Lock()
"""Held while the reception of a group is made."""


class _Opened:
    """A group of an open store. Opening one group does not wait for the opening of another."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while a thread opens the group."""
        self.core: Core | None = None


def open_group(
    store: Store, space: str, name: str, start: Any, options: Mapping[str, Any], queue: bool = False
) -> Group:
    """The group, made with `options` if it is not there. GroupExists if it has others."""
    check_name(space, "space")
    check_name(name, "group")
    given = checked(options, queue)
    if queue:
        given["queue"] = True
    internal = internal_name("group", space, name)
    core = _core(store, internal, space)
    state = core.feed.state if core is not None else None
    if state is None or not is_of_space(store, state):
        core = _create(store, space, name, internal, start, GroupSettings(**given))
    assert core is not None
    group = Group(store, space, name, internal, core)
    settings = group.core.settings
    wrong = {key: value for key, value in given.items() if getattr(settings, key) != value}
    if wrong:
        told = ", ".join(f"{key} is {getattr(settings, key)!r}, not {value!r}" for key, value in wrong.items())
        raise GroupExists(
            f"the group {name!r} of {space!r} exists with other settings ({told}): open it without them, change it "
            "with group.configure(…), or delete it first"
        )
    return group


def find_group(store: Store, space: str, name: str) -> Group | None:
    """The group if it exists."""
    check_name(space, "space")
    internal = internal_name("group", space, check_name(name, "group"))
    core = _core(store, internal, space)
    if core is None:
        return None
    core.feed.catch_up()
    if core.is_stale():  # another process deleted it, and may have made it again
        core = _core(store, internal, space)
    if core is None or not is_of_space(store, core.feed.state):
        return None
    return Group(store, space, name, internal, core)


def is_of_space(store: Store, state: FeedState, *, headless: bool = False) -> bool:
    """True if the group belongs to the present incarnation of the space. A group of a deleted space does not exist in
    the space that follows it. CorruptData if the space has lost its head; with `headless` it counts as missing."""
    if state.deleted or not state.created:
        return False
    found, _ = inner(store).look_up(state.space, None, headless=headless)
    return not state.incarnation or (found is not None and found.settings.incarnation == state.incarnation)


def _core(store: Store, internal: InternalName, space: str) -> Core | None:
    """Return the group's core, shared in this process; None if the group was never made."""
    shared = inner(store)
    opened: _Opened = shared.attached.setdefault(("group", internal), _Opened())
    with opened.lock:
        core = opened.core
        if core is not None and core.pid == os.getpid() and not core.is_stale():
            return core

        def make() -> Core | None:
            if shared.look_up(internal, None)[0] is None:
                return None
            # The handle outlives that of the caller: consumers of other handles share the core.
            return Core(_own_handle(store), space, internal)

        core = _reopened(store, internal, make)
        if core is not None and not core.is_stale() and core.generation:
            opened.core = core
        return core


def _reopened(store: Store, internal: InternalName, make: Callable[[], T]) -> T:
    """Return what `make` returns. If the internal space was deleted, call `make` again for the one that follows it."""
    try:
        return make()
    except StoreClosed:
        if not complete_deletion(store, internal) and not inner(store).exists(internal):
            raise
        return make()


def _own_handle(store: Store) -> Store:
    return Store(inner(store), lambda shared: None)


def _create(store: Store, space: str, name: str, internal: InternalName, start: Any, settings: GroupSettings) -> Core:
    shared = inner(store)
    if shared.look_up(internal)[0] is None:
        durability = "committed"
        source, _ = shared.look_up(space)
        if source is not None:
            durability = source.settings.durability
        partitions = 1 if settings.lanes == 1 else 1 + settings.lanes
        if shared.look_up(internal)[0] is None:
            _make_space(store, internal, partitions, durability)
    feed = feed_chain(store, internal)
    feed.catch_up()
    while not is_of_space(store, feed.state):
        source, _ = shared.look_up(space)
        starts = _starts(store, space, settings, start)
        at = feed.now()
        incarnation = source.settings.incarnation if source is not None else b""
        created = Created(settings, starts, at, incarnation, space, name)
        gone = [Deleted()] if feed.state.created and not feed.state.deleted else []
        with contextlib.suppress(SequenceMismatch):  # another process was faster, and may have created it
            feed.commit(at, [*gone, created])
    core = _core(store, internal, space)
    if core is not None and core.generation != feed.state.created:  # it is of the group before this one
        core.feed.catch_up()
        core = _core(store, internal, space)
    assert core is not None
    return core


def _make_space(store: Store, internal: InternalName, partitions: int, durability: str) -> None:
    try:
        store.create_space(internal, partitions, durability)
    except SpaceExists:
        # A process began to create it with other settings, and was stopped.
        inner(store).ready(internal, ())


def _starts(store: Store, space: str, settings: GroupSettings, start: Any) -> list[tuple[Stream, StreamCursor]]:
    if isinstance(start, str) and start == "beginning":
        return []
    source = Source(store, space, settings.segments, settings.queue)
    if isinstance(start, str) and start == "end":
        return list(source.ends().items())
    if isinstance(start, (str, bytes)):
        try:
            return list(source.after(start).items())
        except InvalidOffset as error:
            raise InvalidOffset(f"{error}; a group also begins at 'beginning' or 'end'") from error
    raise TypeError(f"start is 'beginning', 'end' or an offset, not {type(start).__name__}")


def group_names(store: Store, space: str) -> list[str]:
    """Return the names of a space's groups, in order."""
    check_name(space, "space")
    return sorted(state.name for _, state in _feeds(store, space) if is_of_space(store, state))


def queue_names(store: Store, group: str) -> list[str]:
    """The names of the queues of a store, in order. `group`: the name of a queue's only group."""
    found = []
    for internal in inner(store).internal_names("group"):
        state = feed_of(store, internal).state
        if state.name == group and state.settings.queue and is_of_space(store, state):
            found.append(state.space)
    return sorted(found)


def cores_of(store: Store, space: str) -> Iterator[Core]:
    """Yield the shared core of every group that the space ever had, deleted groups included."""
    for internal, state in _feeds(store, space):
        core = _core(store, internal, space)
        if core is not None and (state.deleted or state.created != core.generation):
            core.feed.catch_up()  # another process has deleted the group, or made it again: its core is stale then
            core = _core(store, internal, space)
        if core is not None:
            yield core


def _feeds(store: Store, space: str) -> Iterator[tuple[InternalName, FeedState]]:
    """Yield the internal space and the feed of each group of a space."""
    for internal in internals_of(store, space):
        state = feed_of(store, internal).state
        if state.space == space:
            yield internal, state


def internals_of(store: Store, space: str) -> list[InternalName]:
    """The internal spaces that may be those of a space's groups: a long name does not tell the space."""
    names = internal_name("group", space) + "\x1f", internal_name("group") + "\x1f\x1d"
    return [internal for internal in inner(store).internal_names("group") if internal.startswith(names)]


def feed_of(store: Store, internal: InternalName) -> Chain[FeedState, FeedBatch]:
    """The feed of an internal space that the storage lists. This process may know an earlier one of its name."""

    def make() -> Chain[FeedState, FeedBatch]:
        feed = feed_chain(store, internal)
        feed.catch_up()
        return feed

    return _reopened(store, internal, make)


class Group:
    """A consumer group of a space, from `store.group(space, name, …)`. Safe to share between threads."""

    def __init__(self, store: Store, space: str, name: str, internal: InternalName, core: Core) -> None:
        self.space = space
        self.name = name
        self._store = store
        self._internal = internal
        self._core = core

    @property
    def store(self) -> Store:
        """The store of the group."""
        return self._store

    @property
    def core(self) -> Core:
        """The state that all consumers of the group in this process share."""
        inner(self._store)
        if self._core.pid != os.getpid():
            core = _core(self._store, self._internal, self.space)
            if core is None:
                raise StoreClosed(
                    f"the group {self.name!r} of {self.space!r}, or its store, was deleted: open the store again with "
                    "client.store(…), and the group with store.group(…)"
                )
            self._core = core
        return self._core

    @property
    def settings(self) -> GroupSettings:
        """The settings of the group, as this process last read them."""
        return self._core.settings

    def consumer(self, name: str | None = None, *, linger: float = 0.1, prefetch: int = 1) -> Consumer:
        """Return a consumer for `with group.consumer(name) as consumer`. Consumers of the same name are not the same
        one.

        `linger`: acknowledgements are written after this many seconds at the latest; with 0, each at once. `prefetch`:
        `receive` claims this many entries, and keeps the ones that it does not return for its next calls. Their
        deadline and their attempt count from the claim on. A consumer that closes gives back unused entries; a process
        that is killed does not.
        """
        self.core.check()
        return Consumer(self, name, linger, prefetch)

    def run(
        self,
        handler: Callable[[Delivery], Any],
        consumer: str | None = None,
        concurrency: int = 1,
        batch: int = 10,
        *,
        seconds: float | None = None,
        drain: bool = False,
        stop: Stop | None = None,
    ) -> RunReport:
        """Call `handler(delivery)` for each entry. The entry is acknowledged if it returns, and delivered again after a
        growing delay if it raises.

        Ends with SIGTERM (in the main thread), when `stop` (an Event) is set, after `seconds`, or with `drain` when no
        entry can be delivered now. Then running handlers finish, and the other deliveries go back to the group.
        `concurrency` threads call the handler at once; in key_shared the entries of one key come one after the other.
        """
        return run(self, handler, consumer, concurrency, batch, seconds, drain, stop)

    def receive(
        self, limit: int = 10, wait: float = 0.0, *, consumer: str | None = None, auto_ack: bool = False
    ) -> list[Delivery]:
        """Return at most `limit` deliveries, without a consumer object: any process settles them by their receipts.

        Waits up to `wait` seconds (infinity: for ever) for the first. An entry that is not settled with `settle` is
        delivered again after its deadline. `consumer` names the receiver, in every process. The limit max_pending holds
        for a named receiver, and mode="exclusive" needs one. An entry that is delivered alone (see `Consumer.receive`)
        is the only one of its call, and the only one that its named receiver has.
        """
        return self.reception.receive(limit, wait, consumer, auto_ack)

    @property
    def reception(self) -> Reception:
        """The receiver behind `receive`; all handles of the group in this process share it."""
        core = self.core
        core.check()
        if core.reception is None:
            with _making:
                if core.reception is None:
                    # With the core's own handle: it outlives that of the caller.
                    core.reception = Reception(Group(core.store, self.space, self.name, self._internal, core))
        return core.reception

    # -- looking ------------------------------------------------------------------------------------------------

    def _lanes(self) -> list[Lane]:
        """All, as of now."""
        core = self.core
        core.flush()
        core.feed.catch_up()
        core.check()
        for lane in core.lanes():
            lane.chain.catch_up()
        return core.lanes()

    def status(self) -> GroupStatus:
        """Return the counts of entries, the positions of the group, and its consumers. Reads all lanes.

        `lag` is everything that is not done: `unread` (never delivered) + `pending` (with a consumer) + `ready` (may be
        delivered again now) + `delayed` (may be delivered later). `dead` and `acked` are beside it.
        """
        lanes = self._lanes()
        core = self.core
        feed = core.feed.state
        ends = core.source.ends()
        unread = 0
        pending = ready = delayed = dead = 0
        acked = feed.skipped
        consumers: dict[str, int] = {}
        gaps = [*feed.gaps]
        for stream, end in ends.items():
            cursor = self._cursor(feed, stream)
            missing = core.source.trimmed_after(stream, cursor, end)
            if missing and cursor != core.source.beginning(stream):  # else they were trimmed before the group began
                acked += missing
                gaps.append((stream, cursor.position, missing))
            unread += max(0, end.position - cursor.position - missing)
        for lane in lanes:
            with lane.chain.lock:
                state, at = lane.chain.state, lane.chain.now()
                unread += core.backlog_of_fresh(lane)
                for lot in state.pending.values():
                    if lot.deadline > at:
                        pending += 1
                        name = consumer_of(lot.consumer)
                        consumers[name] = consumers.get(name, 0) + 1
                    else:
                        ready += 1
                for wait in state.waiting.values():
                    if wait.ready <= at:
                        ready += 1
                    else:
                        delayed += 1
                dead += len(state.dead)
                acked += state.acked
                gaps += state.trimmed
        for session in feed.alive(core.feed.now()):
            consumers.setdefault(consumer_of(session), 0)
        delivered_to, acked_to = self._progress(lanes)
        return GroupStatus(
            unread + pending + ready + delayed,
            pending,
            ready,
            delayed,
            dead,
            delivered_to,
            acked_to,
            tuple(ConsumerStatus(name, count) for name, count in sorted(consumers.items())),
            acked,
            tuple(self._gap(*gap) for gap in gaps),
            unread,
        )

    def _cursor(self, feed: FeedState, stream: Stream) -> StreamCursor:
        cursor = feed.cursors.get(stream)
        return self.core.source.beginning(stream) if cursor is None else cursor

    def _gap(self, stream: Stream, first: int, count: int) -> GroupGap:
        if isinstance(stream, str):
            return GroupGap(self.space, stream, first, first + count - 1, "trimmed")
        return GroupGap(self.space, "", first + 1, first + count, "trimmed", stream)

    def _progress(self, lanes: list[Lane]) -> tuple[LexKey | None, LexKey | None]:
        """Return (delivered_to, acked_to)"""
        core = self.core
        if self.settings.queue or self.settings.segments is not None:
            return None, None
        fresh: dict[Stream, Location] = {}
        open_: dict[Stream, Location] = {}

        def lower(locations: dict[Stream, Location], location: Location) -> None:
            known = locations.get(location.stream)
            if known is None or location.position < known.position:
                locations[location.stream] = location

        for lane in lanes:
            with lane.chain.lock:
                state = lane.chain.state
                for ticket in {
                    *state.pending,
                    *state.waiting,
                    *(ticket for ticket in state.keys if state.is_fresh(ticket)),
                }:
                    lower(open_, state.location(ticket))
                    if ticket not in state.pending and ticket not in state.waiting:
                        lower(fresh, state.location(ticket))
                for opened in state.blocks.values():
                    if opened.next < opened.end:
                        lower(fresh, state.location(opened.next))
                        lower(open_, state.location(opened.next))
                blocks = core.waiting_blocks(lane)
            for block in blocks:
                for locations in (fresh, open_):
                    lower(locations, Location(block.stream, block.start.position, block.start))
        return self._offset(fresh), self._offset(open_)

    def _offset(self, locations: dict[Stream, Location]) -> LexKey:
        """The offset before the first of them in each partition; of the others, up to where the feed is."""
        core = self.core
        places = []
        for stream in sorted(core.source.ends(), key=str):
            assert isinstance(stream, int)
            location = locations.get(stream)
            if location is None:
                cursor = self._cursor(core.feed.state, stream)
                places.append(Place(stream, cursor.number, cursor.index, cursor.position))
                continue
            entry = core.source.load([location])[0]
            start = location.start
            place = Place(stream, start.number, start.index, start.position) if entry is None else Place.of(entry)
            places.append(place)
        return offset_of(self._store, self.space, sorted(places))

    def pending(self, consumer: str | None = None, limit: int = 100) -> list[Pending]:
        """List the deliveries that consumers hold now, the oldest first: of one `consumer`, by its name, or of all.

        `limit=0`: no cap."""
        check_type(consumer, str, "consumer is the name of one", optional=True)
        check_count("limit", limit, 0)
        found: list[tuple[int, Location, Lot]] = []
        for lane in self._lanes():
            with lane.chain.lock:
                state, at = lane.chain.state, lane.chain.now()
                for ticket, lot in state.pending.items():
                    if lot.deadline > at and consumer in (None, consumer_of(lot.consumer)):
                        found.append((ticket, state.location(ticket), lot))
        return [
            Pending(entry, consumer_of(lot.consumer), lot.attempt, lot.deadline)
            for (_, _, lot), entry in self._there(found, limit)
        ]

    def _there(
        self, found: list[tuple[int, Location, T]], limit: int
    ) -> Iterator[tuple[tuple[int, Location, T], Entry]]:
        """Yield (ticket, place, state) and the entry, the oldest first, for at most `limit` entries that were not
        removed; 0: for all."""
        found = sorted(found, key=itemgetter(0))
        limit = limit or len(found)
        while limit > 0 and (some := found[:limit]):
            entries = self.core.source.load([location for _, location, _ in some])
            there = [(each, entry) for each, entry in zip(some, entries, strict=True) if entry is not None]
            yield from there
            found, limit = found[limit:], limit - len(there)

    def delivery(self, receipt: str) -> Delivery:
        """The delivery with this `.receipt`, also of another process. DeliveryLost if it is over; ValueError."""
        core = self.core
        epoch, number, ticket, lot = Receipt.of(receipt, core)
        chain = core.lane(number).chain
        chain.catch_up()
        with chain.lock:
            state = chain.state
            held = state.pending.get(ticket)
            if held is None or held.number != lot or state.epoch != epoch:
                raise DeliveryLost(
                    "the delivery is over: it was settled, or its deadline passed and it went to another one"
                )
            location, key = state.location(ticket), state.key_of(ticket)
            expires = core.clock.monotonic() + (held.deadline - chain.now()) / 1000
        (entry,) = core.source.load([location])
        if entry is None:
            raise DeliveryLost("the entry of the delivery was trimmed, deleted or erased: nothing is left to do")
        return Delivery(
            entry, held.attempt, held.deadline, held.consumer, number, ticket, lot, epoch, expires, key, core.tag
        )

    def settle(self, settlements: Iterable[Settlement]) -> list[Settled]:
        """Settle many deliveries by their receipts, also of other processes, with one commit for each lane.

        `group.settle([Settlement(receipt=receipt, action="ack"), …])` does what the methods of `Consumer` do, in the
        given order, and returns one result for each, in that order. A delivery that has ended is `lost`, and the others
        are settled all the same. ValueError or TypeError before anything is written. If it raises later, some lanes may
        be settled: call it again, and their deliveries are `lost`.
        """
        return settle(self.core, list(settlements))

    def still_pending(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Return those of `deliveries` that are neither settled nor past their deadline, in any process. Asks the
        storage."""
        found: list[Delivery] = []
        caught_up: set[int] = set()
        for delivery in deliveries:
            check_type(delivery, Delivery, "deliveries are what receive() gave")
            chain = self.core.lane(delivery.lane).chain
            if delivery.lane not in caught_up:
                caught_up.add(delivery.lane)
                chain.catch_up()
            with chain.lock:
                lot = chain.state.pending.get(delivery.ticket)
                if lot is not None and is_pending(chain.state, delivery) and lot.deadline > chain.now():
                    found.append(delivery)
        return found

    def receipts(self, consumer: str) -> dict[tuple[str, int], str]:
        """The receipts of a consumer's deliveries, by (segment, sequence). For a group of some segments."""
        found: dict[tuple[str, int], str] = {}
        for lane in self._lanes():
            with lane.chain.lock:
                state, at = lane.chain.state, lane.chain.now()
                for ticket, lot in state.pending.items():
                    if lot.deadline > at and consumer_of(lot.consumer) == consumer:
                        location = state.location(ticket)
                        receipt = receipt_of(state.epoch, lane.number, ticket, lot.number, self.core.tag)
                        found[str(location.stream), location.position] = receipt
        return found

    def unfinished(self, segment: str) -> tuple[list[int], int]:
        """The sequences of a segment that were handed to lanes and are neither acknowledged nor dead, in order; and the
        first sequence that was not handed to a lane yet. For a group of some segments."""
        found: list[int] = []
        for lane in self._lanes():
            with lane.chain.lock:
                state = lane.chain.state
                tickets = {*state.pending, *state.waiting, *state.redriven}
                for opened in state.blocks.values():
                    tickets.update(range(opened.next, opened.end))
                locations = [state.location(ticket) for ticket in tickets]
                found += [location.position for location in locations if location.stream == segment]
                for block in self.core.waiting_blocks(lane):
                    if block.stream == segment:
                        found += range(block.start.position, block.start.position + block.count)
        return sorted(set(found)), self._cursor(self.core.feed.state, segment).position

    # -- dead letters -------------------------------------------------------------------------------------------

    def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """The entries that are not delivered any more, the oldest first. `limit=0`: no cap."""
        check_count("limit", limit, 0)
        found: list[tuple[int, Location, tuple[int, Dead]]] = []
        for lane in self._lanes():
            with lane.chain.lock:
                found += [
                    (ticket, dead.location, (lane.number, dead)) for ticket, dead in lane.chain.state.dead.items()
                ]
        return [
            DeadLetter(entry, dead.attempt, dead.reason, dead.at, ticket, lane)
            for (ticket, _, (lane, dead)), entry in self._there(found, limit)
        ]

    def redrive(self, deliveries: Iterable[DeadLetter | str] | None = None) -> int:
        """Bring dead letters back: these (or those with these ids), or all. Returns their number.

        They are delivered again as if for the first time, and may come after later entries."""
        if deliveries is not None:
            check_several("deliveries", deliveries, "[letter]")
            deliveries = list(deliveries)
            for letter in deliveries:
                if not isinstance(letter, (DeadLetter, str)):
                    raise TypeError(
                        f"deliveries are dead letters, from dead_letters(), or their ids, not {type(letter).__name__}"
                    )
        lanes = self._lanes()
        # Before as well, because a stopped call may be repeated.
        self.core.write_feed(lambda state, at: ([Woken()], None))
        ids = None
        if deliveries is not None:
            ids = {letter if isinstance(letter, str) else letter.id for letter in deliveries}
        count = 0
        for lane in lanes:

            def decide(state: LaneState, at: int, lane: Lane = lane) -> tuple[list[LaneEvent], int]:
                tickets = [each for each in state.dead if ids is None or letter_id(lane.number, each) in ids]
                return ([Redriven(ranges_of(tickets))] if tickets else []), len(tickets)

            count += self.core.write(lane, decide)
        if count:
            self.core.write_feed(lambda state, at: ([Woken()], None))
        return count

    # -- changing it --------------------------------------------------------------------------------------------

    def seek(self, offset: AnyOffset | Literal["beginning", "end"]) -> None:
        """Continue after `offset`. Pending, waiting and dead entries are forgotten, and a late `ack` of one raises
        DeliveryLost."""
        lanes = self._lanes()
        core = self.core
        starts = _starts(self._store, self.space, self.settings, offset)

        def decide(state: FeedState, at: int) -> tuple[list[FeedEvent], int]:
            return [CursorsMoved(starts)], state.epoch + 1

        epoch = core.write_feed(decide)
        for lane in lanes:
            core.write(lane, lambda state, at: ([Reset(epoch)] if state.epoch < epoch else [], None))

    def configure(self, **settings: Unpack[GroupChanges]) -> None:
        """Change ack_timeout, max_deliveries, retry_delay or max_pending, from the next delivery on.

        Consumers of other processes learn of it when they find nothing to do, or begin.
        """
        unknown = settings.keys() - CHANGEABLE
        if unknown:
            raise ValueError(
                f"{', '.join(sorted(unknown))} cannot be changed; these can: {', '.join(sorted(CHANGEABLE))}"
            )
        given = checked(settings)
        core = self.core

        def decide(state: FeedState, at: int) -> tuple[list[FeedEvent], None]:
            core.check()
            changed = msgspec.structs.replace(state.settings, **given)
            return ([Changed(changed)] if changed != state.settings else []), None

        core.write_feed(decide)

    def delete(self) -> None:
        """Delete the group with its state. The entries of the space stay. Its consumers get PermanentError.

        A group of this name that another process has made again meanwhile is another group, and is not deleted.
        """
        core = self.core
        core.feed.catch_up()

        def decide(state: FeedState, at: int) -> tuple[list[FeedEvent], int]:
            if state.deleted or state.created != core.generation:
                return [], state.epoch
            return [Deleted()], state.epoch + 1

        epoch = core.write_feed(decide)
        for lane in core.lanes():
            with contextlib.suppress(ChainDeleted):
                lane.chain.catch_up()
                if lane.chain.sequence:
                    core.write(lane, lambda state, at: ([Reset(epoch)] if state.epoch < epoch else [], None))
                    lane.chain.try_to_shorten()

    def __repr__(self) -> str:
        return f"<Group {self.name!r} of {self.space!r}, {self.settings.mode}>"
