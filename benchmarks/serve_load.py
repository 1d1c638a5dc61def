"""Load for a server over loopback: requests again and again, and watchers of events. It has a process of its own."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple

import httptools
import uvloop

__all__ = ["MARK", "Sample", "asked", "request", "stalling", "watched"]

MARK = b"@@"
"""The mark that is once in each payload, so that a watcher counts payloads in any encoding."""

_POSTS = 15
"""The number of POSTs in a turn beside a watcher that reads nothing."""


class Sample(NamedTuple):
    """Seconds of each operation, and of all of them together; the CPU seconds of the server meanwhile."""

    seconds: list[float]
    took: float
    cpu: float = 0.0

    def at(self, share: float) -> float:
        """The milliseconds that this share of the operations did not exceed."""
        ordered = sorted(self.seconds)
        return ordered[int(len(ordered) * share)] * 1e3


def request(method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
    """A request. `headers`: lines, each with its end."""
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}{length}\r\n".encode() + body


class _Client(asyncio.Protocol):
    """Sends a request at a time, and waits for its answer."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._answered.set_result(self._parser.get_status_code())

    async def ask(self, data: bytes) -> None:
        self._answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        status = await self._answered
        assert 200 <= status < 300, (status, data[:200])

    def close(self) -> None:
        self._transport.close()


class _Watcher(asyncio.Protocol):
    """A counter of the marks that come. `ready`: a text that the server sends before it waits for more."""

    def __init__(self, watch: bytes, ready: bytes, group: _Group) -> None:
        self._watch = watch
        self._ready = ready
        self._group = group
        self._head = b""
        self._end = b""

    def connection_made(self, transport: Any) -> None:
        transport.write(self._watch)

    def data_received(self, data: bytes) -> None:
        if self._ready:
            self._head += data
            if self._ready in self._head:
                self._ready = b""
                self._group.came(1)
            return
        found = data.count(MARK) + (self._end == MARK[:1] and data[:1] == MARK[1:])
        self._end = data[-1:]
        if found:
            self._group.came(found)


class _Group:
    """All watchers: waits until each one has what is due."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._left = 0
        self._begun = 0.0
        self._all: asyncio.Future[None] | None = None

    def expect(self, count: int) -> asyncio.Future[None]:
        self._left, self._begun = count, time.perf_counter()
        self._all = asyncio.get_running_loop().create_future()
        return self._all

    def came(self, count: int) -> None:
        self.seconds += [time.perf_counter() - self._begun] * count
        self._left -= count
        if self._left == 0 and self._all is not None:
            self._all.set_result(None)


async def _connect(port: int) -> _Client:
    return (await asyncio.get_running_loop().create_connection(_Client, "127.0.0.1", port))[1]


async def _ask(port: int, requests: list[bytes], for_seconds: float, least: int) -> Sample:
    clients = [await _connect(port) for _ in requests]
    seconds: list[float] = []

    async def run(client: _Client, data: bytes) -> None:
        left, ended = least, begun
        while left > 0 or ended - begun < for_seconds:
            start = time.perf_counter()
            await client.ask(data)
            ended = time.perf_counter()
            seconds.append(ended - start)
            left -= 1

    begun = time.perf_counter()
    await asyncio.gather(*[run(client, data) for client, data in zip(clients, requests, strict=True)])
    took = time.perf_counter() - begun
    for client in clients:
        client.close()
    return Sample(seconds, took)


async def _open(port: int, watch: bytes, ready: bytes, watchers: int) -> _Group:
    group = _Group()
    opened = group.expect(watchers)
    for _ in range(watchers):
        await asyncio.get_running_loop().create_connection(lambda: _Watcher(watch, ready, group), "127.0.0.1", port)
    await opened
    return group


async def _deliver(client: _Client, group: _Group, post: bytes, watchers: int) -> list[float]:
    """Seconds from before the POST to its arrival at each watcher."""
    group.seconds.clear()
    arrived = group.expect(watchers)
    await client.ask(post)
    await arrived
    return list(group.seconds)


async def _watch(port: int, watch: bytes, ready: bytes, post: bytes, watchers: int, for_seconds: float) -> Sample:
    group = await _open(port, watch, ready, watchers)
    client = await _connect(port)
    seconds: list[float] = []
    begun = time.perf_counter()
    while not seconds or time.perf_counter() - begun < for_seconds:
        seconds += await _deliver(client, group, post, watchers)
    return Sample(seconds, time.perf_counter() - begun)


async def _stall(
    port: int, watch: bytes, ready: bytes, post: bytes, watchers: int, history: bytes, rounds: int
) -> tuple[Sample, ...]:
    group = await _open(port, watch, ready, watchers)
    client = await _connect(port)
    found: list[list[float]] = [[], [], []]
    for number in range(rounds * 3):
        turn = (number + number // 3) % 3
        with socket.socket() as silent:
            if turn == 1:
                silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                silent.connect(("127.0.0.1", port))
                silent.sendall(history)
                silent.recv(1)  # it is served, and reads nothing from here on
            await asyncio.sleep(0.3)
            for _ in range(_POSTS):
                found[turn] += await _deliver(client, group, post, watchers)
    return tuple(Sample(seconds, sum(seconds)) for seconds in found)


def _run(work: Coroutine[Any, Any, Sample]) -> Sample:
    return uvloop.run(work)


def asked(port: int, requests: list[bytes], for_seconds: float, least: int = 1) -> Sample:
    """Send each of the requests again and again on a connection of its own, `least` times or more."""
    return _run(_ask(port, requests, for_seconds, least))


def watched(port: int, watch: bytes, ready: bytes, post: bytes, watchers: int, for_seconds: float) -> Sample:
    """Seconds from a POST to its arrival at each watcher. `ready`: a text that the server sends before it waits."""
    return _run(_watch(port, watch, ready, post, watchers, for_seconds))


def stalling(
    port: int, watch: bytes, ready: bytes, post: bytes, watchers: int, history: bytes, rounds: int
) -> tuple[Sample, ...]:
    """The same in three turns, again and again: without another watcher, beside one that reads nothing, and without it
    once more. `history`: that one's request, whose answer does not fit into the buffers of its connection."""
    return uvloop.run(_stall(port, watch, ready, post, watchers, history, rounds))
