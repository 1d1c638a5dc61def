"""A write that is cancelled was committed or not: withdrawn while it was queued, or on its way and can be asked for."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from fix_aio import PATIENCE, AsyncSubject, in_loop
from fix_covered import EXHAUSTIVE

from harness.cuts import Cut, Interrupt
from harness.drivers import MEMORY
from harness.held_store import HeldStore, held_store
from streamkit import Record
from streamkit.aio import AsyncStore
from streamkit.aio.workers import Workers
from streamkit.aio.writing import CommitQueue
from streamkit.client import Client
from streamkit.errors import OutcomeUnknown, Unavailable
from streamkit.log import plan
from streamkit.log.commit import Committer
from streamkit.members import Members, Membership
from streamkit.testing import ManualClock

KINDS = ("memory", "remote")


def write(store: AsyncStore, payload: str, segment: str = "a", **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(store.produce("s", segment, [Record(payload.encode())], **options))


async def cancelled(task: asyncio.Task[Any]) -> UUID | None:
    """Cancels it; the transaction id that it leaves."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    # One that has not begun has none.
    found: UUID | None = getattr(raised.value, "transaction_id", None)
    return found


async def queued() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_one_that_is_queued_is_withdrawn_and_its_neighbours_are_not(kind: str) -> None:
    async with held_store(kind) as held:
        await held.hold()
        first = write(held.store, "first")
        await held.held()
        before, doomed, after = [write(held.store, name) for name in ("before", "doomed", "after")]
        await queued()
        assert await cancelled(doomed) is None
        held.release()
        await asyncio.gather(first, before, after)
        assert await held.payloads() == [b"begun", b"first", b"before", b"after"]


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_one_that_is_on_its_way_can_be_asked_for(kind: str) -> None:
    async with held_store(kind) as held:
        await held.hold()
        task = write(held.store, "on its way")
        await held.held()
        id = await cancelled(task)
        assert id is not None
        outcome = asyncio.create_task(held.store.outcome(id))
        await asyncio.sleep(0.05)
        assert not outcome.done(), "it is not known yet"
        held.release()
        assert await outcome == "committed"
        entries = [entry async for entry in held.store.consume_space("s")]
        assert [entry.payload for entry in entries] == [b"begun", b"on its way"]
        assert entries[-1].trx.id == id


