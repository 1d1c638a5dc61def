"""Processes that take turns: threads of which exactly one runs, and a schedule that says which, at every backend call.

    report = every_interleaving(make_driver, [one_writer, another], preemptions=2)

A schedule switches from one process to another before a call, between the keys of a get or a delete, and between the
rows of a scan: wherever the seam lets another process in. Changing over
although the process could go on is a preemption; all schedules with few of them are tried, then random ones with any
number, with faults. The same schedule gives the same run.

The first of them, as many as `together`, are threads of one process, which share its store, its commits and its locks.
Whoever waits for a lock lets the others go on; if all wait, that is a deadlock, and the run fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from types import SimpleNamespace
from unittest.mock import patch
from uuid import UUID, uuid4

from harness.passing import PassingBackend, PassingDriver
from streamkit import open_store
from streamkit.backend import ANY, Backend, Driver, Etag, Expect, Grant, Range, Row, Value
from streamkit.errors import Fenced, SequenceMismatch
from streamkit.log import commit, partition, refresher, request
from streamkit.testing.clock import ManualClock
from streamkit.testing.fault_plan import CRASHES, SURVIVABLE, Plan
from streamkit.testing.injector import Crash

from .history import History
from .oracle import Violation, judge
from .sweep import Process, StillClock, Workload, recover

__all__ = ["Schedule", "Turns", "every_interleaving", "interleave", "random_interleavings"]


_SOUND = Plan()


class Schedule:
    """The turns, step by step: `prefix` decides the first steps, then `dice`; without dice the same one goes on."""

    def __init__(self, prefix: Sequence[int] = (), dice: Random | None = None) -> None:
        self.prefix = tuple(prefix)
        self.steps: list[tuple[int, tuple[int, ...], int | None]] = []
        """The choices: (the worker that went on, all that could, the one that ran before)."""
        self._dice = dice

    def choose(self, ready: Sequence[int], running: int | None) -> int:
        at = len(self.steps)
        if at < len(self.prefix) and self.prefix[at] in ready:
            chosen = self.prefix[at]
        elif self._dice is not None:
            chosen = self._dice.choice(ready)
        else:
            chosen = running if running is not None and running in ready else ready[0]
        self.steps.append((chosen, tuple(ready), running))
        return chosen

    def following(self, preemptions: int) -> tuple[int, ...] | None:
        """The prefix of the next schedule, depth first; None after the last with at most so many preemptions."""
        used = 0
        costs = []
        for chosen, ready, running in self.steps:
            costs.append(used)
            used += running in ready and chosen != running
        for at in range(len(self.steps) - 1, -1, -1):
            chosen, ready, running = self.steps[at]
            default = running if running is not None and running in ready else ready[0]
            order = [default, *(one for one in ready if one != default)]
            for other in order[order.index(chosen) + 1 :]:
                if costs[at] + (running in ready) <= preemptions:
                    return (*(step[0] for step in self.steps[:at]), other)
        return None


class Turns:
    """Runs workers as threads, one at a time. A worker that calls `step` waits there for its next turn."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._mine = threading.local()
        self._permits: list[threading.Semaphore] = []
        self._stopped = threading.Semaphore(0)
        self._waiting: dict[int, tuple[Callable[[], bool], bool]] = {}
        """The condition for which a worker waits, and True if the wait has a timeout."""

    def step(self) -> None:
        at = getattr(self._mine, "at", None)
        if at is not None:
            self._stopped.release()
            self._permits[at].acquire()

    def wait(self, free: Callable[[], bool], timed: bool) -> bool:
        """Let others go on until `free`. False if the time is over, which is when no other worker can go on."""
        at = getattr(self._mine, "at", None)
        assert at is not None, "the program waits for a thread that has ended"
        self._waiting[at] = (free, timed)
        self.step()
        return self._waiting.pop(at)[0]()

    def _able(self, ready: Sequence[int]) -> list[int]:
        """The workers that can go on."""
        able = [at for at in ready if at not in self._waiting or self._waiting[at][0]()]
        able = able or [at for at in ready if self._waiting[at][1]]
        assert able, "all threads wait for each other"
        return able

    def run(self, workers: Sequence[Callable[[], None]]) -> None:
        """Returns when all have ended; raises what the first of them raised."""
        errors: list[BaseException] = []
        ready = list(range(len(workers)))
        self._permits = [threading.Semaphore(0) for _ in workers]

        def work(at: int) -> None:
            self._mine.at = at
            self._permits[at].acquire()
            try:
                workers[at]()
            except BaseException as error:
                errors.append(error)
            finally:
                ready.remove(at)
                self._stopped.release()

        threads = [threading.Thread(target=work, args=(at,), daemon=True) for at in ready]
        for thread in threads:
            thread.start()
        running: int | None = None
        while ready:
            running = self._schedule.choose(self._able(ready), running)
            self._permits[running].release()
            self._stopped.acquire()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


class _TurnLock:
    """A lock, or with `reentrant` an RLock, that lets others go on while it is waited for."""

    def __init__(self, turns: Turns, reentrant: bool) -> None:
        self._turns = turns
        self._reentrant = reentrant
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.get_ident()
        if not (self._reentrant and self._owner == me):
            while self._owner is not None:
                if not blocking or not self._turns.wait(lambda: self._owner is None, timeout >= 0):
                    return False
            self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._count -= 1
        if not self._count:
            self._owner = None

    def locked(self) -> bool:
        return self._owner is not None

    def _is_owned(self) -> bool:
        return self._owner == threading.get_ident()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def _turn_locks(turns: Turns) -> Iterator[None]:
    """Locks and events of the engine wait by turns in this context."""
    shim = SimpleNamespace(
        Lock=lambda: _TurnLock(turns, False), RLock=lambda: _TurnLock(turns, True), get_ident=threading.get_ident
    )
    with ExitStack() as stack:
        for module in (commit, partition, refresher, request, open_store):
            stack.enter_context(patch.object(module, "threading", shim))
        yield


