"""Requests to the storage of a server that has nothing to do, counted at the seam, in minutes of an injected time."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID, uuid4

import pytest

from benchmarks.requests import CountingDriver
from streamkit import Client, Record
from streamkit.aio.client import AsyncClient
from streamkit.aio.threads import Threads
from streamkit.serve import Application, Limits, app
from streamkit.serve.v1.cursors import SegmentCursor

FASTER = 100
"""Seconds of the injected time in one of the machine's."""
MINUTE = 60.0


class Fast:
    """A clock that runs faster."""

    def now(self) -> int:
        return int(time.time_ns() / 1e6 * FASTER)

    def monotonic(self) -> float:
        return time.monotonic() * FASTER

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / FASTER)

    def wait(self, condition: threading.Condition, seconds: float) -> bool:
        return condition.wait(seconds / FASTER)


class _Selector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> Any:
        return super().select(None if timeout is None else timeout / FASTER)


class FastLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers run by the same clock."""

    def __init__(self) -> None:
        super().__init__(_Selector())

    def time(self) -> float:
        return time.monotonic() * FASTER


def run(scenario: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        return runner.run(scenario())


class Watcher:
    """A connection that stays open."""

    def __init__(self, application: Application, path: str, query: bytes = b"") -> None:
        self.caught_up = asyncio.Event()
        self.entries = 0
        self.said_bye = False
        self._end = asyncio.Event()
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": query,
            "headers": [(b"host", b"localhost"), (b"accept", b"text/event-stream")],
        }  # fmt: skip
        self._task = asyncio.create_task(application(scope, self._receive, self._send))
        self._begun = False

    async def _receive(self) -> dict[str, Any]:
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b""}
        await self._end.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        data: bytes = message.get("body", b"")
        if b"event: caught-up" in data:
            self.caught_up.set()
        self.said_bye = self.said_bye or b"event: bye" in data
        self.entries += data.count(b"event: entries")

    async def close(self) -> None:
        self._end.set()
        await asyncio.wait((self._task,))


class World:
    """An application on a storage that counts its requests."""

    def __init__(self, own: UUID | None = None, **limits: Any) -> None:
        self.id = uuid4()
        self.driver = CountingDriver(f"idle-{self.id}")
        client = Client("memory://", self.driver, 30.0, None, 1 << 20, Fast())
        client.store(self.id).produce("s", "a", [Record(b"1")])
        self.client = AsyncClient(client, Threads(4))
        self.application = app(self.client, store=self.id if own is None else own, limits=Limits(**limits))

    async def asked(self, seconds: float) -> int:
        """Requests to the storage in so many seconds."""
        before = self.driver.counted.requests
        await asyncio.sleep(seconds)
        return self.driver.counted.requests - before


def watching(count: int) -> int:
    """Requests in two minutes, with so many watchers of one space who have nothing to see."""

    async def scenario() -> int:
        world = World()
        paths = [f"/v1/stores/_/spaces/s/{what}" for what in ("entries", "segments/a/entries", "statuses")]
        watchers = [Watcher(world.application, paths[number % 3]) for number in range(count)]
        for watcher in watchers:
            await watcher.caught_up.wait()
        await asyncio.sleep(MINUTE)
        asked = await world.asked(2 * MINUTE)
        for watcher in watchers:
            await watcher.close()
        await world.application.service.close()
        await world.client.close()
        return asked

    return run(scenario)


def test_500_watchers_of_a_space_cost_as_much_as_one() -> None:
    one = watching(1)
    assert one >= 2, "nothing was counted"
    assert watching(500) <= one + 2


def test_watchers_of_a_space_that_went_cost_nothing() -> None:
    async def scenario() -> int:
        world = World()
        watchers = [Watcher(world.application, "/v1/stores/_/spaces/s/entries") for _ in range(20)]
        for watcher in watchers:
            await watcher.caught_up.wait()
        for watcher in watchers:
            await watcher.close()
        await asyncio.sleep(2 * MINUTE)
        assert len(world.application.service.rings) == 0
        asked = await world.asked(5 * MINUTE)
        await world.application.service.close()
        await world.client.close()
        return asked

    assert run(scenario) == 0


def test_a_watcher_whose_first_page_takes_minutes_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        page, slow = SegmentCursor.page, [2 * MINUTE]

        async def paged(self: SegmentCursor) -> tuple[bytes, bool]:
            if slow:
                await asyncio.sleep(slow.pop())
            return await page(self)

        monkeypatch.setattr(SegmentCursor, "page", paged)
        world = World()
        watcher = Watcher(world.application, "/v1/stores/_/spaces/s/segments/a/entries")
        await watcher.caught_up.wait()
        await world.client.store(world.id).produce("s", "a", [Record(b"2")])
        async with asyncio.timeout(20 * MINUTE):
            while watcher.entries < 2 and not watcher.said_bye:
                await asyncio.sleep(1)
        await watcher.close()
        await world.application.service.close()
        await world.client.close()

    run(scenario)


def test_a_server_without_subscriptions_asks_its_own_store_twice_a_minute() -> None:
    async def scenario() -> tuple[int, int]:
        world = World(upkeep_seconds=0)
        messages: asyncio.Queue[Any] = asyncio.Queue()
        replies: asyncio.Queue[Any] = asyncio.Queue()
        living = asyncio.create_task(world.application({"type": "lifespan"}, messages.get, replies.put))
        messages.put_nowait({"type": "lifespan.startup"})
        assert (await replies.get())["type"] == "lifespan.startup.complete"
        await asyncio.sleep(MINUTE)
        asked = await world.asked(10 * MINUTE)
        messages.put_nowait({"type": "lifespan.shutdown"})
        await living
        await world.client.close()
        return asked

    assert 1 <= run(scenario) <= 25
