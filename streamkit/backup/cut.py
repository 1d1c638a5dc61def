"""The point: the last transaction of each partition in one state of the whole store.

All transactions up to one timestamp are such a state, because timestamps follow cause and effect (see
`streamkit.log.moments`). A writer whose clock is late may still add one with an earlier timestamp while the partitions
are asked one after the other. So they are asked again until two rounds agree. Then no effect is within the point whose
cause is not: the cause was committed before the effect, so the second round has seen it, and the first one too.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import UNREADABLE, CorruptData, StoreClosed, Unavailable
from ..index.verify import LOST, is_lost
from ..log.first_at import first_at
from ..log.moments import SKEW
from ..log.partition import Partition
from ..store import Store, inner
from ..warn import warn
from .readable import ReadableSpaces

__all__ = ["Cut", "find_cut"]

_ROUNDS = 1000


class Cut(NamedTuple):
    incarnation: bytes
    ends: tuple[int, ...]
    """The last transaction of each partition."""


class _Wrong:
    """Partitions whose timestamps come from a wrong clock, and where they ended when they were asked first."""

    def __init__(self) -> None:
        self.ends: dict[tuple[bytes, bytes], int] = {}

    def end(self, partition: Partition) -> int:
        key = partition.key, partition.settings.incarnation
        if key not in self.ends:
            self.ends[key] = partition.number
            warn(
                "space %r, partition %d: its latest timestamp is more than a minute ahead. The backup has all of it as "
                "of now; set the clocks of its writers",
                partition.space,
                partition.partition,
            )
        return self.ends[key]


def find_cut(store: Store, spaces: ReadableSpaces, moment: int) -> dict[str, Cut]:
    """The cut of each existing space at `moment` (ms)."""
    wrong = _Wrong()
    found = _round(store, spaces, moment, wrong)
    for _ in range(_ROUNDS):
        again = _round(store, spaces, moment, wrong)
        if again == found:
            return found
        found = again
    raise Unavailable("transactions with old timestamps arrive all the time: set the clocks of the writers")


def _round(store: Store, spaces: ReadableSpaces, moment: int, wrong: _Wrong) -> dict[str, Cut]:
    cuts: dict[str, Cut] = {}
    for space in spaces.names():
        with spaces.reading(space):
            cut = _cut(store, spaces, space, moment, wrong)
            if cut is not None:
                cuts[space] = cut
    return cuts


def _cut(store: Store, spaces: ReadableSpaces, space: str, moment: int, wrong: _Wrong) -> Cut | None:
    """The cut of one space. None if it is gone, or its deletion has begun."""
    for is_known in (True, False):
        if not is_known:
            spaces.forget(space)
        partitions = spaces.partitions(space)
        try:
            ends = tuple(_end(partition, moment, wrong) for partition in partitions)
        except (StoreClosed, *UNREADABLE) as error:
            if is_known:
                continue  # it was deleted, and may have been made again, since its partitions were read
            inner(store)  # StoreClosed if the store itself is closed
            if isinstance(error, StoreClosed):
                return None
            raise
        if ends:
            return Cut(partitions[0].settings.incarnation, ends)
        if not is_known and is_lost(inner(store).backend, space):
            raise CorruptData(LOST)
    return None


def _end(partition: Partition, moment: int, wrong: _Wrong) -> int:
    end = partition.refresh()
    if partition.timestamp <= moment:
        return end
    if partition.timestamp > moment + SKEW:
        return wrong.end(partition)
    head = partition.head
    # Mostly the answer is in the tail, which is in memory.
    first = head.watermark + 1 if head.timestamp <= moment else 1
    return partition.ask(first_at, moment + 1, first, end) - 1