class _TurnBackend(PassingBackend):
    """A backend around `inner` that lets others go first wherever the seam allows it."""

    def __init__(self, inner: Backend, turns: Turns) -> None:
        super().__init__(inner)
        self._step = turns.step

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        found = []
        for key in keys:
            self._step()
            found += super().get(partition, [key])
        return found

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        found = []
        for part in ranges:
            self._step()
            found += super().read(partition, [part])
        return found

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        self._step()
        for row in super().scan(partition, start, end, limit=limit, values=values):
            yield row
            self._step()

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        self._step()
        return super().put(partition, key, value, expect, durable=durable)

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._step()
            super().delete(partition, [key])

    def acquire(self, name: str, ttl: float) -> Grant | None:
        self._step()
        return super().acquire(name, ttl)

    def renew(self, grant: Grant) -> Grant:
        self._step()
        return super().renew(grant)

    def release(self, grant: Grant) -> None:
        self._step()
        super().release(grant)


class _TurnDriver(PassingDriver):
    def __init__(self, inner: Driver, turns: Turns) -> None:
        super().__init__(inner)
        self._turns = turns

    def open(self, store: UUID) -> _TurnBackend:
        return _TurnBackend(self.inner.open(store), self._turns)


def interleave(
    make_driver: Callable[[ManualClock], Driver],
    workloads: Sequence[Workload],
    schedule: Schedule,
    *,
    before: Workload | None = None,
    plans: Sequence[Plan] = (),
    together: int = 0,
) -> None:
    """One run: each workload in a process of its own, under `schedule`; then recovery and judgement.

    `before` runs alone at first. `plans`: a plan for each workload's process. `together`: so many of the first
    workloads are threads of one process, which follows the first plan. Violation with the schedule if a promise is
    broken.
    """
    clock, store_id, history = StillClock(), uuid4(), History()
    turns = Turns(schedule)
    with ExitStack() as stack:
        if together:
            stack.enter_context(_turn_locks(turns))
        cleaner = make_driver(clock)
        stack.callback(cleaner.close)
        stack.callback(cleaner.delete, store_id)

        def process(plan: Plan = _SOUND, *, turned: bool = False) -> Process:
            driver = make_driver(clock)
            made = Process(_TurnDriver(driver, turns) if turned else driver, store_id, history, clock, plan)
            stack.callback(made.close)
            return made

        def worker(workload: Workload, process: Process) -> Callable[[], None]:
            def work() -> None:
                with suppress(Crash):
                    workload(process)

            return work

        processes: list[Process] = []
        try:
            if before is not None:
                before(process())
            plans = plans or [Plan()] * len(workloads)
            if together:
                processes = [process(plans[0], turned=True)] * together
            processes += [process(plan, turned=True) for plan in plans[together:]]
            turns.run([worker(*pair) for pair in zip(workloads, processes, strict=True)])
            recover(process())
            for one in processes:
                one.faults.release()
            whole = process()
            whole.store.maintain()
            judge(history, lambda: whole.store)
            if not any(plan.faults or plan.rate for plan in plans):
                _nobody_failed(history)
        except BaseException as error:
            error.add_note(f"with the schedule {[step[0] for step in schedule.steps]} and {plans}")
            for attempt in history.attempts:
                error.add_note(repr(attempt))
            for at, one in enumerate(processes):
                for call in one.faults.trace:
                    error.add_note(f"{at}: {call}")
            raise


def _nobody_failed(history: History) -> None:
    """Check that a call is refused or does its work, without faults of the storage."""
    found = [
        f"failed: nothing was wrong, and it ended with {attempt.error!r}: {attempt}"
        for attempt in history.attempts
        if attempt.outcome != "ok" and not isinstance(attempt.error, (SequenceMismatch, Fenced))
    ]
    found += [f"failed: nothing was wrong, and {look} ended early" for look in history.looks if not look.whole]
    if found:
        raise Violation(found)


def every_interleaving(
    make_driver: Callable[[ManualClock], Driver],
    workloads: Sequence[Workload],
    *,
    preemptions: int,
    before: Workload | None = None,
    most: int = 1 << 62,
    together: int = 0,
) -> int:
    """Run every schedule with at most so many preemptions, or the first `most`; how many that were."""
    prefix: tuple[int, ...] | None = ()
    count = 0
    while prefix is not None and count < most:
        schedule = Schedule(prefix)
        interleave(make_driver, workloads, schedule, before=before, together=together)
        prefix = schedule.following(preemptions)
        count += 1
    return count


def random_interleavings(
    make_driver: Callable[[ManualClock], Driver],
    workloads: Sequence[Workload],
    seeds: Sequence[int],
    *,
    before: Workload | None = None,
    rate: float = 0.05,
    together: int = 0,
) -> int:
    """A schedule and faults by each seed; how many. Every process meets a fault at `rate` of its calls."""

    for seed in seeds:
        dice = Random(seed)
        plans = [Plan.random(dice.getrandbits(32), rate, (*SURVIVABLE * 3, *CRASHES)) for _ in workloads]
        interleave(make_driver, workloads, Schedule(dice=dice), before=before, plans=plans, together=together)
    return len(seeds)
