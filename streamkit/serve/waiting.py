"""Waiting for new entries without a timer for each wait: they wake the waiter, and one ticker serves all streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .responses import Gone, Receive

if TYPE_CHECKING:
    from collections.abc import Callable

    from .access import Access
    from .streams import OpenStream

__all__ = ["Ticker", "Waiter"]


class Waiter:
    """A request that waits. Other code calls `wake` after a change; waking twice, or for nothing, is fine.

    Watches the client meanwhile, from `watch` to `close`.
    """

    __slots__ = ("_receive", "_waiting", "_watch", "_woken", "gone")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._waiting: asyncio.Future[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._woken = False
        self.gone = False
        """True if the client has left."""

    def watch(self) -> None:
        """Begin to watch the client. The body has been read before."""
        self._watch = asyncio.ensure_future(self._watch_client())

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self.wake()

    def wake(self) -> None:
        """Have `wait` return, now or the next time. Only in the event loop."""
        self._woken = True
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def wait(self) -> None:
        """Return when it was woken since the last return. Gone if the client has left."""
        if not self._woken and not self.gone:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        self._woken = False
        if self.gone:
            raise Gone

    async def wait_until(self, end: float) -> bool:
        """`wait`, but at most until `end` by the loop's clock; whether there is time left."""
        loop = asyncio.get_running_loop()
        if loop.time() >= end:
            return False
        timer = loop.call_at(end, self.wake)
        try:
            await self.wait()
        finally:
            timer.cancel()
        return loop.time() < end

    def close(self) -> None:
        """Stop watching the client."""
        if self._watch is not None:
            self._watch.cancel()


class Ticker:
    """Looks at all open streams each second: is one silent for too long, does its client read, may it still.

    Runs only while there are streams.
    """

    def __init__(self, heartbeat: float, stalled: float, is_valid: Callable[[Access], bool]) -> None:
        self._heartbeat = heartbeat
        self._stalled = stalled
        self._is_valid = is_valid
        self._streams: set[OpenStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: OpenStream) -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._start()

    def discard(self, stream: OpenStream) -> None:
        self._streams.discard(stream)
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        pause = min(1.0, *(seconds / 4 for seconds in (self._heartbeat, self._stalled) if seconds))
        self._timer = asyncio.get_running_loop().call_later(pause, self._tick)

    def _tick(self) -> None:
        now = asyncio.get_running_loop().time()
        valid: dict[tuple[str, float], bool] = {}
        for stream in list(self._streams):
            caller = stream.access.id, stream.access.expires
            if caller not in valid:
                valid[caller] = self._is_valid(stream.access)
            if not valid[caller]:
                stream.is_over = True
                stream.wake()
            since = stream.writing_since
            if since is not None:
                if self._stalled and now - since >= self._stalled:
                    stream.cut()
            elif self._heartbeat and now - stream.written_at >= self._heartbeat:
                stream.is_silent = True
                stream.wake()
        self._start()

    def wake_all(self) -> None:
        """Have every stream look at the service's state."""
        for stream in list(self._streams):
            stream.wake()
