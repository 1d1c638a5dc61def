"""Servers that are measured: streamkit, the reference server of Durable Streams, and a bare uvicorn application."""

from __future__ import annotations

import glob
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

__all__ = ["Server", "bare", "reference", "streamkit"]

ROOT = Path(__file__).parent.parent
STORE = UUID("7d9f2c1e-0000-4000-8000-000000000000")

_BARE = """
import sys
import uvicorn
PAGE = b"x" * int(sys.argv[2])
streams = set()
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    async def answer(status, data):
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})
    if scope["method"] == "GET" and b"live" in scope["query_string"]:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b":upToDate\\n\\n", "more_body": True})
        streams.add(send)
        await receive()
        streams.discard(send)
    elif scope["method"] == "GET":
        await answer(200, PAGE)
    else:
        await answer(201, b"x" * 500)
        for stream in list(streams):
            data = b"event: data\\ndata: " + body + b"\\n\\n"
            await stream({"type": "http.response.body", "body": data, "more_body": True})
config = uvicorn.Config(app, port=int(sys.argv[1]), log_level="critical", access_log=False, lifespan="off", ws="none")
uvicorn.Server(config).run()
"""
"""A bare application: it reads bodies, answers as many bytes, and hands bodies on to the open streams. It keeps
nothing."""

_PLAIN = """
import sys
from streamkit.cli import main
from streamkit.serve.metrics import Metrics
Metrics.answered = lambda *arguments: None
sys.argv[0] = "streamkit"
main()
"""


class Server:
    """A process that serves on `port`."""

    def __init__(self, command: list[str], port: int = 0) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
        )
        if not port:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                    port = int(found[1])
                    break
            assert port, f"{command} did not say where it serves"
        self.port = port
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def cpu(self) -> float:
        """Seconds of all its threads."""
        files = glob.glob(f"/proc/{self._process.pid}/task/*/schedstat")
        return sum([int(Path(file).read_text().split()[0]) for file in files]) / 1e9

    def memory(self) -> float:
        """The most MB that were resident."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


def streamkit(root: Path, *options: str, metrics: bool = True) -> Server:
    """`streamkit serve`; `metrics=False` takes the counting out of it."""
    root.mkdir(parents=True, exist_ok=True)
    program = ["-m", "streamkit.cli"] if metrics else ["-c", _PLAIN]
    command = [sys.executable, *program, "serve", "--port", "0", "--url", f"file://{root}", "--store", str(STORE)]
    return Server([*command, *options])


def bare(page: int) -> Server:
    """The bare application. `page`: bytes of the answer to a GET."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Server([sys.executable, "-c", _BARE, str(port), str(page)], port)


def reference(root: Path) -> Server:
    """The protocol's reference server with its file store; npm installs it if `make` has not."""
    install = [sys.executable, str(ROOT / "infra" / "npm.py"), str(ROOT / "infra" / "durable_streams")]
    node, modules = subprocess.run(install, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")[:2]
    root.mkdir(parents=True, exist_ok=True)
    return Server([node, str(Path(modules).parent / "reference.js"), str(root)])
