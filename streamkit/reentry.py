"""Locks for code that a signal handler or a finalizer may call while its own thread is inside it.

Such a call cannot wait for its thread, because the thread continues only after the call. So the call is refused.
"""

from __future__ import annotations

import sys
import threading
from contextlib import AbstractContextManager
from types import CodeType, FrameType, FunctionType

__all__ = ["Busy", "Mutex", "Reentered", "inside_backend", "mark_backend", "refused"]


class Reentered(RuntimeError):
    """A call in the middle of another one of the same thread. Nothing was done."""


def refused() -> Reentered:
    """The error."""
    return Reentered(
        "this thread is inside another call to this store: a signal handler or a finalizer (__del__) cannot read or "
        "write then. Set a flag there, and do the work later or on another thread"
    )


def mark_backend(backend: object) -> None:
    """Mark the methods of a backend or a driver, inherited ones too, so that `inside_backend` recognizes them.

    A client marks each driver and backend that it opens. A backend that hands out bound methods of another object,
    with `__getattr__` for instance, marks that object itself.
    """
    for base in type(backend).__mro__:
        for member in list(vars(base).values()):  # another thread may add one
            method = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if isinstance(method, FunctionType):
                _marked.add(method.__code__)


_marked: set[CodeType] = set()


def inside_backend() -> bool:
    """Return True if a method of a marked backend is below this call, on the stack of the same thread.

    That backend may hold locks, which other threads wait for.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in _marked:
            return True
        frame = frame.f_back
    return False


class Mutex:
    """A lock: `with mutex():`. A thread that holds it and asks for it again gets Reentered.

    A call returns the interpreter's own lock: a lock with an `__enter__` in Python would stay locked if a signal
    handler raised between acquiring it and the block.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @property
    def mine(self) -> bool:
        """This thread holds it."""
        owned: bool = self._lock._is_owned()  # type: ignore[attr-defined]
        return owned

    def enter(self) -> AbstractContextManager[object]:
        """Like a call, which takes Python longer."""
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise refused()
        return self._lock

    __call__ = enter

    def acquire(self, timeout: float = -1) -> bool:
        """To be released somewhere else: around a fork."""
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release the lock after `acquire`."""
        self._lock.release()


class Busy(threading.local):
    """Guard of a block that a thread must not enter again while it is inside, because the block takes locks.

    `with busy():`. Reentered if this thread is inside already.
    """

    def __init__(self) -> None:
        self._mutex = Mutex()

    def __call__(self) -> AbstractContextManager[object]:
        return self._mutex()
