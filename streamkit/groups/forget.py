"""Forgetting failures: their texts may quote the entry, so they go when the entry is erased."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

from ..errors import UNREADABLE, SequenceMismatch
from ..log.segments import all_segments
from ..names import InternalName
from ..store import Store, delete_if, inner
from ..warn import warn
from .chain import ChainDeleted
from .core import Core
from .events import LaneEvent
from .feed import FeedState
from .group import cores_of, feed_of, internals_of, is_of_space
from .lane import LaneState

__all__ = ["clear_deleted", "delete_groups", "forget_failures"]

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


def delete_groups(store: Store, space: str, incarnation: bytes | None = None) -> None:
    """Delete the groups of a space that is being deleted, with their internal spaces. `incarnation`: the space's; None
    if it does not exist. The groups of a later space stay."""

    def is_over(state: FeedState) -> bool:
        if state.space != space:
            return False
        if incarnation is None:
            return not state.incarnation or _is_gone(store, state)
        return state.incarnation <= incarnation

    for internal in internals_of(store, space):
        try:
            _delete_if(store, internal, is_over)
        except UNREADABLE as error:
            warn("a group of space %r is not deleted: %s", space, error, store=store.id, space=space)


def clear_deleted(store: Store, internal: InternalName) -> None:
    """Delete the internal space of a group if the group's space was deleted, and else the lanes of groups that were
    deleted. They may still hold the texts of failures."""
    _delete_if(store, internal, lambda state: _is_gone(store, state))
    # The lanes come first: the feed then knows the group of each of them.
    lanes = [(segment, int(found[1])) for segment in store.get_segments(internal) if (found := _LANE.match(segment))]
    if not lanes:
        return
    state = feed_of(store, internal).state
    for segment, made in lanes:
        if made < state.created or state.deleted:
            store.delete_segment(internal, segment)


def _delete_if(store: Store, internal: InternalName, is_over: Callable[[FeedState], bool]) -> None:
    delete_if(store, internal, lambda: is_over(feed_of(store, internal).state))


def _is_gone(store: Store, state: FeedState) -> bool:
    """True if the space of the group was deleted. A group that was made before its space waits for it."""
    if not state.created or is_of_space(store, state, headless=True):
        return False
    shared = inner(store)
    try:
        # As it is now: this process may have an earlier space of the name open.
        first = next(shared.unread_partitions(state.space), None)
    except UNREADABLE:
        return False
    if first is None:
        return not shared.exists(state.space)  # if it does, its head is lost, and a repair brings it back
    return bool(state.incarnation) and first.settings.incarnation != state.incarnation


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
