"""The notifier wakes the threads of this process that wait for new transactions."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Notifier"]


class Notifier(threading.Condition):
    """Notified when a transaction of any partition of a store becomes known here."""

    def __init__(self) -> None:
        self.waiting = 0
        """The number of waiting threads. Each counts itself before its last look: a writer takes no lock if it is 0."""
        self.mutex = threading.RLock()
        """Enter this lock instead of the condition: the condition's `__exit__` is Python, and an interrupt there leaves
        it locked."""
        super().__init__(self.mutex)
        self.listeners: tuple[Callable[[], None], ...] = ()

    def notify_waiters(self) -> None:
        """Wake the waiting threads, and call the listeners."""
        if self.waiting:
            with self.mutex:
                self.notify_all()
        for listener in self.listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after new transactions, from any thread. It is quick, takes no lock and raises nothing."""
        with self.mutex:
            self.listeners = (*self.listeners, listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        with self.mutex:
            self.listeners = tuple([other for other in self.listeners if other != listener])
