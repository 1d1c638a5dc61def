"""A soak of the server: hours of mixed load in minutes, and the memory of the process meanwhile.

    python -m benchmarks.serve_soak --hours 8 --minutes 20

The clocks of the server and of its clients are hastened, so that keys, leases, streams, idempotency keys and retained
entries expire as they would in so many hours. The load is what the machine can bear. The server restarts nothing.
It prints memory and descriptors of the process, hour by hour, and fails if one of them grows in the second half.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

from .hastened import HastenedLoop, hasten

_SPACES = 4
_SEGMENTS = 50
_STORES = 30
"""The stores of the load, in turn. Fewer of them may be open at once."""
_LIMITS = {
    "ring_bytes": 256 << 10,  # small, so that they are full soon
    "stores": 10,
    "streams_per_key": 20,
    "requests_per_key": 40,
}
_SAMPLES = 4
"""Samples of the process in an hour."""
_KEY_SECONDS = 1_200.0
_OWN = "/v1/stores/_"
_EVENTS = "Accept: text/event-stream\r\n"


class _Soak:
    """The clients of one server."""

    def __init__(self, port: int, keys: Path) -> None:
        from streamkit.serve.keys import KeyFile

        self.statuses: Counter[int] = Counter()
        self._port = port
        self._keys = KeyFile(keys)
        self._made: list[str] = []
        self._count = 0
        self.new_key()

    def new_key(self) -> None:
        """Another key; of the old ones only the latest stays."""
        self._made.append(self._keys.create(["admin"], ttl=_KEY_SECONDS))
        if len(self._made) > 2:
            self._keys.revoke(self._made.pop(0).split("_")[1])

    def _head(self, method: str, path: str, headers: str, length: int) -> bytes:
        lines = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._made[-1]}\r\n{headers}"
        return f"{lines}Content-Length: {length}\r\n\r\n".encode()

    async def ask(self, method: str, path: str, body: object = b"", headers: str = "") -> bytes:
        """One request on a connection of its own; the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            if not isinstance(body, bytes):
                body, headers = json.dumps(body).encode(), f"Content-Type: application/json\r\n{headers}"
            writer.write(self._head(method, path, f"Connection: close\r\n{headers}", len(body)) + body)
            answer = await reader.read()
            while rest := await reader.read():
                answer += rest
            self.statuses[int(answer.split(None, 2)[1])] += 1
            return answer
        finally:
            writer.close()

    # -- what a client does ---------------------------------------------------------------------------------------

    def _entries(self) -> str:
        return f"{self._space()}/segments/{random.randrange(_SEGMENTS)}/entries"

    def _space(self) -> str:
        return f"{_OWN}/spaces/s{random.randrange(_SPACES)}"

    def _new(self) -> int:
        self._count += 1
        return self._count

    async def append(self) -> None:
        records = [{"json": {"n": 1, "pad": "x" * 100}}] * random.randrange(1, 10)
        await self.ask("POST", self._entries(), records, f"Idempotency-Key: {self._new()}\r\n")

    async def repeat(self) -> None:
        path, key = self._entries(), f"Idempotency-Key: again-{self._new()}\r\n"
        for _ in range(2):
            await self.ask("POST", path, {"text": "x"}, key)

    async def new_segment(self) -> None:
        path = f"{self._space()}/segments/new-{self._new()}"
        await self.ask("POST", f"{path}/entries", {"text": "x"})
        if random.random() < 0.5:
            await self.ask("DELETE", path)

    async def read(self) -> None:
        await self.ask("GET", f"{self._entries()}?reverse=true&limit=20")
        await self.ask("GET", f"{self._space()}/entries?limit=50")

    async def poll(self) -> None:
        await self.ask("GET", f"{self._space()}/entries?from=end&wait=20")

    async def watch(self) -> None:
        """Two streams of events, which the client leaves after a while, without a word."""
        await self._leave(self._entries(), random.uniform(1, 900))
        await self._leave(f"{self._space()}/entries", random.uniform(1, 60))

    async def _leave(self, path: str, seconds: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._head("GET", path, _EVENTS, 0))
        try:
            async with asyncio.timeout(seconds):
                while await reader.read(1 << 16):
                    pass
        except TimeoutError:
            pass
        finally:
            writer.transport.abort()

    async def stall(self) -> None:
        """A client that reads nothing, and one that sends half of a request; the server cuts them off."""
        with socket.socket() as silent, socket.socket() as half:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for one in (silent, half):
                one.connect(("127.0.0.1", self._port))
            silent.sendall(self._head("GET", f"{self._space()}/entries", _EVENTS, 0))
            half.sendall(self._head("POST", self._entries(), "", 100)[: random.choice((40, 10_000))])
            await asyncio.sleep(120)

    async def stream(self) -> None:
        path = f"/v1/stream/{random.randrange(500)}"
        await self.ask("PUT", path, b"x", "Content-Type: text/plain\r\n")
        await self.ask("POST", path, b"y", "Content-Type: text/plain\r\n")
        await self.ask("GET", f"{path}?offset=-1")
        await self.ask("DELETE", path)

    async def expiring(self) -> None:
        """A stream that is not deleted."""
        path, ttl = f"/v1/stream/new/{self._new()}", random.randrange(60, 3600)
        await self.ask("PUT", path, b"x", f"Content-Type: text/plain\r\nStream-TTL: {ttl}\r\n")
        await self.ask("POST", path, b"y", f"Content-Type: text/plain\r\nProducer-Id: {ttl}\r\nProducer-Epoch: 0\r\n")
        await self._leave(f"{path}?offset=-1&live=sse", random.uniform(1, 60))

    async def subscribe(self) -> None:
        path = "/v1/stream/__ds/subscriptions/soak"
        await self.ask("PUT", "/v1/stream/wakes", b"[]", "Content-Type: application/json\r\n")
        config = {"type": "pull-wake", "pattern": "new/*", "wake_stream": "wakes", "lease_ttl_ms": 5_000}
        await self.ask("PUT", path, config)
        await self.ask("POST", f"{path}/claim", {"worker": "w"})
        if random.random() < 0.2:
            await self.ask("DELETE", path)

    async def lease(self) -> None:
        answer = await self.ask("POST", f"{_OWN}/leases/l{random.randrange(2_000)}", {"ttl": 60})
        if b'"token":"' in answer:
            token = answer.partition(b'"token":"')[2].partition(b'"')[0].decode()
            await self.ask("POST", self._entries(), {"text": "x"}, f"Lease-Token: {token}\r\n")

    async def other_store(self) -> None:
        path = f"/v1/stores/{UUID(int=random.randrange(_STORES) + 1)}"
        await self.ask("POST", f"{path}/spaces/s/segments/s/entries", {"text": "x"})
        await self.ask("GET", f"{path}/spaces/s/entries?limit=5")
        await self.ask("PUT", f"{path}/stream/{self._new()}", b"x", "Stream-TTL: 600\r\n")

    async def remove(self) -> None:
        space = self._space()
        await self.ask("POST", f"{space}/trim", {"before": 5, "segment": "1", "dry_run": False})
        await self.ask("GET", f"{space}/segments?limit=20")
        await self.ask("GET", "/metrics")

    async def refused(self) -> None:
        await self.ask("GET", f"{self._entries()}?after=x")
        await self.ask("GET", f"/nothing/{self._new()}")
        await self.ask("POST", self._entries(), b"{", "Content-Type: application/json\r\n")

    async def run(self, end: float) -> None:
        """Do one of these after the other."""
        often: list[Callable[[], Awaitable[None]]] = [self.append, self.append, self.append, self.read, self.stream]
        all = [self.repeat, self.new_segment, self.poll, self.watch, self.stall, self.expiring, self.subscribe]
        all += [self.lease, self.other_store, self.remove, self.refused]
        while time.monotonic() < end:
            try:
                await random.choice(often if random.random() < 0.7 else all)()
            except (ConnectionError, IndexError):  # cut off, or the key has just ended
                self.statuses[0] += 1


