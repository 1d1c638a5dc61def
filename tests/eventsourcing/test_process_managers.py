"""Process managers: each command takes effect once, wherever a process stopped, also if events are delivered again."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import sample
from fix_stores import Subject

from harness.cramped import cramped
from harness.drivers import MEMORY, MakeDriver
from harness.sweep import StillClock
from streamkit import Lease, Record, Store, StreamkitError
from streamkit.client import Client
from streamkit.eventsourcing import Aggregate, DomainEvent, ProcessManager, Repository, event
from streamkit.groups import Group
from streamkit.run import Program, Worker
from streamkit.run.program import PartStatus
from streamkit.testing import CRASHES, SURVIVABLE, Crash, FaultyDriver, ManualClock, Plan, every_fault
from streamkit_local.driver import LocalDriver
from streamkit_memory import MemoryDriver

Covered = Callable[[str, int], None]


class Order(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.paid = 0

    @event
    def open(self, item: str) -> None:
        pass

    @event
    def pay(self, cents: int) -> None:
        self.paid += cents


class Shipment(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    @event
    def step(self, what: str) -> None:
        self.steps.append(what)


def shipping(store: Store) -> ProcessManager:
    """React to each payment with two steps of the order's shipment and one entry in the list of all."""
    shipments = Repository(store, "shipments", Shipment)

    def ship(paid: DomainEvent) -> None:
        cents = paid.arguments["cents"]
        paid.execute(shipments, paid.id, lambda shipment: shipment.step(f"pack {cents}"))
        paid.execute(shipments, paid.id, lambda shipment: shipment.step(f"send {cents}"))
        paid.execute(shipments, "all", lambda shipment: shipment.step(f"{paid.id} {cents}"))

    return ProcessManager("shipping", Repository(store, "orders", Order), {"pay": ship}, ack_timeout=10.0, lanes=2)


def pay(store: Store, order: str, *cents: int) -> None:
    orders = Repository(store, "orders", Order)
    for each in cents:
        orders.execute(order, lambda order, each=each: order.pay(each))  # type: ignore[misc]


def steps(store: Store, id: str) -> list[str]:
    return [arguments["what"] for _, arguments in Repository(store, "shipments", Shipment).events(id)]


def packed(*cents: int) -> list[str]:
    return [f"{what} {each}" for each in cents for what in ("pack", "send")]


def test_a_process_manager_reacts_to_each_event_once_and_in_order(subject: Subject) -> None:
    store = subject.store
    Repository(store, "orders", Order).execute("a", lambda order: order.open("tea"))
    pay(store, "a", 1, 2)
    pay(store, "b", 3)
    manager = shipping(store)
    assert manager.catch_up().acked == 4, "what it has no reaction to is passed over"
    pay(store, "a", 4)
    shipping(subject.stranger()).catch_up()
    assert (steps(store, "a"), steps(store, "b")) == (packed(1, 2, 4), packed(3))
    assert sorted(steps(store, "all")) == ["a 1", "a 2", "a 4", "b 3"]
    manager.group.seek("beginning")
    assert manager.catch_up().acked == 5
    assert steps(store, "a") == packed(1, 2, 4), "what was done is not done again, also if all of it is delivered again"
    assert manager.status().lag == 0


def test_a_reaction_that_raises_is_tried_again_and_does_nothing_twice(subject: Subject) -> None:
    store = subject.store
    pay(store, "a", 1)
    shipments, attempts = Repository(store, "shipments", Shipment), list[int]()

    def ship(paid: DomainEvent) -> None:
        attempts.append(paid.attempt)
        paid.execute(shipments, paid.id, lambda shipment: shipment.step("pack"))
        if len(attempts) < 3:
            raise ValueError("the printer has no paper")
        paid.execute(shipments, paid.id, lambda shipment: shipment.step("send"))

    manager = ProcessManager("shipping", Repository(store, "orders", Order), ship, max_deliveries=2, retry_delay=0.0)
    assert manager.catch_up().failed == 2
    (letter,) = manager.group.dead_letters()
    assert (letter.entry.segment, steps(store, "a")) == ("a", ["pack"])
    assert manager.group.redrive() == 1
    manager.catch_up()
    assert (steps(store, "a"), attempts) == (["pack", "send"], [1, 2, 1])


def test_commands_that_have_names_may_be_left_out_the_second_time(subject: Subject) -> None:
    store = subject.store
    pay(store, "a", 1)
    shipments, turns = Repository(store, "shipments", Shipment), list[int]()

    def ship(paid: DomainEvent) -> None:
        turns.append(1)
        for what in ("insure", "send") if len(turns) == 1 else ("send",):
            paid.execute(shipments, paid.id, lambda shipment, what=what: shipment.step(what), name=what)  # type: ignore[misc]
        if len(turns) == 1:
            raise ValueError("once")

    ProcessManager("shipping", Repository(store, "orders", Order), ship, retry_delay=0.0).catch_up()
    assert (steps(store, "a"), len(turns)) == (["insure", "send"], 2)


