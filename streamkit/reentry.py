"""Locks for code that a signal handler or a finalizer may call while its own thread is in the middle of it.

Such a call cannot wait for its thread, which goes on only when the call has ended: it is refused instead.
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
        "this thread is in the middle of another call to this store: a signal handler or a finalizer (__del__) cannot "
        "read or write then; have it note what is to be done, and do it later or on another thread"
    )


def mark_backend(backend: object) -> None:
    """Mark the methods of a backend or a driver, inherited ones too, so that `inside_backend` recognizes them.

    A client marks each driver and backend that it opens. A backend that hands out bound methods of another object,
    with `__getattr__` for instance, marks that object itself.
    """
    for base in type(backend).__mro__:
        for member in vars(base).values():
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
    """A lock: `with mutex():`. A thread that holds it and asks for it again gets a Reentered.

    Called, it gives the interpreter's own lock, as one that is entered in Python would stay locked for ever where a
    signal handler raises between the acquiring and the block.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @property
    def mine(self) -> bool:
        """This thread holds it."""
        owned: bool = self._lock._is_owned()  # type: ignore[attr-defined]
        return owned

    def __call__(self) -> AbstractContextManager[object]:
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise refused()
        return self._lock

    def acquire(self, timeout: float = -1) -> bool:
        """To be released somewhere else: around a fork."""
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        """Release the lock after `acquire`."""
        self._lock.release()


class Busy(threading.local):
    """Marks what a thread must not begin again in the middle of it, as what it calls has locks of its own.

    `with busy():`. Reentered if this thread is inside already.
    """

    def __init__(self) -> None:
        self._mutex = Mutex()

    def __call__(self) -> AbstractContextManager[object]:
        return self._mutex()
