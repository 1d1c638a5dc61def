"""The feed of a group: which blocks of the source went to which lane. A pure function of its records."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .events import (
    Changed,
    Consumed,
    Created,
    CursorsMoved,
    Deleted,
    EntryBlock,
    Fed,
    FeedBatch,
    Finished,
    Joined,
    Left,
    Skipped,
    SourceBound,
    Stream,
    StreamCursor,
    Woken,
)
from .settings import GroupSettings

__all__ = ["FeedState", "Member"]

_GAPS = 1000


class Member(msgspec.Struct, array_like=True):
    """A consumer, as it last said."""

    lane: int
    at: int


class FeedState(msgspec.Struct):
    """The state of a feed. It holds no lock: the chain that applies records to it does."""

    now: int = 0
    created: int = 0
    """The number of times that a group of this name was made; 0: never."""
    deleted: bool = False
    epoch: int = 0
    settings: GroupSettings = msgspec.field(default_factory=GroupSettings)
    since: int = 0
    cursors: dict[Stream, StreamCursor] = msgspec.field(default_factory=dict)
    tickets: int = 0
    """Given out so far."""
    lanes: dict[int, list[EntryBlock]] = msgspec.field(default_factory=dict)
    """Blocks that the lane may not have in its own log yet."""
    members: dict[str, Member] = msgspec.field(default_factory=dict)
    finished: list[int] = msgspec.field(default_factory=list)
    """Lanes that a process has found empty. A lane that gets a block is removed from the set."""
    wake_epoch: int = msgspec.field(default=0, name="stirred")
    """A number that grows when idle lanes must be looked at again. Snapshots have it under its earlier name."""
    gaps: list[tuple[Stream, int, int]] = msgspec.field(default_factory=list)
    skipped: int = 0
    """Entries in gaps so far."""
    incarnation: bytes = b""
    """The incarnation of the source; empty while it is unknown."""
    space: str = ""
    name: str = ""

    def apply(self, batch: FeedBatch) -> None:
        self.now = max(self.now, batch.at)
        for event in batch.events:
            kind = type(event)
            if kind is Fed:
                self._feed(event)  # type: ignore[arg-type]
            elif isinstance(event, Consumed):
                self.lanes[event.lane] = [block for block in self.lanes.get(event.lane, ()) if block.end > event.ticket]
            elif isinstance(event, Joined):
                # Those that were killed never say that they leave.
                self.members = {**self.alive(batch.at), event.consumer: Member(event.lane, batch.at)}
            elif isinstance(event, Left):
                self.members.pop(event.consumer, None)
            elif isinstance(event, Finished):
                self.finished = sorted({*self.finished, *event.lanes})
            elif isinstance(event, Woken):
                self.wake_epoch += 1
                self.finished = []
            elif isinstance(event, Skipped):
                self.gaps = [*self.gaps, *event.gaps][-_GAPS:]
                self.skipped += sum([count for _, _, count in event.gaps])
            elif isinstance(event, Created):
                self.created += 1
                self.deleted = False
                self.settings, self.since = event.settings, event.timestamp
                self.incarnation = event.incarnation
                self.space, self.name = event.space, event.name
                self._start(event.starts)
                self.finished = list(range(self.settings.lanes))
            elif isinstance(event, SourceBound):
                self.incarnation = event.incarnation
            elif isinstance(event, CursorsMoved):
                self._start(event.starts)
            elif isinstance(event, Changed):
                self.settings = event.settings
            elif isinstance(event, Deleted):
                self.deleted = True
                self._start([])

    def _start(self, starts: Sequence[tuple[Stream, StreamCursor]]) -> None:
        self.epoch += 1
        self.cursors = dict(starts)
        self.lanes = {}
        self.finished = []
        self.gaps = []
        if self.deleted:
            self.members = {}

    def _feed(self, event: Fed) -> None:
        lanes = range(self.settings.lanes) if event.lane < 0 else (event.lane,)
        for lane in lanes:
            self.lanes.setdefault(lane, []).extend(event.blocks)
        self.cursors.update(event.cursors)
        if event.blocks:
            self.tickets = event.blocks[-1].end
            self.finished = [lane for lane in self.finished if lane not in lanes]

    def alive(self, at: int) -> dict[str, Member]:
        """The consumers that were heard of lately. Without the lock too."""
        since = at - int(self.settings.ack_timeout * 3000) - 10_000
        return {name: member for name, member in list(self.members.items()) if member.at >= since}

    def choose_lane(self, consumer: str, at: int) -> int:
        """The lane that the fewest others use; the present one, if that is as good."""
        users = dict.fromkeys(range(self.settings.lanes), 0)
        for name, member in self.alive(at).items():
            if name != consumer and member.lane in users:
                users[member.lane] += 1
        present = self.members.get(consumer)
        least = min(users.values())
        if present is not None and users.get(present.lane, least + 1) <= least:
            return present.lane
        # Those that begin at the same moment do not all take the first one.
        free = [lane for lane, count in users.items() if count == least]
        return free[sum(consumer.encode()) % len(free)]
