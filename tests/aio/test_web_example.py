"""The example of a web server, over real HTTP on a free port: a posted entry is streamed, also after a reconnect."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fix_aio import in_loop

import streamkit.aio
from streamkit.aio import AsyncStore

uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'streamkit-store[dev]'")
pytest.importorskip("starlette", reason="needs starlette: pip install 'streamkit-store[dev]'")

APP = Path(__file__).parents[2] / "examples" / "web" / "app.py"


class Answer(NamedTuple):
    status: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def event(self) -> tuple[str, dict[str, Any]]:
        """The next event's id and data."""
        found: dict[str, str] = {}
        while True:
            line = (await asyncio.wait_for(self.reader.readline(), 20)).decode()
            assert line, "the stream has ended"
            if line in ("\r\n", "\n"):
                if found:
                    return found["id"], json.loads(found["data"])
            elif line.startswith(("id: ", "data: ")):
                name, _, value = line.strip().partition(": ")
                found[name] = value

    async def comment(self) -> str:
        while True:
            line = (await asyncio.wait_for(self.reader.readline(), 20)).decode().strip()
            if line.startswith(":"):
                return line


class Site:
    def __init__(self, port: int, example: Any) -> None:
        self.port = port
        self.example = example

    @property
    def store(self) -> AsyncStore:
        store: AsyncStore = self.example.app.state.store
        return store

    @asynccontextmanager
    async def get(self, path: str, **headers: str) -> AsyncIterator[Answer]:
        answer = await self._request("GET", path, b"", headers)
        try:
            yield answer
        finally:
            answer.writer.close()
            with suppress(ConnectionError):
                await answer.writer.wait_closed()

    async def post(self, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
        answer = await self._request("POST", path, body, {"Connection": "close", **headers})
        told = await answer.reader.read()
        answer.writer.close()
        return answer.status, json.loads(told)

    async def _request(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        return Answer(status, reader, writer)


@asynccontextmanager
async def site(tmp_path: Path, silence: float = 15.0) -> AsyncIterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMKIT_URL", f"file://{tmp_path}/stores")
        spec = importlib.util.spec_from_file_location("web_example", APP)
        assert spec is not None
        assert spec.loader is not None
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        example.SILENCE = silence  # type: ignore[attr-defined]
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(example.app, log_level="error", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            assert not serving.done()
            await asyncio.sleep(0.01)
        try:
            yield Site(listening.getsockname()[1], example)
        finally:
            server.should_exit = True
            await serving
            listening.close()


@in_loop
async def test_what_one_client_posts_two_others_get(tmp_path: Path) -> None:
    async with site(tmp_path) as web, web.get("/orders") as one, web.get("/orders") as two:
        assert (one.status, two.status) == (200, 200)
        for n in range(3):
            assert (await web.post("/orders/order-42", b'{"n": %d}\n' % n))[0] == 201
        for client in (one, two):
            found = [await client.event() for _ in range(3)]
            assert [data["payload"] for _, data in found] == [f'{{"n": {n}}}\n' for n in range(3)]
            assert [data["sequence"] for _, data in found] == [1, 2, 3]


@in_loop
async def test_a_client_that_reconnects_misses_nothing_and_gets_nothing_twice(tmp_path: Path) -> None:
    """A reconnect continues, also if another process of the server answers it."""
    async with site(tmp_path) as web:
        async with web.get("/orders") as client:
            for n in range(5):
                await web.post(f"/orders/order-{n}", b"%d" % n)
            for _ in range(2):
                id, _ = await client.event()
        await web.post("/orders/order-5", b"5")
        async with web.get("/orders", Last_Event_ID=id) as client:
            found = [(await client.event())[1]["payload"] for _ in range(4)]
            assert found == ["2", "3", "4", "5"]
    async with site(tmp_path) as web:
        _, told = await web.post("/orders/order-6", b"6")
        async with web.get("/orders", Last_Event_ID=id) as client:
            found = [await client.event() for _ in range(5)]
            assert [data["payload"] for _, data in found] == ["2", "3", "4", "5", "6"]
            assert told["offset"] == found[-1][0]


@in_loop
async def test_what_is_refused_has_a_status_that_a_client_understands(tmp_path: Path) -> None:
    async with site(tmp_path) as web:
        assert (await web.post("/orders/order-1", b"1", Idempotency_Key="k", If_Match='"0"'))[0] == 201
        assert (await web.post("/orders/order-1", b"1", Idempotency_Key="k", If_Match='"0"'))[1]["sequence"] == 1
        assert (await web.post("/orders/order-1", b"2", Idempotency_Key="k"))[0] == 422
        assert (await web.post("/orders/order-1", b"2", If_Match='"0"'))[0] == 412
        for wrong in ("*", "1" * 5000):
            assert (await web.post("/orders/order-1", b"2", If_Match=wrong))[0] == 400
        assert (await web.post("/orders/order-1", b"2", Idempotency_Key=""))[1]["sequence"] == 2
        _, third = await web.post("/orders/order-1", b"3")
        async with web.get("/orders") as client:
            first, _ = await client.event()
        await web.store.trim("orders", before=third["offset"])
        async with web.get("/orders", Last_Event_ID=first) as client:
            assert client.status == 410
        async with web.get("/orders", Last_Event_ID="no offset") as client:
            assert client.status == 400


@in_loop
async def test_it_goes_on_after_another_process_has_deleted_the_space(tmp_path: Path) -> None:
    async with site(tmp_path) as web:
        await web.post("/orders/order-1", b"1")
        async with streamkit.aio.connect(f"file://{tmp_path}/stores") as other:
            await other.store(web.example.STORE).delete_space("orders")
        assert (await web.post("/orders/order-1", b"2"))[0] == 503
        assert (await web.post("/orders/order-1", b"2"))[1]["sequence"] == 1


@in_loop
async def test_a_client_that_goes_away_leaves_no_follower(tmp_path: Path) -> None:
    async with site(tmp_path) as web:
        watch = web.store.watch
        for _ in range(3):
            async with web.get("/orders") as client:
                await web.post("/orders/order-1", b"1")
                await client.event()
                while not watch._waiting:
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(20):
                while watch._waiting:
                    await asyncio.sleep(0.01)


@in_loop
async def test_silence_is_broken_by_comments_and_the_stream_goes_on(tmp_path: Path) -> None:
    async with site(tmp_path, silence=0.05) as web, web.get("/orders") as client:
        assert await client.comment() == ": nothing new"
        assert await client.comment() == ": nothing new"
        await web.post("/orders/order-1", b"after the silence")
        assert (await client.event())[1]["payload"] == "after the silence"


@in_loop
async def test_bad_requests_are_told_before_the_stream_begins(tmp_path: Path) -> None:
    async with site(tmp_path) as web:
        first = await web.post("/orders/order-1", b"1", Idempotency_Key="once")
        assert await web.post("/orders/order-1", b"1", Idempotency_Key="once") == first
        async with web.get("/orders", Last_Event_ID="nonsense") as client:
            assert client.status == 400
        assert (await web.post("/orders/%01", b"1"))[0] == 400
