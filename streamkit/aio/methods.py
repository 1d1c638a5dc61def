"""Methods for coroutines, made from those of `Store`: the same parameters, checks and documentation, said once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ..store import Store
from .reading import follow, items
from .threads import Calls

if TYPE_CHECKING:
    from .store import AsyncStore

__all__ = ["Progress", "awaited", "followed", "in_thread", "iterated", "with_progress"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
Progress = Callable[[int, int], None]


def awaited(
    method: Callable[Concatenate[Store, _P], _T], *, long: bool = False
) -> Callable[Concatenate[AsyncStore, _P], Coroutine[Any, Any, _T]]:
    """`method` in a thread; `long`: in one that no reader waits for."""

    @wraps(method)
    async def call(self: AsyncStore, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return await self.calls.call(partial(method, self.sync, *args, **options), long=long)

    return call


def with_progress(
    method: Callable[Concatenate[Store, _P], _T],
) -> Callable[Concatenate[AsyncStore, _P], Coroutine[Any, Any, _T]]:
    """`method`, which takes long; its `progress` is called on the event loop. Cancelled, it ends at its next one."""

    @wraps(method)
    async def call(self: AsyncStore, /, *args: _P.args, **options: _P.kwargs) -> _T:
        progress: Any = options.pop("progress", None)
        return await in_thread(self.calls, progress, partial(method, self.sync, *args, **options))

    return call


def iterated(
    method: Callable[Concatenate[Store, _P], Iterator[_T]],
) -> Callable[Concatenate[AsyncStore, _P], AsyncGenerator[_T, None]]:
    """Iterate over the result of `method` in threads. It is called at once: it checks arguments and does no I/O."""

    @wraps(method)
    def call(self: AsyncStore, /, *args: _P.args, **options: _P.kwargs) -> AsyncGenerator[_T, None]:
        self.calls.check()
        return items(self.calls, method(self.sync, *args, **options))

    return call


def followed(
    method: Callable[Concatenate[Store, _P], Iterator[_T]],
) -> Callable[Concatenate[AsyncStore, _P], AsyncGenerator[_T, None]]:
    """Follow with the follower that `method` makes. It has a thread while it looks, and none while it waits."""

    @wraps(method)
    def call(self: AsyncStore, /, *args: _P.args, **options: _P.kwargs) -> AsyncGenerator[_T, None]:
        self.calls.check()
        return follow(self.calls, self.watch, method(self.sync, *args, **options))

    return call


async def in_thread(calls: Calls, progress: Progress | None, work: Callable[..., _T]) -> _T:
    """`work(progress=…)` in a thread; cancelled, it ends where it tells its progress next."""
    ended: list[BaseException] = []

    def tell(done: int, of: int) -> None:
        if ended:
            raise ended[0]
        if progress is not None:
            calls.threads.call_soon(lambda: call(done, of))

    def call(done: int, of: int) -> None:
        assert progress is not None
        if not ended:
            try:
                progress(done, of)
            except BaseException as error:
                ended.append(error)

    try:
        found = await calls.call(partial(work, progress=tell), long=True)
    except asyncio.CancelledError as error:
        ended.append(error)
        raise
    if ended:  # in the last call, which was not waited for
        raise ended[0]
    return found
