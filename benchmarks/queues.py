"""Work on a queue one entry at a time: each claim is acknowledged before the next one. Beside Redis, where it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec

from .groups_beside import KINDS, a_redis, a_store, measure
from .measure import Bench, Result, at_least

__all__ = ["run"]

_WORK = "group: claim and acknowledge 1"
_TOPIC = "jobs"


def run(bench: Bench) -> Iterator[Result]:
    entries = bench.size(20_000, 500)
    with bench.scratch("queues") as path:
        folder = str(path.absolute())
        turns = {
            "streamkit": partial(_turn, bench, partial(a_store, folder), "streamkit", "committed", entries),
            "streamkit, buffered": partial(_turn, bench, partial(a_store, folder), "streamkit", "buffered", entries),
        }
        targets = []
        if shutil.which("redis-server") and find_spec("redis"):
            for sync in ("everysec", "always"):
                turns[f"Redis {sync}"] = partial(_turn, bench, partial(a_redis, folder, sync), "redis", "", entries)
            targets = [at_least(1, "Redis everysec")]
        else:
            bench.say("redis-server, or the package 'redis' for Python, is not there: left out")
        setting = f"committed; 100 B; one process, {entries:,} entries are waiting"
        yield Result(_WORK, "entries/s", setting, bench.race(_WORK, turns), targets)


def _turn(bench: Bench, serve: partial[AbstractContextManager[str]], kind: str, durability: str, entries: int) -> float:
    with serve() as address:
        filled = KINDS[kind](address, durability)
        filled.fill(_TOPIC, entries)
        try:
            return measure(kind, address, _TOPIC, 1, 1, bench.seconds).rate
        finally:
            filled.close()
