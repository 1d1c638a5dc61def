"""Costs and scaling of appends in the cloud: the real engine against simulated services.

    python -m benchmarks.cost_model [--publish]

The engine is streamkit's own: stores, group commit, conflicts, back-off, index upkeep. Simulated are the services,
with published latencies and limits, and time itself (see simulation.py): what the processors of the clients would take
is not in the figures. Each writer appends one record of 200 bytes after the other to a segment of its own.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from streamkit import Record
from streamkit import open_store as engine_open_store
from streamkit.index.upkeep import bring_forward
from streamkit.log import commit as engine_commit
from streamkit.log import partition as engine_partition
from streamkit.log import refresher as engine_refresher
from streamkit.log.partition import Partition
from streamkit.store import inner

from .cost_crowds import counted, crowds
from .cost_report import Result, line, publish, tables
from .cost_services import Bill, Service, services, simulated_clients
from .simulation import Simulation

ROOT = Path(__file__).parent.parent
RECORD = 200
SHAPES = ((1, 1), (1, 16), (1, 256), (4, 4), (4, 256), (16, 16), (16, 256), (64, 64), (64, 256))
"""(processes, writers in all)"""
PARTITIONS = (1, 8, 64)
SECONDS = 4.0
WARM_UP = 3.0
"""Seconds in which processes that will share an inbox still compete."""
MOST_REQUESTS = 4500
"""Virtual seconds of a run; it ends early after so many requests."""


class _Threading:
    """The module `threading` for the engine, whose locks wait in virtual time."""

    def __init__(self, simulation: Simulation) -> None:
        self.Lock = simulation.lock
        self.RLock = simulation.rlock

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


def run_engine(simulation: Simulation, *works: Callable[[], object]) -> None:
    """Start these, and run them all to their end, with the engine's own locks waiting in virtual time."""
    shim: Any = _Threading(simulation)
    try:
        _set_threading(shim)
        for work in works:
            simulation.start(work)
        simulation.run()
    finally:
        _set_threading(threading)


def _set_threading(module: Any) -> None:
    for part in (engine_commit, engine_partition, engine_refresher, engine_open_store):
        vars(part)["threading"] = module


