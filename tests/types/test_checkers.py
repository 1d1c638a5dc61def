"""Type checkers know the results of typed stores: a program of `assert_type` passes under mypy and pyright."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("typed_program.py")


def errors(program: Path, *command: str) -> list[int]:
    """The lines of the program that a checker refuses."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.findall(rf"{program.name}:(\d+):.*error", done.stdout)
    assert done.returncode == 1, done.stdout + done.stderr
    return sorted({int(number) for number in found})


def mypy(program: Path) -> list[int]:
    return errors(program, "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(program))


def pyright(program: Path) -> list[int]:
    """basedpyright has pyright's checks, and all that it needs is in its wheel."""
    pytest.importorskip("basedpyright")
    config = {
        "include": [str(program)],
        "typeCheckingMode": "standard",
        "extraPaths": [str(ROOT), str(ROOT / "backends")],
        "pythonVersion": "3.11",
    }
    file = program.with_name("pyrightconfig.json")
    file.write_text(json.dumps(config))
    return errors(program, "basedpyright", "--pythonpath", sys.executable, "--project", str(file))


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_checker_refuses_the_wrong_lines_of_the_program_and_no_others(
    checker: Callable[[Path], list[int]], tmp_path: Path
) -> None:
    text = PROGRAM.read_text()
    program = tmp_path / PROGRAM.name
    program.write_text(text.replace("# type: ignore[", "# wrong ["))
    wrong = [number for number, line in enumerate(text.splitlines(), start=1) if "# type: ignore[" in line]
    assert len(wrong) == 6
    assert checker(program) == wrong
