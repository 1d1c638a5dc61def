"""The pace of processes: when a waiting one takes over, and the knowledge of a new one about the combiner."""

from __future__ import annotations

import random
import threading
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest

from harness.combining import combine, posting
from harness.posted import Hooks, Shared, inbox_of, partition_of
from streamkit import Client, Record
from streamkit.backend import Backend, Driver
from streamkit.clock import SYSTEM_CLOCK
from streamkit.errors import Throttled
from streamkit.log import inbox
from streamkit.log.pace import Pace
from streamkit.log.rows import Lead
from streamkit.testing import FaultyDriver, Plan
from streamkit_memory.driver import MemoryDriver


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def _posting() -> Iterator[None]:
    with posting():
        yield


def waiting(shared: Shared, count: int) -> tuple[Pace, Any]:
    """The pace of a process that has seen who leads write just now, while so many wait."""
    store = shared.process()
    store.produce("s", "a", [Record(b"")])
    partition = partition_of(store)
    pace = Pace(partition)
    pace.observe()
    partition.answers.lead = Lead(b"another", count, partition.number, shared.clock.now())
    partition.number += 1
    pace.observe()
    return pace, partition


def test_of_many_that_wait_few_take_over_at_the_same_time(shared: Shared) -> None:
    pace, _ = waiting(shared, 256)
    rests = []
    for _ in range(256):
        pace.draw()
        rests.append(pace.rest())
    first = min(rests)
    assert 0.1 < first < 1.0
    assert sum(rest < first + pace.round for rest in rests) < 40
    assert len({round(rest, 3) for rest in rests}) > 10


def test_of_two_that_wait_one_takes_over_soon(shared: Shared) -> None:
    pace, _ = waiting(shared, 2)
    for _ in range(50):
        pace.draw()
        assert pace.rest() < 0.5


def test_however_many_were_said_to_wait_nobody_waits_for_ever(shared: Shared) -> None:
    pace, _ = waiting(shared, 100_000)
    pace.draw()
    shared.clock.sleep(pace.rest())
    assert pace.rest() <= 0
    pace, _ = waiting(shared, 256)
    for _ in range(100):
        pace.draw()
        assert pace.rest() < 3


def test_a_log_that_stood_still_does_not_make_the_rounds_long(shared: Shared) -> None:
    pace, partition = waiting(shared, 10)
    before = pace.round
    shared.clock.sleep(1.0)
    partition.number += 1
    pace.observe()
    assert pace.round < 1.2 * before


@pytest.mark.parametrize("leads", [True, False])
def test_how_long_rounds_are_is_learned_from_those_that_were_to_lead(shared: Shared, leads: bool) -> None:
    """Another process writes, and the log had stood still: that says nothing about the speed of the service."""
    store, other = shared.process(), shared.process()
    shared.write(store, "a")
    shared.write(other, "b")
    known, partition = other._handle.look_up("s")[0], partition_of(store)
    assert known is not None
    name = known.committers[0].node if leads else b"another"
    partition.refresh()
    pace = Pace(partition)
    before = pace.round
    for _ in range(8):
        pace.observe()
        partition.answers.lead = Lead(name, 10, partition.number, shared.clock.now())
        shared.clock.sleep(0.3)
        shared.write(other, "b")
        partition.refresh()
    assert (pace.round > 2 * before) == leads


def test_who_looks_late_learns_how_fast_the_log_goes_on(shared: Shared) -> None:
    """The lead's own clock measures its rounds. Otherwise they would stay as long as its pauses between looks."""
    store, other = shared.process(), shared.process()
    shared.write(store, "a")
    shared.write(other, "b")
    known, partition = other._handle.look_up("s")[0], partition_of(store)
    assert known is not None
    partition.refresh()
    pace = Pace(partition)
    pace.observe()
    before = pace.round
    partition.answers.lead = Lead(known.committers[0].node, 10, partition.number, shared.clock.now())
    for _ in range(12):
        shared.clock.sleep(0.02)
        shared.write(other, "b")
    for _ in range(12):
        assert partition.poll()
        pace.observe()
        shared.clock.sleep(0.1)
    assert pace.round < 0.7 * before


@pytest.mark.usefixtures("_posting")
def test_a_process_that_begins_where_somebody_leads_posts_and_does_not_compete(shared: Shared) -> None:
    """A new process learns the lead from the head, if nothing came after the index."""
    hooks = Hooks()
    poster, other = shared.process(hooks), shared.process()
    other.create_space("s")
    shared.write(poster, "begin poster")
    shared.write(other, "begin other")
    hooks.posted = lambda: combine(other, "s", 0)
    shared.write(poster, "a")
    assert partition_of(other).answers.lead.name
    other.maintain()
    assert partition_of(other).watermark == partition_of(other).number
    with posting(2):
        seconds = Hooks()
        begins = shared.process(seconds)
        seconds.posted = lambda: combine(other, "s", 0)
        shared.write(begins, "b")
    assert begins.statistics().posted == 1
    assert begins.statistics().transactions == 0


