"""The bell wakes the coroutines of an event loop when this process has read new transactions of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..log.notifier import Notifier

if TYPE_CHECKING:
    from .threads import Threads

__all__ = ["Bell"]


class Bell:
    """The only listener that an event loop has at a store's notifier.

    A catch-up notifies of thousands of transactions while it holds a partition's lock. The loop is called once for
    all of them, however many coroutines wait.
    """

    def __init__(self, threads: Threads, notifier: Notifier) -> None:
        self._threads = threads
        self._notifier = notifier
        self._waiting: set[asyncio.Event] = set()
        self._called = False
        """True if the loop already has a call of `_wake` before it."""

    @contextmanager
    def waiting(self) -> Iterator[asyncio.Event]:
        """An event that is set at each notification. Call it on the loop's thread."""
        event = asyncio.Event()
        if not self._waiting:
            self._notifier.listen(self._ring)
        self._waiting.add(event)
        try:
            yield event
        finally:
            self._waiting.discard(event)
            if not self._waiting:
                self._notifier.unlisten(self._ring)

    def _ring(self) -> None:
        if not self._called:
            self._called = True
            self._threads.call_soon(self._wake)

    def _wake(self) -> None:
        self._called = False  # first, so that a notification from now on calls the loop again
        for event in self._waiting:
            event.set()
