"""Forgetting failures: their texts may quote the entry, so they go when the entry is erased."""

from __future__ import annotations

from collections.abc import Iterator

from ..log.segments import all_segments
from ..names import InternalName
from ..store import Store, inner
from .core import Core
from .events import LaneEvent
from .group import cores_of
from .lane import LaneState

__all__ = ["forget_failures"]


def forget_failures(store: Store, space: str) -> Iterator[tuple[InternalName, list[str]]]:
    """Let each group of a space forget why entries failed that were removed: its lanes write snapshots without the
    texts, and trim what is before these. Gives (internal space, segments): what was trimmed of them may hold a text."""
    for core in cores_of(store, space):
        if not core.is_stale():
            _forget(core)
        found, _ = inner(store).look_up(core.internal)
        for partition in found.partitions if found is not None else ():
            partition.refresh()
            names = [name for name in all_segments(partition) if name != core.feed.segment]
            if names:
                yield core.internal, names


def _forget(core: Core) -> None:
    def decide(state: LaneState, at: int) -> tuple[list[LaneEvent], None]:
        return core.vanished(state, sorted({*state.dead, *state.errors})), None

    for lane in core.lanes():
        core.look_at(lane)
        if lane.chain.sequence:
            core.write(lane, decide)
            lane.chain.shorten()
