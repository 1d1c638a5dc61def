"""Views, routes and presence are awaited."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from fix_aio import AsyncSubject, in_loop

import streamkit.aio
from streamkit import Entry, Record, View
from streamkit.views import Latest


class Count(View):
    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table n (n int)")

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        db.executemany("insert into n values (?)", [(1,)] * len(entries))


def test_a_view_a_route_and_members(tmp_path: Path) -> None:
    async def work() -> None:
        async with streamkit.aio.connect(f"memory://{uuid4().hex}") as client:
            store = client.store(uuid4())
            view = await store.view("count", Count(), ["copies"], tmp_path / "count")
            latest = await store.view("latest", Latest(lambda entry: entry.segment), ["log"], tmp_path / "latest")
            route = await store.route("copy", "log", "copies")
            running = [asyncio.ensure_future(view.run()), asyncio.ensure_future(route.run())]
            status = await store.produce("log", "s", [Record(b"1"), Record(b"2")])
            await route.wait_for(status.space_offset)
            await view.wait_for(await store.end_offset("copies"))
            assert await view.ask(lambda db: db.execute("select count(*) from n").fetchone()) == (2,)
            with pytest.raises(AttributeError, match=r"await view\.ask"):
                _ = view.db
            await latest.catch_up()
            assert (await latest.get("s")).payload == b"2"
            assert [status.name for status in await store.get_routes()] == ["copy"]
            control = await store.find_route("copy")
            assert control is not None
            assert await store.find_route("another") is None
            await control.pause()
            assert (await control.status()).state == "paused"
            await control.resume()
            assert (await control.status()).state == "current"
            running[0].cancel()
            await asyncio.wait([running[0]])
            assert running[0].cancelled()
            await route.close()
            await running[1]
            members = store.members("workers")
            async with await members.join("a", {"n": "1"}):
                assert [member.metadata for member in await members.list()] == [{"n": "1"}]
            assert await members.list() == []

    asyncio.run(asyncio.wait_for(work(), 60))


@in_loop
async def test_more_run_at_once_than_there_are_threads_and_end_with_their_store(
    memory: AsyncSubject, tmp_path: Path
) -> None:
    async with memory.connect(threads=1) as client:
        store = client.store(memory.id)
        views = [await store.view(f"v{at}", Count(), ["log"], tmp_path / f"v{at}") for at in range(6)]
        route = await store.route("copy", "log", "copies")
        running = [asyncio.create_task(part.run()) for part in (*views, route)]
        await store.produce("log", "s", [Record(b"1")])
        async for entry in store.follow_space("copies", timeout=20.0):
            assert entry.payload == b"1"
            break
        for view in views:
            while not view.sync.status().entries:
                await asyncio.sleep(0.001)
        assert (await store.verify()).ok, "nobody waits for them"
    assert await asyncio.wait_for(asyncio.gather(*running), 20) == [None] * 7
