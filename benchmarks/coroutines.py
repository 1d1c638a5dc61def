"""One append at a time from a coroutine, beside the same from a thread: how long each takes until it is durable."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from streamkit import Record, aio

from .contenders import STORE, Streamkit
from .measure import Bench, Result, at_most, both_codecs

__all__ = ["run"]

_WORK = "aio: append, 1 a commit, p50"


def run(bench: Bench) -> Iterator[Result]:
    with bench.scratch("coroutines") as path:
        turns = {
            "streamkit": partial(_from_coroutine, bench, path),
            "from a thread": partial(_from_thread, bench, path),
        }
        setting = "committed; 128 B; one in flight; median of a round"
        yield Result(_WORK, "ms", setting, bench.race(_WORK, both_codecs(turns)), [at_most(0.3)])


def _from_thread(bench: Bench, path: Path) -> float:
    opened = Streamkit(path)
    waits: list[float] = []
    end = time.perf_counter() + bench.seconds
    try:
        while (began := time.perf_counter()) < end:
            opened.store.produce("committed", "segment-0", [Record(b"x" * 128)])
            waits.append(time.perf_counter() - began)
    finally:
        opened.close()
    return statistics.median(waits) * 1000


def _from_coroutine(bench: Bench, path: Path) -> float:
    return asyncio.run(_append(bench, path))


async def _append(bench: Bench, path: Path) -> float:
    Streamkit(path).close()  # the space is there
    waits: list[float] = []
    async with aio.connect(path.absolute().as_uri()) as client:
        store = client.store(STORE)
        end = time.perf_counter() + bench.seconds
        while (began := time.perf_counter()) < end:
            await store.produce("committed", "segment-0", [Record(b"x" * 128)])
            waits.append(time.perf_counter() - began)
    return statistics.median(waits) * 1000
