"""Metrics that are read from counts and statuses when a reader asks for them: they cost the calls nothing."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from ..errors import StreamkitError
from ..open_store import OpenStore, open_stores
from ..statistics import snapshot
from . import names

__all__ = ["Meters", "observed"]

Values = Iterable[tuple[float, dict[str, str]]]
"""Values, each with its attributes."""
_MOST_PARTS = 1000
"""Groups, views and routes whose lag is observed. Their status is read from the storage."""


def observed(values: Callable[[], Values]) -> list[Callable[[Any], Any]]:
    """The callbacks of an observable instrument that gives `values`."""
    from opentelemetry.metrics import Observation

    return [lambda _: [Observation(value, attributes) for value, attributes in values()]]


class Meters:
    """The counts of all stores of this process, closed ones too, and the lags of its groups, views and routes.

    They may be read in any thread.
    """

    def __init__(self, meter: Any) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._closed: Counter[str] = Counter()
        """Counts of the stores that were closed. A counter never goes down."""
        self._parts: dict[str, weakref.WeakValueDictionary[tuple[Any, ...], Any]] = {
            kind: weakref.WeakValueDictionary() for kind in ("group", "view", "route")
        }
        reference = weakref.ref(self)  # the meter exists until the process ends

        def values(method: Callable[[Meters], Values]) -> list[Callable[[Any], Any]]:
            def present() -> Values:
                found = reference()
                return [] if found is None or found._stopped else method(found)

            return observed(present)

        for count, (name, unit, description) in names.COUNTERS.items():
            meter.create_observable_counter(name, values(_count(count)), unit, description)
        meter.create_observable_counter(
            names.REQUESTS, values(Meters._requests), "{request}", "Requests to the storage, by kind"
        )
        meter.create_observable_counter(names.BYTES, values(Meters._bytes), "By", "Bytes from and to the storage")
        for kind, (name, unit, description) in names.GAUGES.items():
            meter.create_observable_gauge(name, values(_lag(kind)), unit, description)

    def keep(self, store: OpenStore) -> None:
        """Add the counts of a store that is about to be closed."""
        with self._lock:
            self._closed += _counts_of(store)

    def observe(self, kind: str, part: Any) -> None:
        """Observe the lag of a group, a view or a route while it is in use."""
        parts = self._parts[kind]
        space = part.space if kind == "group" else ""
        key = (part.store.id, space, part.name)
        if key not in parts and len(parts) < _MOST_PARTS:
            with self._lock:
                parts[key] = part

    def stop(self) -> None:
        self._stopped = True

    def counts(self) -> Counter[str]:
        """All counts of this process; those of requests as "requests.<kind>"."""
        with self._lock:
            found = Counter(self._closed)
        for store in open_stores():
            found += _counts_of(store)
        return found

    def _requests(self) -> Values:
        prefix = "requests."
        for name, value in self.counts().items():
            if name.startswith(prefix) and not name.startswith(f"{prefix}bytes_"):
                yield value, {names.REQUEST_KIND: name.removeprefix(prefix)}

    def _bytes(self) -> Values:
        counts = self.counts()
        for kind, direction in (("bytes_read", "read"), ("bytes_written", "write")):
            yield counts[f"requests.{kind}"], {names.DIRECTION: direction}

    def lags(self, kind: str) -> Iterator[tuple[float, dict[str, str]]]:
        """The lag of each part of a kind. A part whose storage does not answer is left out."""
        with self._lock:
            parts = list(self._parts["group" if kind == "dead" else kind].items())
        for (store, space, name), part in parts:
            try:
                status = part.status()
            except StreamkitError:
                continue
            attributes = {names.STORE: str(store), names.PART: name}
            if space:
                attributes[names.MESSAGING_DESTINATION] = space
            value = {"group": "lag", "dead": "dead"}.get(kind, "behind")
            yield float(getattr(status, value)), attributes


def _count(name: str) -> Callable[[Meters], Values]:
    return lambda meters: [(meters.counts()[name], {})]


def _lag(kind: str) -> Callable[[Meters], Values]:
    return lambda meters: meters.lags(kind)


def _counts_of(store: OpenStore) -> Counter[str]:
    statistics = snapshot(store.counters, store.backend.requests)
    found: Counter[str] = Counter(
        {name: value for name, value in msgspec.structs.asdict(statistics).items() if isinstance(value, int)}
    )
    for kind, value in statistics.requests.items():
        found[f"requests.{kind}"] += value
    return found
