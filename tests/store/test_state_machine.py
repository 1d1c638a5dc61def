"""A random sequence of public operations, by two processes, against a model of a few dicts.

The same examples in every run; many more of them in `make test-exhaustive`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

import pytest
from fix_covered import EXHAUSTIVE

from harness.drivers import MEMORY
from harness.stories import Machine, run_machine
from harness.sweep import StillClock
from streamkit.backend import Driver
from streamkit_local.driver import LocalDriver


def run(make_driver: Callable[[StillClock], Driver], examples: int) -> int:
    return run_machine(Machine, make_driver, examples)


@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_a_store_in_memory_does_what_the_model_does(backend: str, covered: Callable[[str, int], None]) -> None:
    covered(f"stories, memory ({backend})", run(MEMORY[backend], 1000 if EXHAUSTIVE else 12))


def test_a_local_store_does_what_the_model_does(covered: Callable[[str, int], None]) -> None:
    root = mkdtemp(prefix="stories-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    try:
        covered("stories, local", run(lambda clock: LocalDriver(root, 5.0), 300 if EXHAUSTIVE else 6))
    finally:
        shutil.rmtree(root)
