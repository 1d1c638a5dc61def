"""The transport for kombu, judged by the tests that kombu's own transports pass."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_places import url_in

pytest.importorskip("celery")

import kombu

import streamkit
from streamkit.adapters.kombu import Transport

SUITE = Path(sys.prefix) / "kombu-suite" / "t" / "integration" / "common.py"
if not SUITE.exists():
    pytest.skip("make test fetches kombu's test suite", allow_module_level=True)
spec = spec_from_file_location("kombu_common", SUITE)
assert spec is not None
assert spec.loader is not None
common = module_from_spec(spec)
spec.loader.exec_module(common)

PLACES = ("local", *(("memory", "s3", "azure") if EXHAUSTIVE else ()))


@pytest.fixture(params=PLACES)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    url = url_in(request.param, request)
    return {"url": url, "store": str(uuid4()), "polling_interval": 0.02}


@pytest.fixture
def connection(options: dict[str, Any]) -> Any:
    return kombu.Connection(transport=Transport, transport_options=options)


@pytest.fixture
def invalid_connection() -> Any:
    return kombu.Connection(transport=Transport, transport_options={"url": "nothing://x", "store": str(uuid4())})


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    pass


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass


# The suite's tests of a failover give a connection two URLs, with a host and a port each, and stop the first server. A
# store has neither host nor port, and no second place: the backend retries requests by itself.
LEFT_OUT = {
    "test_connect",
    "test_publish_consume",
    "test_consume_empty_queue",
    "test_simple_buffer_publish_consume",
    "test_failover_switches_to_alternate_url",
    "test_failover_rejects_dotted_alternate",
    "test_failover_to_dotted_alternate_keeps_transport",
    "test_failover_to_alias_alternate_is_allowed",
}


def test_all_of_the_suite_runs_but_the_tests_of_a_failover() -> None:
    def tests(suite: type) -> set[str]:
        return {name for name in vars(suite) if name.startswith("test_")}

    suites = {value for value in vars(common).values() if isinstance(value, type) and tests(value)}
    run = {base for value in globals().values() if isinstance(value, type) for base in value.__bases__} & suites
    assert suites - run == {common.BaseFailover}
    assert tests(common.BaseFailover) == LEFT_OUT
    assert sum(len(tests(suite)) for suite in run) == 30


EXAMPLE = Path(__file__).parents[2] / "examples" / "celery"
TASKS, KILLS = (10_000, 40) if EXHAUSTIVE else (120, 3)


class Workers:
    """Processes that work for the example's application."""

    def __init__(self, url: str, store: str) -> None:
        self.environment = {**os.environ, "STREAMKIT_URL": url, "STREAMKIT_STORE": store, "ACK_TIMEOUT": "3"}
        self._workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "celery", "--app", "app", "worker", "--pool", "solo", "--loglevel", "ERROR"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--hostname", f"{uuid4().hex}@here"]
        self._workers.append(subprocess.Popen(command, cwd=EXAMPLE, env=self.environment))

    def kill(self, at: int) -> None:
        worker = self._workers.pop(at % len(self._workers))
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()


@pytest.mark.slow
def test_tasks_of_celery_workers_that_are_killed_are_done_by_others(
    tmp_path: Path, covered: Callable[[str, int], None]
) -> None:
    workers = Workers((tmp_path / "root").as_uri(), str(uuid4()))
    notes = tmp_path / "notes"
    notes.touch()
    send = f"import app\nfor n in range({TASKS}): app.note.delay(n, {str(notes)!r})"
    send += "\nprint(app.add.delay(2, 3).get(timeout=100))"
    try:
        for _ in range(4 if EXHAUSTIVE else 2):
            workers.start()
        sent = subprocess.Popen(
            [sys.executable, "-c", send], cwd=EXAMPLE, env=workers.environment, stdout=subprocess.PIPE
        )
        for kill in range(1, KILLS + 1):
            wait_for(lambda: len(done(notes)) >= TASKS * kill // (KILLS + 1))  # noqa: B023
            workers.kill(kill)
            workers.start()
        wait_for(lambda: len(done(notes)) == TASKS)
        assert sent.communicate(timeout=120)[0] == b"5\n"
    finally:
        workers.stop()
    with streamkit.connect(workers.environment["STREAMKIT_URL"]) as client:
        assert client.store(workers.environment["STREAMKIT_STORE"]).queue("kombu.celery").dead_letters() == []
    covered("tasks of Celery workers that were killed", TASKS)


def done(notes: Path) -> set[int]:
    return {int(line) for line in notes.read_text().splitlines()}


def wait_for(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)
