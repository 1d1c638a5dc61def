"""Every fault at every backend call, crashes during the recovery, and processes in every order.

A sample runs with the other tests; `make test-exhaustive` runs everything. Both say how many points they covered.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE, sample

from harness.cramped import cramped
from harness.drivers import MEMORY, MakeDriver
from harness.history import History
from harness.oracle import judge
from harness.sweep import Process, Sweep, everyday, hurried, insists, maintain
from harness.turns import Schedule, every_interleaving, random_interleavings
from streamkit.errors import SequenceMismatch, StreamkitError, Unavailable
from streamkit.testing import CRASHES, SURVIVABLE, At, Fault, ManualClock, Plan
from streamkit.testing.fault_plan import Call
from streamkit_local.driver import LocalDriver
from streamkit_memory.driver import MemoryDriver

Covered = Callable[[str, int], None]


@pytest.fixture
def local() -> Iterator[MakeDriver]:
    root = mkdtemp(prefix="sweep-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    yield lambda clock: LocalDriver(root, 5.0)
    shutil.rmtree(root)


@pytest.fixture
def tight() -> Iterator[None]:
    """An engine that flushes, merges, packs, clears and sweeps within few transactions."""
    with cramped():
        yield


def spread(process: Process) -> None:
    """The everyday things in a space of three partitions."""
    try:
        process.store.create_space("s", partitions=3)
    except Exception:
        return
    everyday(process)


@pytest.mark.parametrize("backend", MEMORY)
def test_a_store_is_whole_after_every_fault_at_every_call(backend: str, covered: Covered) -> None:
    sweep = Sweep(MEMORY[backend])
    for plan in sample(sweep.plans(), 9):
        sweep.run(plan)
    covered(f"fault points, memory ({backend})", sweep.points)


@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_a_space_of_several_partitions_is_whole_after_every_fault(backend: str, covered: Covered) -> None:
    sweep = Sweep(MEMORY[backend], spread)
    for plan in sample(sweep.plans(), 23):
        sweep.run(plan)
    covered(f"fault points, three partitions, memory ({backend})", sweep.points)


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_a_crash_at_any_call_of_the_recovery_is_recovered_from(backend: str, covered: Covered) -> None:
    sweep = Sweep(MEMORY[backend])
    menu = (*CRASHES, Fault.LATE, Fault.PARTIAL)
    for at, plan in enumerate(sample(sweep.plans(menu), 19)):
        for nth, recovery in enumerate(sweep.recoveries(plan)):
            if EXHAUSTIVE or (nth + at) % 13 == 0:
                sweep.run(plan, recovery)
    covered(f"crashes during recovery, memory ({backend})", sweep.points)


def test_a_local_store_is_whole_after_every_fault_at_every_call(local: MakeDriver, covered: Covered) -> None:
    sweep = Sweep(local)
    for plan in sample(sweep.plans(), 13):
        sweep.run(plan)
    covered("fault points, local", sweep.points)


def test_a_local_recovery_may_crash_anywhere(local: MakeDriver, covered: Covered) -> None:
    sweep = Sweep(local)
    for at, plan in enumerate(sample(sweep.plans(CRASHES), 15)):
        for nth, recovery in enumerate(sweep.recoveries(plan)):
            if (nth + at) % (4 if EXHAUSTIVE else 23) == 0:
                sweep.run(plan, recovery)
    covered("crashes during recovery, local", sweep.points)


@pytest.mark.parametrize("backend", MEMORY)
def test_many_faults_at_once_are_survived(backend: str, covered: Covered) -> None:
    sweep = Sweep(MEMORY[backend])
    for seed in range(2000 if EXHAUSTIVE else 25):
        sweep.run(Plan.random(seed, 0.15, SURVIVABLE), Plan.random(seed + 1, 0.1, SURVIVABLE))
    covered(f"runs with faults by chance, memory ({backend})", sweep.points)


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("backend", MEMORY)
def test_everything_that_upkeep_asks_for_is_among_the_fault_points(backend: str) -> None:
    """Files that are made, read and replaced, heads that are moved, a log that is cleared."""
    trace = Sweep(MEMORY[backend], hurried).trace
    kinds = {(call.kind, name) for call in trace for name in ("RUN", "TXN", "PARTITIONS") if name in call.what}
    wanted = "put RUN, read RUN, scan RUN, delete RUN, put TXN, scan TXN, delete TXN, put PARTITIONS"
    if backend != "memory":  # there one scan tells that nothing follows
        wanted += ", get TXN"
    assert kinds >= {tuple(kind.split()) for kind in wanted.split(", ")}
    files = [call for call in trace if call.kind == "put" and "RUN" in call.what]
    heads = [call for call in trace if call.kind == "put" and "if etag" in call.what]
    assert len(files) > 10
    assert len(heads) > 10


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("backend", MEMORY)
def test_a_store_is_whole_after_every_fault_at_every_call_of_upkeep(backend: str, covered: Covered) -> None:
    sweep = Sweep(MEMORY[backend], hurried)
    for plan in sample(sweep.plans(), 47):
        sweep.run(plan)
    covered(f"fault points of upkeep, memory ({backend})", sweep.points)


@pytest.mark.usefixtures("tight")
def test_a_local_store_is_whole_after_every_fault_at_every_call_of_upkeep(local: MakeDriver, covered: Covered) -> None:
    sweep = Sweep(local, hurried)
    for plan in sample(sweep.plans(), 67):
        sweep.run(plan)
    covered("fault points of upkeep, local", sweep.points)


@pytest.mark.exhaustive_only("memory")
@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_a_crash_at_any_call_of_upkeep_and_of_its_recovery_is_recovered_from(backend: str, covered: Covered) -> None:
    sweep = Sweep(MEMORY[backend], hurried)
    menu = (*CRASHES, Fault.LATE, Fault.PARTIAL)
    for at, plan in enumerate(sample(sweep.plans(menu), 151)):
        for nth, recovery in enumerate(sweep.recoveries(plan)):
            if (nth + at) % (3 if EXHAUSTIVE else 37) == 0:
                sweep.run(plan, recovery)
    covered(f"crashes during recovery of upkeep, memory ({backend})", sweep.points)


@pytest.mark.usefixtures("tight")
def test_a_head_that_was_delivered_twice_keeps_its_files(covered: Covered) -> None:
    """The put gets a conflict, and the existing row cannot be read at that moment."""
    sweep = Sweep(MEMORY["memory"], hurried)
    puts = [call for call in sweep.trace if call.kind == "put"]
    heads = [(nth, call) for nth, call in enumerate(puts) if "if etag" in call.what]
    for nth, call in heads if EXHAUSTIVE else heads[::3]:
        sweep.run(Plan((At(nth, Fault.TWICE, "put"), At(call.number + 1, Fault.UNAVAILABLE))))
    covered("heads that were delivered twice, memory", sweep.points)


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("delay", [3, 6])
def test_a_head_that_lands_after_its_second_try_was_refused_keeps_its_files(delay: int, covered: Covered) -> None:
    """A service may still be busy with the first try, whose answer was lost."""
    sweep = Sweep(MEMORY["remote"], hurried)
    puts = [call for call in sweep.trace if call.kind == "put"]
    heads = [nth for nth, call in enumerate(puts) if "if etag" in call.what]
    for nth in heads if EXHAUSTIVE else heads[::2]:
        sweep.run(Plan((At(nth, Fault.LATE, "put", delay=delay), At(nth + 1, Fault.CONFLICT, "put"))))
    covered("heads that landed after a conflict, memory", sweep.points)


@pytest.mark.exhaustive_only("memory")
@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_a_file_whose_first_put_lands_late_is_the_one_that_the_head_names(backend: str, covered: Covered) -> None:
    sweep = Sweep(MEMORY[backend], hurried)
    puts = [call.what for call in sweep.trace if call.kind == "put"]
    files = [nth for nth, what in enumerate(puts) if "RUN" in what]
    for nth in files:
        sweep.run(Plan.at(nth, Fault.LATE, kind="put", delay=3))
    covered(f"files that landed late, memory ({backend})", sweep.points)


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("backend", MEMORY)
def test_many_faults_at_once_in_upkeep_are_survived(backend: str, covered: Covered) -> None:
    sweep = Sweep(MEMORY[backend], hurried)
    for seed in range(2000 if EXHAUSTIVE else 15):
        sweep.run(Plan.random(seed, 0.15, SURVIVABLE), Plan.random(seed + 1, 0.1, SURVIVABLE))
    covered(f"runs with faults by chance in upkeep, memory ({backend})", sweep.points)


# -- processes at the same time -------------------------------------------------------------------------------------


def one(process: Process) -> None:
    history, store = process.history, process.store
    history.write(store, "s", {"a": 1})
    history.write(store, "s", {"a": 1, "b": 1}, key="k")
    history.look(store, "s")


def another(process: Process) -> None:
    history, store = process.history, process.store
    history.write(store, "s", {"a": 2}, expected={"a": 1})
    history.write(store, "s", {"a": 1, "b": 1}, key="k")
    maintain(store)
    history.look(store, "s", "a")


def writes(process: Process) -> None:
    for _ in range(3):
        process.history.write(process.store, "s", {"a": 1, "b": 1})


def reads_and_keeps(process: Process) -> None:
    reader = process.history.reader("s", 2)
    for _ in range(3):
        process.history.page(process.store, reader)
        maintain(process.store)
        process.history.look(process.store, "s", "b")


def begun(process: Process) -> None:
    process.history.write(process.store, "s", {"a": 1})
    maintain(process.store)
    process.history.write(process.store, "s", {"b": 2})


@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_two_writers_may_take_turns_in_any_order(backend: str, covered: Covered) -> None:
    count = every_interleaving(MEMORY[backend], [one, another], preemptions=3 if EXHAUSTIVE else 1)
    count += every_interleaving(
        MEMORY[backend], [one, another], preemptions=2 if EXHAUSTIVE else 1, before=begun, most=1 << 60
    )
    covered(f"interleavings of two writers, memory ({backend})", count)


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_a_reader_who_keeps_the_index_may_come_between_at_any_call(backend: str, covered: Covered) -> None:
    workloads = [writes, reads_and_keeps]
    count = every_interleaving(MEMORY[backend], workloads, preemptions=2 if EXHAUSTIVE else 1, before=begun)
    covered(f"interleavings of writer and keeper, memory ({backend})", count)


def keeps(process: Process) -> None:
    """Upkeep, again and again, while the grace passes."""
    for turn in range(3):
        if turn:
            process.history.write(process.store, "s", {"a": 1, "b": 1, "c": 1})
            process.clock.sleep(40.0)
        maintain(process.store)
    process.history.look(process.store, "s", "a")


@pytest.mark.exhaustive_only("memory")
@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("backend", ["memory", "remote"])
@pytest.mark.parametrize("other", [keeps, reads_and_keeps, writes])
def test_upkeeps_and_readers_may_come_between_at_any_call(
    backend: str, other: Callable[[Process], None], covered: Covered
) -> None:
    """One of two upkeeps wins each time. A reader with an old head goes on with the new one."""
    count = every_interleaving(
        MEMORY[backend], [keeps, other], preemptions=1, before=begun, most=1 << 60 if EXHAUSTIVE else 25
    )
    seeds = range(3000 if EXHAUSTIVE else 15)
    count += random_interleavings(MEMORY[backend], [keeps, other], seeds, before=begun, rate=0.0)
    count += random_interleavings(MEMORY[backend], [keeps, other, one], seeds, before=begun)
    covered(f"interleavings of upkeeps, memory ({backend})", count)


@pytest.mark.exhaustive_only("memory")
@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_threads_of_one_process_may_keep_the_index_at_the_same_time(backend: str, covered: Covered) -> None:
    seeds = range(3000 if EXHAUSTIVE else 25)
    workloads = [keeps, writes, reads_and_keeps]
    count = random_interleavings(MEMORY[backend], workloads, seeds, before=begun, together=3)
    covered(f"interleavings of upkeeps of threads, memory ({backend})", count)


@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_three_processes_in_any_order_survive_faults_and_crashes(backend: str, covered: Covered) -> None:
    seeds = range(5000 if EXHAUSTIVE else 40)
    count = random_interleavings(MEMORY[backend], [one, another, reads_and_keeps], seeds, before=begun)
    covered(f"random interleavings with faults, memory ({backend})", count)


def test_two_writers_of_a_local_store_may_take_turns(local: MakeDriver, covered: Covered) -> None:
    most = 1 << 60 if EXHAUSTIVE else 30
    count = every_interleaving(local, [one, another], preemptions=2, before=begun, most=most)
    count += random_interleavings(local, [one, another, writes], range(1000 if EXHAUSTIVE else 20))
    covered("interleavings, local", count)


def leads(process: Process) -> None:
    history, store = process.history, process.store
    with suppress(StreamkitError), store.lease("leader") as lease:
        history.write(store, "s", {"a": 1}, lease=lease)
        history.write(store, "s", {"b": 1}, expected={"b": 2}, lease=lease)


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_threads_of_one_process_may_take_turns_in_any_order(backend: str, covered: Covered) -> None:
    """Writers queue up behind each other, share commits, and lead in turn."""
    preemptions = 2 if EXHAUSTIVE else 1
    count = every_interleaving(MEMORY[backend], [one, another], preemptions=preemptions, together=2)
    count += every_interleaving(
        MEMORY[backend],
        [another, one, writes],
        preemptions=1,
        before=begun,
        together=3,
        most=1 << 60 if EXHAUSTIVE else 60,
    )
    covered(f"interleavings of threads, memory ({backend})", count)


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_threads_of_one_process_in_any_order_survive_faults_and_crashes(backend: str, covered: Covered) -> None:
    workloads = [one, another, writes, leads, reads_and_keeps]
    seeds = range(5000 if EXHAUSTIVE else 40)
    count = random_interleavings(MEMORY[backend], workloads, seeds, before=begun, together=5)
    covered(f"random interleavings of threads with faults, memory ({backend})", count)


@pytest.mark.parametrize("backend", ["memory", "remote"])
def test_threads_and_another_process_that_rely_on_each_other_may_take_turns(backend: str, covered: Covered) -> None:
    workloads = [insists, insists, insists]
    most = 1 << 60 if EXHAUSTIVE else 30
    count = every_interleaving(MEMORY[backend], workloads, preemptions=1, before=begun, together=2, most=most)
    seeds = range(3000 if EXHAUSTIVE else 15)
    count += random_interleavings(MEMORY[backend], workloads, seeds, before=begun, together=2)
    covered(f"interleavings of threads and another process that rely on each other, memory ({backend})", count)


@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_threads_that_share_commits_each_get_their_own_answer(kind: str, rate: float, covered: Covered) -> None:
    """Six threads on one store, which group their commits, against two of another process."""
    clock, store_id, history = ManualClock(), uuid4(), History()
    driver = MemoryDriver(remote=kind == "remote", latency=0.0005, clock=clock)
    processes = [Process(driver, store_id, history, clock, Plan.random(seed, rate, SURVIVABLE)) for seed in (1, 2)]
    processes[0].history.write(processes[0].store, "s", {"a": 1})
    rounds = 100 if EXHAUSTIVE else 8

    def work(at: int) -> None:
        process, dice = processes[at >= 6], Random(at)
        reader = history.reader("s", 5)
        known = 0
        for turn in range(rounds):
            match dice.randrange(5):
                case 0:
                    history.write(process.store, "s", {"a": 1, f"own {at}": 2})
                case 1:
                    attempt = history.write(process.store, "s", {"a": 1}, expected={"a": known})
                    if isinstance(attempt.error, SequenceMismatch):
                        known = attempt.error.actual
                case 2:
                    history.write(process.store, "s", {"b": 1}, key=f"key {turn}")
                case 3:
                    history.write(process.store, "s", {"b": 1, "a": 1}, expected={"b": known})
                case _:
                    history.page(process.store, reader)
                    history.look(process.store, "s", "b")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    for process in processes:
        process.faults.release()
    judge(history, lambda: Process(driver, store_id, history, clock, Plan()).store)
    covered("writes of threads that share commits", len(history.attempts))


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_write_that_lands_while_it_is_being_settled_counts_once(after: int) -> None:
    """The answer of a put was lost, its second copy was refused, and now the first copy lands between two looks."""
    driver, store_id = MemoryDriver(), uuid4()
    history, clock = History(), ManualClock()
    late = At(3, Fault.LATE, "put", delay=after + 1)
    process = Process(driver, store_id, history, clock, Plan((late, At(4, Fault.CONFLICT, "put"))))
    for _ in range(3):
        history.write(process.store, "s", {"a": 1})
    process.faults.release()
    assert Fault.LATE in {call.fault for call in process.faults.trace}
    judge(history, lambda: Process(driver, store_id, history, clock, Plan()).store)


@pytest.mark.parametrize("call", range(12))
def test_a_commit_that_cannot_be_settled_is_never_called_failed(call: int) -> None:
    driver, store_id = MemoryDriver(), uuid4()
    history, clock = History(), ManualClock()
    faults = (At(3, Fault.LATE, "put"), At(4, Fault.CONFLICT, "put"), At(call, Fault.UNAVAILABLE))
    process = Process(driver, store_id, history, clock, Plan(faults))
    for _ in range(2):
        history.write(process.store, "s", {"a": 1})
    process.faults.release()
    judge(history, lambda: Process(driver, store_id, history, clock, Plan()).store)


def test_a_lost_answer_to_a_request_for_a_lease_is_told_as_what_it_is() -> None:
    plan = Plan.at(0, Fault.LOST_ANSWER, kind="acquire")
    clock, driver = ManualClock(), MemoryDriver()
    process = Process(driver, uuid4(), History(), clock, plan)
    with pytest.raises(Unavailable, match="answer"), process.store.lease("leader"):
        pass
    process.close()


def test_the_same_plan_and_the_same_schedule_give_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.space.new_incarnation", lambda *_: b"\x01" * 8)  # keys name it
    sweep = Sweep(MEMORY["remote"])
    plan = Plan.random(3, 0.2, SURVIVABLE)

    def run() -> list[Call]:
        monkeypatch.setattr("streamkit.index.upkeep.urandom", Random(1).randbytes)  # so do those of files
        # Ids are drawn, so packs are not of one size.
        return [call._replace(what=re.sub(r" \d+\+\d+", "", call.what)) for trace in sweep.run(plan) for call in trace]

    assert run() == run()
    assert any(call.fault for call in run())


def test_all_schedules_with_one_preemption_are_tried_once() -> None:
    """Schedules of two workers of two steps each, with one voluntary change."""
    tried = []
    prefix: tuple[int, ...] | None = ()
    while prefix is not None:
        schedule, left = Schedule(prefix), [2, 2]
        running = None
        while any(left):
            running = schedule.choose([at for at in (0, 1) if left[at]], running)
            left[running] -= 1
        tried.append("".join(str(step[0]) for step in schedule.steps))
        prefix = schedule.following(1)
    assert sorted(tried) == ["0011", "0110", "1001", "1100"]
