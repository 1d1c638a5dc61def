"""Open streams: responses that a handler writes piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .access import Access
from .responses import Gone, Headers, Receive, Send
from .waiting import Ticker, Waiter

__all__ = ["OpenStream"]


class OpenStream(Waiter):
    """A response that is open, from `request.stream(…)`. A handler ends it by returning None.

    `write` sends a piece at once, and waits while the client does not read. `wait` returns after a call of `wake`:
    for new entries, or for a silence that must be broken (`is_silent`). It raises Gone if the client has left.
    """

    __slots__ = (
        "_abort",
        "_bodiless",
        "_send",
        "_task",
        "_ticker",
        "access",
        "is_over",
        "is_silent",
        "was_cut",
        "writing_since",
        "written_at",
    )

    def __init__(
        self,
        send: Send,
        receive: Receive,
        ticker: Ticker,
        bodiless: bool,
        abort: Callable[[], object] | None,
        access: Access,
    ) -> None:
        super().__init__(receive)
        self.access = access
        """The rights that it was opened with."""
        self.is_over = False
        """True if the rights have ended: the key was revoked, or it has expired."""
        self._send = send
        self._ticker = ticker
        self._bodiless = bodiless
        self._abort = abort
        self._task = asyncio.current_task()
        self.was_cut = False
        """The client did not read, and was given up."""
        self.is_silent = False
        """Nothing was written for the time of the heartbeat."""
        self.writing_since: float | None = None
        """Since when a write waits for the client, by the loop's clock."""
        self.written_at = 0.0
        """The time at which the last write ended, by the loop's clock."""

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status and the headers."""
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})
        self.written_at = asyncio.get_running_loop().time()
        self.watch()
        self._ticker.add(self)

    async def write(self, data: bytes) -> None:
        """Send `data`. Gone if the client has left."""
        if self.gone:
            raise Gone
        if self._bodiless:
            return
        time = asyncio.get_running_loop().time
        self.writing_since = time()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self.writing_since = None
        self.written_at = time()
        self.is_silent = False

    def cut(self) -> None:
        """Give up a client that does not read."""
        self.gone = self.was_cut = True
        if self._abort is not None:
            self._abort()
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        """Complete the response."""
        if not self.gone:
            await self._send({"type": "http.response.body", "body": b""})

    def close(self) -> None:
        super().close()
        self._ticker.discard(self)
