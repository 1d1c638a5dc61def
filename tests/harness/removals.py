"""Every way to remove entries from a space, and spaces of several partitions to remove them from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from uuid import uuid4

import streamkit
from streamkit import Client, Record, Retention, Store
from streamkit.clock import SYSTEM_CLOCK
from streamkit.names import partition_of

__all__ = ["REMOVALS", "SPACE", "RemovalWorld"]

SPACE = "orders/ü"
_HOUR = 3600.0
_SEGMENTS = 9


class _PastClock:
    """The system's clock, two hours late: entries that it dates are old."""

    def now(self) -> int:
        return SYSTEM_CLOCK.now() - int(2 * _HOUR * 1000)

    def __getattr__(self, name: str) -> object:
        return getattr(SYSTEM_CLOCK, name)


@dataclass
class RemovalWorld:
    """A store with one space: old entries in the archive, later ones in the archive and in the log."""

    client: Client
    url: str
    store: Store
    partitions: int
    segments: list[str]
    """The first two are the ones that are removed from; they are on the last partitions."""

    @classmethod
    def make(cls, url: str, partitions: int) -> RemovalWorld:
        id = uuid4()
        names = sorted(
            (f"s{n}" for n in range(_SEGMENTS)), key=lambda name: partition_of(name, partitions), reverse=True
        )
        with streamkit.connect(url, clock=_PastClock()) as past:  # type: ignore[arg-type]
            store = past.store(id)
            store.create_space(SPACE, partitions)
            produce(store, names, 2)
            store.archive(SPACE)
        client = streamkit.connect(url)
        world = cls(client, url, client.store(id), partitions, names)
        world.write(2)
        world.store.archive(SPACE)
        world.write(3)
        return world

    def write(self, entries: int) -> None:
        produce(self.store, self.segments, entries)


def produce(store: Store, segments: list[str], entries: int) -> None:
    """Entries in two transactions of each segment."""
    for part in (entries // 2, entries - entries // 2):
        for name in segments:
            records = [Record(b"%s of %d" % (name.encode(), n), {"owner": name, "n": str(n)}) for n in range(part)]
            if records:
                store.produce(SPACE, name, records)


def _trim_segment(world: RemovalWorld, turn: int) -> None:
    world.store.trim(SPACE, world.segments[turn], keep_entries=5 - turn)


def _trim_space(world: RemovalWorld, turn: int) -> None:
    world.store.trim(SPACE, keep_entries=40 - 9 * turn)


def _erase(world: RemovalWorld, turn: int) -> None:
    world.store.erase(SPACE, world.segments[turn], first=2, last=6)


def _erase_by_metadata(world: RemovalWorld, turn: int) -> None:
    world.store.erase(SPACE, metadata={"owner": world.segments[turn]})


def _erase_by_pattern(world: RemovalWorld, turn: int) -> None:
    world.store.erase(SPACE, f"{world.segments[turn][:-1]}[{world.segments[turn][-1]}]", first=3)


def _delete_segment(world: RemovalWorld, turn: int) -> None:
    world.store.delete_segment(SPACE, world.segments[turn])


def _delete_space(world: RemovalWorld, turn: int) -> None:
    """Delete the space and make it again with other entries."""
    world.store.delete_space(SPACE)
    world.store.create_space(SPACE, world.partitions)
    world.write(2 + turn)
    if turn:
        world.store.archive(SPACE)
        world.write(1)


def _retain(**bounds: object) -> Callable[[RemovalWorld, int], None]:
    def retain(world: RemovalWorld, turn: int) -> None:
        given = dict(bounds)
        for name, share in (("max_entries", 3), ("max_bytes", 20)):
            if name in given:
                # Each partition has its share of a bound of the space.
                least = world.partitions * share if bounds["per"] == "space" else 0
                given[name] = max(given[name], least) - turn  # type: ignore[call-overload,operator]
        world.store.set_retention(SPACE, Retention(**given))  # type: ignore[arg-type]

    return retain


REMOVALS: dict[str, Callable[[RemovalWorld, int], None]] = {
    "trim a segment": _trim_segment,
    "trim the space": _trim_space,
    "erase a range": _erase,
    "erase by metadata": _erase_by_metadata,
    "erase by pattern": _erase_by_pattern,
    "delete a segment": _delete_segment,
    "delete the space and make it again": _delete_space,
    "retain by age of a segment": _retain(max_age=_HOUR, per="segment"),
    "retain by age of the space": _retain(max_age=_HOUR, per="space"),
    "retain entries of a segment": _retain(max_entries=4, per="segment"),
    "retain entries of the space": _retain(max_entries=40, per="space"),
    "retain bytes of a segment": _retain(max_bytes=30, per="segment"),
    "retain bytes of the space": _retain(max_bytes=300, per="space"),
}
"""The removals by name. Each is called with 0, and later with 1 to remove more."""
