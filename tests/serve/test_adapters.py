"""The application under granian, and behind adapters that run each request in an event loop of its own, or buffer."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import azure.functions as func
import pytest
import uvloop
import websockets.exceptions
import websockets.sync.client
from mangum import Mangum

from streamkit.serve import app

ROOT = Path(__file__).parent.parent.parent
STORE = uuid4()


def by_lambda(application: Any) -> Any:
    handler = Mangum(application, lifespan="off")

    def ask(method: str, path: str, body: Any = None, query: str = "", **headers: str) -> tuple[int, Any]:
        event = {
            "version": "2.0",
            "rawPath": path,
            "rawQueryString": query,
            "headers": {"content-type": "application/json", **headers},
            "requestContext": {"http": {"method": method, "path": path, "sourceIp": "127.0.0.1"}},
            "body": None if body is None else json.dumps(body),
            "isBase64Encoded": False,
        }
        answer: Any = handler(event, {})  # type: ignore[arg-type]
        text = base64.b64decode(answer["body"]) if answer["isBase64Encoded"] else answer["body"]
        return answer["statusCode"], json.loads(text) if text else None

    return ask


def by_azure(application: Any) -> Any:
    middleware = func.AsgiMiddleware(application)

    def ask(method: str, path: str, body: Any = None, query: str = "", **headers: str) -> tuple[int, Any]:
        request = func.HttpRequest(
            method,
            f"http://localhost{path}?{query}",
            headers={"Content-Type": "application/json", **headers},
            body=b"" if body is None else json.dumps(body).encode(),
        )

        async def handle() -> func.HttpResponse:
            return await middleware.handle_async(request)

        answer = asyncio.run(handle())
        return answer.status_code, json.loads(answer.get_body()) if answer.get_body() else None

    return ask


@pytest.fixture
def loop() -> Iterator[None]:
    """The event loop for the requests of Mangum."""
    made = uvloop.new_event_loop()
    asyncio.set_event_loop(made)
    yield
    asyncio.set_event_loop(None)
    made.close()


@pytest.mark.parametrize("adapter", [by_lambda, by_azure])
def test_it_runs_behind_adapters_that_buffer(loop: None, adapter: Any, tmp_path: Path) -> None:
    ask = adapter(app(f"file://{tmp_path}/root", store=STORE))
    path = "/v1/stores/_/spaces/s/segments/a/entries"
    status, posted = ask("POST", path, {"json": {"n": 1}})
    assert (status, posted["last_sequence"]) == (201, 1)
    assert ask("POST", path, {"text": "x"}, **{"if-match": '"7"'})[0] == 412
    status, page = ask("GET", path, query="after=0&limit=5")
    assert (status, [entry["json"] for entry in page["entries"]]) == (200, [{"n": 1}])
    assert ask("GET", path, query="after=1&wait=0.01")[1]["entries"] == []
    assert ask("GET", path, accept="text/event-stream")[0] == 406
    odd = "/v1/stores/_/spaces/s/segments/~" + base64.urlsafe_b64encode(b"a/b%").decode().rstrip("=")
    status, posted = ask("POST", odd + "/entries", {"text": "x"})
    assert (status, posted["segment"]) == (201, "a/b%")
    assert ask("GET", posted["href"] + "/entries")[1]["entries"][0]["text"] == "x"
    assert ask("GET", "/nothing")[0] == 404


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_runs_under_granian(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "served.py").write_text(
        f"from streamkit.serve import app\nserved = app('file://{tmp_path}/root', store='{STORE}')\n"
    )
    command = [sys.executable, "-m", "granian", "--interface", "asgi", "--port", str(port), "served:served"]
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"})
    base = f"http://127.0.0.1:{port}/v1/stores/_/spaces/s%2Ft/segments/a%2Fb/entries"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).read()
                break
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(base, b'{"text":"x"}', headers)
        posted = json.load(urllib.request.urlopen(request, timeout=30))
        assert (posted["space"], posted["segment"]) == ("s/t", "a/b")
        events = urllib.request.urlopen(
            urllib.request.Request(base, headers={"Accept": "text/event-stream"}), timeout=30
        )
        assert events.readline() == b"event: entries\n"
        events.close()
        with websockets.sync.client.connect(f"ws://127.0.0.1:{port}/v1/ws") as client:
            client.send('{"id":1,"op":"subscribe","space":"s/t","segment":"a/b"}')
            told = [json.loads(client.recv(30)) for _ in range(2)]
            assert (told[0], told[1]["data"][0]["text"]) == ({"id": 1, "status": 200}, "x")
        with pytest.raises(websockets.exceptions.InvalidStatus):
            websockets.sync.client.connect(f"ws://127.0.0.1:{port}/v1/nothing")
        large = urllib.request.Request(base, b"x" * 300_000, {"Content-Type": "application/octet-stream"})
        assert json.load(urllib.request.urlopen(large, timeout=30))["last_sequence"] == 2
    finally:
        process.terminate()
        process.wait(60)
