"""Reading on an event loop: in constant memory, at the reader's pace, without a thread switch for every entry."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from fix_aio import AsyncSubject, in_loop

from streamkit import Record
from streamkit.aio import AsyncStore


class Counted:
    """Counts what a store has threads do."""

    def __init__(self, store: AsyncStore) -> None:
        self.calls = 0
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        call = store.calls.call

        async def counting(work: Any, *args: Any, **options: Any) -> Any:
            self.calls += 1

            def counted(*args: Any) -> Any:
                with self._lock:
                    self._now += 1
                    self.most = max(self.most, self._now)
                try:
                    return work(*args)
                finally:
                    with self._lock:
                        self._now -= 1

            return await call(counted, *args, **options)

        store.calls.call = counting  # type: ignore[method-assign]


@in_loop
async def test_entries_come_without_a_thread_switch_each(aio: AsyncSubject) -> None:
    """Batches are read, also if each entry is a transaction of its own."""
    async with aio.store() as store:
        await asyncio.gather(*[store.produce("s", f"{n % 5}", [Record(b"%d" % n)]) for n in range(500)])
        for n in range(500):
            await store.produce("s", "one by one", [Record(b"%d" % n)])
        counted = Counted(store)
        assert len([entry async for entry in store.consume_space("s")]) == 1000
        assert counted.calls < 100
        assert len([entry async for entry in store.consume_segment("s", "one by one")]) == 500


@in_loop
async def test_nothing_is_fetched_that_nobody_asks_for(make_url: Callable[[str], str]) -> None:
    """A reader that stops keeps a chunk, not the space: 64 MiB are there, few are read."""
    async with AsyncSubject(make_url("remote") + "&page=2").store() as store:
        for _ in range(64):
            await store.produce("s", "a", [Record(os.urandom(1 << 20))])
        before = (await store.statistics()).requests["bytes_read"]
        reading = store.consume_space("s")
        for n in range(3):
            assert (await anext(reading)).sequence == n + 1
        read = (await store.statistics()).requests["bytes_read"] - before
        await reading.aclose()
        whole = (await store.statistics()).requests["bytes_read"]
        assert len([entry async for entry in store.consume_space("s")]) == 64
        assert read < ((await store.statistics()).requests["bytes_read"] - whole) / 4


@in_loop
async def test_two_hundred_read_with_three_threads(memory: AsyncSubject) -> None:
    async with memory.store(threads=3) as store:
        await store.produce("s", "a", [Record(b"%d" % n) for n in range(2000)])
        counted = Counted(store)

        async def read() -> int:
            return len([entry async for entry in store.consume_segment("s", "a")])

        assert await asyncio.gather(*[read() for _ in range(200)]) == [2000] * 200
        assert 1 <= counted.most <= 3


@in_loop
async def test_what_came_before_an_error_is_handed_out_before_it_is_raised(memory: AsyncSubject) -> None:
    async with memory.store() as store:

        def broken() -> Any:
            yield from range(40)
            raise OSError("the end")

        from streamkit.aio.reading import items

        found = []
        with pytest.raises(OSError, match="the end"):  # noqa: PT012
            async for item in items(store.calls, broken()):
                found.append(item)
        assert found == list(range(40))


@in_loop
async def test_the_loop_goes_on_while_much_is_compressed(memory: AsyncSubject) -> None:
    async with memory.store() as store:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        on_loop = threading.get_ident()
        threads: set[int] = set()
        writer = store.sync._writer

        def noted(make: Callable[..., Any]) -> Callable[..., Any]:
            def made(*args: Any) -> Any:
                threads.add(threading.get_ident())
                return make(*args)

            return made

        writer.part, writer.lone = noted(writer.part), noted(writer.lone)  # type: ignore[method-assign]
        await store.produce("s", "a", [Record(bytes(range(256)) * 4096)] * 32)
        assert on_loop not in threads
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        assert ticks
        await store.produce("s", "a", [Record(b"small")])
        assert on_loop in threads


@in_loop
async def test_a_cancelled_reader_leaves_the_store_usable(aio: AsyncSubject) -> None:
    async with aio.store(threads=2) as store:
        await store.produce("s", "a", [Record(b"%d" % n) for n in range(1000)])

        async def read() -> None:
            async for _ in store.consume_space("s"):
                await asyncio.sleep(0)

        for steps in range(30):
            task = asyncio.create_task(read())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert len([entry async for entry in store.consume_space("s")]) == 1000
