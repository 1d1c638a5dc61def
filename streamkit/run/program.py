"""Programs: the parts of an application that run all the time, in one process or in many."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import threading
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import msgspec

from ..arguments import check_function, check_type, completed
from ..clock import Clock
from ..errors import LeaseNotAcquired, StoreClosed
from ..signals import on_signals
from ..store import Store, inner
from ..warn import warn
from .rounds import Stop

__all__ = ["PartStatus", "Program", "Runnable", "run"]

_TTL = 15.0
_LONGEST_PAUSE = 30.0
_LONGEST_NAME = 255
"""Bytes of a lease's name."""


def _lease_of(name: str) -> str:
    """The lease of a part: its name, shortened if a lease's name has no room for it."""
    lease = f"run/{name}"
    if len(lease.encode()) <= _LONGEST_NAME:
        return lease
    return f"run/{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


@runtime_checkable
class Runnable(Protocol):
    """A view, a route, a process manager, a Worker, or an object of yours that runs until it is told to stop."""

    name: str

    def run(self, stop: Any = None, *, seconds: float | None = None) -> None:
        """Run until `stop` is set, or for `seconds`."""
        ...


class PartStatus(msgspec.Struct, frozen=True):
    """The state of one part of a program."""

    name: str
    state: str
    """ "running", "waiting" (another process has the lease), "failed" (it is tried again), or "stopped"."""
    restarts: int = 0
    error: str | None = None
    status: Any = None
    """The part's own status."""


class _Part:
    def __init__(self, runnable: Runnable, lease: str | None) -> None:
        self.runnable = runnable
        self.lease = lease
        self.state = "stopped"
        self.restarts = 0
        self.error: str | None = None


class Program:
    """Parts that run together: `Program(store, [view, route, …])`, then `run()`, or `streamkit run module:program`.

    Each part has a thread. Views and routes may run in any number of processes at once; a part that is `led` runs in
    one of them at a time, under a lease of its name. A part that raises is started again, after a pause that grows; one
    that ends by itself, after half a second.
    """

    def __init__(self, store: Store, parts: Iterable[Runnable], *, led: Iterable[Runnable] = ()) -> None:
        check_type(store, Store, "Program takes a Store, or the `sync` of an AsyncStore")
        self.store = store
        for several in (parts, led):
            if isinstance(several, Runnable) or not isinstance(several, Iterable):
                raise TypeError(f"a program's parts are several, as in Program(store, [view]), not {several!r:.60}")
        parts, led = list(parts), list(led)
        for part in (*parts, *led):
            if hasattr(part, "consumer"):
                raise TypeError(f"{part!r:.60} becomes a part of a program with its handler: Worker(group, handler)")
            if not isinstance(part, Runnable) or isinstance(part, type):
                raise TypeError(
                    f"a program's part has a name and a method run(stop, *, seconds=None), not {part!r:.60}"
                )
            check_function(f"run of the part {part.name!r}", part.run, "(stop, *, seconds=None)")
        self._parts = [_Part(part, None) for part in parts] + [_Part(part, _lease_of(part.name)) for part in led]
        if not self._parts:
            raise ValueError("a program has at least one part")
        self._stop: Stop | None = None
        self._told = False
        """To stop, and no run has ended since."""

    @property
    def parts(self) -> list[Runnable]:
        """The parts, in the given order; those that are `led` come last."""
        return [part.runnable for part in self._parts]

    def run(self, *, seconds: float | None = None, signals: bool = False) -> None:
        """Run all parts until `stop()`, for `seconds` if given, as in a scheduled function.

        With `signals` (main thread only) SIGTERM and SIGINT stop it: each part finishes its current work.
        """
        stop = self._stop = Stop(self.store)
        if self._told:
            stop.set()
        with on_signals(stop.set, signal.SIGTERM, signal.SIGINT) if signals else contextlib.nullcontext():
            threads: list[threading.Thread] = []
            try:
                for part in self._parts:
                    name = f"streamkit-run-{part.runnable.name}"
                    thread = threading.Thread(target=self._keep, args=(part, stop, seconds), name=name)
                    thread.start()
                    threads.append(thread)
                for thread in threads:
                    while thread.is_alive():  # so that signals are seen
                        thread.join(0.2)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
                self._told = False

    def stop(self) -> None:
        """End `run`. If none is under way, the next one ends at once."""
        self._told = True
        if self._stop is not None:
            self._stop.set()

    def status(self) -> list[PartStatus]:
        """Return the status of each part, whether it runs here or not."""
        found = []
        for part in self._parts:
            status: Any = None
            ask = getattr(part.runnable, "status", None)
            if callable(ask):
                try:
                    status = ask()
                except Exception as error:
                    status = f"{type(error).__name__}: {error}"
            found.append(PartStatus(part.runnable.name, part.state, part.restarts, part.error, status))
        return found

    def _keep(self, part: _Part, stop: Stop, seconds: float | None) -> None:
        clock = inner(self.store).clock
        end = None if seconds is None else clock.monotonic() + seconds
        pause = 0.5
        begun = False
        while not stop.is_set():
            rest = None if end is None else max(end - clock.monotonic(), 0.0)
            if rest == 0 and begun:
                break
            begun = True
            try:
                mine = Stop(self.store, stop)
                lost = self._run(part, mine, rest)
                if stop.is_set() or (not lost and (rest is not None or mine.is_set())):  # the part was closed
                    break
                pause = 0.5
                self._wait(clock, stop, pause, end)
            except LeaseNotAcquired:
                part.state = "waiting"
                self._wait(clock, stop, _TTL / 3, end)
            except StoreClosed:
                break
            # also SystemExit, or asyncio's CancelledError, which would be lost in this thread
            except BaseException as error:
                part.state, part.error = "failed", f"{type(error).__name__}: {error}"
                part.restarts += 1
                warn("%s failed, and is started again in %.1f s: %s", part.runnable.name, pause, part.error)
                self._wait(clock, stop, pause, end)
                pause = min(pause * 2, _LONGEST_PAUSE)
        part.state = "stopped"

    def _run(self, part: _Part, stop: Stop, seconds: float | None) -> bool:
        """Run the part. True if it ended because its lease was lost."""
        if part.lease is None:
            part.state = "running"
            completed("run", part.runnable.run(stop, seconds=seconds))  # type: ignore[func-returns-value]
            return False
        with self.store.lease(part.lease, _TTL) as lease:
            part.state = "running"
            ended = threading.Event()
            watch = threading.Thread(target=self._end_with, args=(lease.lost, stop, ended), daemon=True)
            watch.start()
            try:
                completed("run", part.runnable.run(stop, seconds=seconds))  # type: ignore[func-returns-value]
            finally:
                ended.set()
                watch.join()
            return lease.lost.is_set()

    @staticmethod
    def _end_with(lost: threading.Event, stop: Stop, ended: threading.Event) -> None:
        while not ended.is_set():
            if lost.wait(0.1):
                stop.set()
                return

    @staticmethod
    def _wait(clock: Clock, stop: Stop, seconds: float, end: float | None) -> None:
        until = clock.monotonic() + seconds
        if end is not None:
            until = min(until, end)
        while not stop.is_set() and (rest := until - clock.monotonic()) > 0:
            clock.sleep(min(rest, 0.1))


def run(store: Store, *parts: Runnable, seconds: float | None = None) -> None:
    """Run views and routes together, as in a scheduled function."""
    Program(store, parts).run(seconds=seconds)
