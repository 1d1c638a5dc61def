"""Reading and following: batches are fetched in a thread, and handed out on the event loop without another switch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from ..log.follow import Following
from ..model import Entry
from .threads import Calls

__all__ = ["Watch", "follow", "items"]

_T = TypeVar("_T")
_FEW, _MANY = 16, 1024
"""Items that are fetched at once: few at first, more each time."""
_BYTES = 1 << 20
"""Payload that is enough to hand out."""
_SECONDS = 0.02
"""What is there after so long is handed out."""


class _Chunk(NamedTuple):
    items: list[Any]
    error: BaseException | None
    more: bool


def _fetch(iterator: Iterator[Any], most: int) -> _Chunk:
    """The next items; never more than memory holds."""
    found: list[Any] = []
    size = 0
    end = time.monotonic() + _SECONDS
    try:
        for item in iterator:
            found.append(item)
            if type(item) is Entry:
                size += len(item.payload)
            if len(found) >= most or size >= _BYTES or time.monotonic() >= end:
                return _Chunk(found, None, True)
    except BaseException as error:
        return _Chunk(found, error, False)
    return _Chunk(found, None, False)


async def items(calls: Calls, iterator: Iterator[_T]) -> AsyncGenerator[_T, None]:
    """What `iterator` gives. What came before an error is handed out before it is raised."""
    most = _FEW
    while True:
        found, error, more = await calls.call(_fetch, iterator, most)
        for item in found:
            yield item
        if error is not None:
            raise error
        if not more:
            return
        most = min(most * 4, _MANY)


async def follow(calls: Calls, watch: Watch, following: Iterator[_T]) -> AsyncGenerator[_T, None]:
    """What a follower finds, again and again. It has a thread while it looks, and none while it waits."""
    assert isinstance(following, Following)
    patience = following.patience
    while True:
        seen = patience.known()
        iterator = _flat(following.look)
        most, more = _FEW, True
        while more:
            found, error, more = await calls.call(_fetch, iterator, most)
            for item in found:
                yield item
            if error is not None:
                raise error
            if found:
                patience.reset()
            most = min(most * 4, _MANY)
        if not await watch.wait(following, seen):
            return


def _flat(look: Callable[[], Iterator[Iterable[_T]]]) -> Iterator[_T]:
    for found in look():
        yield from found


class Watch:
    """Where the followers of one store wait on the event loop, until this process knows more or it is time to look."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._called = False

    async def wait(self, following: Following[_T], seen: tuple[int, ...]) -> bool:
        """Patience.wait, without a thread."""
        patience = following.patience
        end = patience.until()
        if end is None:
            return False
        news = patience.news
        waiting = asyncio.get_running_loop().create_future()
        if not self._waiting:
            news.listen(self._tell)
        # Whoever tells looks whether somebody waits, and whoever waits looks again after it has said so.
        self._waiting[waiting] = lambda: patience.known() != seen
        try:
            if patience.known() == seen:
                await asyncio.wait([waiting], timeout=max(end - patience.clock.monotonic(), 0))
                self._calls.check()
        finally:
            del self._waiting[waiting]
            if not self._waiting:
                news.unlisten(self._tell)
        return True

    def _tell(self) -> None:
        """News; from any thread."""
        if self._waiting and not self._called:
            self._called = True
            self._calls.threads.call_soon(self._look)

    def _look(self) -> None:
        self._called = False
        for waiting, is_more in list(self._waiting.items()):
            if not waiting.done() and (self._calls.closed or is_more()):
                waiting.set_result(None)

    def close(self) -> None:
        """Whoever waits ends, with StoreClosed. The store's `closed` was set before."""
        self._look()
