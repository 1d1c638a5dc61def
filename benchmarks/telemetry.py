"""The cost of telemetry: CPU time of appends and reads without it, with spans that are dropped, and with the SDK.

`python -m benchmarks.telemetry [--quick] [--dir DIRECTORY]`. The kinds take turns, so that the runs of a round are
at nearly the same time, and each figure is the median over the rounds. CPU time is that of this process alone.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import streamkit
from streamkit import Record, Store, telemetry

from .machine import describe

KINDS = ("off", "no provider", "SDK")


def enable(kind: str) -> None:
    """Set telemetry up for one kind of run."""
    telemetry.disable()
    if kind == "no provider":
        telemetry.enable()
    elif kind == "SDK":
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.trace import TracerProvider

        telemetry.enable(tracer_provider=TracerProvider(), meter_provider=MeterProvider())


def _append(store: Store, count: int) -> None:
    for _ in range(count):
        store.produce("appends", "segment", [Record(b"x" * 100)])


def _peek(store: Store, count: int) -> None:
    for _ in range(count):
        store.peek("reads", "segment")


def _read(store: Store, count: int) -> None:
    for _ in range(max(1, count // 100)):
        for _ in store.consume_space("reads"):
            pass


WORK: dict[str, tuple[Callable[[Store, int], None], str]] = {
    "append, 1 a commit": (_append, "commit"),
    "peek": (_peek, "call"),
    "read a space of 10,000 entries": (_read, "space"),
}


def _microseconds(work: Callable[[Store, int], None], store: Store, count: int) -> float:
    began = time.process_time()
    work(store, count)
    done = max(1, count // 100) if work is _read else count
    return (time.process_time() - began) / done * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args()
    rounds, count = (2, 100) if options.quick else (15, 2000)
    with (
        tempfile.TemporaryDirectory(dir=options.dir) as folder,
        streamkit.connect(f"file://{folder}") as client,
        client.store(uuid4()) as store,
    ):
        print(", ".join(f"{name}: {value}" for name, value in describe(Path(folder)).items()))
        store.create_space("appends", durability="buffered")
        store.produce("reads", "segment", [Record(b"x" * 100) for _ in range(10_000)])
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(rounds):
            for kind in KINDS:
                enable(kind)
                for name, (work, _) in WORK.items():
                    found.setdefault((name, kind), []).append(_microseconds(work, store, count))
        telemetry.disable()
    print("\n| CPU time, median | " + " | ".join(KINDS) + " |")
    print("|---|" + "---|" * len(KINDS))
    for name, (_, unit) in WORK.items():
        figures = [f"{statistics.median(found[name, kind]):,.1f} µs a {unit}" for kind in KINDS]
        print(f"| {name} | " + " | ".join(figures) + " |")


if __name__ == "__main__":
    main()
