"""Wake-ups of coroutines that wait for a commit. Here nobody looks for itself, so one lost wake-up is a failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from fix_aio import PATIENCE, AsyncSubject, in_loop

from harness.drivers import MEMORY
from streamkit import Record, SegmentStatus
from streamkit.aio import AsyncStore, writing
from streamkit.aio.client import AsyncClient
from streamkit.aio.threads import Threads
from streamkit.aio.workers import Workers
from streamkit.backend import Driver
from streamkit.client import Client
from streamkit.errors import SequenceMismatch
from streamkit.log import commit
from streamkit.log.commit import Committer
from streamkit.log.partition import Partition
from streamkit.store import Store
from streamkit.testing import ManualClock
from streamkit_local.driver import LocalDriver

WRITES = 30


@pytest.fixture(autouse=True)
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_HEARTBEAT", 10 * PATIENCE)
    monkeypatch.setattr(commit, "_HEARTBEAT", 10 * PATIENCE)


async def write_one_by_one(store: AsyncStore, segment: str) -> list[SegmentStatus]:
    return [await store.produce("s", segment, [Record(b"%d" % number)]) for number in range(WRITES)]


def write_in_thread(store: Store, segment: str, told: dict[str, list[SegmentStatus]]) -> threading.Thread:
    def write() -> None:
        told[segment] = [store.produce("s", segment, [Record(b"%d" % number)]) for number in range(WRITES)]

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


@asynccontextmanager
async def opened(kind: str, path: Path) -> AsyncIterator[AsyncStore]:
    driver: Driver = LocalDriver(str(path), 5.0) if kind == "local" else MEMORY[kind](ManualClock())
    client = Client("awake://", driver, 5.0, None, 64 << 20, ManualClock())
    async with AsyncClient(client, Threads(4)) as aio, aio.store(uuid4()) as store:
        yield store


@pytest.mark.parametrize("kind", ["memory", "remote", "local"])
@in_loop
async def test_coroutines_and_threads_that_share_commits_are_all_woken(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as store:
        await store.produce("s", "begun", [Record(b"begun")])
        told: dict[str, list[SegmentStatus]] = {}
        threads = [write_in_thread(store.sync, f"thread-{number}", told) for number in range(4)]
        names = [f"coroutine-{number}" for number in range(8)]
        each = await asyncio.wait_for(asyncio.gather(*(write_one_by_one(store, name) for name in names)), PATIENCE)
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE)
            assert not thread.is_alive(), "a thread waits for ever"
        told |= dict(zip(names, each, strict=True))
        for segment, statuses in told.items():
            assert [(status.segment, status.last_sequence) for status in statuses] == [
                (segment, number) for number in range(1, WRITES + 1)
            ]
            entries = [entry async for entry in store.consume_segment("s", segment)]
            assert [(entry.payload, entry.trx) for entry in entries] == [
                (b"%d" % number, status.trx) for number, status in enumerate(statuses)
            ]


@in_loop
async def test_an_error_in_a_shared_commit_is_told_to_its_own_caller_alone(
    memory: AsyncSubject,
) -> None:
    async with memory.store() as store:
        await store.produce("s", "a", [Record(b"begun")])

        async def write(number: int) -> SegmentStatus:
            expected = 77 if number % 3 == 0 else None
            return await store.produce("s", f"s{number}", [Record(b"%d" % number)], expected_sequence=expected)

        told = await asyncio.wait_for(asyncio.gather(*map(write, range(12)), return_exceptions=True), PATIENCE)
        for number, one in enumerate(told):
            if number % 3 == 0:
                assert isinstance(one, SequenceMismatch), one
            else:
                assert isinstance(one, SegmentStatus), one
            assert f"'s{number}'" in repr(one)


@pytest.mark.parametrize("kind", ["memory", "remote"])
@in_loop
async def test_a_caller_is_told_before_the_index_is_brought_forward(kind: str, tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    async with opened(kind, tmp_path) as store:
        await store.produce("s", "a", [Record(b"begun")])
        [committer] = store._lanes
        bring_forward = committer._bring_forward

        def slow(partition: Partition) -> bool:
            begun.set()
            assert go_on.wait(PATIENCE)
            return bring_forward(partition)

        committer._bring_forward = slow
        try:
            for number in range(committer.partition.policy.upkeep):
                await asyncio.wait_for(store.produce("s", "a", [Record(b"%d" % number)]), PATIENCE)
                if begun.is_set():
                    break
            assert await asyncio.to_thread(begun.wait, PATIENCE)
        finally:
            go_on.set()


@in_loop
async def test_appends_one_after_another_are_committed_by_one_thread(
    memory: AsyncSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that has committed counts as one that waits before the caller goes on."""
    monkeypatch.setattr(Committer, "keep_index", lambda committer, before: None)  # else callers may be told before it
    async with memory.store() as store:
        await store.produce("s", "a", [Record(b"begun")])
        begun: list[str] = []
        begin = Workers._begin

        def noted(workers: Workers) -> None:
            begun.append(workers._name)
            begin(workers)

        monkeypatch.setattr(Workers, "_begin", noted)
        for number in range(WRITES):
            await store.produce("s", "a", [Record(b"%d" % number)])
        assert begun == []
