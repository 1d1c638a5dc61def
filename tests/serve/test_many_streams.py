"""A client that opens very many streams: each is served up to the limit, and everything comes back when they close."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

EXHAUSTIVE = bool(os.environ.get("STREAMKIT_EXHAUSTIVE"))
STREAMS = 10_000 if EXHAUSTIVE else 200
AT_ONCE = 100
PATH = "/v1/stores/_/spaces/s/entries"
PATIENCE = 300


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Room for the client's sockets, and by inheritance for the server's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < STREAMS + 500:
        pytest.skip(f"a process may open {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, STREAMS + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())
    return reader, writer


async def _attack(port: int, pid: int) -> tuple[float, int]:
    """Open the streams, write an entry, and close them: MiB that the server held with all of them, and the descriptors
    that it still has afterwards, beyond those of before."""
    before = _descriptors(pid)
    gate = asyncio.Semaphore(AT_ONCE)

    async def follow() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with gate:
            reader, writer = await _open(port)
            await reader.readuntil(b"event: caught-up")
            return reader, writer

    streams = await asyncio.gather(*[follow() for _ in range(STREAMS)])
    reader, writer = await _open(port)
    assert b" 429 " in await reader.readline()
    writer.close()
    await asyncio.to_thread(_post, port)
    await asyncio.gather(*[reader.readuntil(b'"text":"for all"') for reader, _ in streams])
    held = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)
    for _, writer in streams:
        writer.transport.abort()
    end = time.monotonic() + PATIENCE
    while _descriptors(pid) > before + 50 and time.monotonic() < end:
        await asyncio.sleep(0.01)
    # The slots are free again.
    reader, writer = await _open(port)
    assert b" 200 " in await reader.readline()
    writer.close()
    return held, _descriptors(pid) - before


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _post(port: int) -> None:
    entries = f"http://127.0.0.1:{port}/v1/stores/_/spaces/s/segments/a/entries"
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(entries, b'{"text": "for all"}', headers)) as answer:
        assert answer.status == 201


def test_a_client_that_opens_very_many_streams(tmp_path: Path, descriptors: None) -> None:
    command = [sys.executable, "-m", "streamkit.cli", "serve", "--port", "0", "--store", str(uuid4())]
    command += ["--url", f"file://{tmp_path}", "--limit", f"streams={STREAMS}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline().rpartition(":")[2])
        held, left = asyncio.run(asyncio.wait_for(_attack(port, process.pid), PATIENCE))
    finally:
        process.terminate()
        process.communicate()
    assert held < 100 + STREAMS * 0.06, "a stream takes 60 KiB or less"
    assert left <= 50
    print(f"{STREAMS} streams: {held:.0f} MiB")