@pytest.mark.usefixtures("_posting")
def test_who_leads_reads_a_bounded_number_of_letters_and_names_one_that_it_has_not_read(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "_GETS", 1)
    other = shared.process()
    other.create_space("s")
    shared.write(other, "begin")
    posted = [f"a{number}" for number in range(12)]

    def die() -> None:
        raise KeyboardInterrupt

    for name in posted:
        hooks = Hooks()
        poster = shared.process(hooks)
        partition_of(poster).answers.lead = Lead(b"another", 4, partition_of(other).number, shared.clock.now())
        hooks.posted = die
        with pytest.raises(KeyboardInterrupt):
            shared.write(poster, name, random.randbytes(1000))
    assert sum(len(letter) > 500 for letter in shared.letters()) == 12

    def committed() -> int:
        return sum(len(shared.payloads(name)) for name in posted)

    combine(other, "s", 0)
    assert 0 < committed() < 12
    assert partition_of(other).answers.lead.name
    for _ in range(12):
        combine(other, "s", 0)
    assert committed() == 12


def test_threads_that_begin_together_open_a_space_once() -> None:
    name, store_id = "opened-together", uuid4()
    second = threading.Barrier(2)
    reads = []

    class Reading(FaultyDriver):
        def open(self, store: UUID) -> Backend:
            backend = super().open(store)
            read = backend.read

            def wait_for_a_second(*given: Any) -> Any:
                reads.append(given)
                with suppress(threading.BrokenBarrierError):
                    second.wait(0.2)
                return read(*given)

            backend.read = wait_for_a_second  # type: ignore[method-assign]
            return backend

    def client(driver: Driver) -> Client:
        return Client("memory://", driver, 5.0, None, 64 << 20, SYSTEM_CLOCK)

    with client(MemoryDriver(name, remote=True)) as first:
        first.store(store_id).produce("s", "a", [Record(b"")])
    with client(Reading(MemoryDriver(name, remote=True), Plan())) as together, ThreadPoolExecutor(8) as threads:
        store = together.store(store_id)
        list(threads.map(lambda turn: store.produce("s", f"{turn}", [Record(b"")]), range(8)))
    assert len(reads) == 1


@pytest.mark.usefixtures("_posting")
def test_who_takes_over_a_log_that_stood_still_counts_those_that_wait_now(shared: Shared) -> None:
    store = shared.process()
    shared.write(store, "a")
    partition = partition_of(store)
    partition.answers.lead = Lead(b"another", 256, partition.number, shared.clock.now())
    shared.write(store, "b")
    assert store.statistics().taken_over == 1
    assert partition.answers.lead.named_by == partition.number
    assert partition.answers.lead.waiting < 2


@pytest.mark.usefixtures("_posting")
def test_the_log_goes_on_when_it_is_written_and_not_when_the_callers_come_back(shared: Shared) -> None:
    store = shared.process()
    shared.write(store, "a")
    found = inbox_of(store)
    written = shared.clock.monotonic()
    shared.clock.sleep(1.0)
    assert found._pace.moved == written


@pytest.mark.usefixtures("_posting")
def test_looks_while_the_log_stands_still_say_nothing_of_when_to_look(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.5)  # by the lots it takes over, with a small one at once
    store = shared.process()
    shared.write(store, "a")
    found = inbox_of(store)
    before = store.statistics().requests["get"]
    partition_of(store).answers.lead = Lead(b"another", 256, partition_of(store).number, shared.clock.now())
    shared.write(store, "b")
    assert store.statistics().requests["get"] - before > 8
    assert found._pace._phase < 1.1


class Throttling(FaultyDriver):
    """Refuses the calls that read ranges whose numbers, from 0, are in `refused`."""

    def __init__(self, inner: Driver, refused: Container[int]) -> None:
        super().__init__(inner, Plan())
        self.refused = refused
        self.calls: list[int] = []
        """How many rows each asks for."""

    def open(self, store: UUID) -> Backend:
        backend = super().open(store)
        read = backend.read

        def throttled(partition: bytes, ranges: Sequence[Any]) -> Any:
            self.calls.append(len(ranges))
            if len(self.calls) - 1 in self.refused:
                raise Throttled("too much")
            return read(partition, ranges)

        backend.read = throttled  # type: ignore[method-assign]
        return backend


def opened(shared: Shared, driver: Driver, entries: int) -> float:
    """Seconds that a process takes to open a space with so many transactions in its tail, and to see them all."""
    writer = shared.process()
    for _ in range(entries):
        shared.write(writer, "a")
    began = shared.clock.monotonic()
    with Client("memory://", driver, 60.0, None, 64 << 20, shared.clock) as client:
        assert client.store(shared.id).peek("s", "a").sequence == entries
    return shared.clock.monotonic() - began


def test_who_is_throttled_asks_for_few_rows_at_a_time_and_none_in_vain(shared: Shared) -> None:
    driver = Throttling(shared.driver(), {0})
    opened(shared, driver, 10)
    first, *rest = driver.calls
    assert first > 20
    assert max(rest) <= 4
    assert sum(rest) <= 12


def test_who_comes_through_in_parts_does_not_wait_longer_for_each(shared: Shared) -> None:
    """The service throttles every other request, as in a crowd that opens one space."""
    driver = Throttling(shared.driver(), range(0, 1000, 2))
    assert opened(shared, driver, 10) < 6
    assert len(driver.calls) >= 12
