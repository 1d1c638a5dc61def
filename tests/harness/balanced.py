"""Server processes behind a balancer, which gives each connection to the next process that lives.

A response closes its connection, so that a client's next request meets another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from types import TracebackType
from uuid import UUID

__all__ = ["Balanced"]

_SERVER = """
import sys
from streamkit.serve import Limits, app
from streamkit.serve.server import make_server

inner = app(sys.argv[1], store=sys.argv[2], limits=Limits(long_poll_seconds=float(sys.argv[3])))

async def closing(scope, receive, send):
    async def out(message):
        if message["type"] == "http.response.start":
            message = dict(message, headers=[*message["headers"], (b"connection", b"close")])
        await send(message)
    await inner(scope, receive, out if scope["type"] == "http" else send)

closing.service = inner.service
make_server(closing, "127.0.0.1", 0, lambda address: print(address, flush=True)).run()
"""


class _Process:
    def __init__(self, url: str, store: UUID, long_poll: float) -> None:
        self.running = subprocess.Popen(
            [sys.executable, "-c", _SERVER, url, str(store), str(long_poll)], stdout=subprocess.PIPE, text=True
        )
        assert self.running.stdout is not None
        self.port = int(self.running.stdout.readline().rpartition(":")[2])

    def kill(self) -> None:
        self.running.kill()
        self.running.wait()
        assert self.running.stdout is not None
        self.running.stdout.close()


class Balanced:
    """`count` processes that serve `store` under `url`. `address` is the balancer's."""

    def __init__(self, url: str, store: UUID, count: int = 2, long_poll: float = 2.0) -> None:
        self._arguments = url, store, long_poll
        self._processes = [_Process(*self._arguments) for _ in range(count)]
        self._turn = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._started.wait(10)

    def replace(self, index: int) -> None:
        """Kill a process, and start another one in its place."""
        self._processes[index].kill()
        self._processes[index] = _Process(*self._arguments)

    def cut(self) -> None:
        """Cut all connections."""
        self._loop.call_soon_threadsafe(self._cut)

    def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._loop.run_forever()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._processes:
            self._turn += 1
            port = self._processes[self._turn % len(self._processes)].port
            try:
                behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            self._writers |= {writer, behind_writer}
            await asyncio.gather(_copy(reader, behind_writer), _copy(behind_reader, writer))
            self._writers -= {writer, behind_writer}
            return
        writer.close()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def __enter__(self) -> Balanced:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()
