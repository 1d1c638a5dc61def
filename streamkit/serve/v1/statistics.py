"""Figures of a store and of a space: the work of this process for the store, and entries by time."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from ...model import Entry
from ...store import Store
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from .parameters import number

__all__ = ["activity", "dollars", "statistics"]

_MOST = 20_000
"""Entries that one request for a space's activity counts."""
_BARS = 500

_AZURE = 0.036
_PRICES: dict[str, dict[str, float]] = {
    "s3": {"PUT": 5.0, "POST": 5.0, "LIST": 5.0, "GET": 0.4, "HEAD": 0.4},
    "azure": {"table.": _AZURE, "blob.": 0.4},
    "file": {},
    "memory": {},
}
"""US$ a million requests, by the beginning of their kind. docs/cost-and-scale.md has the date of these list prices."""


class StatisticsOut(msgspec.Struct):
    """Counts of one process since it opened the store. `dollars`: the price of the requests; null: unknown."""

    storage: str
    seconds: float
    transactions: int
    entries: int
    conflicts: int
    retries: int
    cache_hits: int
    cache_misses: int
    requests: dict[str, int]
    dollars: float | None
    streams: int


class ActivityOut(msgspec.Struct):
    """Entries of a space by time. `counts[i]` entries and `bytes[i]` bytes of payload came between
    `since + i * step` and the next step; times are in ms. `complete`: no older entries are left out."""

    since: int
    until: int
    step: int
    counts: list[int]
    bytes: list[int]
    complete: bool


def dollars(storage: str, requests: dict[str, int]) -> float | None:
    """Price of requests by their kinds, in US$; None if the prices of the storage are unknown."""
    prices = _PRICES.get(storage)
    if prices is None:
        return None
    cost = {kind: next((price for start, price in prices.items() if kind.startswith(start)), 0.0) for kind in requests}
    return sum(count * cost[kind] for kind, count in requests.items()) / 1e6


async def statistics(request: Request) -> Answer:
    """Counts of this process for a store, and the price of its requests to the storage."""
    request.query(())
    request.access.check_all_spaces()
    service, store = request.service, request.store()
    found = store.sync.statistics()
    requests = {kind: count for kind, count in found.requests.items() if not kind.startswith("bytes")}
    return json_answer(
        StatisticsOut(
            service.storage,
            round(time.monotonic() - service.opened(store.id), 3),
            found.transactions,
            found.entries,
            found.conflicts,
            found.retries,
            found.cache_hits,
            found.cache_misses,
            requests,
            dollars(service.storage, requests),
            service.gate.streams,
        ),
        headers=((b"cache-control", b"no-store"),),
    )


async def activity(request: Request) -> Answer:
    """Entries of a space by time: of the latest 20,000 entries, or of those between `from` and `until`."""
    query = request.query(("from", "until", "bars"))
    since, until = number(query, "from", 0), number(query, "until", 0)
    bars = number(query, "bars", 60, _BARS, 1)
    if until and since > until:
        raise Problem("invalid-argument", "from is a time before until, in milliseconds")
    store, space = request.store(), request.name(1)
    return json_answer(await store.calls.call(_count, store.sync, space, since, until, bars, long=True))


def _count(store: Store, space: str, since: int, until: int, bars: int) -> ActivityOut:
    found: list[tuple[int, int]] = []
    entries: Any = store.consume_space(
        space, min_timestamp=since, max_timestamp=until, reverse=True, limit=_MOST + 1, gaps="skip"
    )
    for entry in entries:
        if type(entry) is Entry:
            found.append((entry.timestamp, len(entry.payload)))
    complete = len(found) <= _MOST
    del found[_MOST:]
    first = since if since and complete else min((at for at, _ in found), default=since)
    last = max(until or max((at for at, _ in found), default=first), first)
    step = max(-(-(last - first + 1) // bars), 1)
    counts, sizes = [0] * bars, [0] * bars
    for at, size in found:
        bar = min((at - first) // step, bars - 1)
        counts[bar] += 1
        sizes[bar] += size
    return ActivityOut(first, last, step, counts, sizes, complete)
