"""Groups beside Redis Streams and NATS JetStream: `python -m benchmarks.groups_beside` prints a table.

They are compared if `redis-server` and `nats-server` are on the PATH (Debian has packages of these names) and the
Python packages `redis` and `nats-py` are there; each server runs on this machine for as long as it takes. One consumer,
or eight processes, work off the same entries of 100 bytes with claims of 1, 10 or 100, acknowledging each claim before
the next one. A latency is that of a claim and its acknowledgements.

streamkit committed   each claim is synced; acknowledgements go with the next claim
streamkit buffered    survives the process's crash, not always a power cut
Redis always          appendonly, appendfsync always: each claim and each XACK is synced before it is answered
Redis everysec        appendonly, appendfsync everysec
JetStream             file storage as it comes: written at once, synced every two minutes; it answers no acknowledgement
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import streamkit
from streamkit import Record

from .groups import begin_together
from .groups_page import publish
from .machine import describe

PAYLOAD = b"x" * 100
SHAPES = ((1, 1), (1, 100), (8, 10))
"""(processes, entries of a claim)"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Streamkit:
    def __init__(self, address: str, durability: str) -> None:
        url, _, store = address.rpartition("#")
        self.client = streamkit.connect(url)
        self.store = self.client.store(UUID(store))
        self.durability = durability

    def fill(self, topic: str, entries: int) -> None:
        self.store.create_space(topic, durability=self.durability)
        for first in range(0, entries, 1000):
            self.store.produce(topic, "a", [Record(PAYLOAD)] * min(1000, entries - first))
        self.store.group(topic, "billing", ack_timeout=600.0)

    def begin(self, topic: str) -> None:
        self.consumer = self.store.group(topic, "billing").consumer()

    def work(self, count: int) -> int:
        deliveries = self.consumer.receive(count)
        for delivery in deliveries:
            self.consumer.ack(delivery)
        return len(deliveries)

    def close(self) -> None:
        if hasattr(self, "consumer"):
            self.consumer.close()
        self.client.close()


class Redis:
    def __init__(self, address: str, durability: str) -> None:
        self.redis: Any = importlib.import_module("redis").Redis(port=int(address))

    def fill(self, topic: str, entries: int) -> None:
        pipe = self.redis.pipeline(transaction=False)
        for at in range(entries):
            pipe.xadd(topic, {"payload": PAYLOAD})
            if at % 1000 == 999:
                pipe.execute()
        pipe.execute()
        self.redis.xgroup_create(topic, "billing", id="0")

    def begin(self, topic: str) -> None:
        self.topic, self.name = topic, uuid4().hex

    def work(self, count: int) -> int:
        found = self.redis.xreadgroup("billing", self.name, {self.topic: ">"}, count=count)
        names = [name for name, _ in found[0][1]] if found else []
        if names:
            self.redis.xack(self.topic, "billing", *names)
        return len(names)

    def close(self) -> None:
        self.redis.close()


