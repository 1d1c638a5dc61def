"""The Lambda example, as its platform calls it; and running a handler."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_stores import Subject

import streamkit
from streamkit.groups import Delivery

EXAMPLE = Path(__file__).parents[2] / "examples" / "aws_lambda" / "jobs.py"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example, as a module."""
    monkeypatch.setenv("STREAMKIT_URL", f"file://{tmp_path}/root")
    monkeypatch.setenv("STREAMKIT_STORE", str(uuid4()))
    spec = importlib.util.spec_from_file_location("jobs", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_drain_a_queue_and_take_batches(jobs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    context = SimpleNamespace(aws_request_id="r", get_remaining_time_in_millis=lambda: 60_000)
    jobs.queue().put_many([b"%d" % number for number in range(25)])
    assert jobs.batch({}, context) == {"done": 10}
    assert jobs.drain({}, context) == {"done": 15, "failed": 0}
    assert sorted(map(int, capsys.readouterr().out.split())) == list(range(25))
    short = SimpleNamespace(aws_request_id="r", get_remaining_time_in_millis=lambda: 5_000)
    jobs.queue().put(b"left")
    assert jobs.drain({}, short) == {"done": 0, "failed": 0}
    assert jobs.queue().status().lag == 1


@pytest.mark.parametrize("function", ["batch", "drain"])
def test_a_job_that_a_function_cannot_do_takes_no_other_with_it(
    jobs: Any, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    context = SimpleNamespace(aws_request_id="r", get_remaining_time_in_millis=lambda: 6_000)
    jobs.queue().group.configure(retry_delay=0.0)
    jobs.queue().put_many([b"poison" if number == 2 else b"%d" % number for number in range(20)])

    def work(delivery: Delivery) -> None:
        if delivery.entry.payload == b"poison":
            raise ValueError("bad total")

    monkeypatch.setattr(jobs, "work", work)
    for _ in range(60):
        with contextlib.suppress(ValueError):
            getattr(jobs, function)({}, context)
        if jobs.queue().status().lag == 0:
            break
    (letter,) = jobs.queue().dead_letters()
    assert letter.entry.payload == b"poison"
    assert letter.reason.startswith("max_deliveries: ValueError: bad total (attempt 5 of 5)")
    assert (jobs.queue().status().acked, jobs.queue().status().lag) == (19, 0)


def test_many_handlers_at_once(subject: Subject) -> None:
    queue = subject.store.queue("jobs")
    queue.put_many([b"%d" % number for number in range(50)])
    seen: list[int] = []
    meeting = threading.Barrier(3, timeout=30)

    def handle(delivery: Delivery) -> None:
        if int(delivery.entry.payload) < 3:
            meeting.wait()  # three at once, or it breaks
        seen.append(int(delivery.entry.payload))

    report = queue.run(handle, concurrency=3, drain=True)
    assert (report.acked, report.failed) == (50, 0)
    assert sorted(seen) == list(range(50))


def test_a_handler_that_raises_is_tried_again_and_then_dead(subject: Subject) -> None:
    queue = subject.store.queue("jobs", max_deliveries=3, retry_delay=0.01)
    queue.put(b"1")
    attempts: list[int] = []

    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise ValueError("no")

    assert queue.run(handle, seconds=1.0).failed == 3
    assert attempts == [1, 2, 3]
    assert [letter.attempt for letter in queue.dead_letters()] == [3]


PROGRAM = """
import sys, time, uuid, streamkit
store = streamkit.connect(sys.argv[1]).store(uuid.UUID(sys.argv[2]))

def handle(delivery):
    print("begun", flush=True)
    time.sleep(0.5)

report = store.queue("jobs").run(handle, batch=10)
print("done", report.acked, flush=True)
"""


def test_sigterm_finishes_what_was_begun_and_hands_back_the_rest(tmp_path: Path) -> None:
    url, store_id = f"file://{tmp_path}/root", str(uuid4())
    with streamkit.connect(url) as client:
        queue = client.store(UUID(store_id)).queue("jobs")
        queue.put_many([b"x"] * 5)
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, url, store_id], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out = process.communicate(timeout=60)[0]
        assert process.returncode == 0
        done = int(out.split()[-1])
        assert 1 <= done <= 4
        status = queue.status()
        assert (status.acked, status.pending, status.lag) == (done, 0, 5 - done)
