"""Appending: durable and buffered, many records a commit and one, one thread and sixteen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from .contenders import BareFile, Contender, EventSourcing, SQLite, Streamkit
from .measure import Bench, Result, Target, at_least, both_codecs, rate
from .payloads import random_batches

__all__ = ["run"]

Open = Callable[[Path], Contender]
_MOST = 2_000_000
_THREADS = 16


def run(bench: Bench) -> Iterator[Result]:
    thousands, ones = random_batches(64, 1000), random_batches(1000, 1)
    durable: dict[str, Open] = {
        "streamkit": Streamkit,
        "bare file": BareFile,
        "SQLite": SQLite,
        "eventsourcing": EventSourcing,
    }
    yield _one_thread(
        bench,
        "append, 1000 a commit",
        "committed; 128 B random; 1000 a batch",
        durable,
        thousands,
        [at_least(0.5, "bare file")],
    )
    yield _one_thread(
        bench,
        "append, 1 a commit",
        "committed; 128 B random; 1 a batch",
        durable,
        ones,
        [at_least(0.65, "bare file"), at_least(1, "SQLite")],
    )
    yield _threads(bench, ones)
    buffered: dict[str, Open] = {
        "streamkit": partial(Streamkit, durability="buffered"),
        "bare file": partial(BareFile, synced=False),
        "SQLite": partial(SQLite, synchronous="NORMAL"),
        "eventsourcing": EventSourcing,
    }
    yield _one_thread(
        bench,
        "append buffered, 1 a commit",
        "buffered (file unsynced, SQLite NORMAL, eventsourcing synced); 128 B random; 1 a batch",
        buffered,
        ones,
        [at_least(1.5, "SQLite"), at_least(90_000)],
    )
    yield _one_thread(
        bench,
        "append buffered, 1000 a commit",
        "buffered (file unsynced, SQLite NORMAL, eventsourcing synced); 128 B random; 1000 a batch",
        buffered,
        thousands,
        [at_least(7_500_000)],
    )


def _one_thread(
    bench: Bench,
    work: str,
    setting: str,
    contenders: dict[str, Open],
    batches: Sequence[Sequence[bytes]],
    targets: list[Target],
) -> Result:
    turns = {name: partial(_append, bench, open_, batches) for name, open_ in contenders.items()}
    return Result(work, "entries/s", setting, bench.race(work, both_codecs(turns)), targets)


def _append(bench: Bench, open_: Open, batches: Sequence[Sequence[bytes]]) -> float:
    size = len(batches[0])
    with bench.scratch("appends") as path:
        contender = open_(path)

        def step(turn: int) -> int:
            contender.append(0, 1 + size * (turn + 1), batches[turn % len(batches)])
            return size

        step(-1)
        try:
            return rate(bench.seconds, _MOST, step)
        finally:
            contender.close()


def _threads(bench: Bench, ones: Sequence[Sequence[bytes]]) -> Result:
    work = f"append, 1 a commit, {_THREADS} threads"
    contenders: dict[str, Callable[[], float]] = {
        "streamkit": partial(_append_by_threads, bench, Streamkit, ones),
        "streamkit, one thread": partial(_append, bench, Streamkit, ones),
        "eventsourcing": partial(_append_by_threads, bench, EventSourcing, ones),
    }
    setting = f"committed; 128 B random; 1 a batch, {_THREADS} segments"
    return Result(work, "entries/s", setting, bench.race(work, contenders), [at_least(3, "streamkit, one thread")])


def _append_by_threads(bench: Bench, open_: Open, ones: Sequence[Sequence[bytes]]) -> float:
    with bench.scratch("appends") as path:
        contender = open_(path)
        for segment in range(_THREADS):
            contender.append(segment, 1, ones[segment])
        together = threading.Barrier(_THREADS)

        def work(segment: int) -> float:
            def step(turn: int) -> int:
                contender.append(segment, turn + 2, ones[turn % len(ones)])
                return 1

            together.wait()
            return rate(bench.seconds, _MOST, step)

        try:
            with ThreadPoolExecutor(_THREADS) as threads:
                return sum(threads.map(work, range(_THREADS)))
        finally:
            contender.close()
