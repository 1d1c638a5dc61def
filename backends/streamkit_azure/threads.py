"""Requests at the same time. A request in these threads starts no other one in them, so that no thread waits for
another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from streamkit.errors import StoreClosed
from streamkit.reentry import Busy, Reentered

__all__ = ["Threads"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_THREADS = 32


class Threads:
    """Threads are started when they are needed. StoreClosed after close, and for calls that close cancelled."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="streamkit-azure")
        self._busy = Busy()

    def start(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Callable[[], R]:
        """Call `function` in a thread. Returns a function that waits for the result."""
        try:
            with self._busy():
                future = self._pool.submit(function, *args, **kwargs)
        except Reentered:
            raise
        except RuntimeError:
            raise _closed() from None

        def result() -> R:
            try:
                return future.result()
            except CancelledError:
                raise _closed() from None

        return result

    def each(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results in the order of `items`; the first error is raised when all others have ended, too."""
        results = [self.start(function, item) for item in items]
        found: list[R] = []
        error: Exception | None = None
        for result in results:
            try:
                found.append(result())
            except Exception as failed:
                error = error or failed
        if error is not None:
            raise error
        return found

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _closed() -> StoreClosed:
    return StoreClosed("the client was closed while requests were under way; connect again")
