"""streamkit lease: a command that runs while a lease is held, with real processes and real signals."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit

COMMAND = [sys.executable, "-m", "streamkit.cli", "lease", "nightly", "--"]
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

TREE = """
import subprocess, sys, time
inner = subprocess.Popen([sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"])
print(inner.pid, flush=True)
time.sleep(60)
"""
"""A command that has started another: prints its process id."""

COUNTING = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.5)  # what comes twice comes at once
sys.exit(40 + len(seen))
"""
"""A command that handles SIGINT: it exits with 40 and how often it came."""


def _heard() -> None:
    """Restore the signals, because the tests may run where they are ignored, as in a shell's background."""
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen[str]]:
    monkeypatch.setenv("STREAMKIT_URL", f"file://{tmp_path}/stores")
    monkeypatch.setenv("STREAMKIT_STORE", str(uuid4()))

    def run(*command: str) -> subprocess.Popen[str]:
        """Start a program in a session of its own, without a terminal."""
        return subprocess.Popen(
            [*COMMAND, *command], stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=_heard
        )

    return run


def _lease_is_free() -> bool:
    with streamkit.connect() as client, client.store(os.environ["STREAMKIT_STORE"]) as store:
        return store.with_lease("nightly", lambda lease: True)


def _runs(process: int) -> bool:
    """True if the process runs. A process that has ended and was not waited for does not run."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_ends_the_command_and_all_it_has_started_and_gives_the_lease_back(
    start: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    with start(sys.executable, "-c", TREE) as process:
        try:
            assert process.stdout is not None
            inner = next(int(line) for line in process.stdout if line.strip().isdigit())
            os.kill(process.pid, number)
            # Both hold our pipe, so it ends when both have ended.
            process.stdout.read()
            assert process.wait(30) == 128 + number
        finally:
            process.kill()
    assert not _runs(inner)
    assert _lease_is_free()


def test_a_command_that_handles_the_signal_ends_with_its_own_code(start: Callable[..., subprocess.Popen[str]]) -> None:
    with start(sys.executable, "-c", COUNTING) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 41
        finally:
            process.kill()
    assert _lease_is_free()


def test_ctrl_c_at_a_terminal_reaches_the_command_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMKIT_URL", f"file://{tmp_path}/stores")
    monkeypatch.setenv("STREAMKIT_STORE", str(uuid4()))
    child, terminal = pty.fork()
    if child == 0:
        _heard()
        os.execv(sys.executable, [*COMMAND, sys.executable, "-c", COUNTING])
    try:
        said = b""
        while b"ready" not in said:
            said += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 41
    assert _lease_is_free()
