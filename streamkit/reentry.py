"""Locks for code that a signal handler or a finalizer may call while its own thread is in the middle of it.

Such a call cannot wait for its thread, which goes on only when the call has ended: it is refused instead.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["Busy", "Mutex", "Reentered", "refused"]


class Reentered(RuntimeError):
    """A call in the middle of another one of the same thread. Nothing was done."""


def refused() -> Reentered:
    """The error."""
    return Reentered(
        "this thread is in the middle of another call to this store: a signal handler or a finalizer (__del__) cannot "
        "read or write then; have it note what is to be done, and do it later or on another thread"
    )


class Mutex:
    """A lock. A thread that holds it and asks for it again gets a Reentered, or False if it would not wait."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @property
    def mine(self) -> bool:
        """This thread holds it."""
        owned: bool = self._lock._is_owned()  # type: ignore[attr-defined]
        return owned

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock._is_owned():  # type: ignore[attr-defined]
            if blocking:
                raise refused()
            return False
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise refused()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Busy(threading.local):
    """Marks what a thread must not begin again in the middle of it, as what it calls has locks of its own."""

    _inside = False

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Reentered if this thread is inside already."""
        if self._inside:
            raise refused()
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