class Case:
    """One run: so many writers in so many processes, each as fast as it can."""

    def __init__(
        self,
        service: Service,
        processes: int,
        writers: int,
        partitions: int,
        *,
        seed: int = 0,
        seconds: float = SECONDS,
        most: float = MOST_REQUESTS,
    ) -> None:
        self.service = service
        self.seed = seed
        self.seconds = seconds
        self.most = most
        self.shape = (processes, writers, partitions)
        self.simulation = Simulation()
        self.bill = Bill()
        self.done: list[tuple[float, float]] = []
        """Beginning and end of each append."""
        self.writers: list[int] = []
        """The writers whose appends were done after the warm-up."""
        self.began = 0.0
        self.ended = math.inf
        self.window: list[Counter[str]] = []
        self.clients = simulated_clients(service, self.simulation, self.bill, processes, 1 << 20)
        store_id = uuid4()
        self.stores = [client.store(store_id) for client in self.clients]

    def run(self) -> Result:
        random.seed(f"{self.service.name} {self.shape} {self.seed}")
        run_engine(self.simulation, self._begin)
        for client in self.clients:
            client.close()
        return self._result()

    def _begin(self) -> None:
        _, writers, partitions = self.shape
        self.stores[0].create_space("space", partitions)
        self.began = self.simulation.monotonic() + WARM_UP
        self.ended = self.began + self.seconds
        for writer in range(writers):
            self.simulation.start(lambda writer=writer: self._write(writer))  # type: ignore[misc]
        self.simulation.start(self._watch)

    def _write(self, writer: int) -> None:
        simulation = self.simulation
        store = self.stores[writer % len(self.stores)]
        simulation.sleep(random.random() * 0.1)
        payload = random.randbytes(RECORD)
        while simulation.monotonic() < self.ended:
            start = simulation.monotonic()
            store.produce("space", f"segment-{writer}", [Record(payload)])
            self.done.append((start, simulation.monotonic()))
            if self.began <= simulation.monotonic() <= self.ended:
                self.writers.append(writer)

    def _watch(self) -> None:
        """Takes what the window costs, ends it early once there is enough, then brings the index forward."""
        simulation = self.simulation
        simulation.sleep(self.began - simulation.monotonic())
        self.window.append(self._counted())
        while simulation.monotonic() < self.ended:
            simulation.sleep(0.05)
            if self.bill.requests - self.window[0]["requests"] > self.most and len(self.done) > 1000:
                self.ended = simulation.monotonic()
        self.ended = simulation.monotonic()
        self.window.append(self._counted())
        simulation.sleep(5.0)
        self.window.append(self._counted())
        self._bring_forward()
        self.window.append(self._counted())

    def _bring_forward(self) -> None:
        """Index what is not indexed yet: of each partition by the process that has seen the most of it."""
        ahead: dict[int, Partition] = {}
        for store in self.stores:
            space = inner(store).spaces.get("space")
            for partition in space.partitions if space is not None else ():
                if partition.number > partition.watermark and (
                    partition.partition not in ahead or partition.number > ahead[partition.partition].number
                ):
                    ahead[partition.partition] = partition
        for partition in ahead.values():
            if not bring_forward(partition):
                bring_forward(partition)

    def _counted(self) -> Counter[str]:
        bill = self.bill
        statistics = [store.statistics() for store in self.stores]
        return Counter(
            requests=bill.requests,
            writes=bill.writes,
            reads=bill.reads,
            uploaded=bill.uploaded,
            downloaded=bill.downloaded,
            throttled=bill.throttled,
            commits=sum(found.transactions for found in statistics),
            conflicts=sum(found.conflicts for found in statistics),
        )

    def _result(self) -> Result:
        service = self.service
        before, after, idle, indexed = self.window
        spent = {name: after[name] - before[name] for name in after}
        seconds = self.ended - self.began
        appends = sum(self.began <= end <= self.ended for _, end in self.done)
        waits = sorted(end - start for start, end in self.done if end >= self.began)
        # The index follows during the run. All commits share the upkeep that is left at the end.
        share = spent["commits"] / max(1, after["commits"])
        total = {name: spent[name] + share * (indexed[name] - idle[name]) for name in spent}
        dollars = (
            total["writes"] * service.write_price / 1e6
            + total["reads"] * service.read_price / 1e6
            + total["uploaded"] * service.upload_price / 1e9
            + total["downloaded"] * service.download_price / 1e9
        )
        tried = spent["commits"] + spent["conflicts"]
        return Result(
            service.name,
            *self.shape,
            rate=appends / seconds,
            p50=waits[len(waits) // 2] * 1000,
            p99=waits[int(len(waits) * 0.99)] * 1000,
            longest=waits[-1] * 1000,
            requests=total["requests"] / appends,
            conflicts=spent["conflicts"] / tried if tried else 0.0,
            throttled=spent["throttled"] / max(1, spent["requests"] + spent["throttled"]),
            dollars=dollars / appends * 1e6,
        )


def _crowd(
    service: Service, processes: int, writers: int, seed: int, seconds: float, most: float
) -> tuple[Result, Sequence[int]]:
    case = Case(service, processes, writers, 1, seed=seed, seconds=seconds, most=most)
    return case.run(), counted(case.writers, writers)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_model", description=str(__doc__).split("\n")[0])
    parser.add_argument("--publish", action="store_true", help="also write docs/cost-and-scale.md and .png")
    parser.add_argument("--quick", action="store_true", help="a few cases, seconds: does it run")
    options = parser.parse_args()
    started = time.monotonic()
    results = []
    cases = [(service, *shape, count) for service in services() for shape in SHAPES for count in PARTITIONS]
    if options.quick:
        cases = cases[:: len(cases) // 6]
    for at, (service, processes, writers, partitions) in enumerate(cases):
        results.append(Case(service, processes, writers, partitions).run())
        if sys.stderr.isatty():
            print(f"\r\033[K{at + 1} of {len(cases)}", end="", file=sys.stderr, flush=True)
        else:
            print(line(results[-1]), flush=True)
    print(f"{len(cases)} cases, {time.monotonic() - started:.0f} s", file=sys.stderr)

    if options.publish:
        publish(results, crowds(services(), _crowd), services(), SECONDS, WARM_UP, ROOT / "docs")
    else:
        print(tables(results))


if __name__ == "__main__":
    main()
