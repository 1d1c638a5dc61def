"""The threads of a client: storage is waited for in a few of them, never on the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import ref

from ..errors import StoreClosed
from ..log.notifier import Notifier
from .bell import Bell
from .workers import Work, Workers

__all__ = ["Calls", "Threads"]

_T = TypeVar("_T")
_LONG = 4
"""Threads for long work, such as archiving and verifying. Reads do not wait for them."""
_HEARTBEAT = 0.25
"""Seconds after which `Calls.wait` looks again. A thread that was stopped does not tell that its work is over."""


class Threads:
    """The threads of one client. They belong to the event loop that uses them first and to the process that made
    them."""

    def __init__(self, most: int) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self.read = ThreadPoolExecutor(most, "streamkit-read")
        self.long = ThreadPoolExecutor(_LONG, "streamkit-long")
        self.commit = Workers(most, "streamkit-commit")
        """Separate threads for commits, so that no reader keeps a writer waiting."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, which must be the client's. RuntimeError if it is not, if there is none, after a fork."""
        if self._pid != os.getpid():
            raise RuntimeError("this process was forked from the one that connected: connect again in the child")
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "streamkit.aio is used in a coroutine that an event loop runs; without one, use streamkit.connect()"
            ) from None
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise RuntimeError("this client belongs to another event loop: connect once in each loop")
        return running

    def is_loop(self) -> bool:
        """True if this is the loop's own thread."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Have the loop call it. From any thread; nothing happens once the loop is closed."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            try:  # noqa: SIM105  (suppress costs more than the code around it)
                loop.call_soon_threadsafe(callback)
            except RuntimeError:
                pass  # closed in this moment: no coroutine waits any more

    def close(self) -> None:
        """End the threads. Call it when they have no work left."""
        for pool in (self.read, self.long):
            pool.shutdown(wait=False)
        self.commit.close()


class Calls:
    """The calls that a store, or the client itself, has running in threads."""

    def __init__(self, threads: Threads, name: str) -> None:
        self.threads = threads
        self.closed = False
        self.stops: set[Callable[[], None]] = set()
        """One function for each endless call, which stops it."""
        self._name = name
        self._bell: Bell | None = None
        self._running: set[Future[Any]] = set()
        self._driving: set[ref[partial[Callable[[], object] | None]]] = set()
        """This store's pieces of work in committing threads. Only its thread holds a piece, so it is freed when it is
        done, or when its thread is stopped."""
        self._driven = asyncio.Event()
        self._awaited = False
        """True while a coroutine waits for the work in `_driving`."""

    def bell(self, notifier: Notifier) -> Bell:
        """The function that wakes waiters when the store has new transactions."""
        if self._bell is None:
            self._bell = Bell(self.threads, notifier)
        return self._bell

    def check(self) -> asyncio.AbstractEventLoop:
        """The running loop, if this may be used in it; else RuntimeError, or StoreClosed."""
        loop = self.threads.loop
        if self.closed:
            raise StoreClosed(f"the {self._name} is closed; open it again")
        return loop

    async def call(self, work: Callable[..., _T], *args: object, long: bool = False) -> _T:
        """Run `work(*args)` in a thread. A cancelled call does not wait for it; work that has begun runs to its end."""
        return await asyncio.wrap_future(self.submit(work, *args, long=long))

    def submit(self, work: Callable[..., _T], *args: object, long: bool = False) -> Future[_T]:
        self.check()
        pool = self.threads.long if long else self.threads.read
        return self.start(pool, contextvars.copy_context().run, work, *args)

    def start(self, pool: ThreadPoolExecutor, work: Callable[..., _T], *args: object) -> Future[_T]:
        """Start `work` in a pool, without a check. Any thread may call it."""
        future = pool.submit(work, *args)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def drive(self, work: Work) -> None:
        """Have a committing thread do `work`. On the loop's thread; RuntimeError if no thread can be had."""
        piece = partial(work)
        self._driving.add(ref(piece, self._ended))
        self.threads.commit.start(piece)

    def _ended(self, piece: ref[partial[Callable[[], object] | None]]) -> None:
        self._driving.discard(piece)
        if self._awaited:
            self.threads.call_soon(self._driven.set)

    def _is_driving(self) -> bool:
        """True if a piece of work is there. A stopped thread may have freed a piece without a word."""
        return any(piece() is not None for piece in tuple(self._driving))

    async def wait(self) -> None:
        """Wait until nothing runs any more. Endless work is told to stop."""
        for stop in self.stops:
            stop()
        self._awaited = True
        while self._is_driving():
            self._driven.clear()
            if self._is_driving():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._driven.wait(), _HEARTBEAT)
        while running := list(self._running):
            ended, _ = await asyncio.wait([asyncio.wrap_future(future) for future in running])
            for future in ended:
                future.cancelled() or future.exception()  # the caller has got the error, if it still waits
