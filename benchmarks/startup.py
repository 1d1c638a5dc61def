"""The costs of a fresh process: importing streamkit, and opening a store to peek, above a Python that does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

from .contenders import STORE, Streamkit
from .measure import Bench, Result, at_most
from .payloads import random_batches

__all__ = ["run"]

_PEEK = """\
import streamkit
with streamkit.connect({url!r}) as client:
    assert client.store({store!r}).peek("committed", "segment-0").sequence == 1000
"""


def run(bench: Bench) -> Iterator[Result]:
    with bench.scratch("startup") as path:
        store = Streamkit(path)
        store.append(0, 1, random_batches(1, 1000)[0])
        store.close()
        peek = _PEEK.format(url=path.absolute().as_uri(), store=str(STORE))
        # Modules are compiled beforehand, as they are when a package is installed.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(path / "compiled")}
        times = bench.size(5, 1)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        rounds = bench.race(
            "fresh process",
            {
                "import streamkit": lambda: _run(times, "import streamkit", environment),
                "import streamkit with its client": lambda: _run(times, "from streamkit import connect", environment),
                "open a store and peek": lambda: _run(times, peek, environment),
                "bare Python": lambda: _run(times, "pass", environment),
            },
        )
    for work, limit in (
        ("import streamkit", 45),
        ("import streamkit with its client", 60),
        ("open a store and peek", 100),
    ):
        figures = {name: rounds[name] for name in (work, "bare Python")}
        setting = f"fresh process, files in the page cache; each figure the best of {times} runs"
        yield Result(work, "ms", setting, figures, [at_most(limit, above="bare Python")])


def _run(times: int, code: str, environment: dict[str, str]) -> float:
    """Milliseconds, the best of some runs, because other processes disturb a start most."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        best = min(best, time.perf_counter() - start)
    return best * 1000
