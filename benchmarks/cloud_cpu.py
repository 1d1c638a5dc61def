"""The processor time that a client of S3 or Azure takes, beside the plain calls of the SDK.

    python -m benchmarks.cloud_cpu [--rounds 7] [--calls 400] [--quick]

A small server of S3 (late_s3.py) and Azurite answer over loopback, and keep connections open. Each round measures
every row in turn. A function in a cloud pays for processor time, so the figures are processor time of the client's
process, all threads included; the servers' is not in them.

The smallest function has 1/14 of a processor. Its row is the time by the clock of a process that is stopped in each
period of 20 ms when it has used its share; each request is answered 15 ms late. A real function imports with a whole
processor where the import is at the top of its module.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

import streamkit
from streamkit import Record

from .cost_processes import azurite
from .late_s3 import LateServer, serving_late
from .machine import describe
from .published_views import trips

RECORD = Record(b'{"order": 4711, "state": "paid", "amount": 129.5, "customer": "c-20331", "note": "at the door"}')
HISTORY = 200
"""Commits of the store that a new process meets."""
_APPEND = """
import streamkit
with streamkit.connect({url!r}) as client:
    client.store({store!r}).produce("orders", "order-1", [streamkit.Record(b"x" * 100)])
"""
_PUT = """
import boto3
client = boto3.client("s3", endpoint_url={endpoint!r}, region_name="us-east-1")
client.put_object(Bucket="bucket", Key={key!r}, Body=b"x" * 100, IfNoneMatch="*")
"""


def spent(call: Callable[[], object], calls: int) -> float:
    """The processor time of a call, in ms."""
    begun = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - begun) / calls * 1000


SHARE = 1 / 14
"""The share of a processor that a function with 128 MB has."""
PERIOD = 0.02
"""Seconds in which a process may use its share, as in a function."""


def waited_for(program: str) -> float:
    """The time by the clock of a new process that runs `program` with a share of a processor, in ms."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        hold_back(process)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise RuntimeError(f"the process ended with {process.returncode}")
    return (time.perf_counter() - begun) * 1000


def hold_back(process: subprocess.Popen[bytes]) -> None:
    """Give a process its share of a processor until it ends. It pays later for the time that it takes too much."""
    clock = (~process.pid << 3) | 2  # Linux: the processor time of a process, all threads included
    while process.poll() is None:
        period, used = time.perf_counter(), time.clock_gettime(clock)
        while process.poll() is None and (left := period + PERIOD - time.perf_counter()) > 0:
            spent = time.clock_gettime(clock) - used
            if spent >= SHARE * PERIOD:
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(left + spent / SHARE - PERIOD)
                os.kill(process.pid, signal.SIGCONT)
                break
            time.sleep(0.0002)


