"""Sessions of agents, judged by the contracts of their libraries."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from fix_covered import EXHAUSTIVE
from fix_places import url_in

import streamkit.aio
from streamkit import Record
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


@pytest.mark.parametrize("seed", range(100 if EXHAUSTIVE else 5))
def test_transcripts_are_those_of_the_sdks_store_in_memory(
    url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not SUITE.is_dir():
        pytest.skip("make test fetches the SDK's source")
    monkeypatch.syspath_prepend(str(SUITE))
    from claude_agent_sdk import InMemorySessionStore

    chance = random.Random(seed)

    async def work() -> None:
        id = uuid4()
        async with opened(url, id) as one, opened(url, id) as other:
            ours, theirs = [TranscriptStore(one), TranscriptStore(other)], InMemorySessionStore()
            for number in range(40):
                key: Any = {"project_key": chance.choice("pq"), "session_id": chance.choice(("s", "s1", "ü *"))}
                if chance.random() < 0.5:
                    key["subpath"] = chance.choice(("", "a", "a/b", "b"))
                our = chance.choice(ours)
                action = chance.random()
                if action < 0.6:
                    lines: Any = [
                        {"type": "user", "uuid": f"{number}.{at}", "n": _value(chance, 1)}
                        for at in range(chance.randint(0, 3))
                    ]
                    await our.append(key, lines)
                    if lines:
                        await theirs.append(key, lines)
                elif action < 0.7:
                    await our.delete(key)
                    await theirs.delete(key)
                our = chance.choice(ours)
                expected = json.loads(json.dumps(await theirs.load(key)))
                assert repr(await our.load(key)) == repr(expected), key
                assert sorted(await our.list_subkeys(key)) == sorted(await theirs.list_subkeys(key))
                for project in "pq":
                    sessions: list[list[Any]] = [
                        sorted(each["session_id"] for each in await store.list_sessions(project))
                        for store in (our, theirs)
                    ]
                    assert sessions[0] == sessions[1]

    asyncio.run(work())


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
            for unknown in ("", "x", "7@stream@1", "1@nothing", "0@stream@1", "-1@stream@1", "1" * 5000 + "@stream@1"):
                assert await events.replay_events_after(unknown, send) is None
            for name in ("", "*", "x" * 300, "\0", "\ud800"):
                assert await McpEventStore(store).replay_events_after(f"1@{name}", send) is None

    asyncio.run(work())


def test_a_message_with_half_a_character_is_replayed(url: str) -> None:
    """The name of a file, as Python has it, may hold one. NaN is null, as the SDK sends it."""
    pytest.importorskip("mcp")
    from mcp.types import JSONRPCResponse

    async def work() -> None:
        sent: list[Any] = []

        async def send(event: Any) -> None:
            sent.append(event.message)

        async with opened(url) as store:
            events = McpEventStore(store)
            first = await events.store_event("one", None)
            message = JSONRPCResponse(
                jsonrpc="2.0", id=1, result={"files": ["\udcff.txt", "é😀", None, 1.5, "\\\udcff"]}
            )
            await events.store_event("one", message)
            await events.store_event("one", JSONRPCResponse(jsonrpc="2.0", id="x", result={"n": math.nan}))
            assert await events.replay_events_after(first, send) == "one"
        assert sent == [message, JSONRPCResponse(jsonrpc="2.0", id="x", result={"n": None})]

    asyncio.run(work())


def test_a_replay_without_removed_messages_is_none_and_erased_ones_are_passed_over(url: str) -> None:
    pytest.importorskip("mcp")
    from mcp.types import JSONRPCNotification

    async def work() -> None:
        sent: list[str] = []

        async def send(event: Any) -> None:
            sent.append(event.event_id)

        async with opened(url) as store:
            events = McpEventStore(store)
            ids = [
                await events.store_event("one", JSONRPCNotification(jsonrpc="2.0", method=str(number)))
                for number in range(6)
            ]
            await store.erase("mcp", "one", first=5, last=5)
            assert await events.replay_events_after(ids[0], send) == "one"
            assert sent == [*ids[1:4], ids[5]]
            sent.clear()
            await store.trim("mcp", "one", before=3)
            assert await events.replay_events_after(ids[0], send) is None
            assert sent == []
            assert await events.replay_events_after(ids[1], send) == "one"
            assert sent == [*ids[2:4], ids[5]]

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


def test_an_item_is_popped_after_the_last_one_was_erased(url: str) -> None:
    async def work() -> None:
        async with opened(url) as store:
            session = AgentSession("thread-1", store)
            await session.add_items(["first", "second", "third"])
            await store.erase("agents", "thread-1", first=3, last=3)
            assert await asyncio.wait_for(session.pop_item(), 60) == "second"
            assert await session.get_items() == ["first"]

    asyncio.run(work())


_LEAVES = (
    *(None, True, False, 0, -1, 2**53 + 1, 2**64, -(2**70), 0.0, -0.0, 0.1, 5e-324, 1e300),
    *(math.nan, math.inf, -math.inf, "", "text", "é", "😀", "\0\n\x7f", "\u2028", "\ufeff", '"\\'),
    *("\ud800", "\udcff.txt", "😀\ud83d", "\ud83d\ude00", "\\\ud800", "\\ud800", (), [], {}, "x" * 5000),
)


def _value(chance: random.Random, depth: int) -> Any:
    kind = chance.random()
    if not depth or kind < 0.4:
        return chance.choice(_LEAVES)
    if kind < 0.6:
        parts = [_value(chance, depth - 1) for _ in range(chance.randint(0, 3))]
        return chance.choice((list, tuple))(parts)
    keys = ("role", "content", "\ud800", "", 7, 1.5, True, None, "7")
    return {chance.choice(keys): _value(chance, depth - 1) for _ in range(chance.randint(0, 4))}


@pytest.mark.parametrize("seed", range(200 if EXHAUSTIVE else 10))
def test_a_session_gives_what_the_one_of_the_openai_agents_sdk_gives(url: str, tmp_path: Path, seed: int) -> None:
    """Any value of JSON as Python has it, and any limit, beside the SDK's session in SQLite."""
    pytest.importorskip("agents")
    from agents import SQLiteSession

    chance = random.Random(seed)

    async def work() -> None:
        id = uuid4()
        async with opened(url, id) as one, opened(url, id) as other:
            ours = [AgentSession(name, store) for name in ("a", "b") for store in (one, other)]
            theirs = {name: SQLiteSession(name, tmp_path / "sessions.db") for name in ("a", "b")}
            for _ in range(40):
                our = chance.choice(ours)
                their: Any = theirs[our.session_id]
                action = chance.random()
                if action < 0.4:
                    items = [_value(chance, 3) for _ in range(chance.randint(0, 4))]
                    if chance.random() < 0.1:
                        items.append(object())
                        for session in (our, their):
                            with pytest.raises(TypeError):
                                await session.add_items(items)
                    else:
                        await our.add_items(items)
                        await their.add_items(items)
                elif action < 0.65:
                    assert repr(await our.pop_item()) == repr(await their.pop_item())
                elif action < 0.7:
                    await our.clear_session()
                    await their.clear_session()
                limit = chance.choice((None, 0, -1, -7, 1, 2, 3, 5, 100))
                # By their texts: NaN equals nothing, and 1, True and 1.0 are equal.
                assert repr(await our.get_items(limit)) == repr(await their.get_items(limit)), limit
            for their in theirs.values():
                their.close()

    asyncio.run(work())


