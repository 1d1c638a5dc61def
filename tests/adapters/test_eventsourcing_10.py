"""The suite of the library's version 10, a pre-release, which `make test-exhaustive` installs beside the other one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = Path(sys.prefix) / "eventsourcing-10"


@pytest.mark.skipif(not PACKAGES.is_dir(), reason="make test-exhaustive installs version 10 of eventsourcing")
def test_the_suite_of_version_10_passes(covered: Callable[[str, int], None], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES), "STREAMKIT_EXHAUSTIVE": ""}
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/tmp"]
    suite = ROOT / "tests" / "adapters" / "test_eventsourcing.py"
    done = subprocess.run([*command, suite], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    covered("tests of eventsourcing 10, memory and local", int(passed[1]))
