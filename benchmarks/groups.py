"""Groups and queues: `python -m benchmarks.groups [--quick]` measures, and prints a table.

Beside each rate stands what the same run commits in the same way without a group, one record after the other: on a
machine that is shared, the ratio says more than the rate. CPU is that of the process, in microseconds an entry.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import streamkit
from streamkit import Record, Store
from streamkit.groups import Consumer

PAYLOAD = b"x" * 100
SPACE = "jobs"


class Row(NamedTuple):
    work: str
    figure: str
    beside: str = ""


def fill(store: Store, entries: int, durability: str = "buffered") -> None:
    store.create_space(SPACE, durability=durability)
    for first in range(0, entries, 1000):
        store.produce(SPACE, "a", [Record(PAYLOAD)] * min(1000, entries - first))


class Mark(NamedTuple):
    at: float
    cpu: float
    done: int


def drain(consumer: Consumer, batch: int, seconds: float = 1e9) -> list[Mark]:
    """The time and the number of done entries after each batch."""
    done, marks = 0, [Mark(time.perf_counter(), time.process_time(), 0)]
    end = marks[0].at + seconds
    while time.perf_counter() < end:
        deliveries = consumer.receive(batch)
        if not deliveries:
            break
        for delivery in deliveries:
            consumer.ack(delivery)
        done += len(deliveries)
        marks.append(Mark(time.perf_counter(), time.process_time(), done))
    return marks


def rate(marks: Sequence[Mark]) -> float:
    return (marks[-1].done - marks[0].done) / max(marks[-1].at - marks[0].at, 1e-9)


def cost(marks: Sequence[Mark]) -> float:
    """Microseconds of CPU an entry."""
    return (marks[-1].cpu - marks[0].cpu) * 1e6 / max(1, marks[-1].done - marks[0].done)


def quarters(marks: list[Mark]) -> tuple[list[Mark], list[Mark]]:
    """The first and the last."""
    count = marks[-1].done
    first = [mark for mark in marks if mark.done <= count / 4]
    last = [mark for mark in marks if mark.done >= count * 3 / 4]
    return first, last


def commits(store: Store, seconds: float, durability: str) -> float:
    """Commits of one record in a second, without a group."""
    store.create_space("raw", durability=durability)
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        store.produce("raw", "a", [Record(PAYLOAD)])
        count += 1
    return count / (time.perf_counter() - start)


def alone(url: str, entries: int, seconds: float) -> Iterator[Row]:
    for durability in ("committed", "buffered"):
        for batch in (100, 1):
            with streamkit.connect(url) as client:
                store = client.store(uuid4())
                fill(store, entries, durability)
                raw = commits(store, seconds / 4, durability)
                with store.group(SPACE, "billing").consumer() as consumer:
                    marks = drain(consumer, batch, seconds)
            work = f"{durability}: claim + ack, batches of {batch}, one consumer"
            beside = f"{raw:,.0f} commits/s; {rate(marks) / batch / raw:.2f} claims a commit; {cost(marks):.1f} µs CPU"
            yield Row(work, f"{rate(marks):,.0f} entries/s", beside)
        with streamkit.connect(url) as client:
            store = client.store(uuid4())
            fill(store, entries, durability)
            with store.group(SPACE, "billing").consumer(prefetch=100) as consumer:
                marks = drain(consumer, 1, seconds)
        work = f"{durability}: claim + ack one at a time, prefetch=100, one consumer"
        yield Row(work, f"{rate(marks):,.0f} entries/s", f"{cost(marks):.1f} µs CPU")


def worker(url: str, store: str, batch: str) -> None:
    with streamkit.connect(url) as client:
        group = client.store(UUID(store)).group(SPACE, "billing")
        with group.consumer() as consumer:
            print("ready", flush=True)
            sys.stdin.readline()
            marks = drain(consumer, int(batch))
    print(*(f"{mark.at:.6f}:{mark.cpu:.6f}:{mark.done}" for mark in marks))


def begin_together(module: str, work: list[str], processes: int) -> list[list[str]]:
    """The words that workers print. Each worker prints a line when it is ready, and begins when all are ready."""
    command = [sys.executable, "-m", module, "--worker", *work]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(processes)]
    for each in workers:
        each.stdout.readline()
    for each in workers:
        each.stdin.write("go\n")
        each.stdin.flush()
    return [each.communicate()[0].split() for each in workers]


def together(url: str, entries: int, processes: int, batch: int) -> Iterator[Row]:
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        fill(store, entries)
        store.group(SPACE, "billing", ack_timeout=120.0)
        told = begin_together("benchmarks.groups", [url, str(store.id), str(batch)], processes)
    marks = [
        [Mark(float(at), float(cpu), int(done)) for at, cpu, done in (mark.split(":") for mark in line)]
        for line in told
    ]
    counts = [each[-1].done for each in marks]
    assert sum(counts) == entries, f"{sum(counts)} of {entries} were done"
    begin, end = min(each[0].at for each in marks), max(each[-1].at for each in marks)
    spread = (max(counts) - min(counts)) / (sum(counts) / len(counts))
    # Quarters of the whole: when so many were done by all.
    steps = sorted((after.at, after.done - before.done) for each in marks for before, after in itertools.pairwise(each))
    times, reached, wanted = [begin], 0, 1
    for at, count in steps:
        reached += count
        if reached >= entries * wanted / 4:
            times.append(at)
            wanted += 1
    first, last = entries / 4 / (times[1] - begin), entries / 4 / (times[4] - times[3])
    cpu = sum((each[-1].cpu - each[0].cpu) for each in marks) * 1e6 / entries
    parts = [[cost(part) for part in quarters(each)] for each in marks]
    begun, ended = (sum(part) / len(part) for part in zip(*parts, strict=True))
    yield Row(
        f"buffered: {processes} processes, {entries:,} entries, batches of {batch}",
        f"{entries / (end - begin):,.0f} entries/s",
        f"spread {spread:.0%}; first quarter {first:,.0f}/s, last {last:,.0f}/s; {cpu:.1f} µs CPU an entry: of a "
        f"process's first quarter {begun:.1f}, last {ended:.1f}",
    )


def queued(url: str, jobs: int) -> Iterator[Row]:
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        store.create_space(SPACE, durability="buffered")
        queue = store.queue(SPACE)
        start = time.perf_counter()
        for _ in range(0, jobs, 100):
            queue.put_many([PAYLOAD] * 100)
        put = jobs / (time.perf_counter() - start)
        with queue.consumer() as consumer:
            marks = drain(consumer, 10)
    first, last = quarters(marks)
    assert marks[-1].done == jobs
    yield Row(
        f"buffered queue of {jobs:,} jobs: put 100, claim 10, ack",
        f"{1 / (1 / put + 1 / rate(marks)):,.0f} jobs/s",
        f"put {put:,.0f}/s, work {rate(marks):,.0f}/s: first quarter {rate(first):,.0f}, last {rate(last):,.0f}; "
        f"{cost(marks):.1f} µs CPU an entry: first quarter {cost(first):.1f}, last {cost(last):.1f}",
    )


def requests(entries: int, consumers: int) -> Iterator[Row]:
    """The number of requests for each entry, counted at a remote backend."""
    url, store_id = f"memory://{uuid4().hex}?remote=1", uuid4()
    clients = [streamkit.connect(url, poll=(0.01, 0.05)) for _ in range(consumers)]
    fill(clients[0].store(store_id), entries, "committed")
    stores = [client.store(store_id) for client in clients]
    groups = [store.group(SPACE, "billing") for store in stores]
    before = _requests(stores)
    counts: list[int] = []

    def work(at: int) -> None:
        with groups[at].consumer() as consumer:
            counts.append(drain(consumer, 10)[-1].done)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(consumers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = {name: count - before.get(name, 0) for name, count in _requests(stores).items()}
    assert sum(counts) == entries
    total = sum(used.values())
    told = ", ".join(f"{name} {count / entries:.3f}" for name, count in sorted(used.items()) if count)
    yield Row(f"remote: requests an entry, batches of 10, {consumers} processes", f"{total / entries:.2f}", told)
    with streamkit.connect(url, poll=(0.25, 5.0)) as client:
        store = client.store(store_id)
        consumer = store.group(SPACE, "billing").consumer()
        consumer.receive()
        before = _requests([store])
        consumer.receive(wait=20.0)
        used = {name: count - before.get(name, 0) for name, count in _requests([store]).items()}
        yield Row("remote: an idle consumer, in 20 s", f"{sum(used.values())} requests", str(used))
    for client in clients:
        client.close()


def _requests(stores: list[Store]) -> dict[str, int]:
    found: dict[str, int] = {}
    for store in stores:
        for name, count in store.statistics().requests.items():
            if "bytes" not in name:
                found[name] = found.get(name, 0) + count
    return found


def opened(url: str, entries: int) -> Iterator[Row]:
    """How long a group takes to open, and to receive once, with 1,000 pending."""
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        fill(store, entries, "buffered" if url.startswith("file") else "committed")
        group = store.group(SPACE, "billing")
        with group.consumer() as consumer:
            drain(consumer, 100)
        store.produce(SPACE, "a", [Record(PAYLOAD)] * 1000)
        group.consumer("holder").receive(1000)
        with streamkit.connect(url) as other:
            fresh = other.store(store.id)
            start = time.perf_counter()
            found = fresh.group(SPACE, "billing")
            took = (time.perf_counter() - start) * 1000
            calls = _requests([fresh])
            assert found.status().pending == 1000
    kind = "local" if url.startswith("file") else "remote"
    yield Row(
        f"{kind}: opening after {entries:,} acked, 1,000 pending", f"{took:.1f} ms", f"{sum(calls.values())} requests"
    )


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and short")
    parser.add_argument("--dir", type=Path, default=None, help="where to write; it decides which disk")
    options = parser.parse_args()
    many = 20_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        url = f"file://{folder}/stores"
        for rows in (
            alone(url, min(many, 300_000), 3.0 if options.quick else 15.0),
            together(url, many, 8, 10),
            queued(url, many),
            requests(min(many, 20_000), 16),
            opened(url, many),
            opened(f"memory://{uuid4().hex}?remote=1", min(many, 100_000)),
        ):
            for row in rows:
                print(f"| {row.work} | {row.figure} | {row.beside} |", flush=True)


if __name__ == "__main__":
    main()
