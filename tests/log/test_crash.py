"""kill -9 at any moment of a writing process: acknowledged entries are there, and all others are whole or absent."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.store_checks.agreement import agree
from streamkit import Entry, Record, Store

SEED = 20_240_712
ROUNDS = 100 if EXHAUSTIVE else 25

WRITER = '''
import json, os, random, sys, threading
import streamkit
from streamkit import Record

def work(url, store_id, seed):
    """Write until killed; what is acknowledged goes to standard output, one line each, in one write."""
    client = streamkit.connect(url)
    store = client.store(store_id)
    os.write(1, b"ready\\n")
    threads = [threading.Thread(target=batches, args=(store, seed, at)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def batches(store, seed, at):
    dice = random.Random(f"{seed}/{at}")
    number = 0
    while True:
        number += 1
        space = dice.choice(("committed", "buffered", "four"))
        name = f"{seed}.{at}.{number}"
        with store.transaction(space, idempotency_key=name if number % 7 == 0 else None) as trx:
            for part in range(dice.choice((1, 1, 3))):
                count = dice.choice((1, 2, 30))
                pad = "x" * dice.choice((0, 10, 3000))
                records = [Record(f"{name} {part} {index} {count} {pad}".encode()) for index in range(count)]
                trx.produce(f"{{{dice.randrange(3)}}}/" + str(part) if space != "four" else f"{{t}}/{part}", records)
        acknowledged = {segment: status.last_sequence for segment, status in trx.statuses.items()}
        os.write(1, json.dumps([space, name, trx.trx.number, acknowledged]).encode() + b"\\n")
        if dice.random() < 0.02:
            store.maintain()

# One process that has everything imported forks the writers: a writer starts in no time.
for line in sys.stdin:
    url, store_id, seed = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(url, store_id, seed)
        finally:
            os._exit(9)
    sys.stderr.write(f"{child}\\n")
    sys.stderr.flush()
    os.waitpid(child, 0)
    os.write(1, b"ended\\n")
'''


class Writers:
    """Writing processes, one after the other."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, url: str, store_id: UUID, seed: int, dice: random.Random) -> list[Any]:
        """Start one, kill it at a random moment after some writes, and return what it was told is written."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps([url, str(store_id), seed]) + "\n")
        process.stdin.flush()
        child = int(process.stderr.readline())
        assert process.stdout.readline() == "ready\n"
        acknowledged = [json.loads(process.stdout.readline()) for _ in range(dice.choice((0, 1, 5)))]
        time.sleep(dice.random() * dice.choice((0.002, 0.02, 0.1)))
        os.kill(child, signal.SIGKILL)
        while (line := process.stdout.readline()) != "ended\n":
            acknowledged.append(json.loads(line))
        return acknowledged

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def writers() -> Iterator[Writers]:
    found = Writers()
    yield found
    found.close()


class Truth:
    """The known writes, and the entries read of each space so far."""

    def __init__(self) -> None:
        self.read: dict[str, list[Entry]] = {"committed": [], "buffered": [], "four": []}
        self.whole: dict[str, int] = {}
        """Batches that were read, and their transactions."""

    def check(self, store: Store, acknowledged: list[Any]) -> int:
        """Read on from where the last round ended. Returns how many batches are there that were not acknowledged."""
        parts: dict[str, list[tuple[str, Entry]]] = {}
        for space, before in self.read.items():
            offset = before[-1].space_offset if before else None
            for entry in store.consume_space(space, offset=offset):
                before.append(entry)
                parts.setdefault(entry.payload.split()[0].decode(), []).append((space, entry))
        for name, found in parts.items():
            assert name not in self.whole, f"batch {name} is there twice"
            self.whole[name] = self.check_whole(name, found)
        for space, name, number, statuses in acknowledged:
            assert self.whole.get(name) == number, f"batch {name} was acknowledged and is not there"
            for segment, last in statuses.items():
                held = [entry.sequence for _, entry in parts[name] if entry.segment == segment]
                assert held[-1] == last
                assert {space} == {space for space, _ in parts[name]}
        return len(parts) - len(acknowledged)

    def check_whole(self, name: str, found: list[tuple[str, Entry]]) -> int:
        """All records of a batch are there, once and in order, in one transaction. Its number."""
        assert len({(space, entry.trx.id) for space, entry in found}) == 1, f"batch {name} is in two transactions"
        by_part: dict[int, list[int]] = {}
        sizes: dict[int, int] = {}
        for _, entry in found:
            _, part, index, count, *_ = entry.payload.split()
            by_part.setdefault(int(part), []).append(int(index))
            sizes[int(part)] = int(count)
        assert sorted(by_part) == list(range(max(by_part) + 1)), f"batch {name} lacks a part"
        assert len(by_part) in (1, 3), f"batch {name} has {len(by_part)} parts"
        for part, indexes in by_part.items():
            assert indexes == list(range(sizes[part])), f"part {part} of batch {name} is not whole"
        return found[0][1].trx.number


@pytest.mark.timeout(300)
def test_a_killed_writer_leaves_what_it_acknowledged_and_nothing_torn(writers: Writers, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    dice, url, store_id, truth = random.Random(SEED), f"file://{tmp_path}/root", uuid4(), Truth()
    with streamkit.connect(url) as client:
        client.store(store_id).create_space("committed")
        client.store(store_id).create_space("buffered", durability="buffered")
        client.store(store_id).create_space("four", partitions=4)
    acknowledged = unacknowledged = 0
    for number in range(ROUNDS):
        told = writers.run(url, store_id, number, dice)
        acknowledged += len(told)
        with streamkit.connect(url) as client:
            store = client.store(store_id)
            unacknowledged += truth.check(store, told)
            if number % 10 == 9:  # the next writer can go on
                store.produce("committed", "checked", [Record(f"checked.{number} 0 0 1".encode())])
                truth.check(store, [])
    assert acknowledged > ROUNDS
    assert unacknowledged <= ROUNDS * 3, "at most what was in flight of three threads"
    with streamkit.connect(url) as client:
        store = client.store(store_id)
        for space, entries in truth.read.items():
            assert agree(store, space) == (entries if space != "four" else list(store.consume_space(space)))
            assert len(list(store.consume_space(space))) == len(entries)
            for partition in {entry.origin.partition for entry in entries}:
                numbers = [entry.trx.number for entry in entries if entry.origin.partition == partition]
                assert numbers == sorted(numbers)
                assert set(numbers) == set(range(1, numbers[-1] + 1))


def test_a_writer_killed_while_others_write_disturbs_nobody(writers: Writers, tmp_path: Path) -> None:
    """This process has the store open all the time, and meets what each dead one left."""
    print(f"seed {SEED}")
    dice, url, store_id, truth = random.Random(SEED + 1), f"file://{tmp_path}/root", uuid4(), Truth()
    with streamkit.connect(url) as client:
        store = client.store(store_id)
        store.create_space("buffered", durability="buffered")
        store.create_space("four", partitions=4)
        for number in range(15):
            told = writers.run(url, store_id, number, dice)
            for space in truth.read:
                segment = "{t}/0" if space == "four" else "{0}/0"
                last = store.peek(space, segment).sequence
                name = f"mine.{number}.{space} 0 0 1"
                store.produce(space, segment, [Record(name.encode())], expected_sequence=last)
            truth.check(store, told)
            with streamkit.connect(url) as other:
                for space, entries in truth.read.items():
                    assert len(list(other.store(store_id).consume_space(space))) == len(entries)
        for space in truth.read:
            agree(store, space)
