"""The cost model: the engine in virtual time, against services that are simulated."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from benchmarks.cost_burst import burst
from benchmarks.cost_model import Case
from benchmarks.cost_services import services
from benchmarks.simulation import Simulation

S3, EXPRESS, AZURE = services()


def test_threads_take_turns_in_the_order_of_virtual_time() -> None:
    simulation = Simulation()
    lock = simulation.lock()
    seen: list[tuple[str, float]] = []

    def work(name: str, at: float) -> None:
        simulation.sleep(at)
        with lock:
            seen.append((name, simulation.monotonic()))
            simulation.sleep(10)

    for name, at in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        simulation.start(lambda name=name, at=at: work(name, at))  # type: ignore[misc]
    began = time.monotonic()
    simulation.run()
    assert seen == [("a", 1.0), ("b", 11.0), ("c", 21.0)]
    assert time.monotonic() - began < 5


def test_a_task_that_waits_for_a_lock_gives_up_in_virtual_time() -> None:
    simulation = Simulation()
    lock = simulation.rlock()
    seen: list[tuple[bool, float]] = []

    def hold() -> None:
        with lock, lock:
            simulation.sleep(10)

    def wait(timeout: float) -> None:
        simulation.sleep(1)
        got = lock.acquire(timeout=timeout)
        seen.append((got, simulation.monotonic()))
        if got:
            lock.release()

    simulation.start(hold)
    simulation.start(lambda: wait(2))
    simulation.start(lambda: wait(20))
    simulation.run()
    assert seen == [(False, 3.0), (True, 10.0)]
    assert simulation.monotonic() == 10.0


def test_tasks_that_wait_for_each_other_are_found() -> None:
    simulation = Simulation()
    lock = simulation.lock()
    lock.acquire()
    simulation.start(lock.acquire)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="1 tasks wait for each other"):
        simulation.run()


def test_the_same_case_gives_the_same_figures_and_leaves_the_engine_alone() -> None:
    first, second = (Case(S3, 4, 16, 8).run() for _ in range(2))
    assert first == second
    from streamkit.log import commit

    assert vars(commit)["threading"] is threading


def test_threads_of_few_processes_wait_for_nobody_long() -> None:
    """The longest wait was 14 s with one read of the inbox for each unanswered request."""
    found = Case(AZURE, 4, 128, 1).run()
    assert found.longest < 1000


def test_a_lone_writer_pays_one_request_an_append_and_waits_for_it() -> None:
    found = Case(S3, 1, 1, 1).run()
    assert found.rate == pytest.approx(1 / (S3.write * 1.13), rel=0.25)
    assert 1.0 <= found.requests < 1.15  # with its share of the index
    assert found.dollars == pytest.approx(5.0, rel=0.1)
    assert found.conflicts == 0


def test_writers_of_one_process_share_requests_up_to_what_the_service_takes() -> None:
    shared = Case(S3, 1, 256, 1).run()
    assert shared.requests < 0.05
    # A partition takes 2,000 entities a second; a commit is one, however many appends it holds.
    assert Case(AZURE, 1, 128, 1).run().throttled == 0
    assert Case(AZURE, 192, 192, 1, most=1500).run().throttled > 0.05


def test_of_a_burst_of_processes_that_appear_at_once_nothing_is_lost_and_nothing_is_there_twice() -> None:
    """A tenth of the one that is published: 1,000 processes and 10,000 requests."""
    found = burst(S3, 100, 1000, 1)
    assert (found.lost, found.twice, found.failed) == (0, 0, 0)
    assert found.seconds < 15
    assert found.transactions < 200, "they share them"
