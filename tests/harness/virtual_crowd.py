"""Processes that write to one partition as fast as they can, in virtual time.

The machine delays none of them, so only their effects on each other count.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from benchmarks.cost_model import run_engine
from benchmarks.cost_services import Bill, Service, simulated_clients
from benchmarks.simulation import Simulation
from streamkit import Store

from .history import History

__all__ = ["SPACE", "Crowd", "virtual_crowd"]

SPACE = "space"


@dataclass
class Crowd:
    """The result of a run. `seconds` are virtual."""

    history: History
    store: Store
    seconds: float
    counts: Counter[str]


def virtual_crowd(service: Service, processes: int, appends: int, seed: int, *, insisting: bool = False) -> Crowd:
    """Run `processes` processes, each with one writer that appends `appends` times to a segment of its own.

    `insisting`: each has a second thread, which appends as often to its neighbour's segment, and expects the last
    sequence that any process got.
    """
    random.seed(seed)
    simulation, history, store_id = Simulation(), History(), uuid4()
    clients = simulated_clients(service, simulation, Bill(), processes + 1, 1 << 20)
    *stores, after = [client.store(store_id) for client in clients]

    def write(store: Store, segment: str) -> None:
        simulation.sleep(random.random() * 0.1)
        for _ in range(appends):
            history.write(store, SPACE, {segment: 1})

    def insist(store: Store, segment: str) -> None:
        simulation.sleep(random.random() * 0.1)
        for _ in range(appends):
            history.write(store, SPACE, {segment: 1}, expected={segment: history.told(SPACE, segment)})

    def begin() -> None:
        after.create_space(SPACE)
        for at, store in enumerate(stores):
            simulation.start(partial(write, store, f"s{at}"))
            if insisting:
                simulation.start(partial(insist, store, f"s{(at + 1) % processes}"))

    run_engine(simulation, begin)
    counts: Counter[str] = Counter()
    for store in stores:
        told = store.statistics()
        counts.update(posted=told.posted, combined=told.combined, taken_over=told.taken_over)
    return Crowd(history, after, simulation.monotonic(), counts)
