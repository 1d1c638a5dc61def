"""A hundred jobs, one of which is poison: worked off through each door, by processes that are killed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any
from uuid import uuid4

from harness.group_oracle import judge
from harness.history import History
from harness.sweep import Process, StillClock
from streamkit import Record, Store
from streamkit.backend import Driver
from streamkit.groups import Consumer, Delivery, Group
from streamkit.testing import Crash, Plan
from streamkit_memory import MemoryDriver

__all__ = ["DOORS", "JOBS", "MODES", "Poisoned", "fill", "is_poison", "open_group", "work_off", "worked_off"]

JOBS = 100
MODES = ("shared", "exclusive", "key_shared", "queue")
Handler = Callable[[Delivery], None]


class Poisoned(Exception):
    """The error of the poison job."""


def is_poison(delivery: Delivery) -> bool:
    return delivery.entry.payload == b"poison"


def open_group(store: Store, mode: str, **settings: Any) -> Group:
    if mode == "queue":
        return store.queue("orders", **settings).group
    return store.group("orders", "billing", mode=mode, **settings)


def fill(store: Store, mode: str, poison: int) -> None:
    for number in range(JOBS):
        payload = b"poison" if number == poison else b"%d" % number
        if mode == "queue":
            store.queue("orders").put(payload, priority=number % 3 // 2, key=str(number % 4))
        else:
            store.produce("orders", str(number % 7), [Record(payload)])


def _in_blocks(group: Group, handle: Handler) -> None:
    with group.consumer() as consumer:
        _each(consumer, handle, 10)


def _ahead(group: Group, handle: Handler) -> None:
    with group.consumer(prefetch=10) as consumer:
        _each(consumer, handle, 1)


def _each(consumer: Consumer, handle: Handler, limit: int) -> None:
    while deliveries := consumer.receive(limit):
        for delivery in deliveries:
            if consumer.is_held(delivery):
                handle(delivery)
                consumer.ack(delivery)


DOORS: dict[str, Callable[[Group, Handler], object]] = {
    "block": _in_blocks,
    "prefetch": _ahead,
    "run": lambda group, handle: group.run(handle, batch=10, drain=True),
    "threads": lambda group, handle: group.run(handle, batch=10, concurrency=4, drain=True),
}


def work_off(mode: str, door: str, ends: str, most: int, seed: int, driver: Callable[[StillClock], Driver]) -> None:
    """`ends`: the poison "raises" or "kills" its process; "both": it raises, and other jobs kill theirs at times."""
    chance, clock, store_id, done = random.Random(seed), StillClock(), uuid4(), set[bytes]()
    settings: dict[str, Any] = {"ack_timeout": 30.0, "retry_delay": 0.5, "max_deliveries": most, "lanes": 2}
    if mode == "exclusive":
        del settings["lanes"]
    with ExitStack() as stack:

        def begin() -> Process:
            process = Process(driver(clock), store_id, History(), clock, Plan())
            stack.callback(process.close)
            return process

        def kill(process: Process) -> None:
            process.faults._crashed = True
            raise Crash("this process was killed")

        process = begin()
        open_group(process.store, mode, **settings)
        fill(process.store, mode, chance.randrange(JOBS))

        def handle(delivery: Delivery) -> None:
            if is_poison(delivery):
                if ends == "kills":
                    kill(process)
                raise Poisoned("bad\ntotal")
            done.add(delivery.entry.payload)
            if ends == "both" and delivery.attempt < most and chance.random() < 0.05:
                kill(process)

        for _ in range(400):
            group = open_group(process.store, mode)
            with suppress(Crash, Poisoned):
                DOORS[door](group, handle)
            if process.faults.crashed:
                process = begin()
            if open_group(process.store, mode).status().lag == 0:
                break
            clock.sleep(chance.choice([1.0, 31.0]))
        worked_off(process.store, mode, most, done, "kills" if ends == "kills" else "raises")


def worked_off(store: Store, mode: str, most: int, done: set[bytes] | None, ends: str) -> None:
    group = open_group(store, mode)
    status = group.status()
    (letter,) = group.dead_letters()
    assert letter.entry.payload == b"poison"
    assert letter.attempt == most
    assert letter.reason.startswith("max_deliveries: ")
    assert ("Poisoned: bad total" if ends == "raises" else "the deadline passed") in letter.reason
    assert (status.lag, status.dead, status.acked) == (0, 1, JOBS - 1)
    assert done is None or len(done) == JOBS - 1
    history = judge(store, group.space, group.name)
    assert history.errors == [], history.errors[:3]
    assert (history.acked, history.dead) == (JOBS - 1, 1)


def in_memory() -> Callable[[StillClock], Driver]:
    name = uuid4().hex
    return lambda clock: MemoryDriver(name, clock=clock, sleep=clock.sleep)
