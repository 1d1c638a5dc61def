"""The server: `python -m benchmarks.serve [--quick]` measures it over loopback, and prints a table.

The load generator is a process of its own. Beside the POSTs stands a bare uvicorn application of the same shape, which
reads the body and answers as many bytes: what it takes is the price of HTTP alone. CPU is that of the server's process,
in microseconds an operation: on a machine that is shared it says more than the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

STORE = UUID("7d9f2c1e-0000-4000-8000-000000000000")
PAYLOAD = {"n": 1, "text": "x" * 80}

_BARE = """
import sys
import uvicorn
ANSWER = b"x" * 500
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"500")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})
config = uvicorn.Config(app, port=int(sys.argv[1]), log_level="warning", access_log=False, lifespan="off", ws="none")
uvicorn.Server(config).run()
"""


class Row(NamedTuple):
    """One figure."""

    work: str
    rate: float
    unit: str
    p50: float
    p99: float
    cpu: float
    """Microseconds of the server's process."""


class Server:
    """A process that serves, and its CPU seconds."""

    def __init__(self, command: list[str], port: int) -> None:
        self.port = port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while True:
            try:
                asyncio.run(_connect(port))
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """MB that are resident."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


async def _connect(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head[9:11] == b"20", head
    at = head.index(b"content-length: ") + 16
    return await reader.readexactly(int(head[at : head.index(b"\r", at)]))


def _posting(port: int, connections: int, total: int, records: int) -> list[float]:
    """Seconds of each POST."""
    body = json.dumps({"records": [{"json": PAYLOAD}] * records}).encode()
    seconds: list[float] = []

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = f"/v1/stores/_/spaces/s/segments/s{number}/entries"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        for _ in range(total // connections):
            begun = time.perf_counter()
            await _ask(reader, writer, data)
            seconds.append(time.perf_counter() - begun)
        writer.close()

    _run(lambda: asyncio.gather(*[client(number) for number in range(connections)]))
    return seconds


def _paging(port: int, total: int) -> list[float]:
    """Seconds of each page of 1,000."""
    seconds: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = "/v1/stores/_/spaces/s/entries?limit=1000&max_bytes=8000000"
        for _ in range(total):
            begun = time.perf_counter()
            await _ask(reader, writer, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            seconds.append(time.perf_counter() - begun)
        writer.close()

    _run(client)
    return seconds


def _watching(port: int, watchers: int, total: int) -> list[float]:
    """Seconds from before a POST to the arrival at each watcher."""
    seconds: list[float] = []

    async def main() -> None:
        begun = [0.0]
        arrived = asyncio.Event()
        count = [0]

        async def watch(ready: asyncio.Future[None]) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
            path = "/v1/stores/_/spaces/live/entries?from=end"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
            while True:
                line = await reader.readline()
                if not line:
                    return
                if line.startswith(b"event: caught-up"):
                    ready.set_result(None)
                elif line.startswith(b"data: ["):
                    seconds.append(time.perf_counter() - begun[0])
                    count[0] += 1
                    if count[0] == watchers:
                        arrived.set()

        loop = asyncio.get_running_loop()
        waiting = [loop.create_future() for _ in range(watchers)]
        tasks = [asyncio.ensure_future(watch(ready)) for ready in waiting]
        await asyncio.gather(*waiting)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"json": PAYLOAD}).encode()
        path = "/v1/stores/_/spaces/live/segments/a/entries"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        for _ in range(total):
            count[0] = 0
            arrived.clear()
            begun[0] = time.perf_counter()
            await _ask(reader, writer, data)
            await arrived.wait()
        for task in tasks:
            task.cancel()

    _run(main)
    return seconds


def _timed(load: Callable[..., list[float]], *args: int) -> tuple[list[float], float]:
    """What `load` gives, and how long it took."""
    begun = time.perf_counter()
    return load(*args), time.perf_counter() - begun


def _run(main: Callable[[], Any]) -> None:
    import uvloop

    async def whole() -> None:
        await main()

    uvloop.run(whole())


def _measure(server: Server, work: str, unit: str, each: int, load: Callable[..., list[float]], *args: int) -> Row:
    """`each`: what one operation counts for."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        cpu = server.cpu()
        seconds, took = pool.apply(_timed, (load, server.port, *args))
        cpu = server.cpu() - cpu
        seconds.sort()
    count = len(seconds) * each
    at = [seconds[int(len(seconds) * share)] * 1e3 for share in (0.5, 0.99)]
    return Row(work, count / took, unit, at[0], at[1], cpu / count * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short: does it run")
    parser.add_argument("--dir", type=Path, default=None, help="where the store is; it decides which disk")
    options = parser.parse_args()
    scale = 50 if options.quick else 1
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.dir) as root:
        words = ["serve", "--port", "4991", "--url", f"file://{root}", "--store", str(STORE)]
        server = Server([sys.executable, "-m", "streamkit.cli", *words], 4991)
        bare = Server([sys.executable, "-c", _BARE, "4992"], 4992)
        try:
            for name, there in (("bare uvicorn", bare), ("streamkit", server)):
                for connections, total in ((1, 2_000), (64, 40_000)):
                    work = f"{name}: POST of a record, {connections} connections"
                    rows.append(_measure(there, work, "POST/s", 1, _posting, connections, total // scale + 64, 1))
            work = "streamkit: POST of 100 records, 16 connections"
            rows.append(_measure(server, work, "records/s", 100, _posting, 16, 3_200 // scale + 16, 100))
            work = "streamkit: pages of 1,000"
            rows.append(_measure(server, work, "entries/s", 1_000, _paging, 200 // scale + 4))
            for watchers in (1, 100, 1_000):
                count = watchers if not options.quick else min(watchers, 100)
                work = f"streamkit: events to {count} watchers"
                rows.append(_measure(server, work, "deliveries/s", 1, _watching, count, 100 // scale + 5))
            memory = server.memory()
        finally:
            server.close()
            bare.close()
    print("| work | rate | p50 ms | p99 ms | server's CPU, µs each |\n|---|---|---|---|---|")
    for row in rows:
        print(f"| {row.work} | {row.rate:,.0f} {row.unit} | {row.p50:.2f} | {row.p99:.2f} | {row.cpu:.1f} |")
    print(f"\nThe server held {memory:.0f} MB at the end.")


if __name__ == "__main__":
    main()
