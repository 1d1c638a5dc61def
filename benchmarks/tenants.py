"""Idle tenants in one process: stores with a view and a worker each. CPU, threads, and delays of new entries.

`python -m benchmarks.tenants [--stores N] [--seconds S] [--dir DIRECTORY]`. Entries are written by another process.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import UUID

import streamkit
from streamkit import Record, Store
from streamkit.groups import Delivery
from streamkit.run import ProgramOverStores, Worker
from streamkit.views import Reduce

from .machine import describe

WRITER = """
import sys, time
from uuid import UUID
import streamkit
from streamkit import Record
with streamkit.connect(sys.argv[1]) as client:
    for line in sys.stdin:
        with client.store(UUID(line.strip())) as store:
            store.produce("orders", "late", [Record(b"%d" % time.time_ns())])
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stores", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--entries", type=int, default=50)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder, streamkit.connect(f"file://{folder}") as client:
        print(", ".join(f"{name}: {value}" for name, value in describe(Path(folder)).items()))
        delays: list[float] = []

        def handle(delivery: Delivery) -> None:
            if delivery.entry.segment == "late":
                delays.append((time.time_ns() - int(delivery.entry.payload)) / 1e9)

        def make(store: Store) -> Iterable[Any]:
            path = Path(folder) / f"{store.id}.sqlite"
            yield store.view("count", Reduce(lambda state, entry: state + 1, 0), ["orders"], path)
            yield Worker(store.group("orders", "billing"), handle)

        stores = [client.store(UUID(int=(number << 80) + 1)) for number in range(1, options.stores + 1)]
        for store in stores:
            store.create_space("orders", durability="buffered")
            store.produce("orders", "first", [Record(b"x")])
        program = ProgramOverStores(stores, make)
        running = threading.Thread(target=program.run)
        began = time.monotonic()
        running.start()
        turns = -1
        while (found := program.statistics()).turns != turns or found.turns < found.parts:
            turns = found.turns
            time.sleep(2.0)
        print(f"all parts are up to date after {time.monotonic() - began:.1f} s")
        before, at = time.process_time(), time.monotonic()
        time.sleep(options.seconds)
        share = (time.process_time() - before) / (time.monotonic() - at)
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"idle: {share:.1%} of a core, {threads} threads, {files:,} open files, {memory:,.0f} MiB")
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, f"file://{folder}"], stdin=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdin is not None
            for number in range(options.entries):
                writer.stdin.write(f"{stores[number * 7919 % len(stores)].id}\n")
                writer.stdin.flush()
                time.sleep(0.1)
            writer.stdin.close()
        end = time.monotonic() + 30
        while len(delays) < options.entries and time.monotonic() < end:
            time.sleep(0.1)
        program.stop()
        running.join()
        print(
            f"{len(delays)} of {options.entries} entries handled after {statistics.median(delays):.3f} s (median), "
            f"{max(delays):.3f} s (longest)"
        )


if __name__ == "__main__":
    main()
