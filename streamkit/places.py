"""Places in the log of a space, for groups and views, which follow it partition by partition.

A place says which entry of a partition is next. Unlike an offset it belongs to one partition. A read from it always
gives the same entries in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from .lexkey import LexKey
from .log.batches import Bounds
from .log.floors import Removed
from .log.offsets import Offset
from .log.read_partition import partition_batches
from .log.read_space import position_of
from .model import Entry
from .reading import Reader
from .space import segments_of
from .store import Store, inner, reader_of

__all__ = [
    "Place",
    "ends",
    "entries_after",
    "last_sequences",
    "look_at",
    "offset_of",
    "places_after",
    "read_from",
    "removal_mark",
    "segments_there",
]


class Place(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A place before entry `index` of transaction `number`. `position` is the entry's place in the partition, counted
    from 0. Erased and trimmed entries keep their positions."""

    partition: int
    number: int
    index: int
    position: int

    @classmethod
    def of(cls, entry: Entry) -> Place:
        """The place before `entry`, which was read from this space."""
        origin = entry.origin
        at = entry.sequence - origin.first_sequence
        return cls(origin.partition, entry.trx.number, origin.index + at, origin.position + at)

    @classmethod
    def after(cls, entry: Entry) -> Place:
        found = cls.of(entry)
        return cls(found.partition, found.number, found.index + 1, found.position + 1)


def ends(store: Store, space: str) -> list[Place]:
    """Return each partition's place after everything that is committed so far. Empty for an unknown space.

    It asks the storage; of a process that has the space open that is one request for each partition.
    """
    found, since = inner(store).look_up(space)
    places = []
    for partition in found.partitions if found is not None else ():
        partition.refresh((), since)
        view = partition.view()
        places.append(Place(partition.partition, view.end + 1, 0, view.position))
    return places


def look_at(store: Store, space: str, segments: Sequence[str]) -> list[int]:
    """The last sequence of each of `segments`, which live on one partition; 0 if there is none.

    It asks the storage: one request, of a process that has the space open.
    """
    found, since = inner(store).look_up(space, tuple(segments))
    if found is None:
        return [0] * len(segments)
    partition = found.partition_of(segments)
    partition.refresh(segments, since, load=True)
    rows, _ = partition.statuses(segments)
    return [rows[segment].last_sequence for segment in segments]


def last_sequences(store: Store, space: str, segments: Sequence[str]) -> list[int]:
    """The last sequence of each of `segments`, which may live on any partitions, as of the last look at these."""
    found, _ = inner(store).look_up(space)
    if found is None:
        return [0] * len(segments)
    return [found.partition(segment).status(segment).last_sequence for segment in segments]


def segments_there(store: Store, space: str) -> list[str]:
    """The names of the segments of a space, in no order, as of the last look at its partitions."""
    found, _ = inner(store).look_up(space)
    return [name for partition in found.partitions for name in segments_of(partition)] if found is not None else []


def entries_after(store: Store, space: str, segment: str, sequence: int) -> Iterator[Entry]:
    """A segment's entries after `sequence`, as of the last look at its partition. EntriesRemoved."""
    reader: Reader = reader_of(store)
    batches = reader.segment_batches(space, segment, Bounds(min_sequence=sequence + 1, gaps="raise"), since=0)
    return reader.entries(batches, 0, gaps="raise")


def removal_mark(store: Store, space: str, *, look: bool = False) -> tuple[object, ...]:
    """A value that changes if entries may have been removed from the space, as far as this process knows. A cache of
    entries is dropped then. `look`: ask the storage first, as `ends` does."""
    found, since = inner(store).look_up(space)
    marks = []
    for partition in found.partitions if found is not None else ():
        if look and not partition.is_current():
            partition.refresh((), since)
        marks.append(partition.removal_mark())
    return tuple(marks)


def read_from(store: Store, space: str, place: Place, *, erased: bool = False) -> Iterator[list[Entry]]:
    """A partition's entries from `place` on, in lists, up to its end as it is known: see `ends`.

    `erased`: with those that were erased, as far as the log still marks their places. Their payloads are `Removed`.
    """
    found, _ = inner(store).look_up(space)
    if found is None:
        return
    partition = found.partitions[place.partition]
    end = partition.number
    for batch in partition_batches(partition, (place.number, place.index), end, Bounds(), together=True):
        # A removed entry is present with a payload of another type.
        entries = [entry for entry in batch.entries if _is_there(entry.payload, erased)]
        if entries:
            yield entries


def _is_there(payload: bytes, erased: bool) -> bool:
    return type(payload) is bytes or (erased and isinstance(payload, Removed) and payload.reason == "erased")


def places_after(store: Store, space: str, offset: LexKey | bytes | str) -> list[Place]:
    """The place in each partition after an offset. InvalidOffset if it is not one of this space."""
    decoded = Offset.decode(offset, space)
    found, since = inner(store).look_up(space)
    decoded.check(found.settings if found is not None else None)
    places = []
    for partition in found.partitions if found is not None else ():
        end = partition.refresh((), since)
        number, index = position_of(partition, decoded, end)
        start = next(partition_batches(partition, (number, index), end, Bounds()), None)
        if start is None:
            places.append(Place(partition.partition, partition.number + 1, 0, partition.position))
        else:
            places.append(Place(partition.partition, number, index, Place.of(start.entries[0]).position))
    return places


def offset_of(store: Store, space: str, places: Sequence[Place]) -> LexKey:
    """The offset of the last entry before each of `places`, one for each partition, in order.

    It may ask the storage for a transaction of each partition.
    """
    found, _ = inner(store).look_up(space)
    if found is None:
        return Offset.beginning(space).encode()
    positions: list[tuple[int, int]] = []
    timestamp = 0
    for partition, place in zip(found.partitions, places, strict=True):
        number, index = place.number, place.index
        header = partition.header(number if index else number - 1) if index or number > 1 else None
        if header is not None:
            timestamp = max(timestamp, header.timestamp)
            # After the last entry of a transaction, not before the first of the next.
            number, index = (number, index) if index else (number - 1, header.count)
        positions.append((number, index))
    return Offset(space, timestamp, 0, tuple(positions), True, found.settings.incarnation).encode()
