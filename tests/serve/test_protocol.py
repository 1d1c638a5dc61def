"""The protocol below the application: one write for a whole answer, unless uvicorn has to send it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import uvicorn
from fix_serve import Served
from uvicorn.server import ServerState

from streamkit.serve import Limits
from streamkit.serve.protocol import protocol_of
from streamkit.serve.responses import Answer

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Transport(asyncio.Transport):
    """Keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return 1

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def exchange(data: bytes, answer: Answer, step: Callable[[Any, Transport], Any] | None = None) -> Transport:
    """Return the server's output after `data` for the application's `answer`. `step`: called before `data` comes, and
    again when nothing is written any more."""
    transport = Transport()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await answer.send(send, bodiless=scope["method"] == "HEAD", at_once=scope["streamkit.answer"])

    async def run() -> None:
        config = uvicorn.Config(application, ws="none", lifespan="off", server_header=False, log_level="critical")
        config.load()
        state = ServerState()
        state.default_headers = [(b"date", b"today")]
        protocol: Any = protocol_of(Limits())(config=config, server_state=state, app_state={})
        protocol.connection_made(transport)
        if step is not None:
            step(protocol, transport)
        protocol.data_received(data)
        for _ in range(20):
            await asyncio.sleep(0)
        if step is not None:
            step(protocol, transport)
        while state.tasks:
            await asyncio.sleep(0)
        protocol.connection_lost(ConnectionResetError())

    asyncio.run(run())
    return transport


def test_a_whole_answer_is_one_write() -> None:
    wire = exchange(GET, Answer(200, b"body", [(b"etag", b'"1"')]))
    assert wire.writes == [b'HTTP/1.1 200 OK\r\ndate: today\r\netag: "1"\r\ncontent-length: 4\r\n\r\nbody']
    assert exchange(GET, Answer(204)).writes == [b"HTTP/1.1 204 No Content\r\ndate: today\r\n\r\n"]
    wire = exchange(GET.replace(b"GET", b"HEAD"), Answer(200, b"body"))
    assert wire.writes == [b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 4\r\n\r\n"]


def test_requests_that_come_together_are_answered_one_after_the_other() -> None:
    wire = exchange(GET * 3, Answer(200, b"body"))
    assert len(wire.writes) == 3
    assert all(write.endswith(b"\r\n\r\nbody") for write in wire.writes)


@pytest.mark.parametrize(
    ("data", "headers"),
    [
        (GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), []),
        (GET.replace(b"HTTP/1.1", b"HTTP/1.0"), []),
        (GET, [(b"connection", b"close")]),
    ],
)
def test_the_last_answer_closes_the_connection(data: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    wire = exchange(data, Answer(200, b"body", headers))
    assert b"".join(wire.writes).count(b"connection: close\r\n") == 1
    assert wire.closed


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb: c", b"a\rb", b"a\0b"])
def test_a_header_cannot_contain_another_one(value: bytes) -> None:
    wire = exchange(GET, Answer(200, b"body", [(b"x", value)]))
    assert wire.writes == []
    assert wire.closed


def test_a_client_that_reads_too_slowly_is_waited_for() -> None:
    seen: list[list[bytes]] = []

    def step(protocol: Any, transport: Transport) -> None:
        seen.append(list(transport.writes))
        protocol.resume_writing() if len(seen) == 2 else protocol.pause_writing()

    wire = exchange(GET, Answer(200, b"body"), step)
    assert seen == [[], []]
    assert b"".join(wire.writes).endswith(b"\r\n\r\nbody")


def test_a_proxy_on_this_machine_says_that_its_client_uses_tls(served: Served) -> None:
    stream = "/v1/stream/a"
    assert served.ask("PUT", stream, b"", {"X-Forwarded-Proto": "https"}).headers["location"].startswith("https://")
    assert served.ask("PUT", "/v1/stream/b", b"").headers["location"].startswith("http://")
