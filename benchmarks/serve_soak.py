"""A soak of the server: mixed load for a while, and what the process holds meanwhile.

    python -m benchmarks.serve_soak --minutes 5

Writers append, readers read pages, watchers come and go, streams of the Durable Streams protocol come and go.
It prints memory and descriptors of the process, and fails if one of them still grows in the second half.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

_SPACES = 4
_SEGMENTS = 50
_STREAMS = 500
_RING = 256 << 10
"""Bytes of the latest entries for each watched space: small, so that they are full soon."""
_SAMPLES = 20


async def _ask(port: int, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> int:
    """One request on a connection of its own; the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = int((await reader.readline()).split()[1])
        while await reader.read(1 << 16):
            pass
        return status
    finally:
        writer.close()


async def _watch(port: int, path: str, seconds: float) -> None:
    """A stream of events that the client leaves after a while, without a word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(1 << 16):
                pass
    except TimeoutError:
        pass
    finally:
        writer.transport.abort()


async def _client(port: int, end: float, statuses: dict[int, int]) -> None:
    stores = "/v1/stores/_"
    while time.monotonic() < end:
        space, segment = random.randrange(_SPACES), random.randrange(_SEGMENTS)
        entries = f"{stores}/spaces/s{space}/segments/{segment}/entries"
        stream = f"/v1/stream/{random.randrange(_STREAMS)}"
        what = random.randrange(10)
        if what < 4:
            records = json.dumps([{"json": {"n": 1, "pad": "x" * 100}}] * random.randrange(1, 10)).encode()
            found = [await _ask(port, "POST", entries, records)]
        elif what < 6:
            found = [await _ask(port, "GET", f"{entries}?reverse=true&limit=20")]
        elif what == 6:
            await _watch(port, entries if random.random() < 0.5 else f"{stores}/spaces/s{space}/entries", 0.5)
            found = []
        elif what == 7:
            found = [await _ask(port, "GET", f"{stores}/spaces/s{space}/entries?from=end&wait=0.2")]
        elif what == 8:
            found = [
                await _ask(port, "PUT", stream, b"x", "text/plain"),
                await _ask(port, "POST", stream, b"y", "text/plain"),
                await _ask(port, "DELETE", stream),
            ]
        else:
            found = [await _ask(port, "GET", f"{entries}?after=x"), await _ask(port, "GET", f"/nothing/{segment}")]
        for status in found:
            statuses[status] = statuses.get(status, 0) + 1


def _held(pid: int) -> tuple[float, int]:
    """MiB of memory, and descriptors."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / (1 << 20), len(os.listdir(f"/proc/{pid}/fd"))


async def _soak(pid: int, port: int, seconds: float, clients: int) -> list[tuple[float, int]]:
    statuses: dict[int, int] = {}
    for space in range(_SPACES):
        body = b'{"retention": {"max_entries": 100}}'
        await _ask(port, "PUT", f"/v1/stores/_/spaces/s{space}", body)
    end = time.monotonic() + seconds
    running = [asyncio.create_task(_client(port, end, statuses)) for _ in range(clients)]
    samples = []
    for _ in range(_SAMPLES):
        await asyncio.sleep(seconds / _SAMPLES)
        samples.append(_held(pid))
        print(
            f"{samples[-1][0]:8.1f} MiB {samples[-1][1]:5d} descriptors {sum(statuses.values()):8d} requests",
            flush=True,
        )
    await asyncio.gather(*running)
    print("answers by status:", dict(sorted(statuses.items())))
    assert not [status for status in statuses if status >= 500], "an answer was 5xx"
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "streamkit.cli", "serve", "--port", "0", "--url", f"file://{folder}/root"]
        command += ["--store", str(uuid4()), "--limit", f"ring_bytes={_RING}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            samples = asyncio.run(_soak(process.pid, port, options.minutes * 60, options.clients))
            time.sleep(2)
            memory, descriptors = _held(process.pid)
            print(f"after it: {memory:.1f} MiB, {descriptors} descriptors")
        finally:
            process.terminate()
            process.wait(30)
    half = samples[_SAMPLES // 2 :]
    first, last = half[: len(half) // 2], half[len(half) // 2 :]
    assert max(memory for memory, _ in last) <= max(memory for memory, _ in first) * 1.1 + 5, "the memory grows"
    assert max(open for _, open in last) <= max(open for _, open in first) + options.clients, "descriptors are lost"


if __name__ == "__main__":
    main()
