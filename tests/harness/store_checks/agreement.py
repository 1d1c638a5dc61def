"""A comparison of all readers of a space: they must give the same entries."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise

from streamkit.lexkey import LexKey, Unsigned
from streamkit.model import Entry
from streamkit.names import partition_of
from streamkit.store import Store
from streamkit.testing.backend_checks.subject import hold, same

__all__ = ["agree"]

_FULL = 6
"""The number of segments for which all readers are compared. Others have one reader."""


def agree(store: Store, space: str) -> list[Entry]:
    """The space's entries in its order. Broken if readers differ. No process may write to it meanwhile."""
    entries = list(store.consume_space(space))
    segments: dict[str, list[Entry]] = {}
    for entry in entries:
        segments.setdefault(entry.segment, []).append(entry)
    names = sorted(segments)
    same(list(store.get_segments(space)), names, f"get_segments of {space!r}, against the space's entries")
    for at, name in enumerate(names):
        what = f"segment {name!r} of space {space!r}"
        same(list(store.consume_segment(space, name)), segments[name], f"consume_segment against consume_space, {what}")
        if at % (len(names) // _FULL + 1) == 0:
            _segment(store, space, name, segments[name], what)
    _space(store, space, entries)
    _pages(store, space, entries)
    _identities(entries)
    return entries


def _segment(store: Store, space: str, name: str, found: Sequence[Entry], what: str) -> None:
    same([entry.sequence for entry in found], list(range(1, len(found) + 1)), f"the sequences of {what}")
    first, last = found[0], found[-1]
    same(store.peek(space, name), last, f"peek of {what}")
    status = store.segment_status(space, name)
    same(
        (status.space, status.segment, status.first_sequence, status.first_timestamp),
        (space, name, first.sequence, first.timestamp),
        f"the first entry by the status of {what}",
    )
    same(
        (status.last_sequence, status.last_timestamp),
        (last.sequence, last.timestamp),
        f"the last entry by the status of {what}",
    )
    same(next(iter(store.subscribe_to_segment(space, name, timeout=0))), status, f"the subscription to {what}")
    same(list(store.follow_segment(space, name, timeout=0)), list(found), f"follow_segment of {what}")
    middle = len(found) // 2 + 1
    same(
        list(store.consume_segment(space, name, min_sequence=middle)),
        found[middle - 1 :],
        f"{what} from sequence {middle}",
    )
    same(
        list(store.consume_segment(space, name, max_sequence=middle)),
        found[:middle],
        f"{what} up to sequence {middle}",
    )
    hold(
        all(earlier.timestamp <= later.timestamp for earlier, later in pairwise(found)),
        f"timestamps go back in {what}",
    )


def _space(store: Store, space: str, entries: list[Entry]) -> None:
    same(list(store.consume({space: None})), entries, f"consume of the space {space!r} alone")
    same(list(store.follow_space(space, timeout=0)), entries, f"follow_space of {space!r}")
    told = {status.segment: status for status in store.subscribe_to_space(space, timeout=0)}
    wanted = {entry.segment: entry.sequence for entry in entries}
    found = {name: status.last_sequence for name, status in told.items()}
    same(found, wanted, f"what subscribe_to_space of {space!r} tells at first")
    for limit in (len(entries) // 2, len(entries) + 1):
        if limit:
            first = list(store.consume_space(space, limit=limit))
            same(first, entries[:limit], f"the first {limit} entries of {space!r}")
    hold(space in set(store.get_spaces()) or not entries, f"get_spaces does not name {space!r}, which has entries")


def _pages(store: Store, space: str, entries: list[Entry]) -> None:
    """The offset of every one of some entries leads to exactly those after it."""
    step = len(entries) // 3 + 1
    for at in range(0, len(entries), step):
        offset = entries[at].space_offset
        rest = list(islice(store.consume_space(space, offset=offset), 20))
        same(rest, entries[at + 1 : at + 21], f"{space!r} after the offset of its entry {at}")
    if entries:
        same(list(store.consume_space(space, offset=entries[-1].space_offset)), [], f"{space!r} after its last entry")


def _identities(entries: Sequence[Entry]) -> None:
    """Check that stream_id is unique and increasing in a partition, and that the offsets are correct."""
    last: dict[int, tuple[int, ...]] = {}
    for entry in entries:
        partition = entry.origin.partition
        same(partition, partition_of(entry.segment, entry.origin.partitions), f"the partition of {entry.segment!r}")
        here = tuple(int(part) for part in entry.stream_id.split("-"))
        hold(
            len(here) == 2 and here[0] == entry.timestamp and here > last.get(partition, (0, -1)),
            f"stream_id {entry.stream_id} of partition {partition} follows {last.get(partition)}",
        )
        hold(here[1] > last.get(partition, (0, -1))[1], f"the counter of stream_id {entry.stream_id} was used before")
        last[partition] = here
        place = LexKey.encode("DAT", "SEGMENTS", entry.space, entry.segment, Unsigned(entry.sequence))
        same(entry.segment_offset, place, "segment_offset")
    offsets = [entry.space_offset for entry in entries]
    hold(
        all(earlier < later for earlier, later in pairwise(offsets)),
        "space offsets do not grow in reading order",
    )
