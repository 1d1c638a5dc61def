"""Queues over HTTP: `python -m benchmarks.serve_queues [--workers 50] [--jobs 20000] [--batch 20] [--quick]`.

The workers are connections of one load process. Each settles its last jobs and receives the next ones in one request,
until all jobs are done. The jobs are put before the time begins.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

from .machine import describe
from .serve_beside import streamkit
from .serve_load import request

JSON = "Content-Type: application/json\r\n"
QUEUES = "/v1/stores/_/queues"
_PUT = 1_000
"""Jobs of one request that puts them."""


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> Any:
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    body = await reader.readexactly(length)
    if status >= 300:
        raise RuntimeError(body.decode())
    return json.loads(body)


async def _put(port: int, queue: str, jobs: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await _ask(reader, writer, request("PUT", queue, headers=JSON))
    for first in range(0, jobs, _PUT):
        some = [{"json": {"job": number, "text": "x" * 80}} for number in range(first, min(first + _PUT, jobs))]
        await _ask(reader, writer, request("POST", f"{queue}/jobs", json.dumps({"jobs": some}).encode(), JSON))
    writer.close()


async def _work(port: int, queue: str, batch: int, done: list[int], jobs: int) -> int:
    """The requests of one worker."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    settle: list[dict[str, str]] = []
    count = 0
    while settle or len(done) < jobs:
        body = json.dumps({"limit": batch, "settle": settle}).encode()
        answer = await _ask(reader, writer, request("POST", f"{queue}/receive", body, JSON))
        count += 1
        lost = [result["receipt"] for result in answer["settled"] if result["lost"]]
        if lost:
            raise RuntimeError(f"{len(lost)} acknowledgements were lost")
        settle = [{"receipt": delivery["receipt"]} for delivery in answer["deliveries"]]
        done += [delivery["entry"]["json"]["job"] for delivery in answer["deliveries"]]
        if not settle:
            await asyncio.sleep(0.01)
    writer.close()
    return count


async def _run(port: int, queue: str, workers: int, jobs: int, batch: int) -> tuple[float, int]:
    await _put(port, queue, jobs)
    done: list[int] = []
    begun = perf_counter()
    counts = await asyncio.gather(*[_work(port, queue, batch, done, jobs) for _ in range(workers)])
    took = perf_counter() - begun
    if sorted(done) != list(range(jobs)):
        raise RuntimeError(f"{jobs} jobs, and {len(done)} deliveries of {len(set(done))}")
    return took, sum(counts)


def load(port: int, queue: str, workers: int, jobs: int, batch: int) -> tuple[float, int]:
    """Seconds until all jobs were done, and the number of requests."""
    return asyncio.run(_run(port, queue, workers, jobs, batch))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve_queues", description=__doc__)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--jobs", type=int, nargs="+", default=[20_000])
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1, help="of the server")
    parser.add_argument("--dir", type=Path, default=None, help="where the stores are; it decides which disk")
    parser.add_argument("--quick", action="store_true", help="short: does it run")
    options = parser.parse_args()
    if options.quick:
        options.workers, options.jobs = 3, [60]
    with (
        tempfile.TemporaryDirectory(dir=options.dir) as folder,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        for name, value in describe(Path(folder)).items():
            print(f"- {name}: {value}")
        print("\n| jobs | workers | jobs in a request | jobs/s | requests/s | µs of the server's CPU for a job |")
        print("|---|---|---|---|---|---|")
        for at, jobs in enumerate(options.jobs):
            more = ("--workers", str(options.processes)) if options.processes > 1 else ()
            with closing(streamkit(Path(folder) / str(at), *more)) as server:
                cpu = server.cpu()
                took, requests = pool.apply(
                    load, (server.port, f"{QUEUES}/jobs{at}", options.workers, jobs, options.batch)
                )
                each = (server.cpu() - cpu) / jobs * 1e6
            figures = f"{jobs / took:,.0f} | {requests / took:,.0f} | {each:,.0f}"
            print(f"| {jobs:,} | {options.workers} | {options.batch} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
