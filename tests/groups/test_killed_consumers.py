"""Consumers that are killed and stopped at any moment: nothing is lost, nothing is with two at a time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fix_azurite import Azurite
from fix_s3 import S3Bucket

import streamkit
from harness import group_worker, warm
from harness.group_oracle import History, judge
from harness.warm import Program
from streamkit import Record

EXHAUSTIVE = os.environ.get("STREAMKIT_EXHAUSTIVE") == "1"
SECONDS = 180.0 if EXHAUSTIVE else 4.0
PROCESSES = 8 if EXHAUSTIVE else 3
EMULATED = 1000 if EXHAUSTIVE else 140


@pytest.fixture(autouse=True)
def _whole_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.groups.chain.Chain._trim", lambda chain, snapshot: None)


class Crew:
    """Processes that are killed or stopped for a while, one after the other."""

    def __init__(self, url: str, store: UUID, chance: random.Random) -> None:
        self._arguments = (url, str(store), "orders", "billing")
        self._chance = chance
        self._processes: list[Program] = []
        self._count = 0

    def hire(self) -> None:
        self._count += 1
        name = f"worker-{self._count}"
        process = warm.start(group_worker.__file__, *self._arguments, name, self._count, url=self._arguments[0])
        self._processes.append(process)

    def harm(self) -> None:
        process = self._chance.choice(self._processes)
        if self._chance.random() < 0.4:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.8)
            process.send_signal(signal.SIGCONT)
        else:
            process.kill()
            self._dismiss(process)
            self.hire()

    def _dismiss(self, process: Program) -> None:
        self._processes.remove(process)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()

    def wait(self) -> None:
        """Wait until all processes have begun."""
        for process in self._processes:
            process.stdout.readline()

    def end(self) -> None:
        for process in list(self._processes):
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
            self._dismiss(process)


@contextmanager
def crew(url: str, store: UUID, count: int, chance: random.Random) -> Iterator[Crew]:
    found = Crew(url, store, chance)
    try:
        for _ in range(count):
            found.hire()
        yield found
    finally:
        found.end()


def harmed(url: str, entries: int, mode: str, count: int = PROCESSES) -> History:
    chance = random.Random(7)
    with streamkit.connect(url, poll=(0.01, 0.1)) as client:
        store = client.store(uuid4())
        group = store.group("orders", "billing", mode=mode, ack_timeout=0.6, max_deliveries=1000, retry_delay=0.01)
        with crew(url, store.id, count, chance) as workers:
            workers.wait()
            end = time.monotonic() + SECONDS
            put = 0
            while time.monotonic() < end:
                for _ in range(10 if put < entries else 0):
                    segment = chance.choice("abcdefgh")
                    store.produce("orders", segment, [Record(b"%d" % at) for at in range(put, put + 7)])
                    put += 7
                time.sleep(0.2)
                workers.harm()
        with group.consumer("last") as consumer:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                for delivery in consumer.receive(100, wait=0.2):
                    consumer.ack(delivery)
                status = group.status()
                if not (status.lag or status.pending or status.ready or status.delayed):
                    break
        return judge(store, "orders", "billing")


@pytest.mark.parametrize("mode", ["shared", "key_shared", "exclusive"])
def test_nothing_is_lost_on_a_local_disk(tmp_path: Path, mode: str) -> None:
    history = harmed(f"file://{tmp_path}/root", 2000, mode)
    assert history.errors == []
    assert history.acked >= 70
    assert history.dead == 0


@pytest.mark.s3
def test_nothing_is_lost_on_s3(s3_bucket: S3Bucket) -> None:
    assert harmed(s3_bucket.url("killed"), EMULATED, "shared").errors == []


@pytest.mark.exhaustive_only  # S3 is the service of every run
@pytest.mark.azure
def test_nothing_is_lost_on_azure(azurite: Azurite) -> None:
    assert harmed(azurite.url("killedconsumers"), EMULATED, "shared").errors == []
