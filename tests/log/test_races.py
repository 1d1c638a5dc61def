"""Many processes and threads at once, on one store: exactly one winner, and nothing lost, doubled or torn."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

import streamkit
from harness import racer, warm
from harness.store_checks.agreement import agree
from harness.warm import Program
from streamkit import Entry, Record, SegmentStatus, SequenceMismatch

PATIENCE = 300.0

pytestmark = pytest.mark.sampled(2)


class Racers:
    """Processes of racer.py on one store, ended with the test. `share` of the work is enough where it takes long."""

    def __init__(self, url: str, share: float) -> None:
        self.subject = Subject(url)
        self.share = share
        self.contenders = 8 if share == 1 else 4  # for a server that takes one at a time
        self._running: list[Program] = []

    def start(self, what: str, *more: object) -> Program:
        process = warm.start(racer.__file__, what, self.subject.url, self.subject.id, *more, url=self.subject.url)
        self._running.append(process)
        self.says(process, "ready")
        return process

    def says(self, process: Program, what: str) -> None:
        assert process.stdout.readline() == what + "\n"

    def result(self, process: Program) -> Any:
        """End its standard input, and return what it printed."""
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        return json.loads(out)

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        self.subject.close()


@pytest.fixture(params=["local", "s3", "azure"])
def racers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Racers]:
    if request.param == "local":
        found = Racers(f"file://{tmp_path}/root", 1)
    elif request.param == "s3":
        # The emulator serves one request at a time, so its checks and acts are one, as the real service's are.
        found = Racers(request.getfixturevalue("s3_bucket").url("races"), 0.1)
    else:
        found = Racers(request.getfixturevalue("azurite").url("r" + uuid4().hex[:10]), 0.1)
    yield found
    found.close()


def check_log(entries: list[Entry], transactions: int | None = None) -> None:
    """Check one partition: numbers are dense from 1, and so are the sequences of each segment."""
    numbers = sorted({entry.trx.number for entry in entries})
    assert numbers == list(range(1, len(numbers) + 1))
    assert transactions in (None, len(numbers))
    assert [entry.trx.number for entry in entries] == sorted(entry.trx.number for entry in entries)
    last: dict[str, int] = {}
    for entry in entries:
        assert entry.sequence == last.get(entry.segment, 0) + 1
        last[entry.segment] = entry.sequence


def test_of_several_processes_with_one_expectation_one_wins_each_round(racers: Racers, tmp_path: Path) -> None:
    processes, rounds = racers.contenders, int(200 * racers.share)
    meeting = tmp_path / "meeting"
    meeting.write_bytes(bytes(8 * processes))
    started = [racers.start("contend", index, rounds, meeting) for index in range(processes)]
    outcomes = [racers.result(process) for process in started]
    entries = list(racers.subject.store.consume_space(racer.SPACE))
    assert len(entries) == rounds
    check_log(entries, rounds)
    for turn in range(rounds):
        ended = [outcome[turn] for outcome in outcomes]
        assert ended.count(None) == 1
        assert [mismatch for mismatch in ended if mismatch is not None] == [[turn, turn + 1]] * (processes - 1)
        assert entries[turn].payload == b"%d" % ended.index(None)
    assert len({entry.payload for entry in entries}) > 1, "one process won all rounds: there was no race"


@pytest.mark.parametrize("partitions", [1, 4])
def test_pages_read_while_others_write_hold_every_acknowledged_entry_once(racers: Racers, partitions: int) -> None:
    racers.subject.store.create_space(racer.SPACE, partitions=partitions)
    readers = [racers.start("page", index) for index in range(2)]
    writers = [racers.start("write", index, int(150 * racers.share)) for index in range(4)]
    acknowledged = [batch for writer in writers for batch in racers.result(writer)]
    wanted: dict[tuple[str, int], str] = {}
    for segment, first, payloads in acknowledged:
        wanted.update(((segment, first + at), payload) for at, payload in enumerate(payloads))
    assert len(wanted) == sum(len(payloads) for _, _, payloads in acknowledged)
    assert len({segment for segment, _ in wanted}) > 30
    readings = [racers.result(reader) for reader in readers]
    for reading in readings:
        assert len(reading) == len(wanted)
        assert {(segment, sequence): payload for segment, sequence, payload, _, _ in reading} == wanted
        last: dict[str, int] = {}
        numbers: dict[int, int] = {}
        for segment, sequence, _, partition, number in reading:
            assert sequence == last.get(segment, 0) + 1
            last[segment] = sequence
            assert number >= numbers.get(partition, 0)
            numbers[partition] = number
        assert len(numbers) == partitions
    if partitions == 1:
        assert readings[0] == readings[1]
    entries = agree(racers.subject.store, racer.SPACE)
    assert {(entry.segment, entry.sequence): entry.payload.decode() for entry in entries} == wanted


def test_a_reader_never_sees_part_of_a_transaction(racers: Racers) -> None:
    store = racers.subject.store
    watchers = [racers.start("watch") for _ in range(2)]
    other = racers.subject.stranger()
    turns = int(400 * racers.share)
    for turn in range(turns):
        if turn == turns // 2:  # they do not look at the end only
            for watcher in watchers:
                racers.says(watcher, "seen")
        with (store, other)[turn % 2].transaction(racer.SPACE) as trx:
            for at in range(racer.PARTS):
                trx.produce(f"{{t}}{at}", [Record(b"%d" % turn)])
    assert all(racers.result(watcher) >= 2 for watcher in watchers)
    assert len(agree(store, racer.SPACE)) == turns * racer.PARTS


def test_16_threads_share_commits(racers: Racers) -> None:
    store, threads, rounds = racers.subject.store, 16, 100

    def work(index: int) -> list[SegmentStatus]:
        return [store.produce("space", f"s{index}", [Record(b"%d" % turn)]) for turn in range(rounds)]

    with ThreadPoolExecutor(threads) as pool:
        statuses = list(pool.map(work, range(threads)))
    for index, told in enumerate(statuses):
        assert [status.last_sequence for status in told] == list(range(1, rounds + 1))
        assert {status.segment for status in told} == {f"s{index}"}
    entries = agree(store, "space")
    check_log(entries)
    assert len(entries) == threads * rounds
    by_place = {(entry.segment, entry.sequence): entry.trx for entry in entries}
    assert all(by_place[status.segment, status.last_sequence] == status.trx for told in statuses for status in told)
    assert store.statistics().transactions < threads * rounds, "no two commits were made as one"


@pytest.mark.parametrize("kind", ["memory", "remote", "local"])
def test_of_16_threads_with_one_expectation_one_wins_each_round(kind: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}" if kind == "local" else f"memory://race-{kind}?remote={int(kind == 'remote')}"
    threads, rounds = 16, 40
    together = threading.Barrier(threads)
    subject = Subject(url)
    stores = [subject.store, subject.stranger()]

    def work(index: int) -> list[tuple[int, int] | None]:
        ended: list[tuple[int, int] | None] = []
        for turn in range(rounds):
            together.wait(PATIENCE)
            try:
                stores[index % 2].produce("space", "s", [Record(b"%d" % index)], expected_sequence=turn)
                ended.append(None)
            except SequenceMismatch as error:
                ended.append((error.expected, error.actual))
        return ended

    with ThreadPoolExecutor(threads) as pool:
        outcomes = list(pool.map(work, range(threads)))
    entries = agree(subject.store, "space")
    check_log(entries, rounds)
    for turn, entry in enumerate(entries):
        ended = [outcome[turn] for outcome in outcomes]
        assert ended.count(None) == 1
        assert ended.count((turn, turn + 1)) == threads - 1
        assert entry.payload == b"%d" % ended.index(None)
    subject.client.delete_store(subject.id)
    subject.close()


def test_processes_make_one_space_at_the_same_time(racers: Racers, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    meeting.write_bytes(bytes(8 * racers.contenders))
    started = [racers.start("contend", index, 1, meeting) for index in range(racers.contenders)]
    outcomes = [racers.result(process) for process in started]
    assert outcomes.count([None]) == 1
    assert outcomes.count([[0, 1]]) == racers.contenders - 1
    assert list(racers.subject.store.get_spaces()) == [racer.SPACE]
    with streamkit.connect(racers.subject.url) as client:
        assert list(client.stores()) == [racers.subject.id]
