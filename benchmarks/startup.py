"""The costs of a fresh process: importing streamkit, and opening a store to peek, above a Python that does nothing.

The processes run in an environment that has only what `pip install 'streamkit-store[speed]'` brings. The libraries of
the benchmarks cost time too: msgspec imports `typing_extensions` where it is installed.
"""

from __future__ import annotations

import os
import subprocess
import time
import venv
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, files
from pathlib import Path

from .contenders import STORE, Streamkit
from .measure import Bench, Result, at_most
from .payloads import random_batches

__all__ = ["run"]

_PEEK = """\
import streamkit
with streamkit.connect({url!r}) as client:
    assert client.store({store!r}).peek("committed", "segment-0").sequence == 1000
"""
_INSTALLED = "streamkit-store", "streamkit-speed", "msgspec", "isal", "backports.zstd"


def run(bench: Bench) -> Iterator[Result]:
    with bench.scratch("startup") as path:
        store = Streamkit(path)
        store.append(0, 1, random_batches(1, 1000)[0])
        store.close()
        peek = _PEEK.format(url=path.absolute().as_uri(), store=str(STORE))
        python = _install(path / "environment")
        # Modules are compiled beforehand, as they are when a package is installed.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(path / "compiled")}
        times = bench.size(5, 1)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        fresh = partial(_run, times, python, environment)
        rounds = bench.race(
            "fresh process",
            {
                "import streamkit": partial(fresh, "import streamkit"),
                "import streamkit with its client": partial(fresh, "from streamkit import connect"),
                "open a store and peek": partial(fresh, peek),
                "bare Python": partial(fresh, "pass"),
            },
        )
    for work, limit in (
        ("import streamkit", 45),
        ("import streamkit with its client", 60),
        ("open a store and peek", 100),
    ):
        figures = {name: rounds[name] for name in (work, "bare Python")}
        setting = f"fresh process, only streamkit-store installed, files in the page cache; the best of {times} runs"
        yield Result(work, "ms", setting, figures, [at_most(limit, above="bare Python")])


def _install(path: Path) -> Path:
    """Make an environment with links to the distributions, and return its Python."""
    venv.create(path, symlinks=True)
    (packages,) = path.glob("lib/python*/site-packages")
    for each in _INSTALLED:
        with suppress(PackageNotFoundError):  # without the twin
            for name in {file.parts[0] for file in files(each) or ()} - {"..", "__pycache__"}:
                if not (packages / name).exists():
                    (packages / name).symlink_to(distribution(each).locate_file(name).absolute())
    return path / "bin" / "python"


def _run(times: int, python: Path, environment: dict[str, str], code: str) -> float:
    """Milliseconds, the best of some runs, because other processes disturb a start most."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run([python, "-c", code], check=True, env=environment)
        best = min(best, time.perf_counter() - start)
    return best * 1000
