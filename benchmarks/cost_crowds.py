"""Many processes that write to one partition: throughput of several runs, fairness, and a burst. See cost_model.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median

from .cost_report import Result
from .cost_services import Service

__all__ = ["counted", "crowds"]

_SHAPES = {
    "S3 Standard": ((4, 4), (16, 16), (64, 64), (256, 256), (16, 256)),
    "Azure Tables": ((16, 16), (64, 64)),
}
_SEEDS = 3
_REQUESTS = 9000
_FAIR = (64, 30.0)
"""Writers, each a process, and seconds."""

Run = Callable[[Service, int, int, int, float, float], tuple[Result, Sequence[int]]]
"""A function of (service, processes, writers, seed, seconds, most requests): the result, and each writer's appends."""


def crowds(services: Sequence[Service], run: Run) -> str:
    """The results as a table, and a sentence about fairness."""
    lines = [
        "| service | processes | writers | appends/s, mean (slowest run) | p50 ms | p99 ms, worst run | "
        "requests/append | US$/million |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for service in services:
        for processes, writers in _SHAPES.get(service.name, ()):
            runs = [run(service, processes, writers, seed, 4.0, _REQUESTS)[0] for seed in range(1, _SEEDS + 1)]
            lines.append(_row(service, runs))
    processes, seconds = _FAIR
    _, counts = run(services[0], processes, processes, 1, seconds, float("inf"))
    return (
        "\n".join(lines)
        + f"\n\nOf {processes} processes on {services[0].name} in {seconds:g} seconds the slowest one makes "
        + f"{min(counts) / median(counts):.2f} times as many appends as the median one, and the fastest one "
        + f"{max(counts) / median(counts):.2f} times as many."
    )


def _row(service: Service, runs: Sequence[Result]) -> str:
    def mean(of: Callable[[Result], float]) -> float:
        return sum(map(of, runs)) / len(runs)

    return (
        f"| {service.name} | {runs[0].processes} | {runs[0].writers} | {mean(lambda run: run.rate):,.0f} "
        f"({min(run.rate for run in runs):,.0f}) | {mean(lambda run: run.p50):,.0f} | "
        f"{max(run.p99 for run in runs):,.0f} | {mean(lambda run: run.requests):.2f} | "
        f"{mean(lambda run: run.dollars):.3f} |"
    )


def counted(writers: Sequence[int], count: int) -> Sequence[int]:
    """How often each of `count` writers is in `writers`."""
    found = Counter(writers)
    return [found[writer] for writer in range(count)]
