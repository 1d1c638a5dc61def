"""Leases for coroutines: held and renewed as `streamkit.Lease` is, waited for on the event loop."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from ..errors import LeaseNotAcquired, TransientError
from ..leases import Lease
from .threads import Calls, Threads

__all__ = ["AsyncLease", "Lost", "until_granted"]

_LONGEST_PAUSE = 0.5
_T = TypeVar("_T")


async def until_granted(ask: Callable[[], Awaitable[_T]], ttl: float, wait: float) -> _T:
    """Ask for a lease until it is granted, for `wait` seconds. The pauses are on the event loop and keep no thread.

    The last LeaseNotAcquired or TransientError if it is not granted.
    """
    end, pause = asyncio.get_running_loop().time() + wait, min(0.05, ttl / 10)
    while True:
        try:
            return await ask()
        except (LeaseNotAcquired, TransientError):
            rest = end - asyncio.get_running_loop().time()
            if rest <= 0:
                raise
        await asyncio.sleep(min(pause * (0.5 + random.random()), rest))
        pause = min(pause * 1.5, ttl / 4, _LONGEST_PAUSE)


class Lost(threading.Event):
    """An event that coroutines wait for, and any thread sets: `await lease.lost.wait()`."""

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads
        self._waiting: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        super().set()
        self._threads.call_soon(self._wake)

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self) -> bool:  # type: ignore[override]
        """Wait until the event is set; returns True."""
        waiting = self._threads.loop.create_future()
        self._waiting.add(waiting)
        try:
            if not self.is_set():
                await waiting
        finally:
            self._waiting.discard(waiting)
        return True


class AsyncLease:
    """A lease that is held, from `async with store.lease(…)`. Two threads renew it and watch it, also while the event
    loop is busy; `lost` is set when that fails, and can be awaited.
    """

    def __init__(self, calls: Calls, lease: Lease, wait: float | None) -> None:
        self.key = lease.key
        self.ttl = lease.ttl
        self.lost = Lost(calls.threads)
        """Set no later than ttl seconds after the last renewal that succeeded, and when a write is Fenced."""
        lease.lost = self.lost
        self.held = lease
        self._calls = calls
        self._wait = wait or 0.0

    @property
    def token(self) -> int:
        """A number greater than the token of every earlier holder. LeaseLost if the lease is not held."""
        return self.held.token

    def remaining(self) -> float:
        """Return the seconds for which the lease is certainly held without another renewal; 0 if it is lost."""
        return self.held.remaining()

    def check(self) -> None:
        """Raise LeaseLost unless it is held."""
        self.held.check()

    async def __aenter__(self) -> AsyncLease:
        self._calls.check()
        await until_granted(self._ask, self.ttl, self._wait)
        return self

    async def _ask(self) -> None:
        entering = self._calls.submit(self.held.__enter__)
        try:
            await asyncio.wrap_future(entering)
        except asyncio.CancelledError:
            # It may be granted yet.
            entering.add_done_callback(self._give_back)
            raise

    def _give_back(self, entering: Future[Any]) -> None:
        if not entering.cancelled() and entering.exception() is None:
            self._calls.start(self._calls.threads.long, self.held.__exit__, None, None, None)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Cancelled, it is released all the same.
        releasing = self._calls.start(self._calls.threads.read, self.held.__exit__, None, None, None)
        await asyncio.shield(asyncio.wrap_future(releasing))

    def __repr__(self) -> str:
        return f"<Async{repr(self.held)[1:]}"
