"""Threads that share a commit while something fails, at every call and at every step: see harness/shared_commit.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

from harness.codecs import CODECS
from harness.cuts import Cut, Interrupt
from harness.drivers import MEMORY, MakeDriver
from harness.shared_commit import NAMES, PLAIN, SPACE, Held, SharedCommit
from streamkit import Record, connect
from streamkit.clock import SYSTEM_CLOCK
from streamkit.errors import Fenced, OutcomeUnknown, SequenceMismatch
from streamkit.log import commit
from streamkit.log.commit import Committer
from streamkit.log.policy import REMOTE
from streamkit.log.request import Request
from streamkit.testing import At, Fault, Plan
from streamkit_local import syncing
from streamkit_local.driver import LocalDriver

Covered = Callable[[str, int], None]
KINDS = ("memory", "remote")
needs_twin = pytest.mark.skipif(len(CODECS) < 2, reason="the compiled twin is not installed: make speed")
PATIENCE = 60.0
BEFORE = REMOTE.upkeep - 2
"""Transactions before the shared ones, after which the index is behind."""
FAULTS = (
    Fault.UNAVAILABLE,
    Fault.LOST_REQUEST,
    Fault.LOST_ANSWER,
    Fault.LATE,
    Fault.TWICE,
    Fault.CONFLICT,
    Fault.PARTIAL,
    Fault.CRASH_BEFORE,
    Fault.CRASH_AFTER,
)


@pytest.fixture
def local(tmp_path: Path) -> MakeDriver:
    return lambda clock: LocalDriver(str(tmp_path), 5.0)


def calls_of(shared: SharedCommit) -> tuple[int, int]:
    """The numbers of the first call of the threads, and of the last."""
    calls = shared.driver.inner.faults.trace  # type: ignore[attr-defined]
    return max(at for at, call in enumerate(calls) if call.kind == "release") + 1, len(calls)


def begun(make_driver: MakeDriver, before: int = 0) -> tuple[int, int]:
    """The numbers of the first call of the threads, and of the last."""
    with SharedCommit(make_driver, before=before) as shared:
        callers = shared.run()
        assert isinstance(callers["wrong"].error, SequenceMismatch)
        assert isinstance(callers["deposed"].error, Fenced)
        assert isinstance(callers["rival"].error, SequenceMismatch)
        assert callers["once"].told == callers["again"].told
        statistics = shared.store.statistics()
        assert statistics.transactions < before + 8, "they were not committed together"
        assert not before or statistics.upkeeps, "nothing was brought forward"
        return calls_of(shared)


@pytest.mark.parametrize("kind", KINDS)
def test_everybody_is_told_the_truth_after_every_fault_at_every_call(kind: str, covered: Covered) -> None:
    make_driver = MEMORY[kind]
    first, last = begun(make_driver)
    points = 0
    for fault_number, fault in enumerate(FAULTS):
        for number in range(first, last):
            if EXHAUSTIVE or (number + fault_number) % 3 == 0:
                with SharedCommit(make_driver, Plan((At(number, fault),))) as shared:
                    shared.run()
                points += 1
    covered(f"faults in shared commits, memory ({kind})", points)


def test_everybody_is_told_the_truth_while_the_index_is_brought_forward(covered: Covered) -> None:
    """Upkeep is due after one of the commits. Its thread has its own answer already, and so have the others."""
    first, last = begun(MEMORY["remote"], BEFORE)
    points = 0
    for fault_number, fault in enumerate(FAULTS):
        for number in range(first, last):
            if EXHAUSTIVE or (number + fault_number) % 3 == 0:
                with SharedCommit(MEMORY["remote"], Plan((At(number, fault),)), before=BEFORE) as shared:
                    shared.run()
                points += 1
    covered("faults in shared commits with upkeep, memory (remote)", points)


def test_an_interrupt_at_any_step_leaves_nobody_behind_while_the_index_is_brought_forward(covered: Covered) -> None:
    points = cuts(MEMORY["remote"], "first", 1 if EXHAUSTIVE else 61, 0, BEFORE)
    assert points
    covered("interrupts of shared commits with upkeep, memory (remote)", points)


@pytest.mark.parametrize("kind", KINDS)
def test_everybody_is_told_the_truth_where_the_outcome_cannot_be_learned(kind: str, covered: Covered) -> None:
    """The answer is lost, and so is the later look for the outcome."""
    first, last = begun(MEMORY[kind])
    points = unknown = 0
    for fault in (Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.LATE):
        for number in range(first, last):
            plan = Plan((At(number, fault), *(At(number + more, Fault.UNAVAILABLE) for more in range(1, 12))))
            with SharedCommit(MEMORY[kind], plan) as shared:
                callers = shared.run()
            unknown += sum(isinstance(caller.error, OutcomeUnknown) for caller in callers.values())
            points += 1
    assert unknown > 10
    covered(f"lost outcomes of shared commits, memory ({kind})", points)


@pytest.mark.parametrize("error", [Interrupt, MemoryError])
@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_that_ends_in_the_storage_leaves_nobody_behind(
    kind: str, error: type[BaseException], covered: Covered
) -> None:
    """The leader's call raises what is no error of a storage, before it has an effect and after."""
    at = points = 0

    def end() -> None:
        raise error

    while True:
        with SharedCommit(MEMORY[kind]) as shared:
            shared.driver.at, shared.driver.act = at, end
            callers = shared.run()
            ended = [name for name, caller in callers.items() if isinstance(caller.error, error)]
        if not ended:
            break
        assert len(ended) == 1
        points += 1
        at += 1
    assert points > 4
    covered(f"threads that ended in the storage, memory ({kind})", points)


