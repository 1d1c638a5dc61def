"""Processes that write to one partition through its inbox, killed and stopped at random; the oracle judges them all."""

from __future__ import annotations

import heapq
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_azurite import Azurite
from fix_covered import EXHAUSTIVE
from fix_s3 import S3Bucket

import streamkit
from harness import crowd
from harness.history import History
from harness.oracle import judge
from streamkit import Store

pytestmark = pytest.mark.slow

PROCESSES = 32 if EXHAUSTIVE else 5
HARMED, SECONDS = (0, 180.0) if EXHAUSTIVE else (8, 0.0)
"""The least number of killed processes, and the least seconds of the test."""
PAUSE, ANSWERS = (0.4, 3) if EXHAUSTIVE else (0.04, 5)
"""Seconds between two of them, about; and answers, however slow the machine is."""
LONGEST = 4.0 if EXHAUSTIVE else 0.5
"""Seconds for which one is stopped."""
LOSSES = 2 if EXHAUSTIVE else 0
"""The losses after which a request is posted. A sample posts all requests."""
PATIENCE = 120.0


class Crowd:
    """Processes of crowd.py, which are killed or stopped for a while."""

    def __init__(self, url: str, store_id: UUID, directory: Path, dice: Random, life: int) -> None:
        self._url = url
        self._store = store_id
        self._directory = directory
        self._dice = dice
        self._parent = subprocess.Popen(
            [sys.executable, crowd.__file__, str(life), str(LOSSES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[life],
        )
        self._living: list[int] = []
        self._stopped: list[tuple[float, int]] = []
        """(when they go on, process)"""
        self.told: list[crowd.Told] = []
        self.done: Counter[str] = Counter()

    def _ask(self, *what: object) -> Any:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(what) + "\n")
        self._parent.stdin.flush()
        return json.loads(self._parent.stdout.readline())

    def start(self) -> None:
        name = f"w{len(self.told)}"
        file = self._directory / name
        file.touch()
        self.told.append(crowd.Told(file))
        self._living.append(self._ask("start", self._url, str(self._store), name, str(file)))

    def answers(self) -> int:
        """Count the calls of all of them that have returned."""
        for told in self.told:
            told.read()
        return sum(told.answers for told in self.told)

    def harm(self) -> None:
        one = self._dice.choice(self._living)
        if self._dice.random() < 0.4:
            self._ask("signal", one, signal.SIGSTOP)
            heapq.heappush(self._stopped, (time.monotonic() + self._dice.random() * LONGEST, one))
            self.done["stopped"] += 1
        else:
            self._living.remove(one)
            assert self._ask("signal", one, signal.SIGKILL) == -signal.SIGKILL, "a writer ended"
            self.done["killed"] += 1
            self.start()

    def go_on(self, now: float) -> None:
        """Kill the processes whose time has come."""
        while self._stopped and self._stopped[0][0] <= now:
            self._ask("signal", heapq.heappop(self._stopped)[1], signal.SIGCONT)

    def wait(self) -> list[int]:
        """Wait for the rest and return their exit codes; no process has the other end of their `life` any more."""
        self.go_on(float("inf"))
        return list(self._ask("wait"))

    def close(self) -> None:
        """Kills what is left."""
        self._parent.communicate()


@contextmanager
def harmed(url: str, store_id: UUID, directory: Path, dice: Random) -> Iterator[Crowd]:
    """A crowd that has begun, and has ended in good order afterwards."""
    life, held = os.pipe()
    found = Crowd(url, store_id, directory, dice, life)
    os.close(life)
    try:
        for _ in range(PROCESSES):
            found.start()
        yield found
        os.close(held)
        held = -1
        assert set(found.wait()) == {0}, "a writer ended with an error"
    finally:
        if held >= 0:
            os.close(held)
        found.close()


@contextmanager
def reading(history: History, store: Store) -> Iterator[None]:
    """A reader reads page by page meanwhile."""
    ended, reader = threading.Event(), history.reader(crowd.SPACE, 50)

    def read() -> None:
        while not ended.wait(0.1):
            history.page(store, reader)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def run(url: str, directory: Path, covered: Callable[[str, int], None], kind: str) -> None:
    store_id, history, dice = uuid4(), History("judge:", now=time.monotonic_ns), Random(kind)
    with streamkit.connect(url) as client:
        store = client.store(store_id)
        store.create_space(crowd.SPACE)
        with reading(history, store), harmed(url, store_id, directory, dice) as found:
            begun = time.monotonic()
            while found.done.total() < HARMED or time.monotonic() < begun + SECONDS:
                answers, since = found.answers(), time.monotonic()
                time.sleep(PAUSE * dice.random() * 2)
                while found.answers() < answers + ANSWERS:
                    assert time.monotonic() < since + PATIENCE, "no progress"
                    time.sleep(0.02)
                    found.go_on(time.monotonic())
                found.go_on(time.monotonic())
                found.harm()
            history.look(store, crowd.SPACE)
        found.answers()
        for told in found.told:
            history.add(told.attempts.values())
        history.settle(store)
        for attempt in list(history.attempts):
            if attempt.outcome == "invoked" and attempt.key is not None:
                history.write(store, crowd.SPACE, {}, key=attempt.key)
        history.write(store, crowd.SPACE, dict.fromkeys(crowd.SHARED, 1))
        history.look(store, crowd.SPACE)
    counts = sum((Counter(told.counts) for told in found.told), Counter())
    outcomes = Counter(attempt.outcome for attempt in history.attempts)
    print(f"{kind}: {dict(found.done)}, {dict(outcomes)}, {dict(counts)}")
    with streamkit.connect(url) as client:
        judge(history, lambda: client.store(store_id))
    assert outcomes["ok"] > found.done.total()
    assert min(found.done["killed"], found.done["stopped"]) > 1
    assert min(counts["posted"], counts["combined"]) > 5
    for name in ("killed", "stopped"):
        covered(f"writers of one partition {name}", found.done[name])
    for name in ("posted", "combined", "taken_over"):
        covered(f"requests of killed and stopped writers {name}", counts[name])


@pytest.mark.s3
@pytest.mark.timeout(1800)
def test_writers_that_are_killed_and_stopped_keep_every_promise_on_s3(
    s3_bucket: S3Bucket, tmp_path: Path, covered: Callable[[str, int], None]
) -> None:
    run(s3_bucket.url("crowd"), tmp_path, covered, "s3")


@pytest.mark.azure
@pytest.mark.exhaustive_only  # S3 is the service of every run
@pytest.mark.timeout(1800)
def test_writers_that_are_killed_and_stopped_keep_every_promise_on_azure(
    azurite: Azurite, tmp_path: Path, covered: Callable[[str, int], None]
) -> None:
    run(azurite.url("crowd" + uuid4().hex[:10]), tmp_path, covered, "azure")
