"""The shape of cost_model.py with real processes and threads, against emulators: moto for S3, and Azurite.

    python -m benchmarks.cost_processes

moto answers as late as S3 Standard does in the model; Azurite as fast as it can. Both have a processor of this machine
each, at most, so the figures say what many cost next to few, and not what the services do. Beside each is the model's.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import streamkit
from streamkit import Record

from .archive_requests import credentials
from .cost_model import RECORD, Case
from .cost_services import Service, services

SHAPES = ((1, 1), (1, 16), (4, 4), (8, 8), (16, 16), (4, 64))
"""(processes, writers in all), on one partition."""
WARM_UP, SECONDS = 4.0, 10.0
"""Seconds of warm-up, in which processes compete until they share an inbox, and measured seconds."""
_INFRA = Path(__file__).parent.parent / "infra"
_BYTES = ("bytes_written", "bytes_read")
_MOTO = """
import io, logging, os, random, sys, threading, time
from werkzeug.serving import WSGIRequestHandler, make_server
from moto.moto_server.werkzeug_app import create_backend_app

app, lock, dice = create_backend_app("s3"), threading.Lock(), random.Random(1)
write, read, spread = map(float, sys.argv[1:])

class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def run_wsgi(self):
        environ, told = self.make_environ(), []
        environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        late = dice.lognormvariate(0, spread) * (read if environ["REQUEST_METHOD"] in ("GET", "HEAD") else write)
        time.sleep(late / 2)
        with lock:  # a condition, and what is done where it holds, are one step
            body = b"".join(app(environ, lambda status, headers, error=None: told.append((status, headers))))
        time.sleep(late / 2)
        code, _, reason = told[-1][0].partition(" ")
        self.send_response(int(code), reason)
        for name, value in told[-1][1]:
            self.send_header(name, value)
        if code != "204" and not any(name.lower() == "content-length" for name, _ in told[-1][1]):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(server.port, flush=True)
server.serve_forever()
"""


class Found(NamedTuple):
    """The figures of one process, between the warm-up and the end."""

    waits: list[float]
    """Seconds of each append."""
    requests: int
    transactions: int
    conflicts: int


@contextmanager
def _moto(service: Service) -> Iterator[str]:
    """A store URL."""
    import boto3

    times = [str(value) for value in (service.write, service.read, service.spread)]
    server = subprocess.Popen(
        [sys.executable, "-c", _MOTO, *times], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with server:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="crowds")
        yield f"s3://crowds/p?endpoint_url={endpoint}&region=us-east-1"
        server.kill()


@contextmanager
def azurite() -> Iterator[str]:
    """A store URL."""
    install = [sys.executable, str(_INFRA / "npm.py"), str(_INFRA / "azurite")]
    found = subprocess.run(install, stdout=subprocess.PIPE, text=True, check=True)
    node, modules = found.stdout.split("\n")[:2]
    script = f"{modules}/azurite/dist/src/azurite.js"
    flags = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    for kind in ("blob", "queue", "table"):
        flags += [f"--{kind}Host", "127.0.0.1", f"--{kind}Port", "0", f"--{kind}KeepAliveTimeout", "600"]
    server = subprocess.Popen([node, script, *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with server:
        assert server.stdout is not None
        ports: dict[str, str] = {}
        for line in server.stdout:
            if ready := re.search(
                r"Azurite (\w+) service is successfully listening at http://127\.0\.0\.1:(\d+)", line
            ):
                ports[ready[1]] = ready[2]
            if len(ports) == 3:
                break
        yield f"azurite:///crowds?blob_port={ports['Blob']}&table_port={ports['Table']}"
        server.kill()


def _process(
    url: str, id: UUID, name: str, writers: int, times: tuple[float, float], barrier: Any, results: Any
) -> None:
    with streamkit.connect(url) as client:
        store, ended = client.store(id), threading.Event()
        done: list[tuple[float, float]] = []

        def write(segment: str) -> None:
            while not ended.is_set():
                start = time.monotonic()
                store.produce("space", segment, [Record(os.urandom(RECORD))])
                done.append((start, time.monotonic()))

        threads = [threading.Thread(target=write, args=(f"{name}-{at}",)) for at in range(writers)]
        barrier.wait()
        for thread in threads:
            thread.start()
        while len(done) < writers:  # each has opened the space
            time.sleep(0.01)
        barrier.wait()
        time.sleep(times[0])
        began, before = time.monotonic(), store.statistics()
        time.sleep(times[1])
        end, after = time.monotonic(), store.statistics()
        ended.set()
        for thread in threads:
            thread.join()
        asked = [
            sum(count for kind, count in found.requests.items() if kind not in _BYTES) for found in (before, after)
        ]
        waits = [stop - start for start, stop in done if began <= stop <= end]
        transactions, conflicts = after.transactions - before.transactions, after.conflicts - before.conflicts
        results.put(Found(waits, asked[1] - asked[0], transactions, conflicts))


def _run(url: str, processes: int, writers: int, times: tuple[float, float]) -> list[Found]:
    id, spawn = uuid4(), multiprocessing.get_context("spawn")
    with streamkit.connect(url) as client:
        client.store(id).create_space("space")
    barrier, results = spawn.Barrier(processes), spawn.Queue()
    started = [
        spawn.Process(target=_process, args=(url, id, f"p{at}", writers // processes, times, barrier, results))
        for at in range(processes)
    ]
    for process in started:
        process.start()
    found = [results.get() for _ in started]
    for process in started:
        process.join()
    return found


def _row(name: str, processes: int, writers: int, found: Sequence[Found], seconds: float, model: float) -> str:
    waits = sorted(wait for one in found for wait in one.waits)
    appends, commits = len(waits), max(1, sum(one.transactions for one in found))
    rates = sorted(len(one.waits) for one in found)
    tried = commits + sum(one.conflicts for one in found)
    requests = sum(one.requests for one in found) / appends
    return (
        f"| {name} | {processes} | {writers} | {appends / seconds:,.0f} | {waits[appends // 2] * 1000:,.0f} | "
        f"{waits[int(appends * 0.99)] * 1000:,.0f} | {requests:.2f} | {model:.2f} | "
        f"{appends / commits:.1f} | {(tried - commits) / tried:.0%} | {rates[0] / rates[len(rates) // 2]:.2f} |"
    )


def main(
    shapes: Sequence[tuple[int, int]] = SHAPES, times: tuple[float, float] = (WARM_UP, SECONDS), *, models: bool = True
) -> None:
    os.environ.update(credentials())
    standard, _, tables = services()
    print("| emulator | processes | writers | appends/s | p50 ms | p99 ms | requests/append | the model's | ", end="")
    print("appends/transaction | conflicts | slowest / median process |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, service, server in (("moto", standard, _moto(standard)), ("Azurite", tables, azurite())):
        with server as url:
            for processes, writers in shapes:
                model = Case(service, processes, writers, 1).run().requests if models else 0.0
                found = _run(url, processes, writers, times)
                print(_row(name, processes, writers, found, times[1], model), flush=True)


if __name__ == "__main__":
    main()
