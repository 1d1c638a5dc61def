"""Coroutines write, read, follow and lead as threads do, on each kind of store."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any
from uuid import uuid4

import pytest
from fix_aio import AsyncSubject, in_loop
from fix_local import in_child

import streamkit
from streamkit import Record, SegmentStatus
from streamkit.aio import AsyncLease, AsyncStore
from streamkit.errors import (
    CrossPartition,
    Fenced,
    InvalidName,
    InvalidOffset,
    LeaseLost,
    LeaseNotAcquired,
    SequenceMismatch,
    StoreClosed,
    TransactionIdMismatch,
    TransactionTooLarge,
)
from streamkit.eventsourcing import Aggregate, Repository, event


def records(*payloads: str) -> list[Record]:
    return [Record(payload.encode()) for payload in payloads]


@in_loop
async def test_what_is_written_is_read_in_every_way(aio: AsyncSubject) -> None:
    async with aio.store() as store:
        status = await store.produce("s", "a", records("1", "2"))
        assert (status.first_sequence, status.last_sequence) == (1, 2)
        assert status.trx is not None
        async with store.transaction("s") as trx:
            trx.produce("a", records("3"), expected_sequence=2)
            await trx.produce("b", records("4"))
        assert trx.trx is not None
        assert trx.statuses["b"].last_sequence == 1
        assert (await store.peek("s", "a")).payload == b"3"
        assert (await store.segment_status("s", "a")).last_sequence == 3
        assert [entry.payload async for entry in store.consume_segment("s", "a", min_sequence=2)] == [b"2", b"3"]
        entries = [entry async for entry in store.consume_space("s")]
        assert [entry.payload for entry in entries] == [b"1", b"2", b"3", b"4"]
        assert [entry async for entry in store.consume_space("s", offset=entries[1].space_offset)] == entries[2:]
        assert [entry async for entry in store.consume({"s": None}, limit=3)] == entries[:3]
        assert [name async for name in store.get_spaces()] == ["s"]
        assert [name async for name in store.get_segments("s")] == ["a", "b"]
        assert await store.outcome(trx.trx.id) == "committed"
        assert [entry async for entry in store.consume_space("s", offset=await store.end_offset("s"))] == []
        assert (await store.verify()).ok
        assert await store.repair() >= 0
        await store.maintain()
        with streamkit.connect(aio.url) as client:
            assert list(client.store(aio.id).consume_space("s")) == entries


@in_loop
async def test_stores_are_listed_and_deleted(aio: AsyncSubject) -> None:
    async with aio.connect() as client:
        await client.store(aio.id).produce("s", "a", records("1"))
        assert [store async for store in client.stores()] == [aio.id]
        await client.delete_store(aio.id)
        assert [store async for store in client.stores()] == []


@in_loop
async def test_client_and_store_may_be_awaited(memory: AsyncSubject) -> None:
    client = await memory.connect()
    store = await client.store(memory.id)
    assert store.id == memory.id
    await client.close()


@in_loop
async def test_expectations_keys_and_guards_are_judged(aio: AsyncSubject) -> None:
    async with aio.store() as store:
        first = await store.produce("s", "a", records("1"), idempotency_key="k")
        assert await store.produce("s", "a", records("1"), idempotency_key="k") == first
        with pytest.raises(TransactionIdMismatch):
            await store.produce("s", "a", records("2"), idempotency_key="k")
        with pytest.raises(SequenceMismatch) as raised:
            await store.produce("s", "a", records("2"), expected_sequence=0)
        assert (raised.value.expected, raised.value.actual) == (0, 1)
        assert await store.produce("s", "a", []) == first
        assert await store.produce("s", "a", [], expected_sequence=1) == first
        with pytest.raises(SequenceMismatch):
            await store.produce("s", "a", [], expected_sequence=3)
        with pytest.raises(SequenceMismatch):  # noqa: PT012
            async with store.transaction("s") as trx:
                trx.produce("b", records("x"))
                trx.produce("a", [], expected_sequence=3)
        assert [name async for name in store.get_segments("s")] == ["a"]


@in_loop
async def test_of_many_with_one_expectation_one_wins(aio: AsyncSubject) -> None:
    async with aio.store() as store:
        told = await asyncio.gather(
            *[store.produce("s", "a", records(str(n)), expected_sequence=0) for n in range(50)], return_exceptions=True
        )
        assert sum(isinstance(one, SegmentStatus) for one in told) == 1
        assert sum(isinstance(one, SequenceMismatch) for one in told) == 49
        assert (await store.segment_status("s", "a")).last_sequence == 1


@in_loop
async def test_bad_input_is_refused_before_anything_is_written(aio: AsyncSubject) -> None:
    async with aio.store(max_transaction_bytes=100_000) as store:
        for wrong, error in [
            (("", "a", []), InvalidName),
            (("s", 3, []), TypeError),
            (("s", "a", [b"bytes"]), TypeError),
            (("s", "a", Record(b"one")), TypeError),
            (("s", "a", [Record(b"x" * 90_000), Record(b"x" * 90_000)]), TransactionTooLarge),
            (("s", "a", [Record(b"x")] * 1000 + [Record("text")]), TypeError),  # type: ignore[arg-type]
        ]:
            with pytest.raises(error):
                await store.produce(*wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidOffset):
            store.consume_space("s", offset=b"nonsense")
        with pytest.raises(ValueError, match="limit"):
            store.consume_segment("s", "a", limit=-1)
        assert [name async for name in store.get_spaces()] == []


@in_loop
async def test_a_transaction_is_whole_or_absent_also_if_parts_are_large(aio: AsyncSubject) -> None:
    large = [Record(os.urandom(1000)) for _ in range(300)]
    async with aio.store() as store:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with store.transaction("s") as trx:
                trx.produce("a", large)
                raise ZeroDivisionError
        with pytest.raises(TypeError):  # noqa: PT012
            async with store.transaction("s") as trx:
                trx.produce("a", large)
                trx.produce("b", [*large, Record("text")])  # type: ignore[arg-type]
        with pytest.raises(StoreClosed, match="ended"):
            trx.produce("a", [])
        assert [name async for name in store.get_spaces()] == []
        async with store.transaction("s") as trx:
            trx.produce("a", large)
            trx.produce("a", records("after"))
            with pytest.raises(TypeError):
                await trx.produce("b", [*large, Record("text")])  # type: ignore[arg-type]
            trx.produce("c", records("last"))
        entries = [entry async for entry in store.consume_space("s")]
        assert [entry.payload for entry in entries] == [*(r.payload for r in large), b"after", b"last"]
        assert len({entry.trx.id for entry in entries}) == 1


@in_loop
async def test_segments_of_two_partitions_are_refused(memory: AsyncSubject) -> None:
    async with memory.store() as store:
        await store.create_space("s", partitions=8)
        with pytest.raises(CrossPartition):  # noqa: PT012
            async with store.transaction("s") as trx:
                for name in "abcdefgh":
                    trx.produce(name, records("x"))


@in_loop
async def test_leases_are_held_by_one_and_fence_the_others(aio: AsyncSubject) -> None:
    async with aio.store() as store, aio.store() as other:
        async with store.lease("leader") as old:
            assert 0 < old.remaining() <= 30
            with pytest.raises(LeaseNotAcquired):
                await other.with_lease("leader", lambda lease: None)
            old.check()
        assert await asyncio.wait_for(old.lost.wait(), 5)
        with pytest.raises(LeaseLost):
            old.check()

        async def lead(lease: AsyncLease) -> int:
            await other.produce("s", "a", records("new"), lease=lease)
            return lease.token

        assert await other.with_lease("leader", lead) > old.token
        assert await other.with_lease("leader", lambda lease: lease.key) == "leader"
        with pytest.raises(Fenced):
            await store.produce("s", "a", records("old"), lease=old)


@in_loop
async def test_a_lease_is_waited_for_without_a_thread(memory: AsyncSubject) -> None:
    """More wait than there are threads, and reads go on."""
    async with memory.store(threads=2) as store:
        order: list[int] = []

        async def lead(n: int) -> None:
            async with store.lease("leader", ttl=2.0, wait=30.0):
                order.append(n)

        async with store.lease("leader", ttl=2.0) as held, asyncio.TaskGroup() as group:
            for n in range(10):
                group.create_task(lead(n))
            await asyncio.sleep(0.05)
            await store.produce("s", "a", records("meanwhile"))
            assert (await store.peek("s", "a")).sequence == 1
            assert order == []
            await held.__aexit__(None, None, None)
        assert sorted(order) == list(range(10))


@in_loop
async def test_a_cancelled_body_releases_and_so_does_a_cancelled_wait(memory: AsyncSubject) -> None:
    async with memory.store() as store:

        async def body(entered: asyncio.Event, wait: float | None) -> None:
            async with store.lease("leader", wait=wait):
                entered.set()
                await asyncio.sleep(1000)

        for turn in range(30):
            entered = asyncio.Event()
            task = asyncio.create_task(body(entered, 10.0))
            if turn % 3 == 0:
                await entered.wait()
            else:
                for _ in range(turn % 5):
                    await asyncio.sleep(0.0005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with store.lease("leader", wait=10.0):
            pass


@in_loop
async def test_a_lease_that_is_granted_after_nobody_waits_any_more_is_given_back(
    memory: AsyncSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go = threading.Event(), threading.Event()
    enter = streamkit.Lease.__enter__

    def slow(lease: streamkit.Lease) -> streamkit.Lease:
        asked.set()
        assert go.wait(20)
        return enter(lease)

    async with memory.store() as store:
        with monkeypatch.context() as patch:
            patch.setattr(streamkit.Lease, "__enter__", slow)
            task = asyncio.create_task(store.lease("leader").__aenter__())
            await asyncio.to_thread(asked.wait, 20)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            go.set()
        async with store.lease("leader", wait=5.0):
            pass


@in_loop
async def test_a_lease_that_is_lost_wakes_who_waits_for_that(memory: AsyncSubject) -> None:
    async with memory.store() as store, store.lease("leader") as lease:
        waiting = [asyncio.create_task(lease.lost.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.to_thread(lease.lost.set)
        assert await asyncio.gather(*waiting) == [True, True, True]
        assert lease.remaining() == 0


@in_loop
async def test_handles_are_closed_each_for_itself(aio: AsyncSubject) -> None:
    async with aio.connect() as client, client.store(aio.id) as one, client.store(aio.id) as two:
        await one.produce("s", "a", records("1"))
        await two.produce("s", "a", records("2"))
        reading = one.consume_space("s")
        await one.close()
        await one.close()
        with pytest.raises(StoreClosed):
            await one.produce("s", "a", records("3"))
        with pytest.raises(StoreClosed):
            await anext(reading)
        with pytest.raises(StoreClosed):
            one.consume_space("s")
        assert (await two.peek("s", "a")).sequence == 2
    with pytest.raises(StoreClosed):
        client.store(aio.id)


@in_loop
async def test_closing_waits_for_what_is_under_way(aio: AsyncSubject) -> None:
    async with aio.store() as store:
        writes = [asyncio.create_task(store.produce("s", "a", records(str(n)))) for n in range(100)]
        await asyncio.sleep(0)
        while not (await store.segment_status("s", "a")).last_sequence:
            pass
        await store.close()
        told = await asyncio.gather(*writes, return_exceptions=True)
    async with aio.store() as store:
        committed = {entry.payload async for entry in store.consume_space("s")}
    for n, one in enumerate(told):
        assert isinstance(one, SegmentStatus | StoreClosed), one
        assert isinstance(one, SegmentStatus) == (str(n).encode() in committed)


def test_another_loop_a_thread_and_a_fork_are_refused(memory: AsyncSubject) -> None:
    client = memory.connect()
    store: AsyncStore = client.store(memory.id)

    async def use() -> Any:
        return await store.peek("s", "a")

    with pytest.raises(RuntimeError, match=r"streamkit\.connect"):
        store.consume_space("s")
    asyncio.run(use())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(use())

    def child() -> None:
        with pytest.raises(RuntimeError, match="forked"):
            asyncio.run(use())

    assert in_child(child) == 0


@in_loop
async def test_a_transaction_that_nobody_commits_warns(memory: AsyncSubject) -> None:
    async with memory.store() as store:
        with pytest.warns(ResourceWarning, match="dropped with nothing in it"):
            store.transaction("s")


@in_loop
async def test_progress_is_told_on_the_loop_and_what_it_raises_ends_the_work(memory: AsyncSubject) -> None:
    async with memory.store() as store:
        for n in range(300):
            await store.produce("s", "a", records(str(n)))
        on_loop, told = threading.get_ident(), []

        def progress(done: int, of: int) -> None:
            assert threading.get_ident() == on_loop
            told.append((done, of))

        assert (await store.verify("s", progress=progress)).ok
        assert told
        assert told == sorted(told)

        def wrong(done: int, of: int) -> None:
            raise ZeroDivisionError

        await store.produce("short", "a", records("1"))
        for space in ("s", "short"):
            with pytest.raises(ZeroDivisionError):
                await store.verify(space, progress=wrong)


def test_threads_are_checked() -> None:
    with pytest.raises(ValueError, match="threads is 1 to 1024"):
        streamkit.aio.connect("memory://", threads=0)
    with pytest.raises(TypeError, match="threads is an int"):
        streamkit.aio.connect("memory://", threads=2.0)  # type: ignore[arg-type]


@in_loop
async def test_stores_are_apart(memory: AsyncSubject) -> None:
    async with memory.connect() as client:
        await client.store(memory.id).produce("s", "a", records("1"))
        assert [name async for name in client.store(uuid4()).get_spaces()] == []


class Counter(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @event
    def add(self, number: int) -> None:
        self.count += number


@in_loop
async def test_aggregates_are_of_the_same_store_for_threads(aio: AsyncSubject) -> None:
    async with aio.store() as store:
        with pytest.raises(TypeError, match=r"the `sync` of an AsyncStore"):
            Repository(store, "counters", Counter)  # type: ignore[arg-type]
        counters = Repository(store.sync, "counters", Counter)
        await asyncio.gather(
            *[asyncio.to_thread(counters.execute, "1", lambda counter: counter.add(1)) for _ in range(4)]
        )
        assert (await store.peek("counters", "1")).sequence == 4
        assert (await asyncio.to_thread(counters.load, "1")).count == 4
