"""Programs of the tests' own harness, which are forked from a process that has everything imported."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import warm

Start = Callable[..., warm.Program]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """start(text of a program, *arguments)"""

    def start(program: str, *arguments: object) -> warm.Program:
        (tmp_path / "program.py").write_text(program)
        return warm.start(str(tmp_path / "program.py"), *arguments, url="memory://")

    return start


def test_what_it_printed_before_anybody_listened_is_heard(start: Start) -> None:
    program = start("print('ready', flush=True); print('more')")
    assert program.wait(60) == 0
    assert program.stdout.readline() == "ready\n"
    assert program.communicate(60)[0] == "more\n"


def test_it_has_arguments_input_and_environment_of_who_started_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMKIT_MADE_UP", "yes")
    program = start("import os, sys; print(sys.argv[1:], os.environ['STREAMKIT_MADE_UP'], sys.stdin.read())", 1, "b c")
    program.stdin.write("told")
    assert program.communicate(60)[0] == "['1', 'b c'] yes told\n"
    assert program.returncode == 0


def test_how_it_ended_is_told(start: Start) -> None:
    failed = start("raise RuntimeError('of its own')")
    assert failed.wait(60) == 1
    killed = start("import sys; sys.stdin.read()")
    assert killed.poll() is None
    killed.kill()
    assert killed.wait(60) == -signal.SIGKILL
    for program in (failed, killed):
        program.communicate(60)
