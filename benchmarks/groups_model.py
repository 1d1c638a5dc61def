"""Costs of the consumers of a group in the cloud: the real engine against simulated services.

    python -m benchmarks.groups_model [--quick] [--publish]

As in cost_model.py, time is simulated and what the processors take is not in the figures. So many processes with a
consumer each work off a space that is full when they begin; their handlers take no time.
"""

from __future__ import annotations

import argparse
import random
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import uuid4

from streamkit import Record
from streamkit.groups import chain, core, group, source
from streamkit.log import commit, partition, refresher

from .cost_model import _Threading
from .cost_services import Bill, Service, services, simulated_clients
from .groups_page import publish
from .simulation import Simulation

_MODULES: tuple[Any, ...] = (commit, partition, refresher, chain, core, group, source)
SHAPES = ((16, 10), (16, 100), (1, 10), (1, 1), (8, 10))
"""(processes, batch)"""


class _Timed(_Threading):
    """Timers too."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._simulation = simulation

    def Timer(self, seconds: float, call: Callable[[], None]) -> Any:
        simulation = self._simulation

        class Timer:
            canceled = False

            def start(self) -> None:
                simulation.start(lambda: (simulation.sleep(seconds), self.canceled or call())[1])

            def cancel(self) -> None:
                self.canceled = True

        return Timer()


class Result(NamedTuple):
    service: str
    processes: int
    batch: int
    entries: int
    rate: float
    reads: float
    """Requests an entry, with those of the beginning."""
    writes: float
    opening: float
    """Requests of a process until it is open."""
    p50: float
    p99: float
    """Milliseconds of a `receive`."""
    spread: float
    dollars: float
    """A million entries."""

    def __str__(self) -> str:
        return (
            f"| {self.service} | {self.processes} | {self.batch} | {self.rate:,.0f} | {self.reads + self.writes:.2f} "
            f"({self.writes:.2f} writes) | {self.opening:.0f} | {self.p50:,.0f} / {self.p99:,.0f} ms "
            f"| {self.spread:.0%} | ${self.dollars:.2f} |"
        )


class Case:
    def __init__(self, service: Service, processes: int, batch: int, entries: int) -> None:
        self.service, self.batch, self.entries = service, batch, entries
        self.simulation, self.bill = Simulation(), Bill()
        store = uuid4()
        self.clients = simulated_clients(service, self.simulation, self.bill, processes, 4 << 20)
        self.stores = [client.store(store) for client in self.clients]
        self.done: list[list[float]] = [[] for _ in range(processes)]
        """The times at which batches were handed out."""
        self.counts = [0] * processes
        self.before = (0, 0)
        self.opened = 0
        self.began = self.ended = 0.0
        self.open = 0

    def run(self) -> Result:
        random.seed(f"{self.service.name} {len(self.stores)} {self.batch}")
        shim: Any = _Timed(self.simulation)
        try:
            for module in _MODULES:
                vars(module)["threading"] = shim
            self.simulation.start(self._begin)
            self.simulation.run()
        finally:
            for module in _MODULES:
                vars(module)["threading"] = threading
        for client in self.clients:
            client.close()
        return self._result()

    def _begin(self) -> None:
        store = self.stores[0]
        for first in range(0, self.entries, 100):
            store.produce("space", f"segment-{first // 100 % 50}", [Record(random.randbytes(200))] * 100)
        store.group("space", "billing", ack_timeout=600.0, lanes=max(8, len(self.stores)))
        self.before = self.bill.writes, self.bill.reads
        self.began = self.simulation.monotonic()
        for number in range(len(self.stores)):
            self.simulation.start(lambda number=number: self._work(number))  # type: ignore[misc]

    def _work(self, number: int) -> None:
        simulation = self.simulation
        simulation.sleep(random.random() * 0.1)
        found = self.stores[number].group("space", "billing")
        with found.consumer(f"worker-{number}") as consumer:
            self.open += 1
            if self.open == len(self.stores):
                self.opened = self.bill.requests - sum(self.before)
            times = self.done[number]
            times.append(simulation.monotonic())
            while deliveries := consumer.receive(self.batch):
                times.append(simulation.monotonic())
                for delivery in deliveries:
                    consumer.ack(delivery)
                self.counts[number] += len(deliveries)
        self.ended = max(self.ended, simulation.monotonic())

    def _result(self) -> Result:
        assert sum(self.counts) == self.entries, f"{sum(self.counts)} of {self.entries} were done"
        service, entries = self.service, self.entries
        writes, reads = self.bill.writes - self.before[0], self.bill.reads - self.before[1]
        waits = sorted(after - before for times in self.done for before, after in pairwise(times))
        return Result(
            service.name,
            len(self.stores),
            self.batch,
            entries,
            rate=entries / (self.ended - self.began),
            reads=reads / entries,
            writes=writes / entries,
            opening=self.opened / len(self.stores),
            p50=waits[len(waits) // 2] * 1000,
            p99=waits[int(len(waits) * 0.99)] * 1000,
            spread=(max(self.counts) - min(self.counts)) / (entries / len(self.counts)),
            dollars=(writes * service.write_price + reads * service.read_price) / entries,
        )


HEAD = (
    "| service | processes | batch | entries/s | requests an entry | to open | receive p50 / p99 | spread | 1 M |",
    "|---|---|---|---|---|---|---|---|---|",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups_model", description=str(__doc__).split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few entries: does it run")
    parser.add_argument("--entries", type=int, default=40_000, help="of each run; fewer where few take them")
    parser.add_argument("--publish", action="store_true", help="also write docs/groups.md")
    options = parser.parse_args()
    print(*HEAD, sep="\n")
    lines = [*HEAD]
    for service in services()[: 1 if options.quick else None]:
        for processes, batch in SHAPES[: 1 if options.quick else None]:
            entries = 4_000 if options.quick else min(options.entries, 400 * processes * batch)
            lines.append(str(Case(service, processes, batch, entries).run()))
            print(lines[-1], flush=True)
    if options.publish:
        publish("benchmarks.groups_model", lines)


if __name__ == "__main__":
    main()
