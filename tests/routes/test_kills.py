"""The target is the filtered, mapped source: no doubles, no holes, wherever a process stopped, on every backend."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE, sample

from harness.cramped import cramped
from harness.drivers import MEMORY, MakeDriver
from harness.sweep import StillClock
from streamkit import Entry, Record, Store, StreamkitError
from streamkit.client import Client
from streamkit.routes import Route
from streamkit.testing import CRASHES, SURVIVABLE, Crash, Fault, FaultyDriver, ManualClock, Plan, every_fault
from streamkit_local.driver import LocalDriver

Covered = Callable[[str, int], None]
MENU = (*CRASHES, *SURVIVABLE)


def open_store(driver: Any, id: UUID, clock: ManualClock) -> Store:
    return Client("kills://", driver, 5.0, None, 64 << 20, clock).store(id)


def make_route(store: Store) -> Route:
    def where(entry: Entry) -> bool:
        return entry.payload[-1:] != b"3"

    def segment(entry: Entry) -> str:
        return f"to-{entry.segment}"

    return store.route("copy", "source", "target", where=where, segment=segment, transform=lambda e: e.payload + b"!")


class Kills:
    """Runs of one route on stores under one root, each by a process that meets a fault, and those that follow it."""

    def __init__(self, make_driver: MakeDriver, *, partitions: int = 1, later: float = 0.0) -> None:
        self._clock = StillClock()
        self._make = lambda: make_driver(self._clock)
        self._partitions = partitions
        self._later = later
        """Seconds until another process comes by."""
        self.runs = 0
        self.writes: list[int] = []

    def _forget(self, store: Store) -> None:
        """Time goes by, and the target forgets the keys: merging drops what is older than its window."""
        self._clock.sleep(self._later)
        for at in range(12):
            for partition in range(3 * self._partitions):
                store.produce("target", f"noise-{partition}", [Record(b"%d" % at)])
            store.maintain("target")
            self._clock.sleep(self._later)

    def plans(self) -> Iterator[Plan]:
        trace = self.run(Plan()).faults.trace
        self.writes = [call.number for call in trace if call.kind == "put"]
        return every_fault(trace, MENU, rows=(0,))

    def run(self, plan: Plan, again: Plan | None = None) -> FaultyDriver:
        self.runs += 1
        id = uuid4()
        driver = self._make()
        try:
            store = open_store(driver, id, self._clock)
            if self._partitions > 1:
                store.create_space("source", partitions=self._partitions)
            if self._partitions > 1 or self._later:
                window = 1.0 if self._later else 86_400.0
                store.create_space("target", partitions=self._partitions, idempotency_window=window)
            for at in range(6):
                store.produce("source", f"s{at % 3}", [Record(b"%d" % at), Record(b"%d again" % at)])
            first, second = FaultyDriver(self._make(), plan), FaultyDriver(self._make(), again or Plan())
            for at, faulty in enumerate((first, second)):
                dying = open_store(faulty, id, self._clock)
                with suppress(Crash):
                    for _ in range(3):
                        with suppress(StreamkitError), make_route(dying) as route:
                            route.catch_up()
                            route.resume()
                            break
                if not at:
                    store.produce("source", "s0", [Record(b"later")])
                    if self._later:
                        self._forget(store)
            first.faults.release()
            second.faults.release()
            with make_route(open_store(self._make(), id, self._clock)) as route:
                assert route.catch_up().state == "current"
            wanted: dict[str, list[bytes]] = {}
            for entry in store.consume_space("source"):
                if entry.payload[-1:] != b"3":
                    wanted.setdefault(f"to-{entry.segment}", []).append(entry.payload + b"!")
            seen = open_store(self._make(), id, self._clock)
            found: dict[str, list[bytes]] = {}
            for entry in seen.consume_space("target"):
                if not entry.segment.startswith("noise"):
                    found.setdefault(entry.segment, []).append(entry.payload)
            assert found == wanted
            return first
        except BaseException as error:
            error.add_note(f"with {plan}, then {again}")
            raise
        finally:
            driver.delete(id)


@pytest.mark.parametrize(("backend", "partitions", "one_in"), [("memory", 1, 1), ("remote", 1, 4), ("remote", 3, 12)])
def test_every_fault_at_every_call(backend: str, partitions: int, one_in: int, covered: Covered) -> None:
    kills = Kills(MEMORY[backend], partitions=partitions)
    for plan in sample(kills.plans(), one_in):
        kills.run(plan)
    covered("runs of a route that met a fault, memory", kills.runs)


def test_two_that_stop_one_after_the_other(covered: Covered) -> None:
    kills = Kills(MEMORY["memory"])
    plans = [plan for plan in kills.plans() if plan.faults[0].fault in CRASHES]
    for plan in sample(iter(plans), 4):
        for again in sample(iter(plans), 3):
            kills.run(plan, again)
    covered("runs of a route that met two faults, memory", kills.runs)


@pytest.mark.exhaustive_only(partitions=1)
@pytest.mark.parametrize("partitions", [1, 3])
def test_keys_that_the_target_has_forgotten_are_not_needed(partitions: int, covered: Covered) -> None:
    with cramped():
        kills = Kills(MEMORY["memory"], partitions=partitions, later=86_400.0)
        for plan in sample((plan for plan in kills.plans() if plan.faults[0].fault in CRASHES), partitions):
            kills.run(plan)
    covered("runs of a route that met a fault and rested for days, memory", kills.runs)


def test_every_fault_at_every_call_on_a_disk(covered: Covered) -> None:
    root = mkdtemp(prefix="kills-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    try:
        kills = Kills(lambda clock: LocalDriver(root, 5.0))
        for plan in sample(kills.plans(), 3):
            kills.run(plan)
    finally:
        shutil.rmtree(root)
    covered("runs of a route that met a fault, local", kills.runs)


def on_a_service(driver: Any) -> int:
    """A sample of the cases of memory stores: processes that stop just after their writes."""
    kills = Kills(lambda clock: driver)
    plans = [plan for plan in kills.plans() if plan.faults[0].fault in CRASHES]
    if not EXHAUSTIVE:
        writes = kills.writes
        plans = [Plan.at(call, Fault.CRASH_AFTER) for call in writes[:: max(1, len(writes) // 4)]]
    for plan in plans:
        kills.run(plan)
    driver.close()
    return kills.runs


@pytest.mark.s3
def test_a_process_that_stops_on_s3(s3_bucket: Any, covered: Covered) -> None:
    import streamkit_s3

    runs = on_a_service(streamkit_s3.connect(s3_bucket.url("kills"), timeout=5.0))
    covered("runs of a route that stopped, S3", runs)


@pytest.mark.azure
@pytest.mark.exhaustive_only  # S3 is the service of every run
def test_a_process_that_stops_on_azure(azurite: Any, covered: Covered) -> None:
    import streamkit_azure

    runs = on_a_service(streamkit_azure.connect(azurite.url(), timeout=5.0))
    covered("runs of a route that stopped, Azure", runs)
