"""Requests to a storage service, counted: all, and those that wait for each other.

    python -m benchmarks.requests [--quick]

The store is one in memory that behaves like a service (`memory://?remote=1`). A get or a read of many rows is a request
for each, up to 40 at once, as on S3; a list is one for each 1000 keys; a delete is one for each 1000 rows.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import streamkit_memory
from streamkit import Client, Record, Store
from streamkit.backend import Backend
from streamkit.clock import SYSTEM_CLOCK
from streamkit.testing import ManualClock

__all__ = ["Counted", "CountingDriver", "fresh", "main"]

_AT_ONCE = 40
_ROWS = 1000
_EACH = ("get", "read")


class Counted(Counter[str]):
    """Requests by kind; `trips` are those that one caller waited for, one after the other."""

    @property
    def requests(self) -> int:
        return sum(self.values()) - self["trips"]

    @property
    def writes(self) -> int:
        """The requests that a service bills as writes. Deletions are free."""
        return self["put"] + self["scan"]


class _CountingBackend:
    def __init__(self, inner: Backend, counted: Counted) -> None:
        self._inner = inner
        self._counted = counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _count(self, kind: str, requests: int, trips: int) -> None:
        self._counted[kind] += requests
        self._counted["trips"] += trips

    def get(self, partition: bytes, keys: Any) -> Any:
        self._count("get", len(keys), -(-len(keys) // _AT_ONCE))
        return self._inner.get(partition, keys)

    def read(self, partition: bytes, ranges: Any) -> Any:
        self._count("read", len(ranges), -(-len(ranges) // _AT_ONCE))
        return self._inner.read(partition, ranges)

    def put(self, *arguments: Any, **options: Any) -> Any:
        self._count("put", 1, 1)
        return self._inner.put(*arguments, **options)

    def delete(self, partition: bytes, keys: Any) -> None:
        self._count("delete", -(-len(keys) // _ROWS), 1)
        self._inner.delete(partition, keys)

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Any]:
        rows = list(self._inner.scan(partition, start, end, limit=limit, values=values))
        pages = max(1, -(-len(rows) // _ROWS))
        self._count("scan", pages, pages)
        if values:
            self._count("get", len(rows), -(-len(rows) // _AT_ONCE))
        yield from rows


class CountingDriver:
    """Opens stores whose requests are counted together."""

    def __init__(self, name: str, clock: ManualClock | None = None) -> None:
        self.counted = Counted()
        self._inner = streamkit_memory.MemoryDriver(name, remote=True, clock=clock or time.monotonic)

    def open(self, store: UUID) -> Any:
        return _CountingBackend(self._inner.open(store), self.counted)

    def stores(self) -> Iterator[UUID]:
        return self._inner.stores()

    def delete(self, store: UUID, keep: Collection[tuple[bytes, bytes]] = ()) -> None:
        self._inner.delete(store, keep)

    def close(self) -> None:
        self._inner.close()

    def count(self, work: Callable[[], object]) -> Counted:
        """The requests of `work`."""
        before = Counted(self.counted)
        work()
        return Counted({kind: count - before[kind] for kind, count in self.counted.items() if count > before[kind]})


def fresh(name: str, store_id: UUID) -> tuple[Store, CountingDriver]:
    """The store as a process opens it that knows nothing of it."""
    driver = CountingDriver(name)
    client = Client("memory://", driver, 30.0, None, 1 << 20, SYSTEM_CLOCK)
    return client.store(store_id), driver


def appends(
    store: Store, driver: CountingDriver, count: int, segments: int, size: int = 128
) -> tuple[Counted, Counted]:
    """Make `count` appends of one record each, to `segments` segments in turn. Returns the requests of all, and those
    of the append that waited for the most."""
    total, longest = Counted(), Counted()
    for number in range(count):
        payload = random.randbytes(size)
        asked = driver.count(partial(store.produce, "space", f"segment-{number % segments}", [Record(payload)]))
        total.update(asked)
        if asked["trips"] > longest["trips"]:
            longest = asked
    return total, longest


def _report(what: str, counted: Counted, each: int = 1) -> None:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counted.items()) if kind != "trips")
    print(
        f"{what:56} {counted['trips']:7} trips {counted.requests:7} requests {counted.writes / each:8.4f} writes each"
        f"  ({kinds})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.requests", description=str(__doc__).split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", default="", help="letters of the parts to run: a, b, c")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    random.seed(1)
    parts = options.only or "abc"

    if "a" in parts:
        for segments in (1, 100, 10_000):
            store, driver = fresh(f"requests-{uuid4()}", uuid4())
            store.produce("space", "first", [Record(b"")])
            began = time.monotonic()
            total, longest = appends(store, driver, 10_000 // scale, min(segments, 10_000 // scale))
            _report(f"{10_000 // scale:,} appends to {segments:,} segments", total, 10_000 // scale)
            _report("  the one that waited for the most", longest)
            print(f"  {time.monotonic() - began:.0f} s")

    if "b" in parts:
        name, store_id = f"requests-{uuid4()}", uuid4()
        store, driver = fresh(name, store_id)
        segments, entries = 100_000 // scale, 1_000_000 // scale
        began = time.monotonic()
        for number in range(entries // 100):
            with store.transaction("space") as trx:
                for at in range(100):
                    segment = (number * 100 + at) * 7919 % segments
                    trx.produce(f"segment-{segment}", [Record(random.randbytes(128))])
        print(f"  {segments:,} segments, {entries:,} entries, 100 a commit: {time.monotonic() - began:.0f} s")
        _fresh(name, store_id, segments)
        for number in range(31):
            store.produce("space", f"segment-{number}", [Record(b"x")])
        _fresh(name, store_id, segments)

    if "c" in parts:
        name, store_id = f"requests-{uuid4()}", uuid4()
        store, driver = fresh(name, store_id)
        count = 100_000 // scale
        store.produce("space", "first", [Record(b"")])
        began = time.monotonic()
        total, longest = appends(store, driver, count, 1000)
        _report(f"{count:,} appends to 1,000 segments", total, count)
        _report("  the one that waited for the most", longest)
        store, driver = fresh(name, store_id)
        found: list[int] = []
        counted = driver.count(lambda: found.append(sum(1 for _ in store.consume_space("space"))))
        assert found == [count + 1], found
        _report(f"read a space of {count:,} commits, fresh", counted)
        print(f"  {time.monotonic() - began:.0f} s")


def _fresh(name: str, store_id: UUID, segments: int) -> None:
    """The worst of some segments, of processes that each do one thing."""
    worst = {what: Counted() for what in ("append", "append, and upkeep", "load")}
    for _ in range(40):
        segment = f"segment-{random.randrange(segments)}"
        store, driver = fresh(name, store_id)
        asked = driver.count(partial(store.produce, "space", segment, [Record(b"x")]))
        _keep_worst(worst, "append" if asked["put"] == 1 else "append, and upkeep", asked)
        store, driver = fresh(name, store_id)
        asked = driver.count(lambda store=store, segment=segment: list(store.consume_segment("space", segment)))
        _keep_worst(worst, "load", asked)
    for what, asked in worst.items():
        _report(f"fresh process: {what} (worst of 40)", asked)


def _keep_worst(worst: dict[str, Counted], what: str, asked: Counted) -> None:
    if (asked["trips"], asked.requests) > (worst[what]["trips"], worst[what].requests):
        worst[what] = asked


if __name__ == "__main__":
    main()