def spent_by(program: str) -> float:
    """The processor time of a new process that runs `program`, in ms."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


class S3:
    def __init__(self, server: LateServer, endpoint: str) -> None:
        import boto3

        self._server, self._endpoint = server, endpoint
        self._client = streamkit.connect(server.url)
        self._store = self._client.store(uuid4())
        self._sdk: Any = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        self._keys = count()
        for _ in range(20):
            self._store.produce("orders", "order-1", [RECORD])
        self._cold = uuid4()
        self.cold_requests: list[int] = []
        self.cold_trips: list[int] = []
        cold = self._client.store(self._cold)
        for number in range(HISTORY):
            cold.produce("orders", f"order-{number % 20}", [RECORD])

    def put(self) -> None:
        self._sdk.put_object(
            Bucket="bucket", Key=f"plain/{next(self._keys)}", Body=bytes(RECORD.payload), IfNoneMatch="*"
        )

    def append(self) -> None:
        self._store.produce("orders", "order-2", [RECORD])

    def load(self) -> None:
        assert sum(1 for _ in self._store.consume_segment("orders", "order-1")) == 20

    def cold_put(self) -> float:
        return spent_by(self._cold_put())

    def slow_put(self) -> float:
        return self._waited_for(self._cold_put())

    def _cold_put(self) -> str:
        return _PUT.format(endpoint=self._endpoint, key=f"cold/{next(self._keys)}")

    def cold_append(self) -> float:
        self._server.seen(0.015)
        took = spent_by(self._cold_append())
        requests = self._server.seen(0.0)
        self.cold_requests.append(len(requests))
        self.cold_trips.append(trips(requests))
        return took

    def slow_append(self) -> float:
        return self._waited_for(self._cold_append())

    def _waited_for(self, program: str) -> float:
        self._server.seen(0.015)
        took = waited_for(program)
        self._server.seen(0.0)
        return took

    def _cold_append(self) -> str:
        return _APPEND.format(url=self._server.url, store=str(self._cold))

    def close(self) -> None:
        self._client.close()


class Azure:
    def __init__(self, url: str) -> None:
        from azure.data.tables import TableServiceClient

        ports = dict(parse_qsl(urlsplit(url).query))
        key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
        self._tables: Any = TableServiceClient.from_connection_string(
            f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={key};"
            f"TableEndpoint=http://127.0.0.1:{ports['table_port']}/devstoreaccount1;"
        )
        self._table = self._tables.create_table(f"plain{uuid4().hex}")
        self._keys = count()
        self._client = streamkit.connect(url)
        self._store = self._client.store(uuid4())
        self._store.produce("orders", "order-1", [RECORD])

    def create(self) -> None:
        self._table.create_entity(
            {"PartitionKey": "p", "RowKey": f"{next(self._keys):09}", "data": bytes(RECORD.payload)}
        )

    def append(self) -> None:
        self._store.produce("orders", "order-1", [RECORD])

    def close(self) -> None:
        self._client.close()
        self._table.close()
        self._tables.close()


def rows(rounds: int, calls: int) -> Iterator[tuple[str, list[float], list[float], float | None]]:
    """The rows: the work, its figures in ms, those of the SDK's plain call, and the goal as a ratio."""
    with ExitStack() as stack:
        server = stack.enter_context(serving_late())
        s3 = S3(server, server.endpoint)
        stack.callback(s3.close)
        azure = Azure(stack.enter_context(azurite()))
        stack.callback(azure.close)
        figures: dict[str, list[float]] = {}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        s3.cold_append()  # compiles the modules, as an installation does
        s3.cold_requests.clear()
        s3.cold_trips.clear()
        for _ in range(rounds):
            for name, take in (
                ("put", lambda: spent(s3.put, calls)),
                ("append", lambda: spent(s3.append, calls)),
                ("load", lambda: spent(s3.load, calls)),
                ("cold put", s3.cold_put),
                ("cold append", s3.cold_append),
                ("slow put", s3.slow_put),
                ("slow append", s3.slow_append),
                ("create", lambda: spent(azure.create, calls)),
                ("azure append", lambda: spent(azure.append, calls)),
            ):
                figures.setdefault(name, []).append(take())
        yield "S3, an append of one record", figures["append"], figures["put"], 0.45
        yield "S3, a load of 20 entries of a known segment", figures["load"], figures["put"], 0.4
        yield "S3, a new process to its first append", figures["cold append"], figures["cold put"], 0.6
        yield (
            "S3, a new process to its first append, ms by the clock with 1/14 of a processor",
            figures["slow append"],
            figures["slow put"],
            None,
        )
        yield "Azure, an append of one record", figures["azure append"], figures["create"], 1.2
        yield "requests of that new process on S3", list(map(float, s3.cold_requests)), [], None
        yield "round trips of that new process on S3", list(map(float, s3.cold_trips)), [], None


def main() -> None:
    parser = argparse.ArgumentParser(description="The processor time of clients of S3 and Azure.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it runs")
    given = parser.parse_args()
    rounds, calls = (1, 5) if given.quick else (given.rounds, given.calls)
    for name, value in describe(Path.cwd()).items():
        print(f"- {name}: {value}")
    print("\n| work | ms of CPU | the SDK's plain call | ratio | goal |\n|---|---|---|---|---|")
    for work, ours, plain, goal in rows(rounds, calls):
        figure = statistics.median(ours)
        if not plain:
            print(f"| {work} | {figure:.0f} (a count) |  |  |  |")
            continue
        other = statistics.median(plain)
        wanted = "" if goal is None else f"≤ {goal} ×"
        ratio = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
        print(f"| {work} | {figure:.2f} | {other:.2f} | {ratio:.2f} × | {wanted} |", flush=True)


if __name__ == "__main__":
    main()
