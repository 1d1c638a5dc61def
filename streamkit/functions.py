"""Checks of functions that callers pass in: the work of a function must be done when its call returns."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

__all__ = ["check_function", "completed"]

T = TypeVar("T")
_PLAIN = (type(None), bool, int, str, bytes)


def check_function(name: str, function: Any, takes: str, *, iterated: bool = False, awaited: bool = False) -> None:
    """Raise TypeError for an object that cannot be called, or that would do its work only after the call.

    `takes`: the argument of the call, for the message. `iterated`: a generator function is fine, because the caller
    iterates the result. `awaited`: an async function is fine, because the caller awaits the result.
    """
    import inspect

    if not callable(function):
        raise TypeError(f"{name} is a function of {takes}, not {function!r:.60}")
    called = _called(function)
    if inspect.iscoroutinefunction(called):
        if not awaited:
            raise TypeError(
                f"{name} is an async function, {function!r:.60}: nobody would await it, and its work would never be "
                "done. Hand in a plain function, or use streamkit.aio, which awaits handlers"
            )
    elif inspect.isasyncgenfunction(called) or (inspect.isgeneratorfunction(called) and not iterated):
        raise TypeError(
            f"{name} is a generator function, {function!r:.60}: nobody would iterate it, and its work would never be "
            "done. Hand in a function without yield"
        )


def completed(name: str, result: T) -> T:
    """Return the result of a call. TypeError for an awaitable or a generator, because its work is still to do. A lambda
    can return one, and only its result shows that.
    """
    if type(result) in _PLAIN:
        return result
    import inspect

    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()  # or Python warns that it was never awaited
    elif not (inspect.isawaitable(result) or inspect.isasyncgen(result)):
        return result
    raise TypeError(
        f"{name} returned a {type(result).__name__}: nobody awaits or iterates it, so its work was not done. "
        "Do the work before the function returns"
    )


def _called(function: Any) -> Any:
    """The function whose code a call runs: behind partials, bound methods and `__call__`."""
    import inspect

    while not inspect.isfunction(function):
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isfunction(type(function).__call__) and not inspect.iscoroutinefunction(function):
            return type(function).__call__
        else:
            break
    return function
