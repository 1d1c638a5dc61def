"""Writes that no thread waits for: they queue up with the committer, and one of a few threads commits them together."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from uuid import UUID

from ..log.commit import Committer
from ..log.request import Part, Request
from .threads import Calls

__all__ = ["CommitQueue", "LoopRequest"]

_HEARTBEAT = 0.25
"""Seconds after which the loop looks at its requests by itself: being woken up is only a hint."""


class LoopRequest(Request):
    """A request that a coroutine waits for, and may withdraw."""

    lane: CommitQueue
    future: asyncio.Future[None]
    boarded: tuple[bytes, int] | None = None
    """(id, number) of the transaction that it is in, from before it is sent until it is known not to be written; or
    (id, 0) under which it is posted."""

    def __init__(self, parts: Sequence[Part], key: str | None = None, fence: tuple[str, int] | None = None) -> None:
        super().__init__(parts, key, fence)
        self._lock = threading.Lock()
        """Guards the decision between cancelling the request and including it in a transaction."""

    @property
    def abandoned(self) -> bool:
        return self.withdrawn and self.boarded is None

    def board(self, id: bytes, number: int) -> bool:
        with self._lock:
            if self.withdrawn:
                return False
            self.boarded = (id, number) if self.id is None else (self.id, 0)
        return True

    def leave(self) -> None:
        with self._lock:
            if self.withdrawn or self.id is None:
                self.boarded = None

    def withdraw(self) -> tuple[bytes, int] | None:
        """Withdraw the request, so that no later transaction takes it. Returns the transaction that already has it, or
        None."""
        with self._lock:
            self.withdrawn = True
            return self.boarded

    def wake(self) -> None:
        if self.done:
            self.lane.deliver(self)
        else:
            self.lane.drive()


class CommitQueue:
    """The requests that one store's coroutines have queued with one committer."""

    def __init__(self, calls: Calls, committer: Committer) -> None:
        self._calls = calls
        self._committer = committer
        self._waiting: set[LoopRequest] = set()
        self._done: deque[LoopRequest] = deque()
        self._delivering = False
        self._drivers: set[int] = set()
        """Threads that drive. They wake the loop when that is all that they still have to do."""
        self._driving = False
        """A thread will drive, and has not begun yet."""
        self._timer: asyncio.TimerHandle | None = None

    async def commit(self, request: LoopRequest) -> None:
        """Returns when `request` has its result; raises its error. Cancelled: see `streamkit.aio`."""
        loop = asyncio.get_running_loop()
        request.lane, request.future = self, loop.create_future()
        self._waiting.add(request)
        if self._timer is None:
            self._timer = loop.call_later(_HEARTBEAT, self._beat)
        try:
            self._committer.submit(request)
            await request.future
        except asyncio.CancelledError as error:
            error.transaction_id = self._withdraw(request)  # type: ignore[attr-defined]
            raise
        finally:
            self._waiting.discard(request)
        if request.error is not None:
            raise request.error

    def _withdraw(self, request: LoopRequest) -> UUID | None:
        boarded = request.withdraw()
        if boarded is not None:
            self._committer.note(*boarded)
            return UUID(bytes=boarded[0])
        # An idempotency key may have been answered with an earlier transaction.
        return request.trx.id if request.done and request.trx is not None else None

    def deliver(self, request: LoopRequest) -> None:
        """Deliver a request that is done, from any thread. One wake-up of the loop delivers many.

        A thread that drives wakes the loop last: one that wakes up before would wait for the interpreter, which that
        thread still has.
        """
        self._done.append(request)
        if get_ident() not in self._drivers:
            self._wake_loop()

    def _wake_loop(self) -> None:
        if self._done and not self._delivering:
            self._delivering = True
            self._calls.threads.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        while self._done:
            self._resolve(self._done.popleft())

    def _resolve(self, request: LoopRequest) -> None:
        if not request.future.done():
            request.future.set_result(None)

    def drive(self) -> None:
        """Have a thread commit the queued requests. Any thread may call this.

        The loop asks the pool for the thread, because an interrupted thread would leave the pool's locks behind.
        """
        if not self._driving:
            self._driving = True
            if self._calls.threads.is_loop():
                self._start()
            else:
                self._calls.threads.call_soon(self._start)

    def _start(self) -> None:
        try:
            self._calls.drive(self._drive)
        except RuntimeError:
            # No thread can be started, or the pool is closed. It is tried again while a caller waits.
            self._driving = False

    def _drive(self) -> Callable[[], None]:
        self._driving = False
        driver = get_ident()
        self._drivers.add(driver)
        try:
            self._committer.drive(self._wake_loop)
        finally:
            self._drivers.discard(driver)
        return self._wake_loop

    def _beat(self) -> None:
        """Look at the requests again and again, because a thread may be stopped before it wakes a waiter."""
        self._timer = None
        if not self._waiting:
            return
        for request in list(self._waiting):
            if request.done:
                self._resolve(request)
        self._start()
        self._timer = asyncio.get_running_loop().call_later(_HEARTBEAT, self._beat)

    @property
    def waiting(self) -> list[asyncio.Future[None]]:
        return [request.future for request in self._waiting]
