"""Requests that another process commits: exactly once or not at all, with any fault of the two processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from unittest import SkipTest

import pytest
from fix_covered import EXHAUSTIVE

from harness.combining import CombiningDriver, posting
from harness.drivers import MEMORY
from harness.store_checks.committing import Committing
from harness.store_checks.producing import Producing
from harness.sweep import Process, Sweep, Workload, everyday, insists
from harness.turns import every_interleaving, random_interleavings
from streamkit import Client
from streamkit.backend import Driver
from streamkit.clock import SYSTEM_CLOCK
from streamkit.errors import StreamkitError
from streamkit_memory.driver import MemoryDriver

Covered = Callable[[str, int], None]
REMOTE = MEMORY["remote"]
_COUNT = (
    "test_a_transaction_writes_all_its_segments",
    "test_many_segments_commit_together",
    "test_the_status_says_what_was_written",
)
"""Checks that count transactions."""


@pytest.fixture(autouse=True)
def _posting() -> Iterator[None]:
    with posting():
        yield


def begun(process: Process) -> None:
    process.history.write(process.store, "s", {"a": 1})


def one(process: Process) -> None:
    history, store = process.history, process.store
    history.write(store, "s", {"a": 1})
    history.write(store, "s", {"a": 1, "b": 1}, key="k")
    history.look(store, "s")


def another(process: Process) -> None:
    history, store = process.history, process.store
    history.write(store, "s", {"a": 2}, expected={"a": 1})
    history.write(store, "s", {"a": 1, "b": 1}, key="k")
    history.look(store, "s", "a")


def leads(process: Process) -> None:
    with suppress(StreamkitError), process.store.lease("leader") as lease:
        process.history.write(process.store, "s", {"b": 1}, lease=lease)
        process.history.write(process.store, "s", {"b": 1}, lease=lease, expected={"b": 1})


def test_a_store_is_whole_after_every_fault_at_every_call(covered: Covered) -> None:
    sweep = Sweep(REMOTE, everyday)
    assert sum(call.kind == "put" for call in sweep.trace) > 20
    plans = list(sweep.plans())
    for plan in plans if EXHAUSTIVE else plans[::9]:
        sweep.run(plan)
    covered("faults while requests are posted", sweep.points)


def test_two_processes_may_take_turns_in_any_order(covered: Covered) -> None:
    count = every_interleaving(REMOTE, [one, another], preemptions=2 if EXHAUSTIVE else 1)
    count += every_interleaving(REMOTE, [one, another], preemptions=2 if EXHAUSTIVE else 1, before=begun)
    covered("interleavings of two that post", count)


def test_three_processes_in_any_order_survive_faults_and_crashes(covered: Covered) -> None:
    seeds = range(5000 if EXHAUSTIVE else 60)
    count = random_interleavings(REMOTE, [one, another, one], seeds, before=begun)
    covered("random interleavings of three that post, with faults", count)


def test_threads_of_one_process_in_any_order_survive_faults_and_crashes(covered: Covered) -> None:
    seeds = range(5000 if EXHAUSTIVE else 40)
    count = random_interleavings(REMOTE, [one, another, one], seeds, before=begun, together=3)
    covered("random interleavings of threads that post, with faults", count)


def beside(process: Process) -> None:
    for _ in range(2):
        process.history.write(process.store, "s", {"b": 1})


@pytest.mark.parametrize("first", [beside, insists])
def test_nobody_is_refused_by_what_was_known_before_the_call(first: Workload, covered: Covered) -> None:
    """Two threads share commits, while another process goes on and tells them of it."""
    workloads = [first, insists, insists]
    most = 1 << 60 if EXHAUSTIVE else 60
    count = every_interleaving(REMOTE, workloads, preemptions=1, before=begun, together=2, most=most)
    seeds = range(3000 if EXHAUSTIVE else 15)
    count += random_interleavings(REMOTE, workloads, seeds, before=begun, together=2)
    covered("interleavings of threads and another process, which post and rely on each other", count)


class TestCombinedByAnother(Producing, Committing):
    """The public contract of writing, where another process is there to commit."""

    rounds = 3

    def setup_method(self, method: object = None) -> None:
        if getattr(method, "__name__", "") in _COUNT:
            raise SkipTest("the other process writes empty transactions too")
        super().setup_method(method)

    def make_client(self) -> Client:
        def client(driver: Driver) -> Client:
            return Client("memory://", driver, 5.0, None, 64 << 20, SYSTEM_CLOCK)

        return client(CombiningDriver(MemoryDriver("inbox", remote=True), client(MemoryDriver("inbox", remote=True))))
