"""The documented erasure of each adapter leaves no byte of its entries. Every file and object is searched."""

from __future__ import annotations

import asyncio
import json
import os
from base64 import b64encode
from functools import cache
from glob import escape
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_worlds import world_of

import streamkit
import streamkit.aio
from harness.deep_search import found_in
from harness.worlds import PATIENCE, World


@pytest.fixture(params=["local", *(("s3", "azure") if EXHAUSTIVE else ())])
def place(request: pytest.FixtureRequest, scratch: Any) -> World:
    return world_of(request, scratch)


def _tags(count: int) -> list[str]:
    return [os.urandom(12).hex() for _ in range(count)]


def _left(place: World, tags: list[str]) -> list[bool]:
    stored = list(place.stored())
    return [bool(found_in(stored, tag.encode())) for tag in tags]


def test_sessions_of_agents(place: World) -> None:
    from streamkit.adapters.agents import AgentSession, McpEventStore, TranscriptStore

    class Message:
        def __init__(self, text: str) -> None:
            self._text = text

        def model_dump(self, **_: Any) -> dict[str, str]:
            return {"text": self._text}

    tags = _tags(6)
    popped, item, line, sub, message, other = tags

    async def work() -> None:
        async with streamkit.aio.connect(place.url, timeout=PATIENCE) as client, await client.store(uuid4()) as store:
            session = AgentSession("thread-1", store)
            await session.add_items([{"content": item}, {"content": popped}])
            assert await session.pop_item() == {"content": popped}
            transcripts = TranscriptStore(store)
            key = {"project_key": "tenant-1", "session_id": "s1"}
            await transcripts.append(key, [{"type": "user", "text": line}])
            await transcripts.append({**key, "subpath": "agents/a"}, [{"type": "user", "text": sub}])
            await transcripts.append({**key, "session_id": "s10"}, [{"type": "user", "text": other}])
            events: Any = McpEventStore(store, scope="session-1")
            await events.store_event("stream-1", Message(message))
            assert _left(place, tags) == [True] * 6
            await session.clear_session()
            await transcripts.delete(key)

            await store.erase("agents", "thread-1")
            await store.erase("claude/tenant-1", "s1")
            await store.erase("claude/tenant-1", "s1/*")
            await store.erase("mcp", "session-1/*")
            assert _left(place, tags) == [False] * 5 + [True]

    asyncio.run(work())


def test_threads_of_langgraph(place: World) -> None:
    pytest.importorskip("langgraph.checkpoint.base")
    from langgraph.checkpoint.base import empty_checkpoint

    from streamkit.adapters.langgraph import StreamkitSaver

    tags = _tags(4)
    value, note, written, other = tags
    with streamkit.connect(place.url, timeout=PATIENCE) as client:
        store = client.store(uuid4())
        saver = StreamkitSaver(store)

        def put(thread: str, *texts: str) -> None:
            config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
            for step in range(3):
                checkpoint = {**empty_checkpoint(), "channel_values": {"said": texts[0]}}
                version = saver.get_next_version(str(step), None)
                checkpoint["channel_versions"] = {"said": version}
                metadata: Any = {"step": step, "note": texts[1]}
                config = saver.put(config, checkpoint, metadata, {"said": version})  # type: ignore[arg-type]
                saver.put_writes(config, [("said", texts[2])], "task")

        put("thread[1]", value, note, written)
        put("thread1", other, other, other)
        saver.copy_thread("thread[1]", "copy")
        saver.prune(["thread[1]"])
        saver.delete_thread("copy")
        for thread in ("thread[1]", "copy"):
            store.erase("langgraph", escape(thread))
        assert _left(place, tags) == [False] * 3 + [True]


@cache
def _dogs_class() -> Any:
    """The library knows each class by its name, so there is one."""
    from eventsourcing.application import Application
    from eventsourcing.domain import Aggregate, event

    class Dog(Aggregate):
        @event("Registered")
        def __init__(self, name: str) -> None:
            self.name = name
            self.tricks: list[str] = []

        @event("TrickAdded")
        def add_trick(self, trick: str) -> None:
            self.tricks.append(trick)

    class Dogs(Application[UUID]):
        is_snapshotting_enabled = True

        def teach(self, name: str, *tricks: str) -> UUID:
            dog = Dog(name)
            for trick in tricks:
                dog.add_trick(trick)
                self.save(dog)
                self.take_snapshot(dog.id)
            return dog.id

    return Dogs


def _dogs(place: World, id: UUID) -> Any:
    return _dogs_class()(
        env={
            "PERSISTENCE_MODULE": "streamkit.adapters.eventsourcing",
            "STREAMKIT_URL": place.url,
            "STREAMKIT_STORE": str(id),
        }
    )


def test_aggregates_of_the_eventsourcing_library_and_their_snapshots(place: World) -> None:
    pytest.importorskip("eventsourcing")
    tags, id = _tags(3), uuid4()
    dogs = _dogs(place, id)
    try:
        dog = dogs.teach(tags[0], tags[1], "fetch")
        dogs.teach(tags[2], "sit")
        with streamkit.connect(place.url, timeout=PATIENCE) as client, client.store(id) as store:
            for space in ("Dogs", "Dogs.snapshots"):
                assert store.erase(space, str(dog)).unreached == ()
        assert _left(place, tags) == [False, False, True]
    finally:
        dogs.close()


def test_messages_of_kombu(place: World) -> None:
    kombu = pytest.importorskip("kombu")
    tags, id = _tags(4), uuid4()
    options = {"url": place.url, "store": str(id), "max_deliveries": 1}
    with kombu.Connection(transport="streamkit.adapters.kombu:Transport", transport_options=options) as connection:
        exchange = kombu.Exchange("e", "direct")
        queue = kombu.Queue("celery", exchange, routing_key="r")
        for tag, subject in zip(tags, ("user-17", "user-17", "user-17", "user-18"), strict=True):
            connection.Producer(serializer="json").publish(
                [tag], exchange=exchange, routing_key="r", declare=[queue], headers={"subject": subject}
            )
        found: list[Any] = []
        with connection.Consumer(queue, callbacks=[lambda _, message: found.append(message)], prefetch_count=2):
            connection.drain_events(timeout=PATIENCE)
            while len(found) < 2:
                connection.drain_events(timeout=PATIENCE)
            found[0].ack()
            found[1].reject()
        bodies = [b64encode(json.dumps([tag]).encode()).decode() for tag in tags]
        assert _left(place, bodies) == [True] * 4
        with streamkit.connect(place.url, timeout=PATIENCE) as client, client.store(id) as store:
            for name in store.get_queues():
                assert store.erase(name, metadata={"subject": "user-17"}).unreached == ()
            assert _left(place, bodies) == [False, False, False, True]
            connection.default_channel.queue_delete("celery")
            assert _left(place, bodies) == [False] * 4
