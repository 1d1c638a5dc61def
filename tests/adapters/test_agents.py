"""Sessions of agents, judged by the contracts of their libraries."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_places import url_in

import streamkit.aio
from streamkit.adapters.agents import AgentSession, McpEventStore, TranscriptStore

PLACES = ("memory", "local", *(("s3", "azure") if EXHAUSTIVE else ()))
SUITE = Path(sys.prefix) / "agents-suite"


@pytest.fixture(params=PLACES)
def url(request: pytest.FixtureRequest) -> str:
    return url_in(request.param, request)


@asynccontextmanager
async def opened(url: str, store: UUID | None = None) -> AsyncIterator[Any]:
    async with streamkit.aio.connect(url) as client, await client.store(store or uuid4()) as found:
        yield found


def test_transcripts_keep_the_contracts_of_the_claude_agent_sdk(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the library's suite: 14 contracts, each on a new store."""
    if not SUITE.is_dir():
        pytest.skip("make test fetches the SDK's source")
    monkeypatch.syspath_prepend(str(SUITE))
    from claude_agent_sdk.testing import run_session_store_conformance

    async def judge() -> None:
        async with streamkit.aio.connect(url) as client:

            async def made() -> TranscriptStore:
                return TranscriptStore(await client.store(uuid4()))

            await run_session_store_conformance(made)

    asyncio.run(judge())


def test_a_line_that_is_sent_again_is_loaded_once(url: str) -> None:
    async def work() -> None:
        async with opened(url) as store:
            transcripts = TranscriptStore(store)
            key = {"project_key": "p", "session_id": "a/b %"}
            await transcripts.append(key, [{"type": "x", "uuid": "1"}, {"type": "title"}])
            await transcripts.append(key, [{"type": "x", "uuid": "1"}, {"type": "title"}])
            assert await transcripts.load(key) == [{"type": "x", "uuid": "1"}, {"type": "title"}, {"type": "title"}]
            assert [one["session_id"] for one in await transcripts.list_sessions("p")] == ["a/b %"]

    asyncio.run(work())


def test_a_stream_of_an_mcp_server_is_resumed(url: str) -> None:
    pytest.importorskip("mcp")
    from mcp.types import JSONRPCNotification

    def message(number: int) -> JSONRPCNotification:
        return JSONRPCNotification(jsonrpc="2.0", method="notifications/message", params={"number": number})

    async def work() -> None:
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event)

        async with opened(url) as store:
            events = McpEventStore(store, scope="session-1")
            primed = await events.store_event("stream@1", None)
            ids = [await events.store_event("stream@1", message(number)) for number in range(5)]
            await McpEventStore(store, scope="session-2").store_event("stream@1", message(9))
            await events.store_event("other", message(8))
            assert len({primed, *ids}) == 6
            assert await events.replay_events_after(primed, send) == "stream@1"
            assert [event.message.params["number"] for event in sent] == [0, 1, 2, 3, 4]
            assert [event.event_id for event in sent] == ids
            sent.clear()
            assert await events.replay_events_after(ids[3], send) == "stream@1"
            assert [event.event_id for event in sent] == ids[4:]
            assert sent[0].message == message(4)
            for unknown in ("", "x", "7@stream@1", "1@nothing", "0@stream@1", "-1@stream@1"):
                assert await events.replay_events_after(unknown, send) is None

    asyncio.run(work())


def test_a_session_of_the_openai_agents_sdk(url: str) -> None:
    async def work() -> None:
        async with opened(url) as store:
            session = AgentSession("thread-1", store)
            assert await session.get_items() == []
            assert await session.pop_item() is None
            items = [{"role": "user", "content": str(number)} for number in range(5)]
            await session.add_items(items[:2])
            await session.add_items(items[2:])
            assert await session.get_items() == items
            assert await session.get_items(limit=2) == items[3:]
            assert await session.pop_item() == items[4]
            assert await session.pop_item() == items[3]
            await session.add_items(items[4:])
            assert await session.get_items() == [*items[:3], items[4]]
            assert await session.get_items(limit=2) == [items[2], items[4]]
            popped = await asyncio.gather(*(AgentSession("thread-1", store).pop_item() for _ in range(6)))
            assert sorted(json.dumps(item) for item in popped if item) == [
                json.dumps(item) for item in (*items[:3], items[4])
            ]
            await session.add_items(items)
            await session.clear_session()
            assert await session.get_items() == []
            await session.add_items(items[:1])
            assert await session.get_items() == items[:1]

    asyncio.run(work())


def test_an_item_that_is_popped_and_erased_hides_no_other_item(url: str) -> None:
    async def work() -> None:
        async with opened(url) as store:
            session = AgentSession("thread-1", store)
            await session.add_items(["first", "second", "third"])
            assert await session.pop_item() == "third"
            await store.erase("agents", "thread-1", first=3, last=3)
            assert await session.get_items() == ["first", "second"]
            assert await session.pop_item() == "second"
            assert await session.get_items() == ["first"]

    asyncio.run(work())


def test_a_session_has_what_the_openai_agents_sdk_asks_for(url: str) -> None:
    pytest.importorskip("agents")
    from agents.memory.session import Session

    async def work() -> None:
        async with opened(url) as store:
            assert isinstance(AgentSession("thread-1", store), Session)

    asyncio.run(work())


def test_another_store_than_an_async_one_is_refused() -> None:
    store: Any = streamkit.connect("memory://agents-sync").store(uuid4())
    for make in (lambda: TranscriptStore(store), lambda: McpEventStore(store), lambda: AgentSession("one", store)):
        with pytest.raises(TypeError, match=r"store is an AsyncStore, of streamkit\.aio\.connect"):
            make()