def test_an_order_that_was_deleted_and_made_again_is_another_one(subject: Subject) -> None:
    store = subject.store
    pay(store, "a", 1)
    shipping(store).catch_up()
    store.delete_space("orders")
    pay(store, "a", 2)
    shipping(subject.stranger()).catch_up()
    assert steps(store, "a") == packed(1, 2), "events are not taken for those of the same place before"


def test_what_a_manager_cannot_do_is_told_when_it_is_made(subject: Subject) -> None:
    orders = Repository(subject.store, "orders", Order)
    for unknown, named in ({"paid": print}, "'paid'"), ({"pay": print, None: print, 3: print}, "3, None"):
        with pytest.raises(ValueError, match=f"Order has no event {named}: .* there are 'open', 'pay'"):
            ProcessManager("shipping", orders, unknown)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"there is no reaction: .* there are 'open', 'pay'"):
        ProcessManager("shipping", orders, {})
    with pytest.raises(TypeError, match="the events of a Repository, or of the `sync` of an AsyncRepository"):
        ProcessManager("shipping", Order, {})  # type: ignore[arg-type]
    group = subject.store.group("orders", "g")
    with pytest.raises(TypeError, match=r"Worker\(group, handler\)"):
        Program(subject.store, [group])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"as in Program\(store, \[view\]\)"):
        Program(subject.store, Worker(group, print))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="of a group or a queue"):
        Worker(subject.store, print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="handler is a function of a delivery"):
        Worker(group, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is a function of a DomainEvent"):
        ProcessManager("shipping", orders, {"pay": None})  # type: ignore[dict-item]


def test_managers_and_workers_are_parts_of_a_program(subject: Subject) -> None:
    store = subject.store
    seen: list[bytes] = []
    group = store.group("orders", "seen")
    program = Program(store, [shipping(store), Worker(group, lambda delivery: seen.append(delivery.entry.payload))])
    thread = threading.Thread(target=program.run)
    thread.start()
    pay(store, "a", 1, 2)
    entries = store.follow_space("shipments", timeout=60)
    found = [next(entries) for _ in range(6)]
    program.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert [part.name for part in program.status()] == ["shipping", "seen"]
    assert (len({entry.stream_id for entry in found}), steps(store, "a")) == (6, packed(1, 2))
    group.run(lambda delivery: seen.append(delivery.entry.payload), drain=True)
    assert seen == [b'{"cents":1}', b'{"cents":2}']


@pytest.mark.parametrize("name", ["v" * 255, "é" * 127])
def test_a_part_of_any_name_runs_under_its_lease(subject: Subject, name: str) -> None:
    class Part:
        def __init__(self) -> None:
            self.name = name

        def run(self, stop: Any = None, *, seconds: float | None = None) -> None:
            program.stop()

    program = Program(subject.store, [], led=[Part()])
    program.run(seconds=0)
    assert [(part.state, part.error) for part in program.status()] == [("stopped", None)]


class Part:
    """Does one thing after the other each time that it runs; then it stops its program."""

    name = "part"

    def __init__(self, *does: Callable[[], None]) -> None:
        self.clock = ManualClock()
        self.begun: list[float] = []
        """The time of the start, in seconds."""
        self._does = iter(does)
        driver = MemoryDriver(uuid4().hex, clock=self.clock, sleep=self.clock.sleep)
        self.store = Client("memory://", driver, 30.0, None, 64 << 20, self.clock).store(uuid4())

    def run(self, stop: Any = None, *, seconds: float | None = None) -> None:
        self.begun.append(self.clock.monotonic())
        next(self._does, self.program.stop)()

    def run_in(self, program: Program, seconds: float | None = None) -> PartStatus:
        self.program = program
        program.run(seconds=seconds)
        (status,) = program.status()
        return status


def test_a_part_that_ends_by_itself_is_not_started_all_the_time() -> None:
    part = Part(lambda: None, lambda: None)
    part.run_in(Program(part.store, [part]))
    assert [round(at - part.begun[0], 3) for at in part.begun] == [0, 0.5, 1.0]


def test_a_part_that_exits_is_one_that_raises() -> None:
    part = Part(partial(sys.exit, "no more"))
    status = part.run_in(Program(part.store, [part]))
    assert (len(part.begun), status.state, status.error) == (2, "stopped", "SystemExit: no more")


def test_a_part_whose_lease_was_lost_has_the_rest_of_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = Store.lease, list[Lease]()

    def lease(store: Store, *arguments: Any, **options: Any) -> Lease:
        made.append(make(store, *arguments, **options))
        return made[-1]

    monkeypatch.setattr(Store, "lease", lease)
    part = Part(lambda: made[0].lost.set())
    part.run_in(Program(part.store, [], led=[part]), seconds=60)
    assert len(part.begun) == 2
    assert part.begun[1] - part.begun[0] < 20


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements are written at once, not by a timer's thread: the same plan gives the same run."""
    consumer = Group.consumer
    monkeypatch.setattr(Group, "consumer", lambda group, name=None: consumer(group, name, linger=0))


class Kills:
    """Runs of one manager on stores under one root, each by a process that meets a fault, and those that follow it."""

    def __init__(self, make_driver: MakeDriver, *, later: float = 0.0) -> None:
        self._clock = StillClock()
        self._make = lambda: make_driver(self._clock)
        self._later = later
        """Seconds until another process comes by, when all keys are forgotten."""
        self.runs = 0

    def _forget(self, store: Store) -> None:
        self._clock.sleep(self._later)
        for at in range(12):
            store.produce("shipments", "noise", [Record(b"%d" % at)])
            store.maintain("shipments")
            self._clock.sleep(self._later)

    def plans(self) -> Iterator[Plan]:
        return every_fault(self.run(Plan()).faults.trace, (*CRASHES, *SURVIVABLE), rows=(0,))

    def run(self, plan: Plan) -> FaultyDriver:
        self.runs += 1
        id, driver = uuid4(), self._make()

        def open_store(driver: Any) -> Store:
            return Client("kills://", driver, 5.0, None, 64 << 20, self._clock).store(id)

        try:
            store = open_store(driver)
            if self._later:
                store.create_space("shipments", idempotency_window=1.0)
            pay(store, "a", 1, 2)
            pay(store, "b", 3)
            faulty = FaultyDriver(self._make(), plan)
            dying = open_store(faulty)
            with suppress(Crash):
                for _ in range(3):
                    with suppress(StreamkitError):
                        shipping(dying).catch_up()
                        break
            pay(store, "a", 4)
            if self._later:
                self._forget(store)
            faulty.faults.release()
            last = shipping(open_store(self._make()))
            for _ in range(20):
                last.catch_up()
                status = last.status()
                if not (status.lag or status.pending or status.ready or status.delayed):
                    break
                self._clock.sleep(10.0)
            assert (status.lag, status.pending, status.ready, status.delayed, status.dead) == (0, 0, 0, 0, 0)
            seen = open_store(self._make())
            assert (steps(seen, "a"), steps(seen, "b")) == (packed(1, 2, 4), packed(3))
            assert sorted(steps(seen, "all")) == ["a 1", "a 2", "a 4", "b 3"]
            return faulty
        except BaseException as error:
            error.add_note(f"with {plan}")
            raise
        finally:
            driver.delete(id)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("backend", "one_in"), [("memory", 11), ("remote", 29)])
