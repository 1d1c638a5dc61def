"""The values that users hold: records, entries, transactions' names, segment statuses. All immutable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from .html import html_table
from .lexkey import LexKey, Unsigned
from .log.offsets import Offset, encode_one
from .metadata import NO_METADATA

__all__ = ["TRX", "Entry", "Origin", "Record", "SegmentStatus"]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record to write: a payload, optional text metadata, and optionally the sequence that it must get.

    Checked when it is produced: `payload` is bytes, `metadata` maps str to str, `sequence` is at least 1.
    """

    payload: bytes
    metadata: Mapping[str, str] | None = None
    sequence: int | None = None


class TRX(msgspec.Struct, frozen=True, gc=False):
    """The name of a transaction: its unique `id`, the `node` (client) that wrote it, its `number` in the partition."""

    raw_id: bytes
    raw_node: bytes
    number: int

    @property
    def id(self) -> UUID:
        """The unique id of the transaction."""
        return UUID(bytes=self.raw_id)

    @property
    def node(self) -> UUID:
        """The id of the client that wrote the transaction."""
        return UUID(bytes=self.raw_node)

    def __repr__(self) -> str:
        return f"TRX(id={self.id}, node={self.node}, number={self.number})"


NO_TRX = TRX(bytes(16), bytes(16), 0)


class Origin(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The place of a frame's entries in their partition; shared by all entries of the frame.

    It is no part of an entry's value, so all origins are equal: two readers of one entry hold equal entries.
    """

    partition: int
    partitions: int
    position: int
    """Entries in the partition before the frame's first."""
    index: int
    """Entries in the transaction before the frame's first."""
    first_sequence: int
    tier: str = "hot"
    watermark: int = 0
    """Highest timestamp that the reader had yielded: offsets of one reading never decrease."""
    others: tuple[tuple[int, int], ...] | None = None
    """The next (number, index) to be read in each partition of a space, as of the read; None for one partition."""
    incarnation: bytes = b""
    """The incarnation of the space."""
    whole: bool = False
    """`others` were read together with it; without them, see Offset, the known positions count."""
    holes: bool = False
    """True if some of the frame's entries are gone."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    # msgspec's own would compare identities.
    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return 0


_NOWHERE = Origin(0, 1, 0, 0, 0)
UNSEEN = ((1, 0),)
"""The end of a partition before its first entry."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An entry that was read. `timestamp` is in milliseconds since the epoch, UTC; `sequence` counts from 1."""

    space: str
    segment: str
    sequence: int
    timestamp: int
    trx: TRX
    payload: bytes
    metadata: Mapping[str, str]
    """The entry's metadata. It cannot be changed; `dict(entry.metadata)` can."""
    origin: Origin = msgspec.field(default_factory=lambda: _NOWHERE)

    @property
    def tier(self) -> str:
        """ "hot" (the log) or "cold" (the archive)."""
        return self.origin.tier

    @property
    def stream_id(self) -> str:
        """ "timestamp-counter", increasing and unique in the partition."""
        origin = self.origin
        return f"{self.timestamp}-{origin.position + self.sequence - origin.first_sequence}"

    @property
    def segment_offset(self) -> LexKey:
        """The entry's place in its segment: encode("DAT", "SEGMENTS", space, segment, Unsigned(sequence))."""
        return LexKey.encode("DAT", "SEGMENTS", self.space, self.segment, Unsigned(self.sequence))

    @property
    def space_offset(self) -> LexKey:
        """The offset after this entry in its space, for `consume_space(offset=…)`.

        To read a space in pages, use the offsets of `consume_space`: they name a place in every partition. If a space
        has several partitions, the offset of an entry that was read from its segment names a place in its own partition
        only. A read from it yields, from the other partitions, entries with a later timestamp and all entries that this
        process had not seen when it read the entry.
        """
        origin = self.origin
        here = (self.trx.number, origin.index + self.sequence - origin.first_sequence + 1)
        if origin.partitions == 1:
            return encode_one(self.space, self.timestamp, *here, origin.incarnation)
        positions = list(origin.others or UNSEEN * origin.partitions)
        positions[origin.partition] = here
        if not origin.whole:
            at = origin.partition
            return Offset(self.space, self.timestamp, at, tuple(positions), False, origin.incarnation).encode()
        timestamp = max(self.timestamp, origin.watermark)
        # Not of this partition: the offsets of a reading grow, also where timestamps are equal.
        return Offset(self.space, timestamp, 0, tuple(positions), True, origin.incarnation).encode()

    def __rich_repr__(self) -> Any:
        yield from ((name, getattr(self, name)) for name in self.__struct_fields__ if name != "origin")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Entry({fields})"

    def _repr_html_(self) -> str:
        return html_table("Entry", self.__rich_repr__())


def no_entry(space: str, segment: str) -> Entry:
    """The answer of peek for an empty segment."""
    return Entry(space, segment, 0, 0, NO_TRX, b"", NO_METADATA)


def no_status(space: str, segment: str) -> SegmentStatus:
    """Return the status of a segment that has no entries."""
    return SegmentStatus(space, segment, 0, 0, 0, 0)


class Position(msgspec.Struct, frozen=True, gc=False):
    """A place in a partition: `index` entries into transaction `number`, or at its end."""

    partition: int
    partitions: int
    timestamp: int
    number: int
    index: int
    incarnation: bytes = b""
    others: tuple[tuple[int, int], ...] | None = None
    """The same as `Origin.others`."""


class SegmentStatus(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The first and the last entry of a segment; all 0 for an empty segment. `trx`: the transaction of the last, if
    known."""

    space: str
    segment: str
    first_sequence: int
    first_timestamp: int
    last_sequence: int
    last_timestamp: int
    trx: TRX | None = None
    position: Position | None = None
    """The place after everything that the status tells; None for a space that does not exist."""

    @property
    def space_offset(self) -> LexKey:
        """The offset after all entries that the status covers: a reader at this offset has seen all of them.

        After a write it is the offset after its transaction. If a space has several partitions, it is like the offset
        of an entry that was read from its segment; `end_offset` gives a place in all partitions.
        """
        at = self.position
        if at is None:
            return Offset.beginning(self.space).encode()
        here = (at.number, at.index)
        if at.partitions == 1:
            return encode_one(self.space, at.timestamp, *here, at.incarnation)
        positions = list(at.others or UNSEEN * at.partitions)
        positions[at.partition] = here
        return Offset(self.space, at.timestamp, at.partition, tuple(positions), False, at.incarnation).encode()

    def _repr_html_(self) -> str:
        return html_table("SegmentStatus", self.__rich_repr__())

    def __rich_repr__(self) -> Any:
        yield from ((name, getattr(self, name)) for name in self.__struct_fields__ if name != "position")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"SegmentStatus({fields})"

    def _key(self) -> tuple[str, str, int, int, int, int]:
        return (
            self.space,
            self.segment,
            self.first_sequence,
            self.first_timestamp,
            self.last_sequence,
            self.last_timestamp,
        )

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, SegmentStatus) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._key())
