"""Views, routes and aggregates: `python -m benchmarks.views [--quick]`; a table, and JSON if --json names a file.

Beside the figure by the wall clock stands that by this process's CPU time: on a machine that has other things to do
only the latter can be compared. Side by side, if they are installed: eventsourcing (SQLite).
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec

import streamkit
from streamkit import Entry, Record, Store, View
from streamkit.eventsourcing import Aggregate, Repository, event
from streamkit.views import Index, Latest, Reduce, Search

_user = msgspec.json.Decoder(dict[str, Any]).decode


class Nothing(View):
    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        pass


class Account(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.balance = 0

    @event
    def pay(self, amount: int) -> None:
        self.balance += amount


def count(state: dict[str, int], entry: Entry) -> dict[str, int]:
    state[entry.segment] = state.get(entry.segment, 0) + 1
    return state


class Table:
    def __init__(self) -> None:
        self.rows: list[tuple[str, float, float, str, str]] = []

    def rate(self, what: str, reach: str, work: Callable[[], int]) -> None:
        """Things a second, by the wall clock and by CPU time."""
        wall, cpu = time.perf_counter(), time.process_time()
        done = work()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.add(what, done / wall, done / max(cpu, 1e-9), "/s", reach)

    def add(self, what: str, wall: float, cpu: float, unit: str, reach: str) -> None:
        self.rows.append((what, wall, cpu, unit, reach))
        print(f"{what:62} {wall:>13,.1f} {cpu:>13,.1f} {unit:4} {reach}", flush=True)


def payloads(count: int) -> Iterator[bytes]:
    for at in range(count):
        fields = {"n": at, "user": f"u{at * 7919 % 5000}", "kind": "abc"[at % 3], "amount": at * 1.5}
        text = f"order of the quick brown fox number {at % 777} over the lazy dog"
        yield json.dumps({**fields, "text": text}).ljust(150).encode()


def fill(store: Store, space: str, count: int, batch: int) -> None:
    found: list[Record] = []
    for at, payload in enumerate(payloads(count)):
        found.append(Record(payload))
        if len(found) == batch or at == count - 1:
            store.produce(space, f"s{at // batch % 50}", found)
            found = []


def views(table: Table, store: Store, folder: Path, entries: int) -> None:
    kinds: list[tuple[str, str, View]] = [
        ("apply that does nothing", "2,000,000", Nothing()),
        ("Reduce", "300,000", Reduce(count, {})),
        ("Latest, by segment", "200,000", Latest(lambda entry: entry.segment)),
        ("Latest, 5,000 users, JSON decoded", "", Latest(lambda entry: _user(entry.payload)["user"])),
        ("Index, 5,000 users, JSON decoded", "120,000", Index(lambda entry: _user(entry.payload)["user"])),
        ("Search", "30,000", Search(lambda entry: _user(entry.payload)["text"])),
    ]
    for name, reach, kind in kinds:
        with store.view(name, kind, ["log"], folder / name) as view:
            table.rate(f"view of {entries:,} entries: {name}", reach, lambda view=view: view.catch_up().entries)  # type: ignore[misc]
            if isinstance(kind, Index):

                def look_up(index: Index = kind) -> int:
                    for at in range(20_000):
                        index.get(f"u{at % 5000}", limit=1)
                    return 20_000

                table.rate("lookup by index", "30,000", look_up)
    with store.view("own write", Latest(lambda entry: entry.segment), ["live"], folder / "live") as view:
        times = []
        for at in range(200):
            begun = time.perf_counter()
            status = store.produce("live", "s", [Record(b"%d" % at)])
            view.wait_for(status.space_offset)
            assert view.get("s").sequence == at + 1
            times.append(1000 * (time.perf_counter() - begun))
        table.add("write, wait_for, query: p50", statistics.median(times), min(times), "ms", "5 (2nd: the fastest)")


def routes(table: Table, store: Store, entries: int, single: int) -> None:
    table.rate(
        f"route, source written 1000 a commit, {entries:,}", "300,000",
        lambda: store.route("large", "log", "copies").catch_up().copied,
    )  # fmt: skip
    fill(store, "single", single, 1)
    table.rate(
        f"route, source written 1 a commit, {single:,}", "10,000",
        lambda: store.route("single", "single", "single copies").catch_up().copied,
    )  # fmt: skip


def aggregates(table: Table, store: Store, folder: Path, times: int) -> None:
    repository = Repository(store, "accounts", Account)
    for at in range(50):
        repository.execute(f"a{at}", lambda account: [account.pay(1) for _ in range(20)])

    def execute(which: Repository[Account]) -> int:
        for at in range(times):
            which.execute(f"a{at % 50}", lambda account: account.pay(1))
        return times

    def append() -> int:
        for at in range(times):
            store.produce("plain", f"a{at % 50}", [Record(b'{"amount":1}')])
        return times

    table.rate("an append, durable: what the disk allows", "", append)
    table.rate("execute on an aggregate of 20 events, cached", "3,000", lambda: execute(repository))
    table.rate("the same without a cache", "", lambda: execute(Repository(store, "accounts", Account, cache=0)))
    eventsourcing(table, folder, times)


def eventsourcing(table: Table, folder: Path, times: int) -> None:
    """The same by its library, with SQLite on the same disk."""
    os.environ["PERSISTENCE_MODULE"] = "eventsourcing.sqlite"
    os.environ["SQLITE_DBNAME"] = str(folder / "eventsourcing.db")
    try:
        from eventsourcing import domain
        from eventsourcing.application import Application
    except ImportError:
        print("eventsourcing is not installed: not compared")
        return

    class Theirs(domain.Aggregate):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.balance = 0

        @domain.event("Paid")
        def pay(self, amount: int) -> None:
            self.balance += amount

    def execute(cache: int) -> int:
        application: Any = Application({"AGGREGATE_CACHE_MAXSIZE": str(cache)} if cache else {})
        for at in range(times):
            account = application.repository.get(ids[at % 50])
            account.pay(1)
            application.save(account)
        return times

    application = Application()
    ids: list[UUID] = []
    for _ in range(50):
        account = Theirs()
        for _ in range(19):
            account.pay(1)
        application.save(account)
        ids.append(account.id)
    table.rate("eventsourcing (SQLite): get, pay, save, cached", "half of ours", lambda: execute(1000))
    table.rate("the same without a cache", "", lambda: execute(0))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.views")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    found = parser.parse_args(arguments)
    entries, single, times = (100_000, 1000, 300) if found.quick else (1_000_000, 20_000, 3000)
    table = Table()
    print(f"{'':62} {'wall clock':>13} {'CPU time':>13}      reach;  load {os.getloadavg()[0]:.0f}")
    with tempfile.TemporaryDirectory() as folder, streamkit.connect(f"file://{folder}/stores") as client:
        store = client.store(uuid4())
        fill(store, "log", entries, 1000)
        views(table, store, Path(folder), entries)
        routes(table, store, entries, single)
        aggregates(table, store, Path(folder), times)
    if found.json:
        Path(found.json).write_text(json.dumps(table.rows, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