def test_every_fault_at_every_call(backend: str, one_in: int, covered: Covered) -> None:
    kills = Kills(MEMORY[backend])
    for plan in sample(kills.plans(), one_in):
        kills.run(plan)
    covered("runs of a process manager that met a fault, memory", kills.runs)


@pytest.mark.usefixtures("one_thread")
def test_keys_that_the_store_has_forgotten_are_not_needed(covered: Covered) -> None:
    with cramped():
        kills = Kills(MEMORY["memory"], later=86_400.0)
        for plan in sample((plan for plan in kills.plans() if plan.faults[0].fault in CRASHES), 9):
            kills.run(plan)
    covered("runs of a process manager that met a fault and rested for days, memory", kills.runs)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("created", [1000.0, float("inf")])
def test_a_window_that_was_made_shorter_doubles_nothing(created: float) -> None:
    clock = StillClock()
    with cramped():
        store = Client("window://", MEMORY["memory"](clock), 5.0, None, 64 << 20, clock).store(uuid4())
        store.create_space("shipments", idempotency_window=created)
        pay(store, "a", 1)
        manager = shipping(store)
        manager.catch_up()
        if created == 1000.0:
            store.change_space("shipments", idempotency_window=100.0)
        for _ in range(12):
            store.produce("shipments", "noise", [Record(b"")])
            store.maintain("shipments")
            clock.sleep(38.0)
        manager.group.seek("beginning")
        assert manager.catch_up().acked == 1
        assert steps(store, "a") == packed(1)


@pytest.mark.usefixtures("one_thread")
def test_every_fault_at_every_call_on_a_disk(covered: Covered) -> None:
    root = mkdtemp(prefix="kills-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    try:
        kills = Kills(lambda clock: LocalDriver(root, 5.0))
        for plan in sample(kills.plans(), 23):
            kills.run(plan)
    finally:
        shutil.rmtree(root)
    covered("runs of a process manager that met a fault, local", kills.runs)
