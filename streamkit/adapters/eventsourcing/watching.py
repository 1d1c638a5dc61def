"""Wake subscriptions of the library when the store has changed, whichever process changed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

__all__ = ["Watching"]

_QUIET = 1.0
"""Seconds without a change after which a watch starts again. Then it sees that its subscription was stopped."""


class Watching:
    """A watcher beside one of the library's two subscription classes, which have a thread that pulls and no common
    base."""

    def _watch(self, changes: Callable[[float], Iterator[object]]) -> None:
        """Wake the puller for each change, in a thread of its own, until the subscription is stopped."""
        Thread(target=self._wake, args=(changes,), name="streamkit-subscription", daemon=True).start()

    def _wake(self: Any, changes: Callable[[float], Iterator[object]]) -> None:
        try:
            while not self._has_been_stopped:
                # For changes between two looks.
                self._has_been_notified.set()
                for _ in changes(_QUIET):
                    if self._has_been_stopped:
                        return
                    self._has_been_notified.set()
        except BaseException as error:
            if not self._has_been_stopped:
                self._thread_error = self._thread_error or error
                self.stop()
