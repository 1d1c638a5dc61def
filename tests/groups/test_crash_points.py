"""Every fault at every call that a consumer makes to the storage."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

from harness.group_oracle import judge
from harness.history import History
from harness.sweep import Process, StillClock
from streamkit import StreamkitError
from streamkit.groups import Queue
from streamkit.groups.lane import LaneState
from streamkit.testing import Crash, Plan, every_fault
from streamkit.testing.fault_plan import CRASHES, SURVIVABLE, Call
from streamkit_memory import MemoryDriver

JOBS = 12
SAMPLE = 120


@pytest.fixture(autouse=True)
def _whole_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.groups.chain.Chain._trim", lambda chain, snapshot: None)


def life(process: Process, put: set[bytes]) -> None:
    """Jobs of all kinds, two consumers, and all that can be said about a delivery."""
    store = process.store
    queue = store.queue("jobs", ack_timeout=10.0, max_deliveries=3, lanes=2)
    for number in range(JOBS):
        payload = b"%d" % number
        with suppress(StreamkitError):
            delay = 5.0 if number % 5 == 4 else 0.0
            queue.put(payload, priority=number % 2, delay=delay, idempotency_key=f"job-{number}")
            put.add(payload)
    for name in ("one", "two"):
        with suppress(StreamkitError), queue.consumer(name, linger=0) as consumer:
            for turn in range(3):
                for at, delivery in enumerate(consumer.receive(4)):
                    with suppress(StreamkitError):
                        (consumer.ack, consumer.nack, consumer.release, consumer.reject)[(at + turn) % 4](delivery)
                with suppress(StreamkitError):
                    for delivery in consumer.receive(2):
                        consumer.extend(delivery, 20.0)
                        consumer.ack(delivery)
            store.maintain()
    with suppress(StreamkitError):
        queue.redrive()


def finish(process: Process) -> Queue:
    """The next process: it works off the rest."""
    queue = process.store.queue("jobs")
    for _ in range(60):
        with queue.consumer("last", linger=0) as consumer:
            while deliveries := consumer.receive(5):
                for delivery in deliveries:
                    consumer.ack(delivery)
        status = queue.status()
        if not (status.lag or status.pending or status.ready or status.delayed):
            break
        process.clock.sleep(10.0)
    return queue


def run(plan: Plan) -> tuple[Call, ...]:
    clock, root, store_id, put = StillClock(), uuid4().hex, uuid4(), set[bytes]()
    with ExitStack() as stack:

        def process(plan: Plan) -> Process:
            driver = MemoryDriver(root, remote=True, clock=clock, sleep=clock.sleep)
            found = Process(driver, store_id, History(), clock, plan)
            stack.callback(found.close)
            return found

        first = process(plan)
        try:
            with suppress(Crash, StreamkitError):
                life(first, put)
            first.faults.release()
            last = process(Plan())
            queue = finish(last)
            history = judge(last.store, "jobs", "queue")
            assert history.errors == []
            status = queue.status()
            assert (status.lag, status.pending, status.ready, status.delayed) == (0, 0, 0, 0)
            payloads = {entry.payload for entry in last.store.consume_space("jobs")}
            assert put <= payloads
            assert history.acked + history.dead == len(list(last.store.consume_space("jobs")))
            assert last.store.verify().ok
        except BaseException as error:
            error.add_note(f"with {plan}")
            raise
    return first.faults.trace


def test_a_consumers_life_survives_a_fault_at_any_call(covered: Callable[[str, int], None]) -> None:
    trace = run(Plan())
    plans = list(every_fault(trace, (*SURVIVABLE, *CRASHES), delays=(None, 1), rows=(0,)))
    if not EXHAUSTIVE:
        plans = random.Random(14).sample(plans, SAMPLE)
    for plan in plans:
        run(plan)
    covered("crash points of a consumer's life", len(plans))


def test_the_sweep_is_not_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that forgets to finish what was acknowledged."""
    monkeypatch.setattr(LaneState, "_finish", lambda self, ranges: None)
    with pytest.raises(AssertionError):
        run(Plan())
