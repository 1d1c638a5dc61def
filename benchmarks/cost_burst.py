"""A burst in the cost model: many processes appear at once, each with some requests to one partition.

    python -m benchmarks.cost_burst [--processes 1000] [--requests 10000] [--seeds 3]

The real engine on simulated S3 (see cost_model.py): every process begins within a tenth of a second, opens the store,
and appends its share one after the other. Afterwards the log is read: all that was acknowledged is in it, once.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from dataclasses import dataclass
from uuid import uuid4

from streamkit import Record, Store

from .cost_model import run_engine
from .cost_services import Bill, Service, services, simulated_clients
from .simulation import Simulation

__all__ = ["Burst", "burst"]

_BEGIN = 0.1
"""Seconds in which all appear."""


@dataclass
class Burst:
    seconds: float
    """Seconds until all is committed."""
    begun: float
    """Seconds until every process had its first append."""
    p50: float
    p99: float
    """Seconds of an append."""
    requests: float
    """Requests of an append, without throttled ones."""
    transactions: int
    lost: int
    """Appends that were acknowledged and are not in the log, or are not at their place."""
    twice: int
    failed: int


def burst(service: Service, processes: int, requests: int, seed: int) -> Burst:
    """`requests` in all, as many by each process."""
    random.seed(f"burst {service.name} {processes} {seed}")
    simulation, bill, store_id = Simulation(), Bill(), uuid4()
    *stores, after = [
        client.store(store_id) for client in simulated_clients(service, simulation, bill, processes + 1, 1 << 20)
    ]
    done: list[tuple[float, float]] = []
    first: dict[str, float] = {}
    told: dict[bytes, tuple[str, int, int]] = {}
    failed: list[Exception] = []

    def work(store: Store, segment: str) -> None:
        simulation.sleep(random.random() * _BEGIN)
        for turn in range(requests // processes):
            payload, began = f"{segment} {turn}".encode(), simulation.monotonic()
            try:
                status = store.produce("space", segment, [Record(payload)])
            except Exception as error:
                failed.append(error)
                continue
            done.append((began, simulation.monotonic()))
            first.setdefault(segment, simulation.monotonic())
            assert status.trx is not None
            told[payload] = segment, status.last_sequence, status.trx.number

    def begin() -> None:
        after.create_space("space")
        for at, store in enumerate(stores):
            simulation.start(lambda store=store, at=at: work(store, f"segment-{at}"))  # type: ignore[misc]

    run_engine(simulation, begin)
    sent, waits = bill.requests, sorted(end - began for began, end in done)
    there = Counter[bytes]()
    for entry in after.consume_space("space"):
        there[entry.payload] += 1
        if told.get(entry.payload) == (entry.segment, entry.sequence, entry.trx.number):
            del told[entry.payload]
    return Burst(
        max(end for _, end in done),
        max(first.values()),
        waits[len(waits) // 2],
        waits[int(len(waits) * 0.99)],
        sent / len(done),
        sum(store.statistics().transactions for store in stores),
        len(told),
        sum(count - 1 for count in there.values()),
        len(failed),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_burst", description=str(__doc__).split("\n")[0])
    parser.add_argument("--processes", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for seed in range(1, options.seeds + 1):
        print(seed, burst(services()[0], options.processes, options.requests, seed), flush=True)


if __name__ == "__main__":
    main()
