"""Reading and following: batches are fetched in a thread, and handed out on the event loop without another switch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from ..log.follow import Following, PollTimer
from ..model import Entry
from .threads import Calls

__all__ = ["Watch", "follow", "items"]

_T = TypeVar("_T")
_FEW, _MANY = 16, 1024
"""Items that are fetched at once: few at first, more each time."""
_BYTES = 1 << 20
"""Payload that is enough to hand out."""
_SECONDS = 0.02
"""Seconds after which entries are handed out even if they are few."""


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
    """Yield the items of `iterator`. Items that came before an error are yielded before it is raised."""
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
    """Yield the finds of a follower. It has a thread while it looks, and none while it waits."""
    assert isinstance(following, Following)
    timer = following.timer
    while True:
        seen = timer.known()
        iterator = _flat(following.look)
        most, more = _FEW, True
        while more:
            found, error, more = await calls.call(_fetch, iterator, most)
            for item in found:
                yield item
            if error is not None:
                raise error
            if found:
                timer.reset()
            most = min(most * 4, _MANY)
        # Followers of one space share their requests, so later entries may be known already.
        timer.since = 0
        while timer.known() == seen:
            if not await watch.wait(timer, seen):
                return


def _flat(look: Callable[[], Iterator[Iterable[_T]]]) -> Iterator[_T]:
    for found in look():
        yield from found


class _Look(NamedTuple):
    begun: float
    ended: asyncio.Future[None]

    @property
    def failed(self) -> bool:
        return self.ended.cancelled() or self.ended.exception() is not None


class Watch:
    """The place on the event loop where a store's followers wait for new transactions or for the next look."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._called = False
        self._looks: dict[str, _Look] = {}
        """The latest of each space that is followed."""

    async def wait(self, timer: PollTimer, seen: tuple[int, ...]) -> bool:
        """Wait until more than `seen` is known, or a look is due. False if the follower's timeout has passed."""
        end = timer.until()
        if end is None:
            return False
        waiting = asyncio.get_running_loop().create_future()
        if not self._waiting:
            timer.notifier.listen(self._tell)
        # The notifier checks for waiters. A waiter registers first and then looks again, so it misses nothing.
        self._waiting[waiting] = lambda: timer.known() != seen
        try:
            if timer.known() == seen:
                await asyncio.wait([waiting], timeout=max(end - timer.clock.monotonic(), 0))
                self._calls.check()
        finally:
            del self._waiting[waiting]
            if not self._waiting:
                timer.notifier.unlisten(self._tell)
        if timer.known() == seen:
            await self._refresh(timer)
        return True

    async def _refresh(self, timer: PollTimer) -> None:
        """Look at the storage, unless another follower of the space is doing so or has just done."""
        look = self._looks.get(timer.space)
        now = asyncio.get_running_loop().time()
        if look is None or (look.ended.done() and (look.failed or now - look.begun >= timer.pause / 2)):
            self._looks = {space: other for space, other in self._looks.items() if not other.ended.done()}
            ended = asyncio.wrap_future(self._calls.submit(timer.refresh))
            # if no coroutine waits any more
            ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            look = self._looks[timer.space] = _Look(now, ended)
        await asyncio.wait([look.ended])
        if look.failed:
            # Each one that waited gets an error of its own.
            await self._calls.call(timer.refresh)

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
        """End all waiters with StoreClosed. The store's `closed` was set before."""
        self._look()
