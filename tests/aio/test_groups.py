"""Groups and queues for coroutines: waiting takes no thread, and a cancelled receive gives its deliveries back."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

import streamkit.aio
from streamkit import Record, Unavailable
from streamkit.aio import AsyncStore
from streamkit.aio.groups import AsyncConsumer, AsyncGroup, AsyncQueue
from streamkit.aio.threads import Threads
from streamkit.groups import Consumer, Delivery, Group, Queue

TWINS = [(Group, AsyncGroup), (Consumer, AsyncConsumer), (Queue, AsyncQueue)]
INNER = {
    "core",
    "clock",
    "notifier",
    "poll",
    "seen",
    "until_change",
    "store",
    "group",
    "leave",
    "look_until",
    "reception",
}
"""Names that users do not call, and names such as `store` that belong to the part in threads."""


@pytest.mark.parametrize(
    ("plain", "twin", "name"),
    [(plain, twin, name) for plain, twin in TWINS for name in vars(plain) if name[0] != "_" and name not in INNER],
)
def test_a_public_name_is_there_with_the_same_parameters(plain: type, twin: type, name: str) -> None:
    here, there = getattr(plain, name), getattr(twin, name)
    if callable(here):
        assert list(inspect.signature(here).parameters) == list(inspect.signature(there).parameters)


@asynccontextmanager
async def opened(threads: int = 8) -> AsyncIterator[AsyncStore]:
    async with streamkit.aio.connect(f"memory://{uuid4().hex}", threads=threads) as client:
        yield client.store(uuid4())


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), 60)

    asyncio.run(bounded())


def test_what_is_received_is_settled_by_await() -> None:
    async def work() -> None:
        async with opened() as store:
            await store.produce("orders", "s", [Record(b"%d" % at) for at in range(5)])
            group = await store.group("orders", "billing", max_deliveries=2, lanes=1)
            assert await store.get_groups("orders") == ["billing"]
            async with group.consumer("worker") as consumer:
                first, second, third, *rest = await consumer.receive(limit=10)
                await consumer.ack(first)
                await consumer.nack(second, delay=0.0)
                await consumer.reject(third, "unreadable")
                assert [pending.entry.payload for pending in await group.pending("worker")] == [b"3", b"4"]
                (again,) = await consumer.receive(limit=10, wait=10.0)
                assert (again.entry.payload, again.attempt) == (b"1", 2)
                await consumer.ack(await consumer.extend(again, 5.0))
                for delivery in rest:
                    await consumer.release(delivery)
            status = await group.status()
            assert (status.acked, status.dead, status.pending, status.ready) == (2, 1, 0, 2)
            assert [dead.reason for dead in await group.dead_letters()] == ["unreadable"]
            assert await group.redrive() == 1

    run(work)


def test_many_wait_with_one_thread_and_are_woken_by_a_write() -> None:
    async def work() -> None:
        async with opened(threads=1) as store:
            queue = await store.queue("emails", lanes=4)
            consumers = [queue.consumer(f"worker-{at}") for at in range(20)]
            waiting = [asyncio.create_task(consumer.receive(1, wait=30.0)) for consumer in consumers]
            await asyncio.sleep(0)
            for at in range(20):
                await queue.put(b"%d" % at)
            received = [delivery for found in await asyncio.gather(*waiting) for delivery in found]
            assert sorted(int(delivery.entry.payload) for delivery in received) == list(range(20))
            for consumer in consumers:
                await consumer.close()

    run(work)


def test_a_receive_that_is_cancelled_holds_nothing_back() -> None:
    async def work() -> None:
        async with opened() as store:
            group = await store.group("orders", "billing", lanes=1)
            async with group.consumer("first") as first, group.consumer("second") as second:
                for payload in map(b"%d".__mod__, range(100)):
                    waiting = asyncio.create_task(first.receive(wait=30.0))
                    await asyncio.sleep(0.05)
                    await store.produce("orders", "s", [Record(payload)])
                    if waiting.cancel():
                        break
                    await first.ack(*await waiting)  # it was faster than the cancellation: once more
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                (delivery,) = await second.receive(wait=10.0)
                assert delivery.attempt == 1
                await second.ack(delivery)

    run(work)


def test_an_iteration_ends_when_another_task_closes_the_consumer() -> None:
    async def work() -> None:
        async with opened() as store:
            await store.produce("orders", "s", [Record(b"0")])
            consumer = (await store.group("orders", "billing")).consumer(linger=0)
            settled = asyncio.Event()

            async def handle() -> int:
                count = 0
                async for delivery in consumer:
                    await consumer.ack(delivery)
                    count += 1
                    settled.set()
                return count

            handling = asyncio.create_task(handle())
            await settled.wait()
            await consumer.close()
            assert await handling == 1
            assert consumer.closed
            assert [delivery async for delivery in consumer] == []

    run(work)


def test_a_receive_of_several_of_a_key_is_cancelled_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give back once: deliveries that went back with the first one do not go back again."""
    began, go, receive = threading.Event(), threading.Event(), Consumer.receive

    def held_up(consumer: Consumer, *args: Any, **options: Any) -> list[Delivery]:
        began.set()
        assert go.wait(30)
        return receive(consumer, *args, **options)

    async def work() -> None:
        async with opened() as store:
            await store.produce("orders", "s", [Record(b"%d" % at) for at in range(3)])
            group = await store.group("orders", "billing", mode="key_shared")
            async with group.consumer() as consumer:
                monkeypatch.setattr(Consumer, "receive", held_up)
                receiving = asyncio.create_task(consumer.receive())
                assert await asyncio.to_thread(began.wait, 30)
                receiving.cancel()
                await asyncio.sleep(0)
                go.set()
                with pytest.raises(asyncio.CancelledError):
                    await receiving
                again = await consumer.receive()
                assert [(each.entry.payload, each.attempt) for each in again] == [(b"0", 1), (b"1", 1), (b"2", 1)]

    run(work)


