"""A watcher that does not read: it holds one write, the others get everything, and it is given up in the end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from streamkit import Record
from streamkit.aio import AsyncClient, connect
from streamkit.serve import Application, Limits, app

RING = 64 << 10
PAYLOAD = b'"' + b"x" * 20_000 + b'"'


class Watcher:
    """A connection to the application, without a socket. While `reads` is cleared, its writes wait."""

    def __init__(self, application: Application) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.pending = 0
        self.sequences: list[int] = []
        self.is_caught_up = False
        self.aborted = False
        self._came = asyncio.Event()
        self._sent = asyncio.Event()
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/stores/_/spaces/s/entries",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"accept", b"text/event-stream")],
            "streamkit.abort": self.abort,
        }
        self.task = asyncio.ensure_future(application(scope, self._receive, self._send))

    def abort(self) -> None:
        self.aborted = True

    async def _receive(self) -> dict[str, Any]:
        if not self._sent.is_set():
            self._sent.set()
            return {"type": "http.request", "body": b""}
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: Any) -> None:
        data = message.get("body", b"")
        self.pending += 1
        await self.reads.wait()
        self.pending -= 1
        self.sequences += map(int, re.findall(rb'"sequence":(\d+)', data))
        self.is_caught_up = self.is_caught_up or b"event: caught-up" in data
        self._came.set()

    async def until(self, count: int) -> None:
        """Return when it has caught up, and as many entries have come."""
        while not self.is_caught_up or len(self.sequences) < count:
            self._came.clear()
            await self._came.wait()


def in_loop(test: Callable[[Application, AsyncClient, UUID], Any], limits: Limits) -> None:
    async def run() -> None:
        store = uuid4()
        async with connect("memory://") as client, asyncio.timeout(60):
            application = app(client, store=store, limits=limits)
            await test(application, client, store)
            await application.service.close()

    asyncio.run(run())


def test_the_others_get_everything_while_one_holds_a_single_write() -> None:
    async def test(application: Application, client: AsyncClient, store: UUID) -> None:
        stalled, *others = [Watcher(application) for _ in range(5)]
        for watcher in (stalled, *others):
            await watcher.until(0)
        stalled.reads.clear()
        for number in range(1, 41):
            await client.store(store).produce("s", "a", [Record(PAYLOAD)])
            for watcher in others:
                await watcher.until(number)
            assert stalled.pending <= 1
        assert stalled.sequences == []
        (ring,) = application.service.rings
        assert ring.end - ring.first < 10  # unread entries are not kept for it
        stalled.reads.set()
        await stalled.until(40)
        assert stalled.sequences == list(range(1, 41))
        for watcher in (stalled, *others):
            watcher.task.cancel()

    in_loop(test, Limits(ring_bytes=RING))


def test_a_watcher_that_never_reads_again_is_given_up_and_the_others_go_on() -> None:
    async def test(application: Application, client: AsyncClient, store: UUID) -> None:
        stalled, other = Watcher(application), Watcher(application)
        for watcher in (stalled, other):
            await watcher.until(0)
        stalled.reads.clear()
        await client.store(store).produce("s", "a", [Record(PAYLOAD)])
        await asyncio.wait([stalled.task])
        assert stalled.aborted
        assert not other.aborted
        await client.store(store).produce("s", "a", [Record(PAYLOAD)])
        await other.until(2)
        assert (application.service.gate.streams, len(application.service.ticker)) == (1, 1)
        other.task.cancel()

    in_loop(test, Limits(write_seconds=0.05))
