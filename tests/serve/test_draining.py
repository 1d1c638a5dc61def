"""A process that ends while streams are open: each client goes on at another process and loses nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

import streamkit
from streamkit import Record

STREAMS = 1_000 if os.environ.get("STREAMKIT_EXHAUSTIVE") else 40
STORE = uuid4()
PATHS = ("/v1/stores/_/spaces/s/entries", "/v1/stores/_/spaces/s/segments/a/entries", "/v1/stores/_/entries?space=s")


@contextmanager
def process(url: str, store: UUID, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`streamkit serve`, and its port."""
    started = subprocess.Popen(
        [sys.executable, "-m", "streamkit.cli", "serve", "--port", "0", "--url", url, "--store", str(store), *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    try:
        yield started, int(started.stdout.readline().rpartition(":")[2])
    finally:
        started.kill()
        started.communicate()


def test_a_process_archives_to_a_place_that_is_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    url, place = (tmp_path / "stores").as_uri(), (tmp_path / "cold").as_uri()
    with streamkit.connect(url, archive=place) as client, client.store(STORE) as store:
        store.produce("s", "a", [Record(b"1")])
        with process(url, STORE, "--archive", place) as (_, port):
            body = json.dumps({"kind": "archive", "space": "s"}).encode()
            operations = f"http://127.0.0.1:{port}/v1/stores/_/operations"
            request = urllib.request.Request(operations, body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request) as answer:
                location = f"http://127.0.0.1:{port}{answer.headers['Location']}"
            state = "running"
            while state == "running":
                time.sleep(0.02)
                with urllib.request.urlopen(location) as answer:
                    state = json.load(answer)["state"]
        assert state == "done"
        files = list(tmp_path.rglob("*.parquet"))
        assert files
        assert all(file.is_relative_to(tmp_path / "cold") for file in files)


class Client:
    """Follows as a browser does: it connects again with the last id, here at the next process."""

    def __init__(self, path: str, ports: list[int]) -> None:
        self.path = path
        self.ports = ports
        self.last = ""
        self.found: list[int] = []
        self.reasons: list[str] = []
        self.caught_up = asyncio.Event()

    async def run(self, total: int) -> None:
        while len(self.found) < total:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[len(self.reasons) > 0])
            last = f"Last-Event-ID: {self.last}\r\n" if self.last else ""
            request = f"GET {self.path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{last}\r\n"
            writer.write(request.encode())
            try:
                await self._read(reader, total)
            finally:
                writer.close()

    async def _read(self, reader: asyncio.StreamReader, total: int) -> None:
        fields: dict[str, str] = {}
        while len(self.found) < total and (line := await reader.readline()):
            name, _, value = line.decode().rstrip("\r\n").partition(": ")
            if name:
                fields[name] = value
                continue
            event, fields = fields, {}
            self.last = event.get("id", self.last)
            if event.get("event") == "entries":
                self.found += [entry["sequence"] for entry in json.loads(event["data"])]
            elif event.get("event") == "caught-up":
                self.caught_up.set()
            elif event.get("event") == "bye":
                self.reasons.append(json.loads(event["data"])["reason"])
                return


def test_open_streams_end_within_ten_seconds_and_go_on_elsewhere(tmp_path: Path) -> None:
    url, total = f"file://{tmp_path}/root", 60

    async def scenario(ending: subprocess.Popen[str], ports: list[int]) -> list[Client]:
        clients = [Client(PATHS[number % len(PATHS)], ports) for number in range(STREAMS)]
        running = asyncio.gather(*[client.run(total) for client in clients])
        for client in clients:
            await client.caught_up.wait()
        with streamkit.connect(url) as connected:
            store = connected.store(STORE)
            for number in range(total):
                await asyncio.to_thread(store.produce, "s", "a", [Record(b"%d" % number)])
                if number == total // 2:
                    begun = time.monotonic()
                    ending.send_signal(signal.SIGTERM)
                if number == total * 3 // 4:
                    # The last entries are written when the process has ended: no client has seen all by then.
                    await asyncio.to_thread(ending.wait, 30)
            assert time.monotonic() - begun <= 10
        await running
        return clients

    with process(url, STORE) as (first, port), process(url, STORE) as (_, other):
        clients = asyncio.run(asyncio.wait_for(scenario(first, [port, other]), 120))
    for client in clients:
        assert client.found == list(range(1, total + 1))
        assert client.reasons == ["drain"]