def test_a_receive_that_is_cancelled_twice_holds_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go, ended, receive = threading.Event(), threading.Event(), threading.Event(), Consumer.receive

    def held_up(consumer: Consumer, *args: Any, **options: Any) -> list[Delivery]:
        began.set()
        assert go.wait(30)
        found = receive(consumer, *args, **options)
        ended.set()
        return found

    async def work() -> None:
        async with opened() as store:
            await store.produce("orders", "s", [Record(b"1")])
            group = await store.group("orders", "billing", lanes=1)
            async with group.consumer("first") as first, group.consumer("second") as second:
                monkeypatch.setattr(Consumer, "receive", held_up)
                receiving = asyncio.create_task(first.receive())
                assert await asyncio.to_thread(began.wait, 30)
                for _ in range(3):
                    receiving.cancel()
                    await asyncio.sleep(0)
                with pytest.raises(asyncio.CancelledError):
                    await receiving
                monkeypatch.undo()
                go.set()
                assert await asyncio.to_thread(ended.wait, 30)
                (delivery,) = await second.receive(wait=10.0)
                assert delivery.attempt == 1

    run(work)


def test_an_error_of_the_storage_does_not_take_the_place_of_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go = threading.Event(), threading.Event()

    def fails(consumer: Consumer, *args: Any, **options: Any) -> list[Delivery]:
        began.set()
        assert go.wait(30)
        raise Unavailable("not now")

    async def work() -> None:
        async with opened() as store:
            group = await store.group("orders", "billing")
            monkeypatch.setattr(Consumer, "receive", fails)
            receiving = asyncio.create_task(group.consumer().receive())
            assert await asyncio.to_thread(began.wait, 30)
            receiving.cancel()
            await asyncio.sleep(0)
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await receiving

    run(work)


