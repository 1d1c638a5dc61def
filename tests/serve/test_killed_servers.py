"""Servers and workers that are killed at any moment: no job is lost, and none comes again after its acknowledgement."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamkit

EXHAUSTIVE = os.environ.get("STREAMKIT_EXHAUSTIVE") == "1"
JOBS = 20_000 if EXHAUSTIVE else 400
KILLS = 60 if EXHAUSTIVE else 3
WORKERS = 16 if EXHAUSTIVE else 4
BATCH = 20


class Servers:
    """Two processes of the server, on ports of their own. One that is killed is started again on another port."""

    def __init__(self, url: str, store: str, *options: str) -> None:
        command = [sys.executable, "-m", "streamkit.cli", "serve", "--port", "0", "--url", url, "--store", store]
        self._command = [*command, *options]
        self._processes = [self._start(), self._start()]

    def _start(self) -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if "http://" in line:
                return process, int(line.rpartition(":")[2])
        raise AssertionError("the server ended")

    def port(self, chance: random.Random) -> int:
        return chance.choice(self._processes)[1]

    def kill(self, chance: random.Random) -> None:
        at = chance.randrange(2)
        process = self._processes[at][0]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self._processes[at] = self._start()

    def close(self) -> None:
        for process, _ in self._processes:
            process.kill()
            process.communicate()


@contextmanager
def servers(url: str, store: str, *options: str) -> Iterator[Servers]:
    found = Servers(url, store, *options)
    try:
        yield found
    finally:
        found.close()


class Worker:
    """Receives and acknowledges, at any server. It forgets what it has at random, as a killed worker does."""

    def __init__(self, seed: int, servers: Servers, acked: Counter[int], log: threading.Lock) -> None:
        self._chance = random.Random(seed)
        self._servers = servers
        self._acked = acked
        self._log = log
        self.error: BaseException | None = None
        self.early: list[int] = []
        """Jobs that came although their acknowledgement had been answered."""

    def ask(self, path: str, body: Any) -> Any:
        """The answer; None if a server was killed meanwhile."""
        connection = http.client.HTTPConnection("127.0.0.1", self._servers.port(self._chance), timeout=60)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"/v1/stores/_/queues/jobs/{path}", json.dumps(body), headers)
            response = connection.getresponse()
            data = json.loads(response.read())
            assert response.status == 200 or response.status >= 500, data
            return data if response.status == 200 else None  # the other process was killed in the middle of a write
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def work(self) -> None:
        try:
            while len(self._acked) < JOBS:
                with self._log:
                    before = set(self._acked)
                answer = self.ask("receive", {"limit": BATCH, "wait": 0.2})
                deliveries = [] if answer is None else answer["deliveries"]
                numbers = {each["receipt"]: each["entry"]["json"] for each in deliveries}
                self.early += [number for number in numbers.values() if number in before]
                if not numbers or self._chance.random() < 0.1:
                    continue  # a killed worker does not give its deliveries back
                settled = self.ask("settle", {"settle": [{"receipt": receipt} for receipt in numbers]})
                if settled is not None:
                    with self._log:
                        done = [numbers[each["receipt"]] for each in settled["settled"] if not each["lost"]]
                        self._acked.update(done)
                elif self._chance.random() < 0.5:
                    # The answer was lost: whether it was acknowledged is told by a repetition.
                    self.ask("settle", {"settle": [{"receipt": receipt} for receipt in numbers]})
        except BaseException as error:
            self.error = error


@pytest.mark.parametrize("seed", range(3) if EXHAUSTIVE else [1])
def test_nothing_is_lost_and_no_acknowledged_job_comes_again(tmp_path: Path, seed: int) -> None:
    url, store_id = f"file://{tmp_path}/stores", str(uuid4())
    with streamkit.connect(url) as client:
        store = client.store(store_id)
        queue = store.queue("jobs", ack_timeout=2.0, max_deliveries=1000)
        for first in range(0, JOBS, 100):
            queue.put_many([b"%d" % number for number in range(first, first + 100)])
        acked: Counter[int] = Counter()
        log = threading.Lock()
        chance = random.Random(seed)
        with servers(url, store_id) as both:
            workers = [Worker(seed * 1000 + number, both, acked, log) for number in range(WORKERS)]
            threads = [threading.Thread(target=worker.work) for worker in workers]
            for thread in threads:
                thread.start()
            for number in range(1, KILLS + 1):
                # After so many were acknowledged, or all workers have ended with an error.
                while len(acked) < JOBS * number // (KILLS + 1) and any(thread.is_alive() for thread in threads):
                    threads[0].join(0.01)
                both.kill(chance)
            while any(thread.is_alive() for thread in threads):
                status = queue.status()
                if not status.lag:  # the answers of some acknowledgements were lost
                    with log:
                        acked.update(dict.fromkeys(range(JOBS), 0))
                for thread in threads:
                    thread.join(0.2)
        assert [worker.error for worker in workers if worker.error] == []
        assert [number for worker in workers for number in worker.early] == []
        assert max(acked.values()) == 1, "a job was acknowledged twice"
        status = queue.status()
        assert (status.acked, status.lag, status.dead) == (JOBS, 0, 0)


class Topics:
    """A client of the interface of topics that asks any server, again and again until one answers."""

    def __init__(self, seed: int, servers: Servers) -> None:
        self._chance = random.Random(seed)
        self._servers = servers
        self.error: BaseException | None = None

    def ask(self, path: str, body: Any, method: str = "POST") -> Any:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self._servers.port(self._chance), timeout=60)
            try:
                headers = {"Content-Type": "application/json"}
                connection.request(method, f"/v0/{path}", json.dumps(body), headers)
                response = connection.getresponse()
                data = json.loads(response.read())
                assert response.status < 300 or response.status >= 500, data
                if response.status < 300:
                    return data
            except (OSError, http.client.HTTPException):
                continue
            finally:
                connection.close()

    def write(self, name: str, count: int) -> None:
        try:
            for number in range(count):
                body = {"records": [{"data": [name, number]}], "idempotency_key": f"{name}-{number}"}
                self.ask("topics/a", body)
                self.ask("topics/jobs", {**body, "idempotency_key": f"job-{name}-{number}"})
        except BaseException as error:
            self.error = error

    def read(self, topic: str, total: int, found: list[Any]) -> None:
        """Read records to the end, each read at any server."""
        try:
            after = 0
            while len(found) < total:
                part = self.ask(f"topics/{topic}/diff", {"from_seq": after, "limit": 7, "wait_ms": 200})
                found += [record["data"] for record in part["records"]]
                after = part["next_from_seq"]
        except BaseException as error:
            self.error = error

    def work(self, total: int, seen: set[tuple[Any, ...]], early: list[Any]) -> None:
        """Claim and acknowledge jobs until none is left. One that comes after its acknowledgement is `early`."""
        acked: set[tuple[Any, ...]] = set()
        try:
            while len(seen) < total or self._left():
                jobs = self.ask("topics/jobs/claim", {"node": "w", "max": 10, "lease_ms": 2_000})["claimed"]
                early += [job["data"] for job in jobs if tuple(job["data"]) in acked]
                for job in jobs:
                    seen.add(tuple(job["data"]))
                    # On a slow machine its lease may have ended; or it is done, and the answer to that was lost.
                    if self.ask("topics/jobs/ack", {"node": "w", "seqs": [job["$seq"]]})["acked"]:
                        acked.add(tuple(job["data"]))
        except BaseException as error:
            self.error = error

    def _left(self) -> int:
        queue = self.ask("topics/jobs?touch=false", None, "GET")["queue"]
        return int(queue["ready"] + queue["in_flight"])


@pytest.mark.parametrize("seed", range(3) if EXHAUSTIVE else [1])
def test_topics_keep_every_record_once_and_in_order_while_their_servers_are_killed(tmp_path: Path, seed: int) -> None:
    each = 400 if EXHAUSTIVE else 15
    names = ["x", "y"]
    total = each * len(names)
    kills = KILLS if EXHAUSTIVE else 1
    chance = random.Random(seed)
    with servers(f"file://{tmp_path}/stores", str(uuid4()), "--topics") as both:
        clients = [Topics(seed * 1000 + number, both) for number in range(len(names) + 4)]
        admin, reader, copies_reader, worker, *writers = clients
        admin.ask("topics/a", {}, "PUT")
        admin.ask("topics/jobs", {"type": "queue"}, "PUT")
        admin.ask("routers/a-b", {"source": "a", "dest": "b"}, "PUT")
        records: list[Any] = []
        copies: list[Any] = []
        seen: set[tuple[Any, ...]] = set()
        early: list[Any] = []
        threads = [
            threading.Thread(target=reader.read, args=["a", total, records]),
            threading.Thread(target=copies_reader.read, args=["b", total, copies]),
            threading.Thread(target=worker.work, args=[total, seen, early]),
            *(
                threading.Thread(target=writer.write, args=[name, each])
                for writer, name in zip(writers, names, strict=True)
            ),
        ]
        for thread in threads:
            thread.start()
        for number in range(1, kills + 1):
            while len(seen) < total * number // (kills + 1) and any(thread.is_alive() for thread in threads):
                threads[0].join(0.01)
            both.kill(chance)
        for thread in threads:
            thread.join(300)
        assert [client.error for client in clients if client.error] == []
        assert copies == records, "a router copies each record once, in order"
        for name in names:
            assert [number for one, number in records if one == name] == list(range(each))
        assert (len(records), early) == (total, [])
        assert seen == {tuple(record) for record in records}
