"""The threads that commit for coroutines: how many there are, and how they end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import weakref
from uuid import uuid4

import pytest
from fix_aio import PATIENCE, AsyncSubject, in_loop

from streamkit import Record
from streamkit.aio.workers import Workers


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_there_are_never_more_threads_than_asked_for_and_all_work_is_done() -> None:
    workers, go_on, done = Workers(2, "few"), threading.Event(), threading.Semaphore(0)

    def piece() -> None:
        go_on.wait(PATIENCE)
        done.release()

    for _ in range(7):
        workers.start(piece)
    assert len(named("few")) == 2
    go_on.set()
    for _ in range(7):
        assert done.acquire(timeout=PATIENCE)
    workers.close(wait=True)
    assert named("few") == []


def test_a_thread_that_waits_gets_the_next_piece() -> None:
    workers, done = Workers(8, "one"), threading.Event()
    workers.start(done.set)
    assert done.wait(PATIENCE)
    while not workers._idle:  # the thread is about to say that it waits
        threading.Event().wait(0.001)
    workers.start(lambda: None)
    assert len(named("one")) == 1
    workers.close(wait=True)


def test_a_thread_that_goes_on_with_waiting_work_is_not_taken_for_one_that_waits() -> None:
    workers, begun, first, second = Workers(1, "busy"), threading.Event(), threading.Event(), threading.Event()

    def later() -> None:
        begun.set()
        second.wait(PATIENCE)

    workers.start(lambda: first.wait(PATIENCE))
    workers.start(later)
    first.set()
    assert begun.wait(PATIENCE)
    assert not workers._idle
    second.set()
    workers.close(wait=True)


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit()], ids=repr)
def test_an_error_ends_no_thread(error: BaseException) -> None:
    workers, done = Workers(1, "hardy"), threading.Event()

    def fail() -> None:
        raise error

    workers.start(fail)
    workers.start(done.set)
    assert done.wait(PATIENCE)
    workers.close(wait=True)


def test_closed_threads_take_no_work() -> None:
    workers = Workers(1, "closed")
    workers.close()
    with pytest.raises(RuntimeError):
        workers.start(lambda: None)


def test_a_thread_that_is_gone_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, done = Workers(1, "gone"), threading.Event()
    workers.start(lambda: workers._work.put(None))  # as if it had been stopped
    [thread] = named("gone")
    thread.join(PATIENCE)
    workers._idle.clear()
    workers.start(done.set)
    assert done.wait(PATIENCE)
    workers.close(wait=True)


def test_without_a_thread_the_caller_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(1, "none")

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="thread"):
        workers.start(lambda: None)
    assert workers._work.empty()


def test_a_process_ends_after_the_work_that_has_begun() -> None:
    program = (
        "import sys, threading; from streamkit.aio.workers import Workers\n"
        "workers, begun = Workers(2, 'w'), threading.Event()\n"
        "def piece():\n"
        "    begun.set()\n"
        "    for _ in range(100): threading.Event().wait(0.001)\n"
        "    print('whole')\n"
        "workers.start(piece); begun.wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=10 * PATIENCE)
    assert (ended.stdout, ended.returncode) == ("whole\n", 0), ended.stderr


@in_loop
async def test_closing_does_not_wait_for_a_piece_whose_thread_was_stopped(
    memory: AsyncSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another store of the client is busy meanwhile, in a thread of the same pool."""
    begun, go_on = threading.Event(), threading.Event()
    async with memory.connect() as client, client.store(uuid4()) as store, client.store(uuid4()) as busy:
        await store.produce("s", "a", [Record(b"a")])
        busy.calls.drive(lambda: (begun.set(), go_on.wait(PATIENCE)))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        with monkeypatch.context() as patch:
            patch.setattr(store.calls.threads.commit, "start", lambda work: None)  # stopped before it began the piece
            store.calls.drive(lambda: None)
        await asyncio.wait_for(store.close(), PATIENCE)
        go_on.set()


@in_loop
async def test_closing_waits_for_a_piece_however_long_it_takes(memory: AsyncSubject) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def piece() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        done.set()

    async with memory.store() as store:
        await store.produce("s", "a", [Record(b"a")])
        store.calls.drive(piece)
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0.6)  # it has looked twice
        assert not closing.done()
        go_on.set()
        await asyncio.wait_for(closing, PATIENCE)
        assert done.is_set()


def test_a_thread_makes_its_last_call_when_it_counts_as_one_that_waits_and_keeps_nothing_of_it() -> None:
    workers, done = Workers(8, "last"), threading.Event()

    class Told:
        def __call__(self) -> None:
            workers.start(done.set)
            raise SystemExit  # ends no thread

    told = Told()
    gone = weakref.ref(told, lambda _: freed.set())
    freed = threading.Event()
    pieces = [lambda told=told: told]
    del told
    workers.start(pieces.pop())
    assert done.wait(PATIENCE)
    assert len(named("last")) == 1
    assert freed.wait(PATIENCE)
    assert gone() is None
    workers.close(wait=True)
