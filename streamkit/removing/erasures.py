"""Find the entries erased since a position, for clients that keep copies of entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import LeaseNotAcquired
from ..gaps import Gap
from ..log.erased import erasures_of
from ..log.floors import Erasure
from ..log.partition import Partition
from ..log.segment_view import row_of
from ..log.view import LogView
from ..log.visible import floor_of
from ..store import Store, inner
from ..warn import warn
from .ranges import Ranges

__all__ = [
    "Seen",
    "begins_late",
    "complete_erasures",
    "erased_since",
    "forget_late_failures",
    "has_erasures",
    "is_erasing",
    "seen_by",
    "seen_of",
]


class Seen(NamedTuple):
    """The known removals in a segment. A client that keeps copies compares two of them to see if its copies are
    outdated."""

    number: int = 0
    """The last transaction of its partition."""
    erased: int = 0
    """The last transaction that may have erased something of the segment."""
    deleted: int = 0
    """The sequence up to which the segment was deleted."""
    incarnation: bytes = b""
    """The incarnation of the space; empty if the space does not exist."""

    def outdates(self, before: Seen) -> bool:
        """True if anything that a reader at `before` could see has been removed since, the space itself included."""
        removed = self.erased > before.number or self.deleted > before.deleted
        return removed or self.incarnation != before.incarnation


def seen_of(store: Store, space: str, segment: str) -> Seen:
    """Return the segment's removals as of the last look at the log."""
    found, _ = inner(store).look_up(space)
    if found is None:
        return Seen()
    partition = found.partition(segment)
    view = partition.view()
    number, erased = view.end, _latest(view)
    gaps = partition.ask(row_of, segment).gaps
    deleted = max([last for last, reason in gaps if reason == "deleted"], default=0) if gaps else 0
    return Seen(number, erased, deleted, found.settings.incarnation)


def is_erasing(store: Store, space: str, segment: str, last: int) -> bool:
    """True if an event up to `last` is erased, and may still be stored somewhere."""
    found, _ = inner(store).look_up(space)
    erasing = found.partition(segment).erasing if found is not None else ()
    return any(erasure.segment == segment and erasure.first <= last for erasure in erasing)


def seen_by(store: Store, space: str, *, fresh: bool) -> tuple[int, ...]:
    """The last known transaction of each partition; with `fresh` the storage is asked first. A read that begins now
    returns no entry that was erased up to there.
    """
    found, since = inner(store).look_up(space)
    partitions = found.partitions if found is not None else []
    if fresh:
        for partition in partitions:
            partition.refresh((), since)
    return tuple(partition.number for partition in partitions)


def begins_late(store: Store, space: str) -> bool:
    """True if the first entries of a space are not there any more, as far as is known."""
    found, _ = inner(store).look_up(space)
    return any(partition.ask(floor_of).position > 0 for partition in (found.partitions if found is not None else ()))


def has_erasures(store: Store, space: str) -> bool:
    """True if anything of a space was ever erased, as far as is known."""
    found, _ = inner(store).look_up(space)
    return any(_latest(partition.view()) > 0 for partition in (found.partitions if found is not None else ()))


def erased_since(store: Store, space: str, seen: Sequence[int], until: Sequence[int]) -> list[Gap] | None:
    """Return the gaps of the erasures after `seen` and up to `until`; both hold one transaction number for each
    partition.

    None if there were erasures and the log no longer holds them, because it was archived or trimmed. If there were
    none, nothing is read.
    """
    found, _ = inner(store).look_up(space)
    gaps: list[Gap] = []
    for partition, last in zip(found.partitions if found is not None else (), until, strict=False):
        first = 1 + (seen[partition.partition] if partition.partition < len(seen) else 0)
        if _latest(partition.view()) >= first and not _read(partition, first, last, gaps):
            return None
    return gaps


def complete_erasures(store: Store, space: str) -> bool:
    """Complete the unfinished erasures of a space, if there are some.

    False, without waiting, while another process archives the space or erases from it.
    """
    from .copies import Copies
    from .erase import finish

    found, _ = inner(store).look_up(space)
    copies = Copies(store)
    try:
        for partition in found.partitions if found is not None else ():
            for text in finish(partition, copies, wait=0.0).unreached:
                warn("%s", text, store=store.id, space=space)
    except LeaseNotAcquired:
        return False
    return True


def forget_late_failures(store: Store, space: str) -> None:
    """Remove the texts of failures of erased entries that groups and routes of a space have written after the erasure
    had searched them."""
    from .copies import Copies

    found, _ = inner(store).look_up(space)
    erased = Ranges([one for partition in (found.partitions if found else ()) for one in all_erasures(partition)])
    for text in Copies(store).forget_erased(space, erased).unreached:
        warn("%s", text, store=store.id, space=space)


def all_erasures(partition: Partition) -> list[Erasure]:
    """The erasures of a partition, also those that are not completed."""
    return [*partition.erasing, *erasures_of(partition)]


def _latest(view: LogView) -> int:
    """The last transaction that may have erased something; 0 if none has."""
    erased, erasing = view.head.erased, view.erasing
    return max([erased, *(erasure.number for erasure in erasing)]) if erasing else erased


def _read(partition: Partition, first: int, last: int, gaps: list[Gap]) -> bool:
    """Add the erasures of transactions first..last. False if one of them is no longer in the log."""
    for number, record in partition.records(first, last):
        if number != first:
            return False
        control = partition.decode_header(record, number).control
        for one in control.erasures if control is not None else ():
            gaps.append(Gap(partition.space, one.segment, one.first, one.last, "erased"))
        first = number + 1
    return first > last
