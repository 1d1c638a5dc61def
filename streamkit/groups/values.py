"""The values of groups: deliveries, dead letters, statuses. All are immutable."""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import UUID

import msgspec

from ..gaps import Gap
from ..lexkey import LexKey
from ..model import Entry

__all__ = [
    "LONE",
    "SOLE",
    "ConsumerStatus",
    "DeadLetter",
    "Delivery",
    "GroupGap",
    "GroupStatus",
    "Pending",
    "consumer_of",
    "letter_id",
]

SOLE, LONE = 1, 2


def consumer_of(session: str) -> str:
    """The name of a consumer, without the suffix that makes it unique."""
    return session.partition("\x1f")[0]


def letter_id(lane: int, ticket: int) -> str:
    """The id of a dead letter."""
    return f"{lane}.{ticket}"


def tag_of(store: UUID, group: str) -> str:
    """The tag of a group in its receipts, by the name of its internal space."""
    return hashlib.blake2b(group.encode(), key=store.bytes, digest_size=6).hexdigest()


def receipt_of(epoch: int, lane: int, ticket: int, lot: int, tag: str) -> str:
    """The receipt of a delivery."""
    return f"{epoch}.{lane}.{ticket}.{lot}.{tag}"


class Delivery(msgspec.Struct, frozen=True, gc=False, eq=False):
    """An entry that is one consumer's until `deadline`, in milliseconds since the epoch by the group's log."""

    entry: Entry
    attempt: int
    """The number of the attempt, from 1. It was counted before the delivery was handed out."""
    deadline: int
    session: str
    """The consumer's unique id: its name and a suffix."""
    lane: int
    ticket: int
    lot: int
    epoch: int
    expires: float
    """The deadline by the monotonic clock of this process, in seconds."""
    key: int = 0
    tag: str = ""
    """Identifies the group among all groups of all stores: see `tag_of`."""
    company: int = 0
    """SOLE: the consumer held no other entry. LONE: in addition, it gets no other entry before this one is settled."""

    @property
    def consumer(self) -> str:
        """The name of the consumer that has the entry."""
        return consumer_of(self.session)

    @property
    def receipt(self) -> str:
        """A text that names the delivery in other processes: see `Group.settle` and `Group.delivery`."""
        return receipt_of(self.epoch, self.lane, self.ticket, self.lot, self.tag)

    def __repr__(self) -> str:
        return (
            f"Delivery(entry={self.entry!r}, attempt={self.attempt}, deadline={self.deadline}, "
            f"consumer={self.consumer!r})"
        )


class DeadLetter(msgspec.Struct, frozen=True):
    """An entry that is not delivered again unless it is redriven."""

    entry: Entry
    attempt: int
    reason: str
    timestamp: int
    """The time at which it became a dead letter, in milliseconds since the epoch."""
    ticket: int = 0
    lane: int = 0

    @property
    def id(self) -> str:
        """A text that names the dead letter in other processes: see `Group.redrive`."""
        return letter_id(self.lane, self.ticket)


class Pending(msgspec.Struct, frozen=True):
    """An entry that is with a consumer."""

    entry: Entry
    consumer: str
    attempt: int
    deadline: int


class ConsumerStatus(msgspec.Struct, frozen=True):
    """A consumer, and the number of entries that are pending with it."""

    name: str
    pending: int


class GroupGap(Gap, frozen=True, gc=False):
    """Entries that were trimmed before they were acknowledged. They count as acknowledged.

    If the group reads the whole space, `segment` is empty, and the numbers count the entries of `partition`.
    """

    partition: int = 0

    def __str__(self) -> str:
        what = f"segment {self.segment!r}, sequences" if self.segment else f"partition {self.partition}, entries"
        return f"space {self.space!r}: {what} {self.first_sequence} to {self.last_sequence} were {self.reason}"


class GroupStatus(msgspec.Struct, frozen=True):
    """A snapshot of a group. All counts are of entries."""

    lag: int
    """Entries that are not done: `unread + pending + ready + delayed`. It is 0 only if all entries are done, so an
    alarm on it also sees entries that are delivered again and again. Dead letters do not count."""
    pending: int
    """Entries that are with a consumer and whose deadline has not passed."""
    ready: int
    """Entries that may be delivered again now."""
    delayed: int
    """Entries that may be delivered later."""
    dead: int
    delivered_to: LexKey | None
    """Everything up to this offset was delivered; None for a group of some segments."""
    acked_to: LexKey | None
    """Everything up to this offset is done: acknowledged, dead or trimmed."""
    consumers: tuple[ConsumerStatus, ...]
    acked: int
    """Entries that were acknowledged so far, or trimmed before."""
    gaps: tuple[GroupGap, ...]
    unread: int = 0
    """Entries that were never delivered."""

    def __rich_repr__(self) -> Any:
        yield from ((name, getattr(self, name)) for name in self.__struct_fields__)
