"""The feed: handing blocks of the source to lanes, and trimming the acknowledged entries of a queue."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import StreamkitError
from ..model import Entry
from ..warn import warn
from .events import Consumed, EntryBlock, Fed, FeedEvent, Joined, Skipped, SourceBound, Stream, StreamCursor
from .feed import FeedState
from .source import BLOCK, DELAY, key_hash, queue_class

if TYPE_CHECKING:
    from .core import Core, Lane

__all__ = ["Feeder"]

AHEAD = 8 * BLOCK
"""key_shared: entries that are handed out at once if those before them cannot be delivered now."""
_BACKLOG = 5 * AHEAD
"""key_shared: nothing more is handed out while so many entries, in all lanes, are with no consumer."""
_MOST_BLOCKS = 64
"""Blocks that a lane gets at once: of as many streams, and of each stream at least, where entries were removed."""
_TRIM = 1000
"""Entries after which the feed looks for acknowledged ones, and the number that it trims at once."""


Share = tuple[Stream, StreamCursor, int]
"""(stream, from where, how many)"""


class Feeder:
    """Feeds the lanes of one core from its source. The only state is a memory of trimmed positions."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._trimmed: dict[Stream, int] = {}

    def is_full(self) -> bool:
        """key_shared: True if the lanes have so many entries that they get no more, as far as is known here."""
        return self._core.backlog_by_key() >= _BACKLOG

    def feed(self, lane: Lane, consumer: str, limit: int) -> tuple[bool, bool]:
        """Give the lane the next entries of the source if it has fewer than `limit`; in key_shared, give them to all
        lanes. Returns (whether there were any, whether the source has more)."""
        self._core.check()
        ends = self._core.source.ends()
        self._core.check()
        ready = self._streams(ends)
        if not ready:
            return False, False

        def decide(state: FeedState, at: int) -> tuple[list[FeedEvent], tuple[int, int]]:
            nonlocal lane
            before = state.tickets
            self._core.check()
            if not self._core.keyed and consumer not in state.members:
                # Others that began meanwhile may have taken the one that seemed free.
                lane = self._core.lane(state.choose_lane(consumer, at))
                if not lane.chain.loaded and not self._core.is_finished(lane):
                    self._core.look_at(lane)
            streams = self._streams(ends)
            wanted = self._wanted(lane, state, streams, limit, at)
            gaps: list[tuple[Stream, int, int]] = []
            number = -1 if self._core.keyed else lane.number
            fed = self._fed(number, wanted, limit, state, state.tickets, ends, gaps)
            if fed is None:
                return [], (before, before)
            events: list[FeedEvent] = [fed]
            if fed.blocks:
                events += self._others(fed, lane, state, streams, limit, at, ends, gaps)
            handed = [each.blocks[-1].end for each in events if isinstance(each, Fed) and each.blocks]
            if gaps:
                events.append(Skipped(gaps))
            if not state.incarnation:
                events.append(SourceBound(self._core.source.incarnation()))
            events += self._membership(state, lane, consumer, at)
            events += self._consumed(state)
            return events, (before, max(handed, default=before))

        before, after = self._core.write_feed(decide)
        # By turns, and not by the work of each process, because many end soon.
        if self._core.settings.queue and before // _TRIM < after // _TRIM:
            self._trim_done()
        return after > before, bool(self._streams(ends))

    def _fed(
        self,
        lane: int,
        wanted: Sequence[Share],
        limit: int,
        state: FeedState,
        ticket: int,
        ends: dict[Stream, StreamCursor],
        gaps: list[tuple[Stream, int, int]],
    ) -> Fed | None:
        """Return the wanted blocks for a lane, as far as the source has them. Adds to `gaps`."""
        blocks: list[EntryBlock] = []
        cursors: list[tuple[Stream, StreamCursor]] = []
        # If every second entry was removed, a block has one entry: these are enough for a few calls.
        most = max(_MOST_BLOCKS, min(4 * limit, BLOCK))
        for stream, start, count in wanted:
            lists, after = self._core.source.read(stream, start, count, most)
            if not lists:
                after = ends[stream]  # all up to there was removed
            cursors.append((stream, after))
            first = self._core.source.position_of(stream, lists[0][0]) if lists else after.position
            missing = first - start.position
            if missing and self._is_reported(stream, start):
                gaps.append((stream, start.position, missing))
            for entries in lists:
                blocks.append(self._block(lane, stream, entries, ticket, state))
                ticket = blocks[-1].end
        return Fed(lane, blocks, cursors) if blocks or cursors else None

    def _others(
        self,
        fed: Fed,
        lane: Lane,
        state: FeedState,
        streams: list[Share],
        limit: int,
        at: int,
        ends: dict[Stream, StreamCursor],
        gaps: list[tuple[Stream, int, int]],
    ) -> list[FeedEvent]:
        """Give the other lanes their share at once if little is left; otherwise each lane would write to the feed for
        ever fewer entries."""
        core = self._core
        used = {member.lane for member in state.alive(at).values()} - {lane.number}
        if core.settings.queue or core.keyed or not used or not self._is_scarce(streams, state, at):
            return []
        left = {stream: (start, count) for stream, start, count in streams}
        events: list[FeedEvent] = []
        for number in sorted(used, key=lambda other: (other - lane.number) % core.settings.lanes):
            for stream, after in fed.cursors:
                left[stream] = after, ends[stream].position - after.position
            rest = [(stream, start, count) for stream, (start, count) in left.items() if count > 0]
            if not rest:
                break
            shares = self._shares(rest, state, limit, at, streams)
            found = self._fed(number, shares, limit, state, fed.blocks[-1].end, ends, gaps)
            if found is None or not found.blocks:
                break
            events.append(found)
            fed = found
        return events

    def _trim_done(self) -> None:
        """Trim the acknowledged entries at the front of each segment of a queue."""
        try:
            for stream, position in self.done().items():
                if position - self._trimmed.get(stream, 1) >= _TRIM:
                    self._trimmed[stream] = position
                    self._core.store.trim(self._core.space, str(stream), before=position)
        except StreamkitError as error:
            name, store = self._core.space, self._core.store.id
            warn("the queue %r could not be trimmed, and will be later: %s", name, error, store=store, space=name)

    def done(self) -> dict[Stream, int]:
        """The position of each stream up to which all entries are done. Entries below it are no longer needed."""
        # The feed first: blocks that it hands out later come after these.
        feed = self._core.feed
        feed.catch_up()
        with feed.lock:
            epoch = feed.state.epoch
            done = {stream: cursor.position for stream, cursor in feed.state.cursors.items()}
            handed = {number: list(blocks) for number, blocks in feed.state.lanes.items()}
        waiting: list[EntryBlock] = []
        for lane in self._core.lanes():
            lane.chain.catch_up()
            with lane.chain.lock:
                state = lane.chain.state
                if state.epoch > epoch:
                    return {}  # the group was moved meanwhile, so earlier blocks will be handed out again
                waiting += [block for block in handed.get(lane.number, ()) if block.ticket >= state.reached]
                locations = [state.location(ticket) for ticket in (*state.pending, *state.waiting, *state.dead)]
                opened = [each for each in state.blocks.values() if each.next < each.end]
                locations += [state.location(each.next) for each in opened]
            for location in locations:
                # Of before the group was moved it may be where the feed has not been again.
                done[location.stream] = min(done.get(location.stream, 0), location.position)
        for block in waiting:
            done[block.stream] = min(done[block.stream], block.start.position)
        return done

    def _is_reported(self, stream: Stream, start: StreamCursor) -> bool:
        """True if a gap at `start` concerns this group: entries trimmed before the group began are not its gap."""
        return start != self._core.source.beginning(stream) and self._core.source.is_trimmed(stream, start.position)

    def _streams(self, ends: dict[Stream, StreamCursor]) -> list[Share]:
        """Return (stream, cursor, how many are available) of those with any."""
        cursors = self._core.feed.state.cursors
        found = []
        for stream, end in ends.items():
            cursor = cursors.get(stream)
            if cursor is None:
                cursor = self._core.source.beginning(stream)
            if end.position > cursor.position:
                found.append((stream, cursor, end.position - cursor.position))
        return found

    def _wanted(self, lane: Lane, state: FeedState, streams: list[Share], limit: int, at: int) -> list[Share]:
        """Choose the entries to hand out: (stream, start, count)."""
        if not self._core.settings.queue:
            if self._core.keyed:
                room = _BACKLOG - self._core.backlog_by_key()
                limit = min(limit, room)
            else:
                room = limit - self._core.backlog(lane)
            if not streams or room <= 0:
                return []
            return self._shares(streams, state, limit, at, streams)
        wanted: list[Share] = []
        priorities: dict[int, list[Share]] = {}
        for each in streams:
            priority, _, delayed = queue_class(str(each[0]))
            if delayed:
                wanted.append((each[0], each[1], min(each[2], BLOCK)))
            else:
                priorities.setdefault(priority, []).append(each)
        more = 0
        for priority in sorted(priorities, reverse=True):
            if self._core.backlog(lane, priority) + more >= limit:
                break
            shares = self._shares(priorities[priority], state, limit, at, priorities[priority])
            more += sum(count for _, _, count in shares)
            wanted += shares
        return wanted

    def _is_scarce(self, streams: list[Share], state: FeedState, at: int) -> bool:
        """True if there is less than one block for each consumer."""
        return sum(count for _, _, count in streams) < BLOCK * len(state.alive(at))

    def _shares(self, streams: list[Share], state: FeedState, limit: int, at: int, whole: list[Share]) -> list[Share]:
        """A consumer's part of `whole`, taken from `streams`: half of an even share, because a faster consumer comes
        again."""
        if len(streams) > _MOST_BLOCKS:
            streams = random.sample(streams, _MOST_BLOCKS)
        users = max(1, len(state.alive(at)))
        available = sum(count for _, _, count in whole)
        size = max(limit, min(BLOCK, available // (2 * users)))
        share = max(1, size // len(streams))
        return [(stream, cursor, min(count, share)) for stream, cursor, count in streams]

    def _block(self, lane: int, stream: Stream, entries: list[Entry], ticket: int, state: FeedState) -> EntryBlock:
        priority = bucket = 0
        keys: tuple[int, ...] = ()
        ready: tuple[int, ...] = ()
        if self._core.settings.queue:
            priority, bucket, delayed = queue_class(str(stream))
            if delayed:
                now = self._core.lane(lane).chain.now()  # earlier than a timestamp if a clock was set back since
                ready = tuple(min(entry.timestamp, now) + int(entry.metadata.get(DELAY, "0")) for entry in entries)
        if self._core.keyed:
            keys = tuple(key_hash(entry, self._core.settings.key) for entry in entries)
        begin = self._core.source.start_of(stream, entries[0])
        return EntryBlock(ticket, len(entries), stream, begin, state.epoch, priority, bucket, keys, ready)

    def _consumed(self, state: FeedState) -> list[FeedEvent]:
        """The lanes that have blocks in their own logs which the feed still has, as far as is known here. The latest
        block of each stays: by that others see that they should look at the lane."""
        found: list[FeedEvent] = []
        for lane in self._core.opened():
            blocks = state.lanes.get(lane.number)
            if blocks and blocks[0].end <= (reached := min(lane.chain.state.reached, blocks[-1].ticket)):
                found.append(Consumed(lane.number, reached))
        return found

    def _membership(self, state: FeedState, lane: Lane, consumer: str, at: int) -> list[FeedEvent]:
        present = state.members.get(consumer)
        recent = present is not None and at - present.at <= self._core.settings.ack_timeout * 1000
        return [] if recent and present is not None and present.lane == lane.number else [Joined(consumer, lane.number)]