def cuts(
    make_driver: MakeDriver, victim: str, one_in: int, offset: int, before: int = 0, names: Sequence[str] = NAMES
) -> int:
    """A run with an interrupt at every nth step of one thread; how many that were."""
    points, at = 0, offset
    while True:
        cut = Cut(at)
        try:
            with SharedCommit(make_driver, before=before, names=names) as shared:
                callers = shared.run(cut, victim)
        except BaseException as broken:
            broken.add_note(f"step {at} of {victim!r}: {cut.where}")
            raise
        if not cut.where:
            assert callers[victim].error is None or points == 0
            return points
        points += 1
        at += one_in


@pytest.mark.parametrize("victim", ["first", "plain", "next"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_any_step_of_a_thread_leaves_nobody_behind(kind: str, victim: str, covered: Covered) -> None:
    one_in = 1 if EXHAUSTIVE else 23
    points = cuts(MEMORY[kind], victim, one_in, 0 if EXHAUSTIVE else KINDS.index(kind) * 5)
    assert points
    covered(f"interrupts of shared commits, memory ({kind})", points)


@pytest.mark.parametrize("victim", ["first", "plain"])
def test_an_interrupt_at_any_step_leaves_nobody_behind_on_a_local_disk(
    local: MakeDriver, victim: str, covered: Covered
) -> None:
    points = cuts(local, victim, 1 if EXHAUSTIVE else 23, 0)
    covered("interrupts of shared commits, local", points)


def test_a_fork_at_any_call_of_a_shared_commit_disturbs_nobody(local: MakeDriver, covered: Covered) -> None:
    """The child of a leading thread has the store to itself: it writes, and the parent goes on."""
    at = points = 0
    while True:
        with SharedCommit(local) as shared:
            driver: Held = shared.driver
            pids: list[int] = []

            def fork(shared: SharedCommit = shared, driver: Held = driver, pids: list[int] = pids) -> None:
                driver.at = -1
                pid = os.fork()
                if pid == 0:
                    signal.alarm(20)
                    try:
                        shared.store.produce(SPACE, "child", [Record(b"child")])
                    except BaseException:
                        os._exit(1)
                    os._exit(0)
                pids.append(pid)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

            driver.at, driver.act = at, fork
            shared.run()
            if not pids:
                break
            assert [entry.payload for entry in shared.store.consume_segment(SPACE, "child")] == [b"child"]
        points += 1
        at += 1 if EXHAUSTIVE else 2
    assert points
    covered("forks in shared commits", points)


class Forking:
    """A clock that forks once, if it is asked for the time by the thread `main`."""

    monotonic = staticmethod(SYSTEM_CLOCK.monotonic)
    sleep = staticmethod(SYSTEM_CLOCK.sleep)
    wait = SYSTEM_CLOCK.wait

    def __init__(self, fork: Callable[[], None]) -> None:
        self.fork = fork
        self.armed = False

    def now(self) -> int:
        if self.armed and threading.current_thread() is threading.main_thread():
            self.armed = False
            self.fork()
        return SYSTEM_CLOCK.now()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("leads", [True, False])
def test_a_child_that_goes_on_with_a_call_leaves_those_of_other_threads_to_its_parent(
    leads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler forks while its thread leads the commit, or waits for it."""
    children, parent, sync_data = list[int](), os.getpid(), syncing.sync_data
    inside, go = threading.Event(), threading.Event()

    def fork(*_: object) -> None:
        children.append(os.fork())
        if children == [0]:
            signal.alarm(20)
        go.set()

    def held(fd: int) -> None:
        if not inside.is_set():
            inside.set()
            go.wait(PATIENCE)
        sync_data(fd)

    clock = Forking(fork)
    with connect(tmp_path.as_uri(), clock=clock) as client, client.store(uuid4()) as store:
        store.produce(SPACE, "a", [Record(b"begun")])
        queue = store._writer.committer(SPACE, ())._queue
        monkeypatch.setattr(syncing, "sync_data", held)
        first, other = (
            threading.Thread(target=store.produce, args=(SPACE, name, [Record(b"")]), daemon=True)
            for name in ("first", "other")
        )
        first.start()
        assert inside.wait(PATIENCE)

        def interrupt() -> None:
            while len(queue) < 1:
                time.sleep(0.001)
            other.start()
            while len(queue) < 2:
                time.sleep(0.001)
            if leads:
                clock.armed = True
                go.set()
            else:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, fork)
        threading.Thread(target=interrupt, daemon=True).start()
        code = 1
        try:
            store.produce(SPACE, "main", [Record(b"")])
            code = 0
        finally:
            if os.getpid() != parent:
                os._exit(code)
            signal.signal(signal.SIGUSR1, before)
        first.join(PATIENCE)
        other.join(PATIENCE)
        assert os.waitpid(children[0], 0)[1] == 0
        found = [len(list(store.consume_segment(SPACE, name))) for name in ("first", "other", "main")]
    assert found in ([1, 1, 1], [1, 1, 2]), "both processes may have written what both were to write"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each commit of several requests: True if it was made without a plan."""
    taken: list[bool] = []
    commit = Committer._commit_shared

    def noted(committer: Committer, requests: Sequence[Request]) -> bool:
        at = len(taken)
        taken.append(False)
        taken[at] = commit(committer, requests)
        return taken[at]

    monkeypatch.setattr(Committer, "_commit_shared", noted)
    return taken


@needs_twin
def test_threads_that_only_write_to_their_own_segments_share_a_commit_without_a_plan(taken: list[bool]) -> None:
    with SharedCommit(MEMORY["memory"], names=PLAIN) as shared:
        callers = shared.run()
        assert {name: caller.error for name, caller in callers.items()} == dict.fromkeys(PLAIN)
        statuses = [callers[name].told for name in PLAIN[1:]]
        entries = [shared.store.peek(SPACE, segment) for segment in ("b", "2", "3")]
        assert [(status.last_sequence, status.trx) for status in statuses] == [  # type: ignore[attr-defined]
            (entry.sequence, entry.trx) for entry in entries
        ]
        for status in statuses:
            assert status == shared.store.segment_status(SPACE, status.segment)  # type: ignore[attr-defined]
            after = list(shared.store.consume_space(SPACE, offset=status.space_offset))  # type: ignore[attr-defined]
            assert [entry.payload for entry in after] == [b"after 0", b"after 1"]
    assert taken == [True]


@needs_twin
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_everybody_is_told_the_truth_after_every_fault_of_a_commit_without_a_plan(
    kind: str, local: MakeDriver, taken: list[bool], covered: Covered
) -> None:
    make_driver = local if kind == "local" else MEMORY[kind]
    with SharedCommit(make_driver, names=PLAIN) as shared:
        shared.run()
        first, last = calls_of(shared)
    points = 0
    for fault_number, fault in enumerate(FAULTS):
        for number in range(first, last):
            if EXHAUSTIVE or (number + fault_number) % 3 == 0:
                with SharedCommit(make_driver, Plan((At(number, fault),)), names=PLAIN) as shared:
                    shared.run()
                points += 1
    assert any(taken)
    covered(f"faults in commits without a plan, {kind}", points)


@needs_twin
@pytest.mark.parametrize("victim", PLAIN[:2])
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_an_interrupt_at_any_step_of_a_commit_without_a_plan_leaves_nobody_behind(
    kind: str, victim: str, local: MakeDriver, taken: list[bool], covered: Covered
) -> None:
    make_driver = local if kind == "local" else MEMORY[kind]
    points = cuts(make_driver, victim, 1 if EXHAUSTIVE else 11, PLAIN.index(victim), names=PLAIN)
    assert any(taken)
    covered(f"interrupts of commits without a plan, {kind}", points)


class Turn:
    """A lock that says how often its thread has slept, and whether it was woken up."""

    def __init__(self) -> None:
        self.slept = 0
        self.woken = True

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self.slept += blocking
        return not blocking or self.woken


def test_callers_are_let_in_before_a_commit_unless_a_thread_that_computes_keeps_the_interpreter() -> None:
    with SharedCommit(MEMORY["memory"]) as shared:
        shared.store.produce(SPACE, "a", [Record(b"begun")])
        committer = shared.store._writer.committer(SPACE, ())
        answered, waiting, turn = Request(()), Request(()), Turn()
        waiting.turn = turn  # type: ignore[assignment]
        committer._let_in(waiting)
        assert not turn.slept, "nobody has an answer yet"
        answered.alive.acquire()
        committer._last_woken = answered
        committer._let_in(waiting)
        assert turn.slept == 1
        assert answered.following is waiting
        committer._let_in(waiting)
        assert turn.slept == 1, "they have been let in"
        turn.woken = False
        for _ in range(2 * (commit._HASTE + 1)):
            committer._last_woken = answered
            committer._let_in(waiting)
        assert turn.slept == 3
        committer._last_woken, committer._haste, committer._at_once = answered, 0, True
        committer._let_in(waiting)
        assert turn.slept == 3, "the last commit did not wait, and nor does this one"
        committer._last_woken, committer._at_once = answered, False
        answered.alive.release()
        committer._let_in(waiting)
        assert turn.slept == 3, "its thread has left"


@pytest.mark.parametrize("waits", [True, False])
def test_a_shared_commit_notes_whether_it_waited_for_the_storage(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_AT_ONCE", 0.0 if waits else PATIENCE)
    with SharedCommit(MEMORY["memory"], names=PLAIN) as shared:
        shared.run()
        assert shared.store._writer.committer(SPACE, ())._at_once is not waits


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_the_last_caller_that_is_let_in_wakes_the_leader(
    threads: int, local: MakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "_LET_IN", PATIENCE)
    monkeypatch.setattr(commit, "_AT_ONCE", 0.0)
    ended = list[int]()
    with SharedCommit(local) as shared:

        def write(at: int) -> None:
            for _ in range(50):
                shared.store.produce(SPACE, f"of {at}", [Record(b"")])
            ended.append(at)

        writers = [threading.Thread(target=write, args=(at,), daemon=True) for at in range(threads)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(PATIENCE / 2)
        assert len(ended) == threads


def test_errors_that_are_kept_keep_no_later_requests() -> None:
    """Their tracebacks have the frame of the commit, and the frame has the request."""
    with SharedCommit(MEMORY["memory"]) as shared:
        errors = [caller.error for caller in shared.run().values() if caller.error is not None]
    requests = list[Request]()
    for error in errors:
        trace = error.__traceback__
        while trace is not None:
            requests += [found for found in trace.tb_frame.f_locals.values() if isinstance(found, Request)]
            trace = trace.tb_next
    assert len(requests) >= len(errors) > 1
    assert all(request.following is None for request in requests)