def test_a_run_that_is_cancelled_begins_nothing_more_where_a_delivery_was_lost() -> None:
    async def work() -> None:
        async with opened() as store:
            await store.produce("orders", "s", [Record(b"%d" % at) for at in range(3)])
            group = await store.group("orders", "billing", mode="key_shared")
            began, handled = asyncio.Event(), list[bytes]()

            async def handler(delivery: Delivery) -> None:
                handled.append(delivery.entry.payload)
                began.set()
                await asyncio.sleep(60)

            running = asyncio.create_task(group.run(handler))
            await began.wait()
            await group.seek("beginning")
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(running, 30)
            assert handled == [b"0"]

    run(work)


def test_the_loop_is_woken_once_for_all_who_wait_and_all_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    async def work() -> None:
        async with opened() as store:
            group = await store.group("orders", "billing")
            consumers = [group.consumer() for _ in range(50)]
            waiting = [asyncio.create_task(consumer.receive(1, wait=30.0)) for consumer in consumers]
            notifier = consumers[0].sync.notifier
            while any(task.done() for task in waiting) or len(calls) < 50:
                calls.append(await asyncio.sleep(0.01))
            soon = Threads.call_soon
            monkeypatch.setattr(
                Threads, "call_soon", lambda self, callback: calls.append(callback) or soon(self, callback)
            )
            calls.clear()
            for _ in range(1000):
                notifier.notify_waiters()
            assert len(calls) == 1
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(work)


def test_run_ends_when_it_is_told_to() -> None:
    async def work() -> None:
        async with opened() as store:
            await store.produce("orders", "s", [Record(b"%d" % at) for at in range(3)])
            group, stop = await store.group("orders", "billing"), asyncio.Event()

            async def handler(delivery: Delivery) -> None:
                stop.set()

            report = await group.run(handler, batch=1, stop=stop)
            assert (report.acked, (await group.status()).lag) == (1, 2)

    run(work)


@pytest.mark.parametrize("mode", ["shared", "key_shared"])
def test_run_calls_an_async_handler_and_keeps_the_order_of_a_key(mode: str) -> None:
    async def work() -> None:
        async with opened() as store:
            for at in range(12):
                await store.produce("orders", f"s{at % 3}", [Record(b"%d" % (at // 3))])
            group = await store.group("orders", "billing", mode=mode, max_deliveries=2, retry_delay=0.0)
            seen: list[tuple[str, int]] = []
            most = running = 0

            async def handler(delivery: Delivery) -> None:
                nonlocal most, running
                running += 1
                most = max(most, running)
                await asyncio.sleep(0.001)
                running -= 1
                if delivery.entry.payload == b"poison" or (delivery.entry.payload == b"2" and delivery.attempt == 1):
                    raise ValueError("not yet")
                seen.append((delivery.entry.segment, int(delivery.entry.payload)))

            report = await group.run(handler, concurrency=3, drain=True)
            assert (report.acked, report.failed, report.dead) == (12, 3, 0)
            await store.produce("orders", "s0", [Record(b"poison")])
            report = await group.run(handler, drain=True)
            assert (report.acked, report.failed, report.dead) == (0, 2, 1)
            assert sorted(seen) == [(f"s{at}", number) for at in range(3) for number in range(4)]
            assert 1 < most <= 3
            if mode == "key_shared":
                for segment in ("s0", "s1", "s2"):
                    assert [number for name, number in seen if name == segment] == [0, 1, 2, 3]

    run(work)


def test_a_run_that_is_cancelled_gives_up_what_it_began_and_hands_back_the_rest() -> None:
    async def work() -> None:
        async with opened() as store:
            await store.produce("orders", "s", [Record(b"%d" % at) for at in range(4)])
            group = await store.group("orders", "billing", lanes=1, retry_delay=0.0)
            began = asyncio.Event()

            async def handler(delivery: Delivery) -> None:
                began.set()
                await asyncio.sleep(60)

            running = asyncio.create_task(group.run(handler))
            await began.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            async with group.consumer() as consumer:
                attempts = {delivery.entry.payload: delivery.attempt for delivery in await consumer.receive(wait=5.0)}
            assert attempts == {b"0": 2, b"1": 1, b"2": 1, b"3": 1}

    run(work)
