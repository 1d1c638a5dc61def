"""The fault wrapper: each fault does what it says, and the same plan gives the same trace."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from streamkit.backend import ABSENT, NEXT, Ambiguous, Backend, Conflict, Driver, Range
from streamkit.errors import LeaseLost, StoreClosed, StreamkitError, Throttled, Unavailable
from streamkit.testing import (
    CRASHES,
    DAMAGE,
    FAULTS,
    SURVIVABLE,
    At,
    BackendConformance,
    Call,
    Crash,
    Fault,
    FaultyBackend,
    FaultyDriver,
    Plan,
    every_fault,
)
from streamkit_memory import MemoryDriver

STORE = UUID(int=7)
KEYS = [b"%d" % number for number in range(5)]


def put_one(backend: Backend) -> None:
    backend.put(b"p", b"1", b"one", NEXT)


class World:
    """A root in memory: `calm` is another process beside the one that has the faults."""

    def __init__(self, plan: Plan, *, remote: bool = False) -> None:
        name = f"faults-{uuid4()}"
        self.calm = MemoryDriver(name, remote=remote).open(STORE)
        self.driver = FaultyDriver(MemoryDriver(name, remote=remote), plan)
        self.faulty = self.driver.open(STORE)

    def fill(self, keys: list[bytes]) -> None:
        for key in keys:
            self.calm.put(b"p", key, b"")

    def rows(self) -> dict[bytes, bytes]:
        return {row.key: row.data for row in self.calm.scan(b"p", b"", b"\xff")}

    @property
    def outcomes(self) -> list[tuple[str, Fault | None, str]]:
        return [(call.kind, call.fault, call.outcome) for call in self.driver.faults.trace]


class TestWithoutFaults(BackendConformance):
    """A wrapper with an empty plan keeps the whole contract."""

    def make_driver(self) -> Driver:
        return FaultyDriver(MemoryDriver("faultless"), Plan())


@pytest.mark.parametrize(
    ("fault", "error", "applied", "outcome"),
    [
        (Fault.UNAVAILABLE, Unavailable, False, "Unavailable"),
        (Fault.THROTTLED, Throttled, False, "Throttled"),
        (Fault.LOST_REQUEST, Ambiguous, False, "Ambiguous after nothing"),
        (Fault.LOST_ANSWER, Ambiguous, True, "Ambiguous after ok"),
        (Fault.LATE, Ambiguous, False, "Ambiguous after nothing yet"),
        (Fault.TWICE, Conflict, True, "Conflict"),
        (Fault.CONFLICT, Conflict, False, "Conflict"),
        (Fault.CRASH_BEFORE, Crash, False, "Crash after nothing"),
        (Fault.CRASH_AFTER, Crash, True, "Crash after ok"),
    ],
)
def test_a_fault_decides_what_a_write_does_and_what_it_answers(
    fault: Fault, error: type[BaseException], applied: bool, outcome: str
) -> None:
    world = World(Plan.at(0, fault))
    with pytest.raises(error):
        put_one(world.faulty)
    assert world.rows() == ({b"1": b"one"} if applied else {})
    assert world.outcomes == [("put", fault, outcome)]


def test_the_next_call_is_well_again() -> None:
    world = World(Plan.at(0, Fault.UNAVAILABLE))
    with pytest.raises(Unavailable):
        put_one(world.faulty)
    put_one(world.faulty)
    assert world.rows() == {b"1": b"one"}
    assert world.outcomes == [("put", Fault.UNAVAILABLE, "Unavailable"), ("put", None, "ok")]


def test_a_fault_may_go_on_for_several_calls() -> None:
    world = World(Plan.at(1, Fault.THROTTLED, times=2))
    seen = []
    for _ in range(4):
        try:
            world.faulty.get(b"p", [b"k"])
            seen.append("ok")
        except Throttled:
            seen.append("throttled")
    assert seen == ["ok", "throttled", "throttled", "ok"]


def test_a_fault_of_one_kind_counts_the_calls_of_that_kind() -> None:
    world = World(Plan.at(1, Fault.LOST_ANSWER, kind="put"))
    world.faulty.get(b"p", [b"k"])
    put_one(world.faulty)
    world.faulty.get(b"p", [b"k"])
    with pytest.raises(Ambiguous):
        world.faulty.put(b"p", b"2", b"two", NEXT)
    assert list(world.rows()) == [b"1", b"2"]


def test_a_late_write_lands_before_the_call_that_it_is_due_at() -> None:
    world = World(Plan.at(0, Fault.LATE, delay=2))
    with pytest.raises(Ambiguous):
        put_one(world.faulty)
    assert world.faulty.get(b"p", [b"1"]) == [None]
    (call,) = world.driver.faults.zombies
    assert (call.number, call.fault) == (0, Fault.LATE)
    (value,) = world.faulty.get(b"p", [b"1"])
    assert value is not None
    assert value.data == b"one"
    assert [call.kind for call in world.driver.faults.trace] == ["put", "get", "zombie", "get"]
    assert world.driver.faults.zombies == ()


def test_a_late_write_meets_what_another_process_did_in_between() -> None:
    world = World(Plan.at(0, Fault.LATE))
    with pytest.raises(Ambiguous):
        put_one(world.faulty)
    world.calm.put(b"p", b"1", b"the other's", NEXT)
    (landed,) = world.driver.faults.release()
    assert (landed.kind, landed.outcome) == ("zombie", "Conflict")
    assert world.rows() == {b"1": b"the other's"}


def test_a_late_write_lands_although_its_process_has_stopped() -> None:
    world = World(Plan((At(0, Fault.LATE), At(1, Fault.CRASH_BEFORE))))
    with pytest.raises(Ambiguous):
        put_one(world.faulty)
    with pytest.raises(Crash):
        world.faulty.get(b"p", [b"1"])
    assert world.rows() == {}
    (landed,) = world.driver.faults.release()
    assert landed.outcome == "ok"
    assert world.rows() == {b"1": b"one"}


def test_a_late_write_lands_although_its_backend_was_closed() -> None:
    world = World(Plan.at(0, Fault.LATE))
    with pytest.raises(Ambiguous):
        put_one(world.faulty)
    world.faulty.close()
    world.driver.close()
    with pytest.raises(StoreClosed):
        world.faulty.get(b"p", [b"1"])
    world.driver.faults.release()
    assert world.rows() == {b"1": b"one"}
    with pytest.raises(StoreClosed):
        world.faulty.inner.get(b"p", [b"1"])


def test_after_a_crash_every_call_of_the_process_raises() -> None:
    world = World(Plan.at(2, Fault.CRASH_AFTER))
    second = world.driver.open(STORE)
    put_one(world.faulty)
    grant = world.faulty.acquire("leader", 10)
    assert grant is not None
    scan = second.scan(b"p", b"", b"\xff")
    with pytest.raises(Crash):
        list(scan)
    assert world.driver.faults.crashed
    calls: list[Callable[[], object]] = [
        lambda: world.faulty.get(b"p", [b"1"]),
        lambda: world.faulty.read(b"p", [Range(b"1", 0, 1)]),
        lambda: world.faulty.scan(b"p", b"", b"\xff"),
        lambda: put_one(world.faulty),
        lambda: world.faulty.delete(b"p", [b"1"]),
        lambda: second.acquire("other", 1),
        lambda: second.renew(grant),
        lambda: second.release(grant),
        lambda: world.driver.open(STORE),
        lambda: world.driver.stores(),
        lambda: world.driver.delete(STORE),
    ]
    for call in calls:
        with pytest.raises(Crash):
            call()
    world.faulty.close()
    assert len(world.driver.faults.trace) == 3
    assert world.rows() == {b"1": b"one"}


def test_a_scan_under_way_ends_when_its_process_stops() -> None:
    world = World(Plan.at(1, Fault.CRASH_BEFORE))
    world.fill(KEYS)
    scan = world.faulty.scan(b"p", b"", b"\xff")
    next(scan)
    with pytest.raises(Crash):
        world.faulty.get(b"p", [b"1"])
    with pytest.raises(Crash):
        next(scan)


@pytest.mark.parametrize("rows", [0, 1, 3, 5, 99])
@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.THROTTLED, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_scan_fails_after_some_rows_and_never_just_ends(fault: Fault, rows: int) -> None:
    world = World(Plan.at(0, fault, rows=rows))
    world.fill(KEYS)
    with pytest.raises((Unavailable, Throttled, Crash)):
        list(world.faulty.scan(b"p", b"", b"\xff"))
    assert world.outcomes[0][1] is fault


def test_a_scan_gives_the_rows_before_the_failure() -> None:
    world = World(Plan.at(0, Fault.UNAVAILABLE, rows=2))
    world.fill(KEYS)
    scan = world.faulty.scan(b"p", b"", b"\xff")
    assert [next(scan).key, next(scan).key] == [b"0", b"1"]
    with pytest.raises(Unavailable):
        next(scan)


@pytest.mark.parametrize("kind", ["get", "read", "scan"])
@pytest.mark.parametrize("fault", [Fault.TRUNCATED, Fault.CORRUPT])
def test_damage_spoils_one_value_and_leaves_the_others(kind: str, fault: Fault) -> None:
    world = World(Plan.at(0, fault, kind=kind))
    whole = {b"1": b"one" * 9, b"2": b"", b"3": b"three" * 9, b"4": b"four" * 9}
    for key, data in whole.items():
        world.calm.put(b"p", key, data)

    def look() -> list[bytes]:
        match kind:
            case "get":
                return [value.data for value in world.faulty.get(b"p", list(whole)) if value]
            case "read":
                found = world.faulty.read(b"p", [Range(key, 0, 99) for key in whole])
                return [data for data in found if data is not None]
            case _:
                return [row.data for row in world.faulty.scan(b"p", b"", b"\xff")]

    spoilt = [(data, was) for data, was in zip(look(), whole.values(), strict=True) if data != was]
    assert len(spoilt) == 1
    ((data, was),) = spoilt
    if fault is Fault.TRUNCATED:
        assert was.startswith(data)
        assert len(data) < len(was)
    else:
        flipped = int.from_bytes(data) ^ int.from_bytes(was)
        assert len(data) == len(was)
        assert flipped.bit_count() == 1
    assert look() == list(whole.values())
    assert world.outcomes[0] == (kind, fault, "ok")


def test_a_fault_that_finds_nothing_to_spoil_is_not_in_the_trace() -> None:
    world = World(Plan.at(0, Fault.CORRUPT, times=9))
    assert world.faulty.get(b"p", [b"1"]) == [None]
    assert list(world.faulty.scan(b"p", b"", b"\xff")) == []
    world.faulty.put(b"p", b"1", b"")
    assert world.faulty.read(b"p", [Range(b"1", 0, 9)]) == [b""]
    assert {fault for _, fault, _ in world.outcomes} == {None}


@pytest.mark.parametrize("fault", [Fault.PARTIAL, Fault.CRASH_PARTIAL])
def test_a_delete_may_remove_some_of_its_rows(fault: Fault) -> None:
    sizes = set()
    for seed in range(20):
        world = World(Plan.at(0, fault, seed=seed))
        world.fill(KEYS)
        with pytest.raises((Ambiguous, Unavailable, Crash)):
            world.faulty.delete(b"p", KEYS)
        sizes.add(len(world.rows()))
    assert sizes <= set(range(1, 5))
    assert len(sizes) > 1


def test_one_row_is_never_written_or_deleted_in_part() -> None:
    for fault in (Fault.PARTIAL, Fault.CRASH_PARTIAL):
        world = World(Plan.at(0, fault, times=9))
        put_one(world.faulty)
        world.faulty.delete(b"p", [b"1"])
        assert world.rows() == {}
        assert {fault for _, fault, _ in world.outcomes} == {None}


def test_a_put_without_a_precondition_cannot_conflict() -> None:
    world = World(Plan.at(0, Fault.CONFLICT, times=9))
    world.faulty.put(b"p", b"1", b"")
    world.faulty.delete(b"p", [b"2"])
    for expect in (ABSENT, NEXT, "etag"):
        with pytest.raises(Conflict):
            world.faulty.put(b"p", b"2", b"", expect)
    assert list(world.rows()) == [b"1"]


def test_the_answers_of_leases_are_lost_too() -> None:
    world = World(Plan.at(0, Fault.LOST_ANSWER, kind="acquire"))
    with pytest.raises(Ambiguous):
        world.faulty.acquire("leader", 10)
    assert world.faulty.acquire("leader", 10) is None

    world = World(Plan((At(0, Fault.CONFLICT, "acquire"), At(0, Fault.CONFLICT, "renew"))))
    assert world.faulty.acquire("leader", 10) is None
    grant = world.faulty.acquire("leader", 10)
    assert grant is not None
    with pytest.raises(LeaseLost):
        world.faulty.renew(grant)
    world.faulty.renew(grant)


def test_deleting_a_store_may_go_wrong_too() -> None:
    world = World(Plan.at(0, Fault.LOST_ANSWER, kind="delete_store"))
    put_one(world.faulty)
    with pytest.raises(Ambiguous):
        world.driver.delete(STORE)
    assert list(world.driver.stores()) == []


def work(backend: Backend) -> None:
    """A small program that shrugs errors off."""
    steps: list[Callable[[int], object]] = [
        lambda at: backend.put(b"p", b"%03d" % at, b"data %d" % at, NEXT),
        lambda at: backend.put(b"p", b"head", b"%d" % at),
        lambda at: backend.get(b"p", [b"head", b"%03d" % at]),
        lambda at: list(backend.scan(b"p", b"", b"\xff")),
        lambda at: backend.read(b"p", [Range(b"head", 0, 1)]),
        lambda at: next(backend.scan(b"p", b"", b"\xff", limit=2), None),
        lambda at: backend.delete(b"p", [b"%03d" % (at - 3), b"head", b"none"]),
    ]
    for at in range(20):
        for step in steps:
            try:
                step(at)
            except StreamkitError:
                pass
            except Crash:
                return


@pytest.mark.parametrize("remote", [False, True])
def test_the_same_seed_gives_the_same_trace_and_the_same_rows(remote: bool) -> None:
    def run(seed: int) -> tuple[tuple[Call, ...], dict[bytes, bytes]]:
        world = World(Plan.random(seed, 0.3, Fault), remote=remote)
        work(world.faulty)
        world.driver.faults.release()
        return world.driver.faults.trace, world.rows()

    assert run(1) == run(1)
    assert len({run(seed)[0] for seed in range(10)}) == 10


def test_chance_brings_every_fault_that_can_happen_and_about_as_often_as_asked() -> None:
    happened: list[Fault] = []
    calls = 0
    for seed in range(60):
        menu = CRASHES if seed % 2 else (*SURVIVABLE, *DAMAGE)
        world = World(Plan.random(seed, 0.2, menu))
        work(world.faulty)
        trace = world.driver.faults.trace
        calls += sum(call.kind != "zombie" for call in trace)
        happened += [call.fault for call in trace if call.fault and call.kind != "zombie"]
    assert set(happened) == set(Fault)
    assert 0.1 < len(happened) / calls < 0.3


def test_every_fault_is_tried_at_every_call_of_a_trace() -> None:
    world = World(Plan())
    work(world.faulty)
    trace = world.driver.faults.trace[:14]
    plans = list(every_fault(trace, rows=(0,), delays=(None,)))
    assert len(plans) == len(set(plans)) == sum(len(FAULTS[call.kind]) for call in trace)
    effective = 0
    for plan in plans:
        world = World(plan)
        work(world.faulty)
        (at,) = plan.faults
        (hit,) = [call for call in world.driver.faults.trace if call.number == at.call and call.kind != "zombie"]
        assert hit.fault in (at.fault, None)
        effective += hit.fault is not None
    assert effective > 0.8 * len(plans)


def test_the_menu_limits_what_is_tried() -> None:
    calls = [Call(0, "get", "", None, "ok"), Call(1, "put", "", None, "ok"), Call(1, "zombie", "", None, "ok")]
    for menu in (SURVIVABLE, CRASHES, (Fault.LATE,)):
        plans = list(every_fault(calls, menu))
        assert plans
        assert {plan.faults[0].fault for plan in plans} <= set(menu)
    assert {plan.faults[0].delay for plan in every_fault(calls, (Fault.LATE,), delays=(None, 3))} == {None, 3}


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: At(0, Fault.TWICE, kind="get"), "TWICE cannot happen to get; these can: UNAVAILABLE"),
        (lambda: At(0, Fault.TWICE, kind="write"), "one of get, read, scan, put"),
        (lambda: At(-1, Fault.TWICE), "from 0"),
        (lambda: At(1, Fault.LATE, delay=0), "delay from 1"),
        (lambda: Plan(rate=2.0), "from 0 to 1"),
        (lambda: Plan(rate=0.5), "menu"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(make: Callable[[], object], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        make()


def test_the_trace_reads_well_and_tells_no_values() -> None:
    world = World(Plan.at(0, Fault.LATE, delay=1))
    with pytest.raises(Ambiguous):
        world.faulty.put(b"p", b"1", b"secret", NEXT)
    world.faulty.put(b"p", b"2", b"secret", ABSENT, durable=False)
    world.faulty.delete(b"p", [b"1", b"3"])
    list(world.faulty.scan(b"p", b"a", b"b", limit=3, values=False))
    assert [str(call) for call in world.driver.faults.trace] == [
        "   0 put b'p' b'1' if next !LATE -> Ambiguous after nothing yet",
        "   0 zombie b'p' b'1' if next !LATE -> ok",
        "   1 put b'p' b'2' if absent not durable -> ok",
        "   2 delete b'p' [b'1', b'3'] -> ok",
        "   3 scan b'p' b'a' to b'b' limit 3 keys only -> ok",
    ]


def test_a_backend_can_be_wrapped_alone() -> None:
    backend: Backend = FaultyBackend(MemoryDriver().open(STORE), Plan.at(0, Fault.UNAVAILABLE))
    with pytest.raises(Unavailable):
        backend.get(b"p", [b"k"])
    assert backend.get(b"p", [b"k"]) == [None]


def test_the_removal_of_leftovers_may_fail_too() -> None:
    leaving = MemoryDriver().open(STORE)
    leaving.remove_leftovers = lambda: "try again in an hour"  # type: ignore[attr-defined]
    backend = FaultyBackend(leaving, Plan.at(0, Fault.UNAVAILABLE, kind="remove_leftovers"))
    with pytest.raises(Unavailable):
        backend.remove_leftovers()
    assert backend.remove_leftovers() == "try again in an hour"