def _held(pid: int) -> tuple[float, int]:
    """MiB of memory, and descriptors."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / (1 << 20), len(os.listdir(f"/proc/{pid}/fd"))


async def _soak(pid: int, port: int, keys: Path, hours: float, clients: int) -> list[tuple[float, int]]:
    soak = _Soak(port, keys)
    settings = {"retention": {"max_entries": 100, "max_age": 1800}, "idempotency_window": 600}
    for space in range(_SPACES):
        await soak.ask("PUT", f"{_OWN}/spaces/s{space}", settings)
    end = time.monotonic() + hours * 3600
    running = [asyncio.create_task(soak.run(end)) for _ in range(clients)]
    samples = []
    for number in range(1, int(hours * _SAMPLES) + 1):
        await asyncio.sleep(3600 / _SAMPLES)
        soak.new_key()
        samples.append(_held(pid))
        memory, open = samples[-1]
        count = sum(soak.statuses.values())
        print(f"{number / _SAMPLES:5.2f} h {memory:8.1f} MiB {open:5d} descriptors {count:8d} requests", flush=True)
    await asyncio.gather(*running)
    print("answers by status:", dict(sorted(soak.statuses.items())))
    assert not [status for status in soak.statuses if status >= 500], "an answer was 5xx"
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long these hours take")
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    factor = options.hours * 60 / options.minutes
    # The hours end now: a file that was just written must not look old.
    time_of = (factor, time.monotonic(), time.time() - options.hours * 3600)
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys.json")
        hasten(*time_of)
        command = [sys.executable, "-m", "benchmarks.serve_hastened", *map(str, time_of), f"file://{folder}/root"]
        command += [str(keys), *[f"{name}={value}" for name, value in _LIMITS.items()]]
        keys.write_text('{"version": 1, "keys": []}')
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            with asyncio.Runner(loop_factory=HastenedLoop) as runner:
                samples = runner.run(_soak(process.pid, port, keys, options.hours, options.clients))
            time.sleep(120)
            memory, descriptors = _held(process.pid)
            print(f"after it: {memory:.1f} MiB, {descriptors} descriptors")
        finally:
            process.terminate()
            process.wait()
    half = samples[len(samples) // 2 :]
    first, last = half[: len(half) // 2], half[len(half) // 2 :]
    assert max(memory for memory, _ in last) <= max(memory for memory, _ in first) * 1.05 + 5, "the memory grows"
    assert max(open for _, open in last) <= max(open for _, open in first) + options.clients, "descriptors are lost"


if __name__ == "__main__":
    main()
