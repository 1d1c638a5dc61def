"""The server for tests: the application under a real uvicorn, on a free loopback port, in a thread of the test."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from streamkit.serve import Application, Limits, app
from streamkit.serve.server import make_server

PATIENCE = 60.0


class Reply(NamedTuple):
    """The answer of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Event(NamedTuple):
    """One server-sent event; the name of a comment is ":"."""

    name: str
    id: str | None
    data: Any


class Events:
    """An open stream of events, to be iterated."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self.response = connection.getresponse()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        fields: dict[str, str] = {}
        while line := self.response.readline():
            text = line.decode().rstrip("\n")
            if not text.strip():
                if fields:
                    data = fields.get("data")
                    return Event(fields.get("event", ":"), fields.get("id"), json.loads(data) if data else None)
                continue
            name, _, value = text.partition(":")
            fields[name or ":"] = value.lstrip()
        raise StopIteration

    def until(self, name: str) -> list[Event]:
        """The events up to the first one of this name."""
        found = []
        for event in self:
            found.append(event)
            if event.name == name:
                return found
        raise AssertionError(f"the stream ended before {name}: {found}")

    def entries(self, count: int) -> list[Any]:
        """The next `count` entries."""
        found: list[Any] = []
        while len(found) < count:
            event = next(self)
            if event.name == "entries":
                found += event.data
        return found

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self._connection.close()


class Served:
    """One store behind one server. `store` reads and writes it from outside."""

    def __init__(self, url: str, *, http2: bool = False, **options: Any) -> None:
        self.url = url
        self.id: UUID = uuid4()
        self.application: Application = app(url, store=self.id, **options)
        self.server = make_server(self.application, "127.0.0.1", 0, http2=http2)
        self.port = 0
        self._open = ExitStack()
        self.store = self._open.enter_context(streamkit.connect(url)).store(self.id)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        end = threading.Event()
        for _ in range(int(PATIENCE * 100)):
            if self.server.started:
                break
            end.wait(0.01)
        assert self.server.started, "the server did not start"
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def _run(self) -> None:
        self.server.run()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, *, at: str | None = None
    ) -> Reply:
        """One request. A path that does not begin with "/" is below the server's own store. `body`: bytes, or a value
        that is sent as JSON."""
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        connection = self.connection()
        try:
            connection.request(method, path if path.startswith("/") else f"/v1/stores/_/{path}", body, headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def events(self, path: str, headers: dict[str, str] | None = None) -> Events:
        """Opens a stream of events."""
        connection = self.connection()
        path = path if path.startswith("/") else f"/v1/stores/_/{path}"
        connection.request("GET", path, headers={"Accept": "text/event-stream", **(headers or {})})
        return self._open.enter_context(Events(connection))

    def close(self) -> None:
        self.server.should_exit = True
        self._thread.join(PATIENCE)
        self._open.close()
        assert not self._thread.is_alive(), "the server did not end"


@pytest.fixture(params=["memory", "local"] if EXHAUSTIVE else ["memory"])
def served(request: pytest.FixtureRequest, make_url: Callable[[str], str]) -> Iterator[Served]:
    """A server of an empty store; test_durable_conformance and test_killed_servers have one on a disk."""
    found = Served(make_url(request.param))
    yield found
    found.close()


@pytest.fixture
def serve(make_url: Callable[[str], str]) -> Iterator[Callable[..., Served]]:
    """Makes servers in memory: `serve(limits=Limits(records=3))`."""
    with ExitStack() as stack:

        def make(**options: Any) -> Served:
            found = Served(make_url("memory"), **options)
            stack.callback(found.close)
            return found

        yield make


__all__ = ["Limits", "Reply", "Served"]