class JetStream:
    def __init__(self, address: str, durability: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.nats: Any = self.run(importlib.import_module("nats").connect(f"nats://127.0.0.1:{address}"))
        self.stream: Any = self.nats.jetstream()

    def run(self, awaited: Any) -> Any:
        return self.loop.run_until_complete(awaited)

    def fill(self, topic: str, entries: int) -> None:
        async def publish() -> None:
            await self.stream.add_stream(name=topic, subjects=[topic])
            for at in range(0, entries, 500):
                waiting = [self.stream.publish(topic, PAYLOAD) for _ in range(min(500, entries - at))]
                await asyncio.gather(*waiting)
            await self.stream.pull_subscribe(topic, "billing")

        self.run(publish())

    def begin(self, topic: str) -> None:
        self.consumer = self.run(self.stream.pull_subscribe(topic, "billing"))

    def work(self, count: int) -> int:
        async def claim() -> int:
            with suppress(asyncio.TimeoutError):
                found = await self.consumer.fetch(count, timeout=1.0)
                for message in found:
                    await message.ack()
                return len(found)
            return 0

        return int(self.run(claim()))

    def close(self) -> None:
        self.run(self.nats.drain())
        self.loop.close()


@contextmanager
def served(command: list[str], port: int) -> Iterator[str]:
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            time.sleep(0.05)
        yield str(port)
    finally:
        server.terminate()
        server.wait()


@contextmanager
def a_store(folder: str) -> Iterator[str]:
    yield f"file://{folder}/stores#{uuid4()}"


@contextmanager
def a_redis(folder: str, sync: str) -> Iterator[str]:
    port, folder = free_port(), tempfile.mkdtemp(dir=folder)
    options = f"--port {port} --bind 127.0.0.1 --dir {folder} --appendonly yes --appendfsync {sync}"
    with served(["redis-server", *options.split(), "--save", ""], port) as address:
        yield address


@contextmanager
def a_nats(folder: str) -> Iterator[str]:
    port, folder = free_port(), tempfile.mkdtemp(dir=folder)
    with served(["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", folder], port) as address:
        yield address


KINDS: dict[str, Callable[[str, str], Any]] = {"streamkit": Streamkit, "redis": Redis, "nats": JetStream}


def contenders(folder: str) -> Iterator[tuple[str, str, str, Any]]:
    """The contenders: (name, kind, durability, server)"""
    for durability in ("committed", "buffered"):
        yield f"streamkit {durability}", "streamkit", durability, a_store(folder)
    for kind, server, package in (("redis", "redis-server", "redis"), ("nats", "nats-server", "nats")):
        if shutil.which(server) is None or importlib.util.find_spec(package) is None:
            print(f"{server}, or the package {package!r} for Python, is not there: left out", file=sys.stderr)
        elif kind == "redis":
            for sync in ("always", "everysec"):
                yield f"Redis {sync}", kind, "", a_redis(folder, sync)
        else:
            yield "JetStream", kind, "", a_nats(folder)


def worker(kind: str, address: str, topic: str, batch: str, seconds: str) -> None:
    """Prints when it began and ended, how many it did, and the latencies in microseconds."""
    found = KINDS[kind](address, "")
    found.begin(topic)
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.perf_counter()
    end, done, waits = begin + float(seconds), 0, []
    while (start := time.perf_counter()) < end:
        count = found.work(int(batch))
        if not count:
            break
        waits.append(round((time.perf_counter() - start) * 1e6))
        done += count
    ended = start
    found.close()
    print(begin, ended, done, *waits)


class Worked(NamedTuple):
    """Entries a second, and the latencies of a claim with its acknowledgements in milliseconds."""

    rate: float
    p50: float
    p99: float

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s, {self.p50:.2f} / {self.p99:.2f} ms"


def measure(kind: str, address: str, topic: str, processes: int, batch: int, seconds: float) -> Worked:
    work = [kind, address, topic, str(batch), str(seconds)]
    told = begin_together("benchmarks.groups_beside", work, processes)
    done = sum(int(each[2]) for each in told)
    took = max(float(each[1]) for each in told) - min(float(each[0]) for each in told)
    waits = sorted(int(wait) for each in told for wait in each[3:])
    return Worked(done / took, waits[len(waits) // 2] / 1000, waits[int(len(waits) * 0.99)] / 1000)


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups_beside", description=str(__doc__).split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small and short")
    parser.add_argument("--dir", type=Path, default=None, help="where to write; it decides which disk")
    parser.add_argument("--publish", action="store_true", help="also write docs/groups.md")
    options = parser.parse_args()
    entries, seconds = (20_000, 1.0) if options.quick else (300_000, 5.0)
    heads = [f"{processes} × {batch}" for processes, batch in SHAPES]
    lines = [f"| processes × entries of a claim | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    print(*lines, sep="\n")
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        for name, kind, durability, serve in contenders(folder):
            with ExitStack() as stack:
                address = stack.enter_context(serve)
                cells = []
                filled = KINDS[kind](address, durability)
                for processes, batch in SHAPES:
                    topic = f"jobs-{processes}-{batch}"
                    filled.fill(topic, entries * (1 if batch == 1 else 5))
                    cells.append(str(measure(kind, address, topic, processes, batch, seconds)))
                filled.close()
            lines.append(f"| {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    if options.publish:
        told = describe(options.dir or Path(tempfile.gettempdir()))
        lines.insert(0, f"{told['processor']}, {told['disk']}, Python {told['python']}; entries a second, p50 / p99.\n")
        publish("benchmarks.groups_beside", lines)


if __name__ == "__main__":
    main()
