"""The events of a group's log: the records of its feed and of its lanes.

A ticket is the number of an entry in its group: the feed gives them out, in order, as it hands blocks of the source to
lanes. All times are in milliseconds since the epoch. A record is a batch of events that hold together.
"""

from __future__ import annotations

import msgspec

from .ranges import Range
from .settings import GroupSettings

__all__ = [
    "NEWEST",
    "Acked",
    "Added",
    "Changed",
    "Claimed",
    "Consumed",
    "Created",
    "CursorsMoved",
    "Deleted",
    "Died",
    "Doubted",
    "EntryBlock",
    "Extended",
    "Fed",
    "FeedBatch",
    "FeedEvent",
    "Finished",
    "Held",
    "Joined",
    "LaneBatch",
    "LaneEvent",
    "Left",
    "Nacked",
    "Redriven",
    "Released",
    "Reset",
    "Skipped",
    "SourceBound",
    "Stream",
    "StreamCursor",
    "Vanished",
    "Woken",
]

NEWEST = 12
"""The highest tag of an event, of a feed or of a lane. A record with a higher one is of a newer release."""
Stream = int | str
"""A stream of the source that a group reads: the number of a partition, or the name of a segment."""


class StreamCursor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The next entry of a stream: the entry at `position`. In a partition, (number, index) is its place in the log; in
    a segment, the position is the sequence."""

    position: int
    number: int = 0
    index: int = 0


class EntryBlock(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Neighbouring entries of a stream: `count` from `start`, with the tickets from `ticket` on."""

    ticket: int
    count: int
    stream: Stream
    start: StreamCursor
    epoch: int
    priority: int = 0
    bucket: int = 0
    """The bucket of the key. Buckets of one priority are served in turn."""
    keys: tuple[int, ...] = ()
    """key_shared: the hash of each entry's key."""
    ready: tuple[int, ...] = ()
    """Delayed entries: from when on each may be delivered."""

    @property
    def end(self) -> int:
        return self.ticket + self.count


class _Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


# -- of the feed ----------------------------------------------------------------------------------------------------


class Created(_Event, frozen=True, tag=1):
    settings: GroupSettings
    starts: list[tuple[Stream, StreamCursor]]
    timestamp: int = 0
    incarnation: bytes = b""
    """The incarnation of the source: a space that was deleted and made again has another one. Empty if the source does
    not exist yet."""
    space: str = ""
    name: str = ""
    """The internal space's own name may be a digest of them."""


class Fed(_Event, frozen=True, tag=2):
    """Blocks of a lane (-1: of all, each takes its keys), and where the streams go on."""

    lane: int
    blocks: list[EntryBlock]
    cursors: list[tuple[Stream, StreamCursor]]


class Joined(_Event, frozen=True, tag=3):
    consumer: str
    lane: int


class Left(_Event, frozen=True, tag=4):
    consumer: str


class Consumed(_Event, frozen=True, tag=5):
    """The lane has the blocks below this ticket in its own log."""

    lane: int
    ticket: int


class CursorsMoved(_Event, frozen=True, tag=6):
    """A seek. An epoch begins, in which the streams go on from `starts`, and others from their beginning."""

    starts: list[tuple[Stream, StreamCursor]]


class Changed(_Event, frozen=True, tag=7):
    settings: GroupSettings


class Deleted(_Event, frozen=True, tag=8):
    pass


class Woken(_Event, frozen=True, tag=9):
    """Idle lanes have work: every consumer looks at them again."""


class Skipped(_Event, frozen=True, tag=10):
    """Trimmed before they were handed to a lane: (stream, first position, count)."""

    gaps: list[tuple[Stream, int, int]]


class SourceBound(_Event, frozen=True, tag=11):
    """The source exists by now."""

    incarnation: bytes


class Finished(_Event, frozen=True, tag=12):
    """Lanes are empty: a new consumer need not look at them."""

    lanes: list[int]


FeedEvent = (
    Created
    | Fed
    | Joined
    | Left
    | Consumed
    | CursorsMoved
    | Changed
    | Deleted
    | Woken
    | Skipped
    | SourceBound
    | Finished
)


class FeedBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    at: int
    by: bytes
    events: list[FeedEvent]


# -- of a lane ------------------------------------------------------------------------------------------------------


class Added(_Event, frozen=True, tag=1):
    blocks: list[EntryBlock]


class Claimed(_Event, frozen=True, tag=2):
    """`fresh` are delivered for the first time, `again` once more: their attempts are counted up."""

    consumer: str
    lot: int
    deadline: int
    fresh: list[Range]
    again: list[Range]
    bucket: int = 0
    alone: int = 0
    """The attempt of the claim's only entry, if its consumer has no other entry; else 0."""


class Acked(_Event, frozen=True, tag=3):
    tickets: list[Range]


class Nacked(_Event, frozen=True, tag=4):
    """(ticket, from when on it may be delivered again)"""

    tickets: list[tuple[int, int]]
    error: str = ""
    """The failure of the attempt; empty if none was named."""


class Extended(_Event, frozen=True, tag=5):
    tickets: list[Range]
    deadline: int


class Released(_Event, frozen=True, tag=6):
    """Given back; the attempt does not count."""

    tickets: list[Range]


class Died(_Event, frozen=True, tag=7):
    tickets: list[Range]
    reason: str


class Vanished(_Event, frozen=True, tag=8):
    """Entries are no longer in the source. `trimmed`: they are reported, and count as acknowledged."""

    tickets: list[Range]
    trimmed: bool


class Redriven(_Event, frozen=True, tag=9):
    tickets: list[Range]


class Held(_Event, frozen=True, tag=10):
    """exclusive: only this consumer receives, until then."""

    consumer: str
    until: int


class Reset(_Event, frozen=True, tag=11):
    """The group was moved: events of an earlier epoch no longer count."""

    epoch: int


class Doubted(_Event, frozen=True, tag=12):
    """Entries failed together with others of their consumer. None of them becomes a dead letter, because the failing
    one is unknown."""

    tickets: list[Range]


LaneEvent = Added | Claimed | Acked | Nacked | Extended | Released | Died | Vanished | Redriven | Held | Reset | Doubted


class LaneBatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    at: int
    by: bytes
    events: list[LaneEvent]
