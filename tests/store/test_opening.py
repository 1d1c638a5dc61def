"""Opening a space, by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

from benchmarks.cost_model import run_engine
from benchmarks.cost_services import Bill, services, simulated_clients
from benchmarks.simulation import Simulation
from streamkit import Record, Store
from streamkit.backend import Range

READERS: dict[str, Callable[[Store], int]] = {
    "peek": lambda store: store.peek("space", "s").sequence,
    "segment_status": lambda store: store.segment_status("space", "s").last_sequence,
    "consume_segment": lambda store: max(entry.sequence for entry in store.consume_segment("space", "s")),
    "consume_space": lambda store: max(entry.sequence for entry in store.consume_space("space")),
    "consume": lambda store: max(entry.sequence for entry in store.consume({"space": None})),
    "follow_segment": lambda store: max(e.sequence for e in store.follow_segment("space", "s", timeout=0)),
    "follow_space": lambda store: max(entry.sequence for entry in store.follow_space("space", timeout=0)),
    "subscribe_to_segment": lambda store: next(store.subscribe_to_segment("space", "s")).last_sequence,
    "subscribe_to_space": lambda store: next(store.subscribe_to_space("space")).last_sequence,
    "end_offset": lambda store: len(list(store.consume_space("space", offset=store.end_offset("space")))) or 2,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_read_that_begins_after_an_answer_sees_what_was_written(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """Two threads open the space. The first has looked before the write, and installs what it saw after the second
    has begun, which began after the write was acknowledged."""
    writer = subject.stranger()
    writer.produce("space", "s", [Record(b"1")])
    looked, begun, installed = threading.Event(), threading.Event(), threading.Event()
    backend = subject.store._backend
    service: Any = getattr(backend, "_inner", backend)  # below what tries again
    scan, read = backend.scan, service.read
    turns = iter((looked, begun))

    def wait_for_turn() -> None:
        turn = next(turns, None)
        if turn is looked:
            looked.set()
            assert begun.wait(30)
            installed.wait(0.05)  # it is not: so long the second one has, to come as far as it can
        elif turn is begun:
            assert installed.wait(30)

    def read_later() -> int:
        begun.set()
        return READERS[reader](subject.store)

    def slow_scan(partition: bytes, start: bytes, end: bytes, **options: Any) -> Any:
        found = list(scan(partition, start, end, **options))
        if start.startswith(b"TXN"):
            wait_for_turn()
        return iter(found)

    def slow_read(partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        found = read(partition, ranges)
        if any(part.key.startswith(b"TXN") for part in ranges):
            wait_for_turn()
        return found

    # A look ends by asking what is after the index: by a list or, where calls are requests, for all that may be there.
    monkeypatch.setattr(backend, "scan", slow_scan)
    monkeypatch.setattr(service, "read", slow_read)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(subject.store.segment_status, "space", "s")
        assert looked.wait(30)
        writer.produce("space", "s", [Record(b"2")])
        second = threads.submit(read_later)
        first.add_done_callback(lambda _: installed.set())
        assert first.result(30).last_sequence >= 1
        assert second.result(30) == 2


def test_threads_that_ask_for_an_absent_space_wait_for_two_looks_at_most() -> None:
    """Threads that open spaces do not wait for each other."""
    simulation, bill, threads = Simulation(), Bill(), 64
    service = services()[0]
    (client,) = simulated_clients(service, simulation, bill, 1, 1 << 20)
    store = client.store(uuid4())
    read: list[int] = []
    written: list[int] = []

    def work() -> None:
        read.append(sum(1 for _ in store.consume_space("absent")))
        if len(read) == threads:
            assert bill.requests <= 2 * 2  # a look asks for the head, and then for the row of the catalog
            assert simulation.monotonic() < 10 * service.read
        simulation.sleep(1.0)
        written.append(store.produce("absent", "s", [Record(b"")]).last_sequence)

    run_engine(simulation, *[work] * threads)
    assert read == [0] * threads
    assert sorted(written) == list(range(1, threads + 1)), "it is there for all as soon as it is made"
