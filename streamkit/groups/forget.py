"""Forgetting failures: their texts may quote the entry, so they go when the entry is erased."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from ..errors import SequenceMismatch, StoreClosed
from ..log.segments import all_segments
from ..names import InternalName
from ..store import Store, inner
from .chain import ChainDeleted
from .core import Core, feed_chain
from .events import LaneEvent
from .feed import FeedState
from .group import cores_of, is_of_space
from .lane import LaneState

__all__ = ["clear_deleted", "forget_failures"]

_LANE = re.compile(r"\{lane-\d+\.(\d+)~")
"""The name of a lane's segments: its number, and how many groups of this name had been made by then."""


def forget_failures(store: Store, space: str) -> Iterator[tuple[InternalName, list[str]]]:
    """Remove the error texts of removed entries from each group of a space: its lanes write snapshots without the
    texts, and trim the records before them.

    Yields (internal space, segments): trimmed records of these may hold a text.
    """
    for core in cores_of(store, space):
        if not core.is_stale():
            _forget(core)
        clear_deleted(store, core.internal)
        found, _ = inner(store).look_up(core.internal)
        for partition in found.partitions if found is not None else ():
            partition.refresh()
            names = [name for name in all_segments(partition) if name != core.feed.segment]
            if names:
                yield core.internal, names


def clear_deleted(store: Store, internal: InternalName) -> None:
    """Delete the lanes of groups that were deleted, or whose space was. They may still hold the texts of failures."""
    # The lanes come first: the feed then knows the group of each of them.
    lanes = [(segment, int(found[1])) for segment in store.get_segments(internal) if (found := _LANE.match(segment))]
    if not lanes:
        return
    feed = feed_chain(store, internal)
    feed.catch_up()
    last = feed.state.created if _is_over(store, feed.state) else feed.state.created - 1
    for segment, made in lanes:
        if made <= last:
            store.delete_segment(internal, segment)


def _is_over(store: Store, state: FeedState) -> bool:
    """True if the group was deleted, or its space was."""
    if state.deleted or is_of_space(store, state, headless=True):
        return state.deleted
    shared = inner(store)
    found, _ = shared.look_up(state.space, None, headless=True)
    if found is None:
        return not shared.exists(state.space)  # if it does, its head is lost, and a repair brings it back
    try:
        found.partitions[0].refresh()
    except StoreClosed:
        return False  # this process has the deleted space open: the group may be of the next one
    return True


def _forget(core: Core) -> None:
    def decide(state: LaneState, at: int) -> tuple[list[LaneEvent], None]:
        return core.vanished(state, sorted({*state.dead, *state.errors})), None

    for lane in core.lanes():
        with contextlib.suppress(ChainDeleted):
            core.look_at(lane)
            while lane.chain.sequence:
                core.write(lane, decide)
                try:
                    lane.chain.shorten()
                    break
                except SequenceMismatch:  # another process has written a snapshot meanwhile: it may hold the texts
                    core.look_at(lane)
