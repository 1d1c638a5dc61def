"""Counts of a store's work since it was opened."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

__all__ = ["Counters", "Statistics", "new_counters", "snapshot"]


class Statistics(msgspec.Struct, frozen=True):
    """A snapshot; counts since the store was opened in this process."""

    requests: Mapping[str, int]
    """Requests and bytes by kind, as the backend counts them at its transport."""
    transactions: int = 0
    """Transactions committed."""
    entries: int = 0
    """Entries committed."""
    conflicts: int = 0
    """Commits that met another writer's commit, and were repeated or refused."""
    retries: int = 0
    """Requests repeated after throttling or an error."""
    settled: int = 0
    """Commits whose answer was lost, and whose outcome was read back."""
    posted: int = 0
    """Requests that this process left in an inbox, for another process to commit."""
    combined: int = 0
    """Requests of other processes that this one has committed with its own."""
    handed_over: int = 0
    """Times that this process had another one write the next transaction of a contended partition."""
    taken_over: int = 0
    """Times that this process wrote because the named process did not."""
    upkeeps: int = 0
    """Times that the index was brought up to the log."""
    upkeep_failures: int = 0
    """Times that this failed; it is tried again."""
    cache_hits: int = 0
    """Statuses and last entries that were found in memory."""
    cache_misses: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        counts = {name: getattr(self, name) for name in self.__struct_fields__[1:]}
        return snapshot, (counts, dict(self.requests))


Counters = dict[str, int]
"""Counts as they happen. Only for figures: concurrent increments may rarely lose one.

It is no class of its own, and every name is in it: Python counts so in half of the time.
"""


def new_counters() -> Counters:
    """Return a zero for each count of `Statistics`."""
    return dict.fromkeys(Statistics.__struct_fields__[1:], 0)


def snapshot(counters: Counters, requests: Mapping[str, int]) -> Statistics:
    """Return the counts so far, with the backend's `requests`."""
    return Statistics(MappingProxyType(dict(requests)), **counters)
