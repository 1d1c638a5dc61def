"""Followers and subscribers on an event loop: they wait there, without a thread, and end at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from fix_aio import AsyncSubject, in_loop

from harness.held_store import held_store
from streamkit import Entry, LexKey, Record
from streamkit.errors import AccessDenied, StoreClosed

POLL = (0.01, 0.02)


async def put(store: Any, *names: str, segment: str = "a") -> None:
    for name in names:
        await store.produce("s", segment, [Record(name.encode())])


async def gather(following: AsyncIterator[Any], count: int) -> list[Any]:
    found = []
    async with aclosing(following) as items:  # type: ignore[type-var]
        async for item in items:
            found.append(item)
            if len(found) == count:
                break
    return found


@in_loop
async def test_history_comes_first_and_then_what_is_written_here_and_elsewhere(aio: AsyncSubject) -> None:
    async with aio.store(poll=POLL) as store, aio.store() as other:
        await put(store, "1", "2")
        tasks = [
            asyncio.create_task(gather(store.follow_space("s"), 4)),
            asyncio.create_task(gather(store.follow_segment("s", "a", after=1), 3)),
            asyncio.create_task(gather(store.subscribe_to_segment("s", "a"), 2)),
            asyncio.create_task(gather(store.subscribe_to_space("s"), 2)),
        ]
        await asyncio.sleep(0.02)
        await put(store, "3")
        await put(other, "4")
        space, segment, status, _ = await asyncio.gather(*tasks)
        assert [entry.payload for entry in space] == [b"1", b"2", b"3", b"4"]
        assert [entry.payload for entry in segment] == [b"2", b"3", b"4"]
        assert status[0].last_sequence < status[1].last_sequence


@in_loop
async def test_what_is_written_here_is_told_long_before_the_next_look(aio: AsyncSubject) -> None:
    """The poll interval is longer than the test's patience."""
    async with aio.store(poll=(1000.0, 1000.0)) as store:
        await put(store, "begun")
        for following in (
            store.follow_space("s"),
            store.follow_segment("s", "a", after=1),
            store.subscribe_to_segment("s", "a"),
            store.subscribe_to_space("s"),
        ):
            await anext(following)
            waiting = asyncio.create_task(anext(following))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            await put(store, "told")
            await asyncio.wait_for(waiting, 10)
            await following.aclose()


@in_loop
async def test_silence_ends_it(aio: AsyncSubject) -> None:
    async with aio.store(poll=POLL) as store:
        await put(store, "1")
        assert [entry.payload async for entry in store.follow_space("s", timeout=0.05)] == [b"1"]
        assert [entry.payload async for entry in store.follow_space("unknown", timeout=0)] == []


@in_loop
async def test_five_hundred_follow_with_two_threads(memory: AsyncSubject) -> None:
    async with memory.store(threads=2, poll=(1000.0, 1000.0)) as store:
        await put(store, "begun")
        seen: list[list[Entry]] = [[] for _ in range(500)]

        async def one(n: int) -> None:
            async with aclosing(store.follow_space("s")) as following:
                async for entry in following:
                    seen[n].append(entry)

        tasks = [asyncio.create_task(one(n)) for n in range(500)]
        before = threading.active_count()
        for turn in range(1, 6):
            while any(len(entries) < turn for entries in seen):
                await asyncio.sleep(0.001)
            await put(store, f"{turn}")
        while any(len(entries) < 6 for entries in seen):
            await asyncio.sleep(0.001)
        assert threading.active_count() <= before + 4
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(one) for one in ended} == {asyncio.CancelledError}
        expected = [b"begun", *(b"%d" % turn for turn in range(1, 6))]
        assert all([entry.payload for entry in entries] == expected for entries in seen)
        assert store.watch._waiting == {}
        assert store.sync._shared.notifier.listeners == ()


