"""The threads that commit for coroutines."""

from __future__ import annotations

import atexit
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

__all__ = ["Work", "Workers"]

Work = Callable[[], Callable[[], object] | None]
"""A piece of work. It may return a short last call, which is made when its thread counts as one that waits: whoever is
told by it finds that thread for the next piece, and no other thread has to wake up."""
_Queue = SimpleQueue[Work | None]


class Workers:
    """A pool of at most `most` threads, which do pieces of work. The thread of the event loop alone calls `start`.

    An executor's hand-over costs more: it makes a future for each piece, and takes locks on both sides. Here a piece
    has no result but its last call, and errors are dropped. The process ends after the pieces that have begun.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._work: _Queue = SimpleQueue()
        self._idle: deque[None] = deque(maxlen=most)
        """An item for each thread that waits, or makes its last call, and that no piece was given to."""
        self._threads: list[Thread] = []
        self._closed = False
        _all.add(self)

    def start(self, work: Work) -> None:
        """Have a thread do `work`. RuntimeError if there is no thread and none can be started, or after `close`."""
        if self._closed:
            raise RuntimeError("the threads of this client have ended: connect again")
        try:
            self._idle.pop()
        except IndexError:
            self._begin()
        self._work.put(work)

    def _begin(self) -> None:
        """Start a thread, unless there are enough."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        number = len(self._threads)
        if number < self._most:
            thread = Thread(None, _serve, f"{self._name}_{number}", (self._work, self._idle), daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if not number:
                    raise
            else:
                self._threads.append(thread)

    def close(self, *, wait: bool = False) -> None:
        """End the threads, after the pieces that they were given."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def __del__(self) -> None:
        self.close()


def _serve(work: _Queue, idle: deque[None]) -> None:
    piece: Work | None = None
    last: Callable[[], object] | None = None
    try:
        while (piece := work.get()) is not None:
            try:  # noqa: SIM105  (suppress costs more than the code around it)
                last = piece()
            except BaseException:
                pass  # the waiting callers look for themselves
            piece = None
            if work.empty():
                idle.append(None)
            if last is not None:
                with suppress(BaseException):
                    last()
                last = None
    finally:
        piece = last = None  # a stopped thread frees its piece, also if the error's traceback is kept


_all: weakref.WeakSet[Workers] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    for workers in list(_all):
        workers.close(wait=True)
