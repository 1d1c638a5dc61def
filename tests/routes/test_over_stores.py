"""Programs over many stores: few threads, few looks, and every store's entries are handled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

import streamkit
from streamkit import Client, Record, Store
from streamkit.groups import Delivery
from streamkit.log.partition import Partition
from streamkit.run import ProgramOverStores, Worker
from streamkit.store import inner
from streamkit.views import Reduce

PATIENCE = 60.0


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


@contextmanager
def running(program: ProgramOverStores) -> Iterator[None]:
    thread = threading.Thread(target=program.run)
    thread.start()
    try:
        yield
    finally:
        program.stop()
        thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with streamkit.connect(f"file://{tmp_path / 'stores'}") as client:
        yield client


def _made(client: Client, count: int) -> list[Store]:
    stores = [client.store(UUID(int=number << 80)) for number in range(1, count + 1)]
    for store in stores:
        store.create_space("orders", durability="buffered")
        store.produce("orders", "first", [Record(b"1")])
    return stores


def test_fifty_stores_share_a_few_threads_and_looks(client: Client, tmp_path: Path) -> None:
    stores = _made(client, 50)
    handled: set[tuple[UUID, bytes]] = set()
    views: dict[UUID, Any] = {}

    def make(store: Store) -> list[Any]:
        views[store.id] = store.view(
            "n", Reduce(lambda n, entry: n + 1, 0), ["orders"], tmp_path / f"{store.id}.sqlite"
        )
        group = store.group("orders", "billing", lanes=1)
        return [views[store.id], Worker(group, lambda delivery: note(store, delivery))]

    def note(store: Store, delivery: Delivery) -> None:
        handled.add((store.id, delivery.entry.payload))

    program = ProgramOverStores(stores, make, threads=4)
    before = set(threading.enumerate())
    with running(program):
        _until(lambda: len(handled) == 50 and all(view.status().state == "current" for view in views.values()))
        found = program.statistics()
        assert (found.stores, found.parts) == (50, 100)
        # Several looks at every store: nothing is new, so no part has a turn.
        turns, looks = _settled(program)
        # The runner, its threads, and the one that looks.
        assert len(set(threading.enumerate()) - before) == 1 + 4 + 1
        _until(lambda: program.statistics().looks >= looks + 5 * 50)
        assert program.statistics().turns == turns
        # One entry of another process, as another client is: its store's two parts have a turn, and no other ones.
        with streamkit.connect(f"file://{tmp_path / 'stores'}") as other, other.store(stores[17].id) as store:
            store.produce("orders", "late", [Record(b"late")])
        _until(lambda: (stores[17].id, b"late") in handled and views[stores[17].id].get() == 2)
        assert program.statistics().turns <= turns + 8
    assert {part.state for part in program.status()} == {"stopped"}


def _settled(program: ProgramOverStores) -> tuple[int, int]:
    """The counts of turns and looks, after looks at all stores without a turn."""
    while True:
        before = program.statistics()
        _until(lambda looks=before.looks: program.statistics().looks >= looks + 2 * 50)  # type: ignore[misc]
        after = program.statistics()
        if after.turns == before.turns:
            return after.turns, after.looks


def test_an_entry_of_this_process_needs_no_look(client: Client) -> None:
    [store] = _made(client, 1)
    seen: list[bytes] = []
    make = lambda store: [Worker(store.group("orders", "g"), lambda delivery: seen.append(delivery.entry.payload))]  # noqa: E731
    program = ProgramOverStores([store], make, poll=3600.0)
    with running(program):
        _until(lambda: seen == [b"1"])
        store.produce("orders", "a", [Record(b"2")])
        _until(lambda: seen == [b"1", b"2"])
        assert program.statistics().looks == 1


def test_a_failing_part_stops_no_other_one_and_is_tried_again(client: Client) -> None:
    good, bad = _made(client, 2)
    seen: list[UUID] = []

    class Part:
        name = "part"
        spaces = ("orders",)

        def __init__(self, store: Store) -> None:
            self.store = store
            self.failures = 0

        def catch_up(self) -> None:
            if self.store is bad and not self.failures:
                self.failures += 1
                raise SystemExit("broken")
            seen.append(self.store.id)

    program = ProgramOverStores([good, bad], lambda store: [Part(store)])
    with running(program):
        _until(lambda: set(seen) == {good.id, bad.id})
        found = {part.name: part for part in program.status()}
        assert found[f"{bad.id}/part"].restarts == 1
        assert found[f"{good.id}/part"].restarts == 0


def test_a_delayed_job_has_its_turn_in_time(client: Client) -> None:
    [store] = _made(client, 1)
    attempts: list[int] = []

    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise ValueError("again")

    queue = store.queue("jobs", retry_delay=0.2)
    queue.put(b"job")
    program = ProgramOverStores([store], lambda store: [Worker(queue, handle)])
    with running(program):
        _until(lambda: attempts == [1, 2])


def test_stores_come_and_go_while_it_runs(client: Client) -> None:
    first, second = _made(client, 2)
    seen: list[tuple[UUID, bytes]] = []

    def make(store: Store) -> list[Worker]:
        return [Worker(store.group("orders", "g"), lambda delivery: seen.append((store.id, delivery.entry.payload)))]

    program = ProgramOverStores([first], make)
    with running(program):
        _until(lambda: seen == [(first.id, b"1")])
        program.add(second)
        with pytest.raises(ValueError, match="already"):
            program.add(second)
        _until(lambda: (second.id, b"1") in seen)
        _until(lambda: not any(turn.busy for turn in program._turns[first.id]))  # a turn that has begun sees more
        program.remove(first)
        first.produce("orders", "a", [Record(b"unseen")])
        second.produce("orders", "a", [Record(b"2")])
        _until(lambda: (second.id, b"2") in seen)
        assert (first.id, b"unseen") not in seen
        assert [store.id for store in program.stores] == [second.id]


def test_a_closed_store_ends_its_parts_alone(client: Client) -> None:
    first, second = _made(client, 2)
    seen: list[bytes] = []

    def make(store: Store) -> list[Worker]:
        return [Worker(store.group("orders", "g"), lambda delivery: seen.append(delivery.entry.payload))]

    program = ProgramOverStores([first, second], make)
    with running(program):
        _until(lambda: len(seen) == 2)
        first.close()
        second.produce("orders", "a", [Record(b"2")])
        _until(lambda: b"2" in seen)


@pytest.mark.parametrize("fault", ["hangs", "raises"])
def test_a_store_that_cannot_be_looked_at_holds_up_no_other_one(
    client: Client, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = _made(client, 2)
    seen: list[bytes] = []
    opened, looked = threading.Event(), threading.Event()
    refresh = Partition.refresh
    [failing] = inner(bad).spaces["orders"].partitions

    def refreshed(self: Partition, *args: Any, **options: Any) -> int:
        if self is failing and threading.current_thread().name == "streamkit-stores-looks":
            looked.set()
            if fault == "raises":
                raise ZeroDivisionError
            opened.wait(PATIENCE)
        return refresh(self, *args, **options)

    def make(store: Store) -> list[Worker]:
        return [Worker(store.group("orders", "g"), lambda delivery: seen.append(delivery.entry.payload))]

    monkeypatch.setattr(Partition, "refresh", refreshed)
    program = ProgramOverStores([bad, good], make, poll=0.01)
    with running(program):
        try:
            assert looked.wait(PATIENCE)
            _until(lambda: len(seen) == 2)
            good.produce("orders", "a", [Record(b"2")])
            _until(lambda: b"2" in seen)
            if fault == "raises":  # also entries of other processes are seen
                with streamkit.connect(f"file://{tmp_path / 'stores'}") as other:
                    other.store(good.id).produce("orders", "a", [Record(b"3")])
                _until(lambda: b"3" in seen)
        finally:
            opened.set()


def test_a_run_ends_although_a_look_does_not(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look that hangs is left, and looks no further. The next run has a look of its own."""
    stores = _made(client, 2)
    looked, opened = threading.Event(), threading.Event()
    lookers: list[str] = []
    refresh = Partition.refresh

    def refreshed(self: Partition, *args: Any, **options: Any) -> int:
        if threading.current_thread().name == "streamkit-stores-looks":
            lookers.append(str(threading.get_ident()))
            looked.set()
            opened.wait(PATIENCE)
        return refresh(self, *args, **options)

    class Part:
        name, spaces = "part", ("orders",)

        def catch_up(self) -> None: ...

    monkeypatch.setattr(Partition, "refresh", refreshed)
    program = ProgramOverStores(stores, lambda store: [Part()], poll=0.01)
    try:
        for run in range(2):
            looked.clear()
            with running(program):
                assert looked.wait(PATIENCE)
            assert len(lookers) == run + 1
        left = [thread for thread in threading.enumerate() if thread.name == "streamkit-stores-looks"]
        assert len(left) == 2
        assert all(thread.daemon for thread in left)
    finally:
        opened.set()
    _until(lambda: not any(thread.is_alive() for thread in left))
    assert len(lookers) == 2


def test_wrong_parts_are_refused_before_anything_runs(client: Client) -> None:
    [store] = _made(client, 1)
    with pytest.raises(TypeError, match="catch_up"):
        ProgramOverStores([store], lambda store: [object()])
    with pytest.raises(TypeError, match="several"):
        ProgramOverStores(store, lambda store: [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="function of a store"):
        ProgramOverStores([store], [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"client\.store"):
        ProgramOverStores([uuid4()], lambda store: [])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="threads"):
        ProgramOverStores([store], lambda store: [], threads=0)