@in_loop
async def test_those_that_follow_one_space_share_the_looks_at_the_storage(memory: AsyncSubject) -> None:
    """Two hundred wait, in each of four ways, and ask hardly more often than one would; they see what others write."""
    async with memory.store(threads=2, poll=(0.05, 0.05)) as store, memory.store() as other:
        await put(store, "begun")
        last = [0] * 200

        async def one(n: int) -> None:
            ways: list[Any] = [
                store.follow_space("s"),
                store.follow_segment("s", "a"),
                store.subscribe_to_segment("s", "a"),
                store.subscribe_to_space("s"),
            ]
            async with aclosing(ways[n % 4]) as following:
                async for item in following:
                    last[n] = getattr(item, "sequence", 0) or item.last_sequence

        async def requests() -> int:
            counts = (await store.statistics()).requests
            return sum(count for name, count in counts.items() if not name.startswith("bytes"))

        tasks = [asyncio.create_task(one(n)) for n in range(200)]
        while min(last) < 1:
            await asyncio.sleep(0.001)
        before, began = await requests(), asyncio.get_running_loop().time()
        await asyncio.sleep(0.5)
        pauses = (asyncio.get_running_loop().time() - began) / 0.05
        assert await requests() - before <= 4 * pauses + 8
        await put(other, "written elsewhere")
        while min(last) < 2:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@in_loop
async def test_closing_ends_those_that_wait_at_once(aio: AsyncSubject) -> None:
    async with aio.store(poll=(1000.0, 1000.0)) as store:
        await put(store, "1")
        ways = [store.follow_space("s"), store.follow_segment("s", "a"), store.subscribe_to_space("s")]
        tasks = [asyncio.create_task(gather(following, 2)) for following in ways]
        await asyncio.sleep(0.05)
        await asyncio.wait_for(store.close(), 5)
        told = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
        assert [type(one) for one in told] == [StoreClosed] * 3


@in_loop
async def test_a_slow_subscriber_gets_the_latest_and_keeps_no_writer_waiting(memory: AsyncSubject) -> None:
    async with memory.store(poll=(1000.0, 1000.0)) as store:
        await put(store, "1")
        statuses = store.subscribe_to_segment("s", "a")
        assert (await anext(statuses)).last_sequence == 1
        await put(store, *(f"{n}" for n in range(50)))
        assert (await anext(statuses)).last_sequence == 51
        await statuses.aclose()


@in_loop
async def test_a_follower_that_fails_says_so() -> None:
    async with held_store("remote") as held:
        held.release()
        await put(held.store, "1")
        following = held.store.follow_space("s")
        await anext(following)

        def fail() -> None:
            raise AccessDenied("not any more")

        held.driver.step = fail  # type: ignore[method-assign]
        with pytest.raises(AccessDenied, match="not any more"):
            await asyncio.wait_for(anext(following), 10)
        del held.driver.step


@in_loop
async def test_several_spaces_are_followed_with_one_cursor(aio: AsyncSubject) -> None:
    async with aio.store(poll=(0.01, 0.05)) as store:
        await store.produce("a", "s", [Record(b"1")])
        cursor: dict[str, LexKey | None] = {"a": None, "b": None}
        found = []
        for number in (2, 3, 4):
            async for entry in store.follow(cursor):
                found.append((entry.space, entry.payload))
                cursor[entry.space] = entry.space_offset
                break
            await store.produce("b" if number % 2 else "a", "s", [Record(b"%d" % number)])
        async for entry in store.follow(cursor, timeout=0):
            found.append((entry.space, entry.payload))
        assert found == [("a", b"1"), ("a", b"2"), ("b", b"3"), ("a", b"4")]


@in_loop
async def test_a_lease_is_held_by_a_grant_without_a_thread(aio: AsyncSubject) -> None:
    async with aio.store() as store:
        grant = await store.acquire_lease("leader", 30)
        await store.produce("a", "s", [Record(b"1")], lease=grant)
        await store.release_lease(await store.renew_lease(grant))
        assert (await store.acquire_lease("leader", 30)).token > grant.token
        assert [status.last_sequence async for status in store.segment_statuses("a", prefix="s")] == [1]
