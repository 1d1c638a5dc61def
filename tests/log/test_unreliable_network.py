"""Processes that are killed and stopped, on a connection that loses, doubles and delays: the oracle judges them all."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from uuid import uuid4

import pytest
from fix_azurite import Azurite
from fix_covered import EXHAUSTIVE
from fix_proxy import CUT_BODY, DROP_ANSWER, DROP_REQUEST, DUPLICATE, LATE, PASS, Fault, Proxy, Request, status
from fix_s3 import S3Bucket

import streamkit
from harness import teller
from harness.history import Attempt, History
from harness.oracle import judge

pytestmark = [pytest.mark.slow, pytest.mark.sampled(2)]

PATIENCE = 120.0
FAULTS = [DROP_REQUEST, DROP_ANSWER, DUPLICATE, LATE, CUT_BODY, status(500), status(500, applied=True), status(503)]


class Teller:
    """A process of teller.py, and its reports so far."""

    def __init__(self, url: str, store_id: object, name: str) -> None:
        command = [sys.executable, teller.__file__, url, str(store_id), name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.attempts: dict[int, Attempt] = {}
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                attempt: Attempt = pickle.load(self.process.stdout)
                self.attempts[attempt.number] = attempt
        except (EOFError, pickle.UnpicklingError):
            return  # it ended, if need be in the middle of a word

    def returned(self) -> int:
        return sum(attempt.outcome != "invoked" for attempt in list(self.attempts.values()))

    def end(self, by: int = 0) -> None:
        """End the process by a signal, or in good order. All its reports are read."""
        if by:
            self.process.send_signal(by)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self._listening.join(PATIENCE)


class Connection:
    """Proxies that lose, double and delay a share `rate` of the messages, at random."""

    def __init__(self, url: str, direct: str, proxies: list[Proxy]) -> None:
        self.url = url
        self.direct = direct
        self._proxies = proxies

    def turn_bad(self, seed: int, rate: float) -> None:
        dice = Random(seed)

        def plan(request: Request) -> Fault:
            return dice.choice(FAULTS) if dice.random() < rate else PASS

        for proxy in self._proxies:
            proxy.plan = plan

    def deliver(self) -> None:
        for proxy in self._proxies:
            proxy.deliver()

    def turn_good(self) -> None:
        for proxy in self._proxies:
            proxy.plan = []


@pytest.fixture(params=["s3", "azure"])
def connection(request: pytest.FixtureRequest, make_proxy: Callable[[str, int], Proxy]) -> Connection:
    if request.param == "s3":
        bucket: S3Bucket = request.getfixturevalue("s3_bucket")
        proxy = make_proxy(bucket.server.host, bucket.server.port)
        return Connection(bucket.url("x", endpoint_url=proxy.endpoint), bucket.url("x"), [proxy])
    azurite: Azurite = request.getfixturevalue("azurite")
    blobs, tables = make_proxy("127.0.0.1", azurite.blob_port), make_proxy("127.0.0.1", azurite.table_port)
    prefix = "company" + uuid4().hex[:10]
    return Connection(Azurite(blobs.port, tables.port).url(prefix), azurite.url(prefix), [blobs, tables])


@pytest.mark.parametrize("seed", range(5 if EXHAUSTIVE else 1))
def test_one_is_killed_one_sleeps_and_all_are_told_the_truth(
    connection: Connection, seed: int, covered: Callable[[str, int], None]
) -> None:
    store_id, history = uuid4(), History("judge:", now=time.monotonic_ns)
    with streamkit.connect(connection.direct) as client:
        store = client.store(store_id)
        store.create_space(teller.SPACE)
        reader = history.reader(teller.SPACE, 7)
        connection.turn_bad(seed, 0.1)
        tellers = [Teller(connection.url, store_id, f"{seed}.{at}") for at in range(3)]
        killed, stopped, steady = tellers

        def come_further(one: Teller, steps: int) -> None:
            """Wait for `steps` more answers. Late requests land and readers read meanwhile."""
            until, end = one.returned() + steps, time.monotonic() + PATIENCE
            while one.returned() < until:
                time.sleep(0.05)
                history.page(store, reader)
                connection.deliver()
                assert one.process.poll() is None, "a writer ended"
                assert time.monotonic() < end, "no progress"
            history.look(store, teller.SPACE)

        try:
            for one in tellers:
                come_further(one, 5)
            os.kill(stopped.process.pid, signal.SIGSTOP)
            killed.end(signal.SIGKILL)
            come_further(steady, 10)
            os.kill(stopped.process.pid, signal.SIGCONT)
            come_further(stopped, 10)
            connection.turn_good()
            for one in (stopped, steady):
                one.end()
                assert one.process.returncode == 0
        finally:
            for one in tellers:
                one.end(signal.SIGKILL)
        connection.deliver()
        for one in tellers:
            history.add(one.attempts.values())
        history.settle(store)
        for attempt in list(killed.attempts.values()):
            if attempt.outcome == "invoked" and attempt.key is not None:
                history.write(store, teller.SPACE, {}, key=attempt.key)
        history.write(store, teller.SPACE, dict.fromkeys(teller.SEGMENTS, 1))
        history.look(store, teller.SPACE)
    with streamkit.connect(connection.direct) as client:
        judge(history, lambda: client.store(store_id))
    outcomes = [attempt.outcome for attempt in history.attempts]
    assert outcomes.count("ok") > 10
    covered("writes of processes that were killed or stopped, through a proxy", len(outcomes))
