"""The crash-point sweep: one workload, and every fault at every call that it makes to its backend.

    sweep = Sweep(make_driver)
    for plan in sweep.plans():                       # each fault at each call of the workload
        sweep.run(plan)                              # Violation, if a promise is broken then
        for again in sweep.recoveries(plan):         # ... and a crash at each call of the recovery from it
            sweep.run(plan, again)

A run is four processes, one after the other, on a store of its own: the first follows the plan; the second recovers,
and may crash at that; what both had sent and nobody had seen lands now; the third recovers again; the fourth must find
that there was nothing left to do. Then the oracle judges what all of them were told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from uuid import UUID, uuid4

from streamkit.backend import Driver
from streamkit.client import Client
from streamkit.errors import StreamkitError
from streamkit.store import Store
from streamkit.testing.clock import ManualClock
from streamkit.testing.fault_plan import CRASHES, Call, Fault, Plan, every_fault
from streamkit.testing.faults import FaultyDriver
from streamkit.testing.injector import Crash

from .cramped import CLEAR
from .history import History
from .oracle import Violation, judge, violations

__all__ = ["Process", "StillClock", "Sweep", "Workload", "everyday", "hurried", "insists", "maintain", "recover"]

GRACE = 4000.0
"""Seconds; longer than anything is kept in the log after it was packed."""


class Process:
    """One process of a run: a store of its own, and a plan that its backend calls follow."""

    def __init__(self, driver: Driver, store_id: UUID, history: History, clock: ManualClock, plan: Plan) -> None:
        self.history = history
        self.clock = clock
        self._driver = FaultyDriver(driver, plan)
        self.faults = self._driver.faults
        self.store: Store = Client("sweep://", self._driver, 5.0, None, 64 << 20, clock).store(store_id)

    def close(self) -> None:
        self.store.close()
        self._driver.close()


Workload = Callable[[Process], None]


class StillClock(ManualClock):
    """Replace the wait for notices by a sleep, because the process is alone."""

    def wait(self, condition: threading.Condition, seconds: float) -> bool:
        self.sleep(seconds)
        return False


def everyday(process: Process) -> None:
    """A little of everything that writes, with readers in between, in a space of one partition."""
    store, history = process.store, process.history
    reader = history.reader("s")
    history.write(store, "s", {"a": 2})
    history.write(store, "s", {"a": 1, "b": 2}, expected={"a": 2})
    history.page(store, reader)
    history.write(store, "s", {"a": 1}, expected={"a": 1})
    history.write(store, "s", {"b": 1}, key="once")
    maintain(store)
    history.write(store, "s", {"b": 1}, key="once")
    history.look(store, "s")
    succession(process)
    history.write(store, "s", {"a": 1}, expected={"a": 4})
    maintain(store)
    history.look(store, "s", "a")
    history.page(store, reader)
    history.write(store, "s", {"c": 3}, size=700)
    process.clock.sleep(GRACE)
    maintain(store)
    _settle(process)


def hurried(process: Process) -> None:
    """A workload for a `cramped` engine: files, merges of both kinds, records too large for a pack, and a log that is
    cleared."""
    store, history = process.store, process.history
    reader = history.reader("s", 3)
    for turn in range(12):
        large = turn % 5 == 3
        history.write(store, "s", dict.fromkeys("abcdef" if large else "ab", 1), key=f"turn {turn}")
        if turn % 3 == 2:
            history.look(store, "s", "ab"[turn % 2])
            history.page(store, reader)
            process.clock.sleep(CLEAR)
    maintain(store)
    process.clock.sleep(2 * CLEAR)
    history.write(store, "s", {"a": 1}, key="turn 0")
    maintain(store)
    history.look(store, "s")
    _settle(process)


def insists(process: Process) -> None:
    """A workload in which each write expects the sequence that another process just got."""
    store, history = process.store, process.history
    for _ in range(2):
        history.write(store, "s", {"a": 1}, expected={"a": history.told("s", "a")})


def succession(process: Process) -> None:
    """Two leaders, and the first writes once more after the second did."""
    store, history = process.store, process.history
    held = []
    for counts in ({"a": 1}, {"b": 1, "c": 1}):
        with suppress(StreamkitError), store.lease("leader") as lease:
            held.append(lease)
            history.write(store, "s", counts, lease=lease, key=f"led {len(held)}")
    if len(held) == 2:
        history.write(store, "s", {"a": 1}, lease=held[0])


def maintain(store: Store) -> None:
    """Bring the index forward, or be prevented."""
    with suppress(StreamkitError):
        store.maintain()


def _settle(process: Process) -> None:
    with suppress(StreamkitError):
        process.history.settle(process.store)


def recover(process: Process) -> None:
    """The next process: it looks, settles unknown outcomes, brings the index forward, and goes on writing."""
    store, history = process.store, process.history
    spaces = sorted({attempt.space for attempt in history.attempts})
    for space in spaces:
        history.look(store, space)
    _settle(process)
    maintain(store)
    for space in spaces:
        for attempt in [a for a in history.attempts if a.space == space and a.key and a.outcome == "unknown"]:
            history.write(store, space, {}, key=attempt.key)
        history.write(store, space, {"a": 1, "b": 1})
    with suppress(StreamkitError), store.lease("leader") as lease:
        for space in spaces:
            history.write(store, space, {"c": 1}, lease=lease)
    maintain(store)
    process.clock.sleep(GRACE)
    maintain(store)


class Sweep:
    """Runs of one workload on stores under one root.

    `make_driver(clock)` is called for every process, and every driver must reach the same root. Drivers that judge
    leases by a clock of their own need not take notice of it.
    """

    def __init__(self, make_driver: Callable[[ManualClock], Driver], workload: Workload = everyday) -> None:
        self._clock = StillClock()
        self._make_driver: Callable[[], Driver] = lambda: make_driver(self._clock)
        self._workload = workload
        self._trace: tuple[Call, ...] | None = None
        self.points = 0
        """Runs so far."""

    @property
    def trace(self) -> tuple[Call, ...]:
        """The backend calls of the workload when nothing goes wrong."""
        if self._trace is None:
            self._trace = self.run(Plan())[0]
        return self._trace

    def plans(self, menu: Sequence[Fault] = tuple(Fault)) -> Iterator[Plan]:
        """Plans with every fault of `menu` at every call. Late writes land at once, a few calls later, or after the
        recovery."""
        yield Plan()
        yield from every_fault(self.trace, menu, delays=(None, 1, 3))

    def recoveries(self, plan: Plan) -> Iterator[Plan]:
        """A crash at each call of the recovery from `plan`."""
        yield from every_fault(self.run(plan)[1], CRASHES, rows=(0,))

    def run(self, plan: Plan, recovery: Plan | None = None) -> tuple[tuple[Call, ...], tuple[Call, ...]]:
        """The traces of the first process and of its recovery. Violation with the plan if a promise is broken."""
        self.points += 1
        store_id, history = uuid4(), History()
        # A process that has crashed closes nothing: its files are closed when the store is deleted.
        with ExitStack() as drivers, ExitStack() as stack:
            cleaner = drivers.enter_context(closing(self._make_driver()))
            stack.callback(cleaner.delete, store_id)

            def process(plan: Plan) -> Process:
                driver = drivers.enter_context(closing(self._make_driver()))
                process = Process(driver, store_id, history, self._clock, plan)
                stack.callback(process.close)
                return process

            try:
                first = process(plan)
                with suppress(Crash):
                    self._workload(first)
                second = process(recovery or Plan())
                with suppress(Crash):
                    recover(second)
                first.faults.release()
                second.faults.release()
                recover(process(Plan()))
                whole = process(Plan())
                logs = judge(history, lambda: whole.store)
                before = _rows(whole)
                process(Plan()).store.maintain()
                if _rows(whole) != before:
                    raise Violation(["index: recovering again changed what had been recovered"])
                repaired = whole.store.repair()
                if repaired and (whole.store.repair() or not whole.store.verify().ok):
                    raise Violation(["index: repairing twice is not the same as repairing once"])
                for segment in ("a", "b", "c"):
                    history.look(whole.store, "s", segment)
                if repaired:
                    judge(history, lambda: whole.store)
                elif broken := violations(history, logs):
                    raise Violation(broken)
            except BaseException as error:
                error.add_note(f"with {plan}, and at the recovery {recovery}")
                for attempt in history.attempts:
                    error.add_note(repr(attempt))
                for call in first.faults.trace:
                    error.add_note(str(call))
                raise
        return first.faults.trace, second.faults.trace


def _rows(process: Process) -> list[tuple[bytes, bytes]]:
    """All rows of all partitions of the store, as they are."""
    store = process.store
    return [
        (row.key, row.data)
        for name in store._names(None)
        if (space := store._known(name)) is not None
        for partition in space.partitions
        for row in partition.backend.scan(partition.key, b"", b"\xff")
    ]
