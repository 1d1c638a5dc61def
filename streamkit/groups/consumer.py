"""A consumer of a group: it receives deliveries, and settles them."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from os import urandom
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from ..arguments import check_count, check_seconds, check_type
from ..clock import Clock
from ..errors import DeliveryLost, StoreClosed, StreamkitError
from ..log.notifier import Notifier
from ..names import check_name
from ..run.failure import storable
from ..store import inner
from ..warn import warn
from .core import Core, Lane, is_pending
from .decide import behind, give_up, next_change
from .events import Acked, Died, Extended, FeedEvent, Held, Joined, LaneEvent, Left, Released
from .failures import REJECTED, failure_text
from .feed import FeedState
from .feeding import AHEAD
from .lane import LaneState
from .ranges import ranges_of
from .values import LONE, Delivery

if TYPE_CHECKING:
    from .group import Group

__all__ = ["Consumer"]

_LINGER = 0.1
_KEPT = 10_000
Key = tuple[int, int, int]


def _checked(delivery: object, core: Core) -> Key:
    """The key of a delivery. TypeError for another type, ValueError for a delivery of another group."""
    if not isinstance(delivery, Delivery):
        raise TypeError(
            f"delivery is a Delivery of receive(), not {type(delivery).__name__}; group.delivery(…) makes one from a "
            "receipt"
        )
    if delivery.tag != core.tag:
        raise ValueError("the delivery is of another group or queue: settle it with a consumer of that one")
    return _key(delivery)


def _key(delivery: Delivery) -> Key:
    return delivery.lane, delivery.ticket, delivery.lot


def _by_lane(deliveries: Iterable[Delivery]) -> dict[int, list[Delivery]]:
    found: dict[int, list[Delivery]] = {}
    for delivery in deliveries:
        found.setdefault(delivery.lane, []).append(delivery)
    return found


class Consumer:
    """A consumer of a group, from `group.consumer(name)`; for one thread, or for several that share the work.

    Two consumers of one name are two. Acknowledgements are written together with the next `receive`, or after `linger`
    seconds (0: at once). `flush` and the end of the `with` block write all of them. The end of the block also returns
    unsettled deliveries to the group. If the block ends normally, their attempts do not count. If it raises, their
    attempts count. A single delivery has failed, and becomes a dead letter after its last attempt. With several, the
    failed one is not known, so none becomes a dead letter: before that, an entry is delivered once more alone.
    """

    def __init__(self, group: Group, name: str | None, linger: float = _LINGER, prefetch: int = 1) -> None:
        self.name = check_name(name, "consumer") if name is not None else f"consumer-{urandom(4).hex()}"
        self.session = f"{self.name}\x1f{urandom(6).hex()}"
        """The member of the group that this consumer is when lanes are shared out."""
        self.claimant = self.session
        """Claims are made for it."""
        self._linger = check_seconds("linger", linger)
        self._prefetch = check_count("prefetch", prefetch)
        self._ahead: deque[Delivery] = deque()
        """Claimed, and not handed out yet; they are held too."""
        self._group = group
        self._core: Core = group.core
        self._lane: Lane | None = None
        self._turn = 0
        self._joined_at = 0
        self._wake_epoch = 0
        self._looked = float("-inf")
        self._helped = self._core.clock.monotonic()
        self._held: dict[Key, Delivery] = {}
        self._busy_until = 0.0
        """No deadline of a held delivery is later, by the monotonic clock. Guarded by `_receiving`."""
        self._sole: Delivery | None = None
        """The only delivery, claimed on its possible last attempt; None once others came."""
        self._receiving = threading.RLock()
        """Held while a claim is made, from the count of held deliveries to their increase."""
        self._acked: dict[Key, None] = {}
        self._acked_before: dict[Key, None] = {}
        """Earlier acknowledgements than those in `_acked`. Both together hold the latest 10,000."""
        self._closed = self._ended = False
        self._failed_together = False
        """A call of `close` that failed has given up several."""

    @property
    def group(self) -> Group:
        """The group of the consumer."""
        return self._group

    @property
    def clock(self) -> Clock:
        """The clock by which deadlines are kept."""
        return self._core.clock

    @property
    def notifier(self) -> Notifier:
        """The notifier of new transactions in this process."""
        return self._core.shared.notifier

    @property
    def poll(self) -> tuple[float, float]:
        """Seconds between two looks: at first, and at most."""
        return self._core.shared.poll

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int = 10, wait: float = 0.0, *, auto_ack: bool = False) -> list[Delivery]:
        """Return at most `limit` deliveries. Waits up to `wait` seconds (infinity: for ever) for the first.

        Each delivery is pending with this consumer alone until its deadline. Attempts are counted before anything is
        handed out. `auto_ack`: entries are acknowledged before they are handed out, so that each comes at most once.

        An entry is delivered alone on its last attempt if no earlier attempt ended with an answer (the deadline passed,
        or the block raised while the consumer held several). A consumer that holds other entries does not get such an
        entry, and a consumer that holds such an entry gets no others.
        """
        check_count("limit", limit)
        check_seconds("wait", wait, endless=True)
        return self.look_until(wait, lambda: self._receive(limit, auto_ack))

    def _receive(self, limit: int, auto_ack: bool) -> list[Delivery]:
        if self._ahead and (found := self._fetched(limit, auto_ack)):
            return found
        with self._receiving:
            found = self._look(limit if auto_ack else max(limit, self._prefetch), auto_ack)
            if found and not auto_ack:
                for delivery in found:
                    self._held[delivery.lane, delivery.ticket, delivery.lot] = delivery
                self._busy_until = max(self._busy_until, found[0].expires)
                self._sole = found[0] if found[0].company else None
                self._ahead.extend(found[limit:])
        return found[:limit]

    def look_until(self, wait: float, look: Callable[[], list[Delivery]]) -> list[Delivery]:
        """Call `look` now and after each change until it finds something, for `wait` seconds at most."""
        clock = self._core.clock
        end = clock.monotonic() + wait
        pause, most = self.poll
        while True:
            seen = self.seen() if wait else ()
            found = look()
            rest = end - clock.monotonic()
            if found or rest <= 0:
                return found
            self._wait(seen, min(rest, pause, self.until_change()))
            pause = min(pause * 2, most)

    def _fetched(self, limit: int, auto_ack: bool) -> list[Delivery]:
        """Hand out deliveries that were claimed ahead, if they are still valid. Give back those that have waited for
        half of their deadline: the next consumer needs the other half."""
        core = self._core
        self._check_open()
        core.check()
        half = core.settings.ack_timeout / 2
        found: list[Delivery] = []
        stale: list[Delivery] = []
        with contextlib.suppress(IndexError):  # another thread may be faster
            while len(found) < limit and (delivery := self._ahead.popleft()):
                if self.is_held(delivery):
                    (found if self._rest(delivery) > half else stale).append(delivery)
        for lane, deliveries in _by_lane(stale).items():
            core.give_back(core.lane(lane), deliveries)
        left = [
            delivery
            for lane, deliveries in _by_lane(found).items()
            for delivery in core.still_there(core.lane(lane), deliveries)
        ]
        for delivery in (*stale, *found) if stale or len(left) < len(found) else ():
            if delivery not in left:
                self._held.pop(_key(delivery), None)
        return self._acknowledged(left) if auto_ack else left

    def _acknowledged(self, deliveries: list[Delivery]) -> list[Delivery]:
        """The deliveries that were still this consumer's, and are acknowledged now."""
        found: list[Delivery] = []
        for lane, some in _by_lane(deliveries).items():

            def decide(
                state: LaneState, at: int, some: list[Delivery] = some
            ) -> tuple[list[LaneEvent], list[Delivery]]:
                mine = [delivery for delivery in some if is_pending(state, delivery)]
                return ([Acked(ranges_of(each.ticket for each in mine))] if mine else []), mine

            found += self._core.write(self._core.lane(lane), decide)
        for delivery in deliveries:
            self._held.pop(_key(delivery), None)
            self._note(_key(delivery))
        return found

    def __iter__(self) -> Iterator[Delivery]:
        """Yield deliveries, one after the other, until the consumer is closed."""
        while not self.closed:
            try:
                found = self.receive(1, wait=60.0)
            except StoreClosed:
                if self.closed:  # meanwhile, by another thread
                    return
                raise
            yield from found

    def seen(self) -> tuple[int, ...]:
        """Return a value that changes once this process knows more of the source, or of the group."""
        numbers = self._core.shared.numbers
        return (*numbers(self._core.space), *numbers(self._core.internal))

    def _wait(self, seen: tuple[int, ...], seconds: float) -> None:
        """Wait for new entries or changes in this process, for `seconds` at most."""
        core = self._core
        notifier = core.shared.notifier
        with notifier.mutex:
            notifier.waiting += 1
            try:
                if self.seen() == seen:
                    core.clock.wait(notifier, seconds)
            finally:
                notifier.waiting -= 1

    def until_change(self) -> float:
        """Return the seconds until the next entry that must wait now may be delivered."""
        rest = 3600.0
        for lane in self._core.opened():
            chain = lane.chain
            with chain.lock:
                at = chain.now()
                times = [next_change(chain.state, at)]
                holder, until = chain.state.holder
                times.append(until if holder != self.claimant and until > at else None)
            rest = min([rest, *[(time - at) / 1000 for time in times if time is not None]])
        return max(rest, 0.001)

    def _look(self, limit: int, auto_ack: bool) -> list[Delivery]:
        core = self._core
        self._check_open()
        core.check()
        if self._is_kept_apart():
            return []
        now = core.clock.monotonic()
        if core.settings.lanes > 1 and now - self._helped >= core.settings.ack_timeout / 4:
            # Also while there is work here: the entries of a stopped consumer must not wait until there is none.
            self._helped = now
            found = self._help([], limit, auto_ack, busy=True)
            if found:
                return found
        if core.keyed:
            return self._look_by_key(limit, auto_ack)
        lane = self._own_lane()
        if self._stands_by(lane):
            return []
        if core.needs_more(lane, limit) or (core.settings.queue and self._is_time()):
            core.feeder.feed(lane, self.session, limit)
            lane = self._own_lane()
        found = [] if core.is_finished(lane) else self._claim(lane, limit, auto_ack, feeds=self.session)
        return found or self._help([lane], limit, auto_ack)

    def _is_kept_apart(self) -> bool:
        """True if nothing more may be claimed, because a held entry must be alone with its consumer."""
        if not self._held:
            return False
        sole = self._live_sole()
        if sole is not None and sole.company == LONE:
            return True
        return self._is_busy() and self._core.lone_is_due(self.claimant)

    def _is_busy(self) -> bool:
        """True if the deadline of a held delivery is ahead. Looks at each of them only if that is possible.

        A worker may hold thousands whose deadlines `Group.settle` has extended, unknown to this consumer."""
        if self._busy_until <= self._core.clock.monotonic():
            return False
        held = list(self._held.values())
        if any(self._rest(delivery) > 0 for delivery in reversed(held)):
            return True
        self._busy_until = max([delivery.expires for delivery in held], default=0.0)
        return False

    def _live_sole(self) -> Delivery | None:
        sole = self._sole
        held = self._held.get(_key(sole)) if sole is not None else None
        return held if held is not None and self._rest(held) > 0 else None

    def _claim(self, lane: Lane, limit: int, auto_ack: bool, *, feeds: str = "") -> list[Delivery]:
        idle, sole = True, None
        if self._held:
            idle, sole = not self._is_busy(), self._live_sole()
        return self._core.claim(lane, self.claimant, limit, auto_ack=auto_ack, idle=idle, sole=sole, feeds=feeds)

    def _is_time(self) -> bool:
        """True if it is time to look for entries of a higher priority."""
        now = self._core.clock.monotonic()
        if self._core.remote and now - self._looked < self._core.shared.poll[0]:
            return False
        self._looked = now
        return True

    def _own_lane(self) -> Lane:
        core = self._core
        state = core.feed.state
        member = state.members.get(self.session)
        lane = self._lane
        if lane is None or (member is not None and member.lane != lane.number):
            lane = self._lane = core.lane(state.choose_lane(self.session, core.feed.now()))
        if not lane.chain.loaded and not core.is_finished(lane):
            core.look_at(lane)
        return lane

    def _stands_by(self, lane: Lane) -> bool:
        """exclusive: True if another consumer receives. The receiving consumer keeps its hold while it looks."""
        core = self._core
        if core.settings.mode != "exclusive":
            return False
        chain = lane.chain
        with chain.lock:
            holder, until = chain.state.holder
            if holder and holder != self.claimant and until > chain.now():
                chain.catch_up()
                holder, until = chain.state.holder
            at = chain.now()
            if holder and holder != self.claimant and until > at:
                return True
            if holder == self.claimant and (until - at) < core.settings.ack_timeout * 500:
                core.write(lane, lambda state, at: (self._hold(state, at), None))
        return False

    def _hold(self, state: LaneState, at: int, until: int = 0) -> list[LaneEvent]:
        if state.holder[0] != self.claimant:
            return []
        return [Held(self.claimant, max(until, at + int(self._core.settings.ack_timeout * 1000)))]

    def _help(self, looked: list[Lane], limit: int, auto_ack: bool, *, busy: bool = False) -> list[Delivery]:
        """Read the records of other processes, in the own lane and in lanes that may have entries left.

        `busy`: take only entries that no other consumer will take: redeliveries, and entries of lanes without a
        consumer.
        """
        core = self._core
        recent = core.look_at_feed()
        core.check()
        is_woken, self._wake_epoch = core.feed.state.wake_epoch != self._wake_epoch, core.feed.state.wake_epoch
        count = core.settings.lanes
        start = looked[0].number if looked else self._turn % count
        used = {member.lane for member in core.feed.state.alive(core.feed.now()).values()} if busy else set()
        for number in range(start, start + count):
            lane = core.lane(number % count)
            if core.is_finished(lane):
                continue
            if lane.seen and not is_woken and not core.may_have(lane, recent):
                continue
            lane.seen = True
            core.look_at(lane)
            if busy and lane.number in used and not core.has_due(lane):
                continue
            found = self._claim(lane, limit, auto_ack)
            if found:
                return found
        return []

    def _look_by_key(self, limit: int, auto_ack: bool) -> list[Delivery]:
        core = self._core
        self._join()
        mine = self._share()
        others = [lane for lane in range(core.settings.lanes) if lane not in mine]
        found = self._claim_one_of(mine, limit, auto_ack)
        size = limit
        while not found:
            if core.feeder.is_full():
                found = self._help([], limit, auto_ack)  # other processes may have finished entries since
                if found or core.feeder.is_full():
                    return found
            fed, more = core.feeder.feed(core.lane((mine or others)[0]), self.session, size)
            if fed:
                found = self._claim_one_of(mine, limit, auto_ack) or self._claim_one_of(others, limit, auto_ack)
                size = AHEAD  # past entries of keys that other consumers have
            if not more or not self._has_room():
                break
        return found or self._help([], limit, auto_ack)

    def _has_room(self) -> bool:
        """True if this consumer may have more deliveries, in any lane."""
        most = self._core.settings.max_pending
        return any(lane.chain.state.held.get(self.claimant, 0) < most for lane in self._core.lanes())

    def _claim_one_of(self, lanes: list[int], limit: int, auto_ack: bool) -> list[Delivery]:
        """Claim from the first lane that has entries. The search begins after the lane that was served last."""
        for at in range(len(lanes)):
            lane = self._core.lane(lanes[(self._turn + at) % len(lanes)])
            if self._core.is_finished(lane):
                continue
            found = self._claim(lane, limit, auto_ack)
            if found:
                self._turn += at + 1
                return found
        return []

    def _join(self) -> None:
        """Join the consumers that share the lanes."""
        core = self._core
        at = core.feed.now()
        if at - self._joined_at < core.settings.ack_timeout * 1000 and self.session in core.feed.state.members:
            return
        self._joined_at = at

        def decide(state: FeedState, at: int) -> tuple[list[FeedEvent], None]:
            return [Joined(self.session, state.choose_lane(self.session, at))], None

        core.write_feed(decide)

    def _share(self) -> list[int]:
        core = self._core
        members = sorted(core.feed.state.alive(core.feed.now()))
        rank, count = members.index(self.session) if self.session in members else 0, max(1, len(members))
        return [lane for lane in range(core.settings.lanes) if lane % count == rank]

    # -- settling -----------------------------------------------------------------------------------------------

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge: the entry never comes again. A repeated call is no error, for the latest 10,000 at least.

        DeliveryLost if its deadline passed and it went to another consumer; nothing is changed then.
        """
        core = self._core
        key = _checked(delivery, core)
        lane = core.lane(delivery.lane)
        held = self._held.get(key)
        # The entry after this one may kill the process: one that was on its last attempt would be dead.
        if held is not None and self._linger and not held.company:
            rest = self._rest(held) - min(1.0, core.settings.ack_timeout / 10)
            if rest > 0 and is_pending(lane.chain.state, held):
                self._check_open()
                core.acknowledge_later(held, min(self._linger, rest))
                self._held.pop(key, None)
                self._note(key)
                return
        with lane.chain.lock:  # if several threads acknowledge it at once, the later ones find it noted
            if self._is_noted(key):
                return
            self._check_open()
            try:
                core.settle(delivery, lambda state, at: ([Acked([(delivery.ticket, 1)])], None))
            except DeliveryLost:
                self._held.pop(key, None)
                if delivery.ticket not in lane.chain.state.gone:
                    raise
            self._held.pop(key, None)
            self._note(key)

    def _rest(self, delivery: Delivery) -> float:
        """Seconds until the deadline, by the clock that says less: one clock stands still while a machine sleeps, and
        the other one may be set."""
        core = self._core
        at = core.lane(delivery.lane).chain.now()
        return min(delivery.expires - core.clock.monotonic(), (delivery.deadline - at) / 1000)

    def _note(self, key: Key) -> None:
        if len(self._acked) >= _KEPT:
            self._acked_before, self._acked = self._acked, {}
        self._acked[key] = None

    def _is_noted(self, key: Key) -> bool:
        return key in self._acked or key in self._acked_before

    def nack(self, delivery: Delivery, delay: float | None = None, *, error: BaseException | str | None = None) -> bool:
        """Report that an entry could not be handled. True if it is a dead letter now, after its last attempt.

        Otherwise it is ready again after `delay` seconds. None: after attempt n, retry_delay × 2 ** (n - 1) seconds, at
        most an hour (or retry_delay, if that is more). In key_shared, later entries of the same key that this consumer
        has are taken back too. DeliveryLost as for `ack`.

        `error`: the failure. Its type and message, at most 400 bytes, are stored, and become part of the dead letter's
        reason."""
        if delay is not None:
            check_seconds("delay", delay)
        if not isinstance(error, (BaseException, str, type(None))):
            raise TypeError(f"error is an exception or a str, not {type(error).__name__}")
        core, failure, dead = self._core, failure_text(error), False

        def decide(state: LaneState, at: int) -> tuple[list[LaneEvent], list[int]]:
            nonlocal dead
            events, lost = give_up(state, core.settings, [delivery.ticket], at, delay, failure)
            dead = any(isinstance(event, Died) for event in events)
            return events, lost

        self._check_live(delivery)
        self._settled(delivery, core.settle(delivery, decide))
        return dead

    def reject(self, delivery: Delivery, reason: str = REJECTED) -> None:
        """Make the entry a dead letter at once, because it cannot be handled. DeliveryLost as for `ack`."""
        check_type(reason, str, "reason is str")
        self._check_live(delivery)
        event = Died([(delivery.ticket, 1)], storable(reason))
        self._core.settle(delivery, lambda state, at: ([event], None))
        self._settled(delivery, [])

    def release(self, delivery: Delivery) -> None:
        """Give the entry back at once, for other consumers. The attempt does not count. DeliveryLost as for `ack`.

        In key_shared, later entries of the same key that this consumer has are given back too.
        """

        def decide(state: LaneState, at: int) -> tuple[list[LaneEvent], list[int]]:
            lost = behind(state, delivery.ticket) if state.keyed else []
            return [Released(ranges_of([delivery.ticket, *lost]))], lost

        self._check_live(delivery)
        self._settled(delivery, self._core.settle(delivery, decide))

    def extend(self, delivery: Delivery, seconds: float) -> Delivery:
        """Set the deadline to `seconds` from now, and return the delivery with it. The earlier object stays valid.

        DeliveryLost as for `ack`.
        """
        check_seconds("seconds", seconds, positive=True)
        core = self._core

        def decide(state: LaneState, at: int) -> tuple[list[LaneEvent], Delivery]:
            deadline = at + int(seconds * 1000)
            events: list[LaneEvent] = [Extended([(delivery.ticket, 1)], deadline), *self._hold(state, at, deadline)]
            expires = core.clock.monotonic() + seconds
            return events, msgspec.structs.replace(delivery, deadline=deadline, expires=expires)

        self._check_live(delivery)
        found = core.settle(delivery, decide)
        with self._receiving:
            if self.is_held(delivery):  # it stays with its receiver
                self._held[_key(delivery)] = found
                self._busy_until = max(self._busy_until, found.expires)
        return found

    def _check_live(self, delivery: Delivery) -> None:
        """Raise DeliveryLost if the delivery was acknowledged here already."""
        self._check_open()
        if self._is_noted(_checked(delivery, self._core)):
            raise DeliveryLost("the delivery was acknowledged already: nothing was changed")

    def _settled(self, delivery: Delivery, lost: list[int]) -> None:
        self._held.pop(_key(delivery), None)
        for ticket in lost:
            self._held.pop((delivery.lane, ticket, delivery.lot), None)

    def is_held(self, delivery: Delivery) -> bool:
        """True if the delivery was not settled yet, and not taken back with another entry of its key."""
        check_type(delivery, Delivery, "delivery is a Delivery, from receive()")
        return _key(delivery) in self._held

    @property
    def closed(self) -> bool:
        """True after the first call of `close`."""
        return self._closed

    def flush(self) -> None:
        """Write all acknowledgements, and return when they are durable."""
        self._core.flush()

    # -- the end ------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the consumer is closed: ask the group for another one")
        # On a remote store the core goes on for a while after the last handle was closed.
        inner(self._group.store)

    def close(self, *, give_back: bool = True, error: BaseException | None = None) -> None:
        """Write the acknowledgements and return the other entries to the group: uncounted, or as failed because of
        `error`.

        The consumer receives nothing after the first call. If it raises, call it again: it continues.
        """
        self._closed = True
        if self._ended:
            return
        core = self._core
        if core.is_stale():
            self._ended = True
            return
        core.flush()
        with self._receiving:
            # Copies: a call of another thread that began before may still settle a delivery, or hand one out.
            ahead = {_key(delivery) for delivery in list(self._ahead)}
            lanes = _by_lane(list(self._held.values()))
        together = len(self._held.keys() - ahead) > 1 or self._failed_together
        self._failed_together = together and not give_back
        if core.settings.mode == "exclusive":
            lanes.setdefault(0, [])
        # The message of several deliveries may quote any of them, and that one may be erased later.
        failure = f"{type(error).__name__} (of several together)" if error and together else failure_text(error)
        for number, deliveries in lanes.items():
            hand_back = partial(self._hand_back, deliveries, ahead, give_back, failure, together)
            core.write(core.lane(number), hand_back)
            for delivery in deliveries:
                self._held.pop(_key(delivery), None)
        if self.session in core.feed.state.members:
            core.write_feed(self._leave)
        self._ended = True

    def _leave(self, state: FeedState, at: int) -> tuple[list[FeedEvent], None]:
        return ([Left(self.session), *self._core.finished(state)] if self.session in state.members else []), None

    def _hand_back(
        self,
        deliveries: list[Delivery],
        ahead: set[Key],
        give_back: bool,
        failure: str,
        together: bool,
        state: LaneState,
        at: int,
    ) -> tuple[list[LaneEvent], None]:
        held, unseen = [], set()
        for delivery in deliveries:
            if is_pending(state, delivery):
                if give_back or _key(delivery) in ahead:
                    unseen.add(delivery.ticket)
                else:
                    held.append(delivery.ticket)
        events: list[LaneEvent] = []
        if held:
            given, lost = give_up(state, self._core.settings, held, at, None, failure, together)
            events += given
            unseen.difference_update(lost)
        if unseen:
            events.append(Released(ranges_of(unseen)))
        if state.holder[0] == self.claimant and state.holder[1] > at:
            events.append(Held("", 0))
        return events, None

    def __enter__(self) -> Consumer:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(error, give_back=error is None)

    def leave(self, error: BaseException | None, *, give_back: bool) -> None:
        """Close at the end of a block that raised `error`. A failure to close does not replace that error."""
        try:
            self.close(give_back=give_back, error=error)
        except StreamkitError as failure:
            if error is None:
                raise
            message = "consumer %r could not hand back its deliveries, which wait for their deadline: %s"
            warn(message, self.name, failure, store=self._core.store.id, space=self._core.space)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._held)} deliveries held"
        return f"<Consumer {self.name!r} of {self._group!r}: {state}>"
