"""Virtual time: threads run one at a time, in the order of the times for which they wait.

The code that is simulated is ordinary threaded code. It must sleep by `Simulation.sleep`, and the locks that it holds
while it sleeps must be `Simulation.lock`s; then a minute of it takes as long as its processor time, and the same seed
gives the same run.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Lock", "Simulation"]


class _Task:
    def __init__(self) -> None:
        self.turn = threading.Semaphore(0)
        self.due = 0
        """The latest time at which the task is to go on. Earlier ones do not count."""


class Simulation:
    """A clock for streamkit too: `connect(…, clock=simulation)`."""

    def __init__(self) -> None:
        self._now = 0.0
        self._waiting: list[tuple[float, int, _Task]] = []
        self._order = itertools.count()
        self._tasks = 0
        self._current = _Task()
        self._ended = threading.Event()
        self.failure: BaseException | None = None

    def now(self) -> int:
        return 1_700_000_000_000 + int(self._now * 1000)

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._wake(self._current, seconds)
        self._block()

    def wait(self, condition: threading.Condition, seconds: float) -> bool:
        raise NotImplementedError("nobody follows a log here")

    def lock(self) -> Lock:
        return Lock(self)

    def rlock(self) -> RLock:
        return RLock(self)

    def start(self, work: Callable[[], None]) -> None:
        """`work` begins at the present time, in a thread of its own."""
        task = _Task()

        def run() -> None:
            task.turn.acquire()
            try:
                work()
            except BaseException as error:
                self.failure = self.failure or error
            self._tasks -= 1
            self._next()

        self._tasks += 1
        threading.Thread(target=run, daemon=True).start()
        self._wake(task, 0.0)

    def run(self) -> None:
        """Run until all tasks have ended. Raises the error of a task."""
        self._next()
        self._ended.wait()
        if self.failure is not None:
            raise self.failure

    def _wake(self, task: _Task, seconds: float) -> None:
        task.due = next(self._order)
        heapq.heappush(self._waiting, (self._now + seconds, task.due, task))

    def _next(self) -> bool:
        """Let the task go on that waits for the earliest time; True if it is the present one."""
        while self._waiting and self._waiting[0][1] != self._waiting[0][2].due:
            heapq.heappop(self._waiting)
        if not self._waiting:
            if self._tasks:
                self.failure = self.failure or RuntimeError(f"{self._tasks} tasks wait for each other")
            self._ended.set()
            return False
        self._now, _, task = heapq.heappop(self._waiting)
        if task is self._current:
            return True
        self._current = task
        task.turn.release()
        return False

    def _block(self) -> None:
        task = self._current
        if not self._next():
            task.turn.acquire()


class Lock:
    """A `threading.Lock` for tasks: a waiter waits in virtual time, first come, first served."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._held = False
        self._queue: deque[_Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._held:
            self._held = True
            return True
        if not blocking:
            return False
        task = self._simulation._current
        self._queue.append(task)
        if timeout >= 0:
            self._simulation._wake(task, timeout)
        self._simulation._block()
        if task in self._queue:
            self._queue.remove(task)
            return False
        return True

    def release(self) -> None:
        if self._queue:
            # It stays held, by the next one.
            self._simulation._wake(self._queue.popleft(), 0.0)
        else:
            self._held = False

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class RLock(Lock):
    """A `threading.RLock` for tasks."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._owner: _Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._is_owned() and not super().acquire(blocking, timeout):
            return False
        self._owner = self._simulation._current
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            super().release()

    def _is_owned(self) -> bool:
        return self._owner is self._simulation._current
