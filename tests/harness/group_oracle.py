"""A judge of a group's history by its log alone: the holder of each entry, from when to when, and the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from streamkit import Store
from streamkit.groups.core import Core
from streamkit.groups.events import (
    Acked,
    Added,
    Claimed,
    Created,
    Died,
    Extended,
    Fed,
    FeedBatch,
    LaneBatch,
    Nacked,
    Redriven,
    Released,
    Vanished,
)
from streamkit.groups.ranges import numbers_of
from streamkit.names import internal_name

__all__ = ["History", "judge"]


class History(NamedTuple):
    errors: list[str]
    acked: int
    dead: int
    deliveries: int
    redelivered: int
    """Taken from a consumer whose deadline had passed."""
    by_consumer: Mapping[str, int]
    """Entries that each was handed."""


class _Live(NamedTuple):
    consumer: str
    lot: int
    deadline: int


def judge(store: Store, space: str, group: str, *, finished: bool = True) -> History:
    """Find the faults in the history of a group whose log was never trimmed. `finished`: nothing may be left."""
    internal = internal_name("group", space, group)
    core = Core(store, space, internal)
    errors: list[str] = []
    given, count = _given(store, internal, core, errors)
    acked: Counter[int] = Counter()
    dead: set[int] = set()
    deliveries = redelivered = 0
    by_consumer: Counter[str] = Counter()
    for lane in core.lanes():
        live: dict[int, _Live] = {}
        attempts: Counter[int] = Counter()
        known: set[int] = set()
        now = 0
        for timestamp, batch in _lane_log(store, internal, lane.chain.segment):
            if batch.at < now:
                errors.append(f"the lane's time went back from {now} to {batch.at}")
            if timestamp < batch.at:
                errors.append(f"decided at {batch.at}, and in the log at {timestamp}, which is before")
            now = batch.at
            for event in batch.events:
                if isinstance(event, Added):
                    for block in event.blocks:
                        known.update(lane.chain.state.own(block))
                elif isinstance(event, Claimed):
                    for ticket in (*numbers_of(event.fresh), *numbers_of(event.again)):
                        before = live.get(ticket)
                        if before is not None:
                            redelivered += 1
                            if before.deadline > batch.at:
                                errors.append(f"{ticket} went to {event.consumer} while {before.consumer} had it")
                        if ticket not in known or ticket in acked or ticket in dead:
                            errors.append(f"{ticket} was delivered, and is not there, or is done")
                        live[ticket] = _Live(event.consumer, event.lot, event.deadline)
                        attempts[ticket] += 1
                        deliveries += 1
                        by_consumer[event.consumer.partition("\x1f")[0]] += 1
                elif isinstance(event, Acked):
                    for ticket in numbers_of(event.tickets):
                        acked[ticket] += 1
                        if live.pop(ticket, None) is None:
                            errors.append(f"{ticket} was acknowledged, and nobody had it")
                elif isinstance(event, Nacked):
                    for ticket, _ in event.tickets:
                        live.pop(ticket, None)
                elif isinstance(event, Released):
                    for ticket in numbers_of(event.tickets):
                        live.pop(ticket, None)
                elif isinstance(event, Extended):
                    for ticket in numbers_of(event.tickets):
                        live[ticket] = live[ticket]._replace(deadline=event.deadline)
                elif isinstance(event, (Died, Vanished)):
                    for ticket in numbers_of(event.tickets):
                        live.pop(ticket, None)
                        if ticket in dead:
                            errors.append(f"{ticket} died twice")
                        dead.add(ticket)
                elif isinstance(event, Redriven):
                    dead.difference_update(numbers_of(event.tickets))
    errors += [f"{ticket} was acknowledged {times} times" for ticket, times in acked.items() if times > 1]
    if finished:
        done = dead | acked.keys()
        errors += [f"{ticket} is left" for ticket in sorted(given - done)[:5]]
        if len(given) != count:
            errors.append(f"{count} entries, and {len(given)} were handed to lanes")
    return History(errors, len(acked), len(dead), deliveries, redelivered, dict(by_consumer))


def _given(store: Store, internal: str, core: Core, errors: list[str]) -> tuple[set[int], int]:
    """The tickets, each for another entry; and how many entries there are."""
    decoder = msgspec.msgpack.Decoder(FeedBatch)
    places: Counter[tuple[int | str, int]] = Counter()
    tickets: set[int] = set()
    for entry in store.consume_segment(internal, core.feed.segment):
        for event in decoder.decode(entry.payload).events:
            if isinstance(event, Created):
                places.clear()
            elif isinstance(event, Fed):
                for block in event.blocks:
                    tickets.update(range(block.ticket, block.end))
                    places.update((block.stream, block.start.position + at) for at in range(block.count))
    errors += [f"{place} was given out {times} times" for place, times in places.items() if times > 1]
    return tickets, sum(1 for _ in store.consume_space(core.space))


def _lane_log(store: Store, internal: str, segment: str) -> Iterator[tuple[int, LaneBatch]]:
    decoder = msgspec.msgpack.Decoder(LaneBatch)
    for entry in store.consume_segment(internal, segment):
        yield entry.timestamp, decoder.decode(entry.payload)
