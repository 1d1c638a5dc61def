"""The bell: wakes the coroutines that wait until this process knows more of a store."""

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
    """The one listener of an event loop to a store's notifier. A catch-up tells of thousands of transactions, while it
    holds a partition's lock: the loop is called once for all of them, however many coroutines wait."""

    def __init__(self, threads: Threads, notifier: Notifier) -> None:
        self._threads = threads
        self._notifier = notifier
        self._waiting: set[asyncio.Event] = set()
        self._called = False
        """Whether the loop is to call `_wake` already."""

    @contextmanager
    def waiting(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever there is news. On the loop's thread."""
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
        self._called = False  # before: what is told from now on is told again
        for event in self._waiting:
            event.set()
