"""Requests leave nothing behind: neither rings of objects for the garbage collector, nor tasks."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

import streamkit.aio
from streamkit import Record
from streamkit.serve import Application, app


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Run without the garbage collector, so that objects in a cycle stay."""
    gc.disable()
    yield
    gc.enable()


class Cycle:
    """A cycle of references as uvicorn's: the request has the scope, and the scope has a way to answer by it."""

    def __init__(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.body = body
        self.answers: list[tuple[int, bytes]] = []
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        self.scope["streamkit.answer"] = partial(Cycle.answer, self)

    def answer(self, status: int, headers: object, body: bytes) -> bool:
        self.answers.append((status, body))
        return True

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self.body}

    async def send(self, message: dict[str, Any]) -> None:
        raise AssertionError("the answer is not sent in parts")


async def ask(application: Application, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    """The status, and a weak reference to the object of the request's cycle."""
    cycle = Cycle(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    await application(cycle.scope, cycle.receive, cycle.send)
    return cycle.answers[0][0], weakref.ref(cycle)


def test_a_request_leaves_nothing_for_the_garbage_collector(uncollected: None) -> None:
    async def run() -> None:
        application = app("memory://", store=uuid4())
        entries = "/v1/stores/_/spaces/s/segments/a/entries"
        for method, path, body, status in (
            ("POST", entries, b'{"text": "x"}', 201),
            ("POST", entries, b"{", 400),
            ("GET", entries, b"", 200),
            ("GET", "/nothing", b"", 404),
            ("PUT", "/v1/stream/a", b"[]", 201),
            ("POST", "/v1/stream/a", b"{}", 204),
            ("GET", "/v1/stream/a", b"", 200),
        ):
            found, left = await ask(application, method, path, body, content_type="application/json")
            assert found == status, (method, path)
            assert left() is None, (method, path)
        await application.service.close()

    asyncio.run(run())


def test_a_transaction_leaves_nothing_for_the_garbage_collector(uncollected: None) -> None:
    async def run() -> None:
        async with streamkit.aio.connect("memory://") as client, client.store(uuid4()).transaction("s") as trx:
            trx.produce("a", [Record(b"1")])
            left = weakref.ref(trx)
        del trx
        assert left() is None

    asyncio.run(run())


def test_a_deleted_stream_leaves_no_task_that_waits_for_its_expiry() -> None:
    async def run() -> None:
        application = app("memory://", store=uuid4())
        await ask(application, "PUT", "/v1/stream/first", stream_ttl="1000")
        await ask(application, "DELETE", "/v1/stream/first")
        before = len(asyncio.all_tasks())
        for number in range(20):
            path = f"/v1/stream/{number}"
            assert (await ask(application, "PUT", path, stream_ttl="1000"))[0] == 201
            assert (await ask(application, "POST", path, b"x", content_type="application/octet-stream"))[0] == 204
            assert (await ask(application, "DELETE", path))[0] == 204
        assert len(asyncio.all_tasks()) == before
        await application.service.close()

    asyncio.run(run())