@dataclass
class _Call:
    name: str
    score: float


def test_items_of_other_types_and_of_earlier_releases_are_read(url: str) -> None:
    """Beside what JSON has, an item may hold what msgspec encodes. Earlier releases encoded with msgspec."""
    id, day = UUID(int=7), date(2026, 11, 28)
    parts = {"call": _Call("é", 1.5), "raw": msgspec.Raw(b'{"a":[1]}'), "set": {1}, "bytes": b"\xff", "id": id}
    item = {**parts, "none": None, "amount": Decimal("1.50"), "nested": {id: {day: (1, 2)}}, 5: "\u2028😀"}

    async def work() -> None:
        async with opened(url) as store:
            await store.produce("agents", "thread-1", [Record(msgspec.json.encode(item))])
            session = AgentSession("thread-1", store)
            await session.add_items([item])
            first, second = await session.get_items()
            assert first == second
            assert first["nested"] == {str(id): {"2026-11-28": [1, 2]}}
            await session.add_items([{id: _Call("\ud800", math.inf)}])
            assert await session.pop_item() == {str(id): {"name": "\ud800", "score": math.inf}}

    asyncio.run(work())


def test_a_line_of_a_transcript_keeps_any_value(url: str) -> None:
    async def work() -> None:
        async with opened(url) as store:
            transcripts = TranscriptStore(store)
            key = {"project_key": "p", "session_id": "s"}
            line = {"type": "user", "uuid": "1", "text": "\udcff.txt", "n": [math.inf, 2**70, "é", {"\ud800": -0.0}]}
            await transcripts.append(key, [line])
            assert repr(await transcripts.load(key)) == repr([line])

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