@in_loop
async def test_one_that_is_on_its_way_with_its_neighbours_can_be_asked_for_and_they_are_written() -> None:
    async with held_store("memory") as held:
        store, on_its_way, go_on = held.store, threading.Event(), threading.Event()
        for segment in ("b", "c"):
            await store.produce("s", segment, [Record(b"begun")])

        def act() -> None:
            on_its_way.set()
            assert go_on.wait(20)

        await held.hold()
        held.driver.at, held.driver.act = 2, act  # the next append
        first = asyncio.create_task(store.produce("s", "a", [Record(b"first")]))
        await held.held()
        others = [asyncio.create_task(store.produce("s", name, [Record(b"2")])) for name in ("b", "c")]
        await asyncio.sleep(0)
        held.release()
        assert await asyncio.to_thread(on_its_way.wait, 20)
        transaction = await cancelled(others[0])
        go_on.set()
        status = await others[1]
        assert status.trx is not None
        assert transaction == status.trx.id
        assert await store.outcome(transaction) == "committed"
        assert (await first).last_sequence == 2
        assert await held.payloads() == [b"begun"] * 3 + [b"first", b"2", b"2"]


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_one_whose_number_another_process_takes_is_never_tried_again(kind: str) -> None:
    """The cancelled write was sent together with another one, and the commit was lost. Only the other one goes into the
    next transaction."""
    async with held_store(kind) as held:
        await held.hold()
        first = write(held.store, "first")
        await held.held()
        held.driver.held.clear()
        # Both of the next go together, and are held.
        doomed, neighbour = write(held.store, "doomed", "b"), write(held.store, "neighbour", "c")
        await queued()
        go, held.driver.go = held.driver.go, threading.Event()
        held.driver.hold = True
        go.set()
        await first
        await held.held()
        id = await cancelled(doomed)
        assert id is not None
        other = Client("other://", MEMORY[kind](ManualClock()), 5.0, None, 64 << 20, ManualClock())
        await asyncio.to_thread(other.store(held.id).produce, "s", "z", [Record(b"faster")])
        held.release()
        status = await neighbour
        assert await held.store.outcome(id) == "absent"
        assert status.trx is not None
        assert status.trx.id != id
        assert await held.payloads() == [b"begun", b"first", b"faster", b"neighbour"]
        await held.store.produce("s", "a", [Record(b"after")])
        assert b"doomed" not in await held.payloads()
        other.close()


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_one_that_others_build_on_takes_nobody_along(kind: str) -> None:
    """`next` expects what `doomed` would have written; without it, it is refused."""
    async with held_store(kind) as held:
        await held.hold()
        first = write(held.store, "first", "x")
        await held.held()
        doomed = write(held.store, "doomed", expected_sequence=1)
        await queued()
        following = write(held.store, "next", expected_sequence=2)
        rival = write(held.store, "rival", expected_sequence=1)
        await queued()
        assert await cancelled(doomed) is None
        held.release()
        await asyncio.gather(first, rival)
        told = (await asyncio.gather(following, return_exceptions=True))[0]
        there = await held.payloads()
        assert (b"next" in there) == (not isinstance(told, Exception))
        assert b"doomed" not in there


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_one_that_is_withdrawn_while_its_transaction_is_planned_is_not_written(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write is cancelled after it left the queue, while the index is asked about its idempotency key."""
    async with held_store(kind) as held:
        await held.hold()
        first = write(held.store, "first", "x")
        await held.held()
        doomed = write(held.store, "doomed", "y", idempotency_key="key")
        following = write(held.store, "next", "y", expected_sequence=1)
        plain = write(held.store, "plain", "y")
        await queued()
        planning, go = threading.Event(), threading.Event()
        find_use = plan.find_use

        def blocked(*args: Any) -> Any:
            if not planning.is_set():
                planning.set()
                assert go.wait(20)
            return find_use(*args)

        monkeypatch.setattr(plan, "find_use", blocked)
        held.release()
        assert await asyncio.to_thread(planning.wait, 20)
        assert await cancelled(doomed) is None
        go.set()
        await asyncio.gather(first, plain)
        await asyncio.gather(following, return_exceptions=True)
        assert b"doomed" not in await held.payloads()
        assert (await held.store.segment_status("s", "y")).last_sequence in (1, 2)


@in_loop
async def test_a_timeout_says_so_too() -> None:
    async with held_store("remote") as held:
        await held.hold()
        with pytest.raises(TimeoutError) as raised:
            async with asyncio.timeout(0.1):
                await held.store.produce("s", "a", [Record(b"late")])
        id = raised.value.__cause__.transaction_id  # type: ignore[union-attr]
        held.release()
        assert await held.store.outcome(id) == "committed"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 0.01)


@in_loop
async def test_a_transaction_says_so_too() -> None:
    async with held_store("remote") as held:
        await held.hold()

        async def several() -> None:
            async with held.store.transaction("s") as trx:
                trx.produce("a", [Record(b"1")])
                trx.produce("b", [Record(b"2")])

        task = asyncio.create_task(several())
        await held.held()
        id = await cancelled(task)
        assert id is not None
        held.release()
        assert await held.store.outcome(id) == "committed"
        assert await held.payloads() == [b"begun", b"1", b"2"]


@in_loop
async def test_cancelled_before_anything_was_queued_it_says_that_nothing_was_written(memory: AsyncSubject) -> None:
    """Three moments: its space is opened, its records are compressed, the body of a transaction runs."""
    async with memory.store() as store:
        task = write(store, "opening")
        await asyncio.sleep(0)
        assert await cancelled(task) is None
        large = asyncio.create_task(store.produce("s", "a", [Record(bytes(3 << 20))] * 10))
        await asyncio.sleep(0)
        assert await cancelled(large) is None

        async def body() -> None:
            async with store.transaction("s") as trx:
                trx.produce("a", [Record(b"body")])
                await asyncio.sleep(100)

        task = asyncio.create_task(body())
        await queued()
        assert await cancelled(task) is None
        assert [entry async for entry in store.consume_space("s")] == []


@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_cancelled_after_any_number_of_steps_of_the_loop_the_answer_is_true(kind: str) -> None:
    """Ten writers, one of which is cancelled after n steps of the loop; for every n until it has ended before."""
    survived = 0
    for steps in itertools.count():
        async with held_store(kind) as held:
            held.release()
            store = held.store
            tasks = [write(store, f"{n}", f"s{n % 3}") for n in range(10)]
            for _ in range(steps):
                await asyncio.sleep(0 if steps % 2 else 0.0001)
            if tasks[4].done():
                survived += 1
                id = tasks[4].result().trx.id
            else:
                id = await cancelled(tasks[4])
            await asyncio.gather(*[task for task in tasks if task is not tasks[4]])
            there = [entry.trx.id async for entry in store.consume_space("s") if entry.payload == b"4"]
            if id is None:
                assert there == []
            elif await store.outcome(id) == "committed":
                assert there == [id]
            else:
                assert there == []
            assert len(await held.payloads()) == 9 + len(there)
        if survived > 3:
            return


@in_loop
async def test_many_that_are_cancelled_leave_nothing_queued(memory: AsyncSubject) -> None:
    async with memory.store() as store:
        await store.produce("s", "a", [Record(b"begun")])
        for _ in range(20):
            tasks = [write(store, "doomed") for _ in range(50)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await store.produce("s", "a", [Record(b"ended")])
        committer = store.sync._shared.spaces["s"].committers[0]
        assert [request for request in committer._queue if not request.done] == []


@in_loop
async def test_closing_waits_for_what_is_on_its_way() -> None:
    async with held_store("remote") as held:
        await held.hold()
        task = write(held.store, "on its way")
        await held.held()
        waiting = write(held.store, "queued")
        await queued()
        closing = asyncio.create_task(held.store.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        held.release()
        await closing
        assert (await task).last_sequence == 2
        assert (await waiting).last_sequence == 3


# -- the thread that commits ----------------------------------------------------------------------------------------


def at_every_call(error: BaseException) -> Callable[[HeldStore, int], list[int]]:
    def plan(held: HeldStore, number: int) -> list[int]:
        raised: list[int] = []

        def act() -> None:
            raised.append(number)
            raise error

        held.driver.at, held.driver.act = number, act
        return raised

    return plan


@pytest.mark.parametrize("error", [ZeroDivisionError("a fault"), Interrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_a_driver_that_ends_at_any_call_lets_nobody_wait_for_ever(kind: str, error: BaseException) -> None:
    """A fault before or after a call's effect: every caller gets a true answer, and the next write works."""
    plan = at_every_call(error)
    for number in itertools.count():
        async with held_store(kind) as held:
            await held.hold()
            first = write(held.store, "first")
            await held.held()
            others = [write(held.store, f"{n}", f"s{n}") for n in range(5)]
            await queued()
            raised = plan(held, number)
            held.release()
            told = await asyncio.gather(first, *others, return_exceptions=True)
            held.driver.at = -1
            await held.store.produce("s", "a", [Record(b"after")])
            there = await held.payloads()
            for payload, one in zip([b"first", *(b"%d" % n for n in range(5))], told, strict=True):
                if isinstance(one, BaseException):
                    assert isinstance(one, type(error) | Unavailable), one
                    assert payload not in there
                else:
                    assert there.count(payload) == 1
            assert there[-1] == b"after"
        if not raised:
            assert number > 2
            return


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@in_loop
async def test_a_fault_that_never_ends_is_told_and_not_tried_for_ever(kind: str, keyed: bool) -> None:
    """The fault comes before a transaction is sent if the writes have idempotency keys, else after it."""
    async with held_store(kind) as held:
        await held.store.produce("s", "a", [Record(b"begun")])
        held.release()
        calls = itertools.count()

        def step() -> None:
            next(calls)
            raise ZeroDivisionError("a fault in the backend")

        held.driver.step = step  # type: ignore[method-assign]
        told = await asyncio.gather(
            *[write(held.store, f"{n}", idempotency_key=f"{n}" if keyed else None) for n in range(20)],
            return_exceptions=True,
        )
        assert all(isinstance(one, Exception) for one in told), told
        assert next(calls) < 100
        assert {type(one) for one in told} <= {ZeroDivisionError, OutcomeUnknown}
        del held.driver.step
        await held.store.produce("s", "a", [Record(b"after")])
        assert (await held.payloads())[-1] == b"after"


@in_loop
async def test_a_wake_up_that_is_lost_is_made_up_for(memory: AsyncSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes complete although no notice of new work or of a finished request arrives."""
    async with memory.store() as store:
        await store.produce("s", "a", [Record(b"begun")])
        monkeypatch.setattr("streamkit.aio.writing.LoopRequest.wake", lambda self: None)
        status = await store.produce("s", "a", [Record(b"silent")])
        assert status.last_sequence == 2


@in_loop
async def test_only_the_loop_asks_the_pool_for_threads(memory: AsyncSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is interrupted while it does leaves the pool locked, and the loop waits for that for ever."""
    asked: list[int] = []
    lanes: list[CommitQueue] = []
    start, drive, committed = Workers.start, CommitQueue.drive, Committer.drive
    more = iter(range(3))

    def noted(self: Workers, work: Callable[[], object]) -> None:
        asked.append(threading.get_ident())
        start(self, work)

    def driven(self: CommitQueue) -> None:
        lanes.append(self)
        drive(self)

    def busy(self: Committer, before_upkeep: Callable[[], object]) -> None:
        committed(self, before_upkeep)
        if next(more, None) is not None:
            lanes[0].drive()  # as where more is queued by then

    async with memory.store() as store:
        await store.produce("s", "a", [Record(b"begun")])
        monkeypatch.setattr(Workers, "start", noted)
        monkeypatch.setattr(CommitQueue, "drive", driven)
        monkeypatch.setattr(Committer, "drive", busy)
        for number in range(5):
            await store.produce("s", "a", [Record(b"%d" % number)])
    assert next(more, None) is None
    assert {*asked} == {threading.get_ident()}


def interrupted_once(monkeypatch: pytest.MonkeyPatch, cut: Cut) -> None:
    """The next thread that drives is cut."""
    drive = CommitQueue._drive
    armed = [cut]

    def driven(lane: CommitQueue) -> Callable[[], None]:
        if armed:
            with armed.pop():
                return drive(lane)
        return drive(lane)

    monkeypatch.setattr(CommitQueue, "_drive", driven)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_at_any_step_of_the_driving_thread_lets_nobody_wait_for_ever(
    kind: str, covered: Callable[[str, int], None]
) -> None:
    """Every caller gets a true answer. One of them may get OutcomeUnknown."""
    one_in = 1 if EXHAUSTIVE else 13
    points = beyond = 0
    at = 0 if EXHAUSTIVE else KINDS.index(kind) * 4
    while beyond < 3:  # how much is driven at once depends on the machine
        cut = Cut(at)
        in_loop(_drive_with)(kind, cut)
        beyond = 0 if cut.where else beyond + 1
        points += bool(cut.where)
        at += one_in
    assert points > 5
    covered(f"interrupts of driving threads, memory ({kind})", points)


async def _drive_with(kind: str, cut: Cut) -> None:
    async with held_store(kind) as held:
        store = held.store
        await store.produce("s", "a", [Record(b"begun")])
        with pytest.MonkeyPatch.context() as patch:
            interrupted_once(patch, cut)
            tasks = [write(store, f"{n}", f"s{n % 3}") for n in range(6)]
            tasks.append(write(store, "keyed", "k", idempotency_key="key"))
            told = await asyncio.gather(*tasks, return_exceptions=True)
        await store.produce("s", "a", [Record(b"after")])
        entries = [entry async for entry in store.consume_space("s")]
        for payload, one in zip([*(b"%d" % n for n in range(6)), b"keyed"], told, strict=True):
            there = [entry for entry in entries if entry.payload == payload]
            if isinstance(one, OutcomeUnknown):
                outcome = await store.outcome(one.transaction_id)
                assert len(there) == (outcome == "committed"), (cut.where, payload, one)
            elif isinstance(one, BaseException):
                assert isinstance(one, Unavailable), (cut.where, one)
                assert there == [], (cut.where, payload)
            else:
                assert [entry.trx for entry in there] == [one.trx], (cut.where, payload)
        assert entries[-1].payload == b"after", cut.where
        assert (await store.verify()).ok, cut.where


@in_loop
async def test_a_member_whose_joining_is_cancelled_is_not_there_for_ever(
    aio: AsyncSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancelled write was already sent, and succeeds after its caller has stopped to wait."""
    entered, go_on, left = threading.Event(), threading.Event(), threading.Event()
    join, leave = Members.join, Membership.leave

    def slow(self: Members, *arguments: Any) -> Membership:
        found = join(self, *arguments)
        entered.set()
        go_on.wait(PATIENCE)
        return found

    def leaving(self: Membership) -> None:
        leave(self)
        left.set()

    monkeypatch.setattr(Members, "join", slow)
    monkeypatch.setattr(Membership, "leave", leaving)
    async with aio.store() as store:
        members = store.members("workers")
        joining = asyncio.create_task(members.join("a"))
        await asyncio.to_thread(entered.wait, PATIENCE)
        assert [one.name for one in await members.list()] == ["a"]
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        go_on.set()
        assert await asyncio.to_thread(left.wait, 10)
        assert await members.list() == []
