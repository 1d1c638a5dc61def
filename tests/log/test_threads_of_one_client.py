"""Threads of one client, and signal handlers in them: the state that one thread reads must not mislead another."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE, KINDS

import streamkit
from streamkit import Record, SequenceMismatch
from streamkit.backend import Value
from streamkit.client import Client
from streamkit.clock import SYSTEM_CLOCK
from streamkit.errors import Fenced, OutcomeUnknown
from streamkit.log import commit, read_segment
from streamkit.log.fences import Fences
from streamkit.log.partition import Partition
from streamkit.log.request import Request
from streamkit.reentry import Reentered, inside_backend, mark_backend
from streamkit.store import Store
from streamkit_memory.backend import MemoryBackend
from streamkit_memory.driver import MemoryDriver

PATIENCE = 20.0


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = (
        tmp_path.as_uri() if request.param == "local" else f"memory://{uuid4()}?remote={int(request.param == 'remote')}"
    )
    with streamkit.connect(url) as client:
        yield client.store(uuid4())


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads change over as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def busily(seconds: float, work: Callable[[], object], *others: Callable[[], object]) -> None:
    """`work`, again and again, beside threads that do `others` again and again."""
    end = time.monotonic() + seconds
    errors: list[BaseException] = []

    def again(other: Callable[[], object]) -> None:
        try:
            while time.monotonic() < end:
                other()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=again, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    again(work)
    for thread in threads:
        thread.join(PATIENCE)
    assert not errors, errors


@pytest.mark.usefixtures("switching")
def test_what_is_read_after_the_offset_of_a_status_begins_where_the_status_ends(store: Store) -> None:
    store.produce("s", "a", [Record(b"0")])

    def look() -> None:
        status = store.segment_status("s", "a")
        for entry in store.consume_space("s", offset=status.space_offset, limit=1):
            assert entry.sequence == status.last_sequence + 1

    def write() -> None:
        store.produce("s", "a", [Record(b"x")])

    busily(1.0, look, write, write)


@pytest.mark.usefixtures("switching")
def test_a_guard_over_several_segments_sees_them_as_of_one_moment(store: Store) -> None:
    names = [f"g{at}" for at in range(6)]
    written: list[int] = []

    def write() -> None:
        with store.transaction("s") as trx:
            for name in names:
                trx.produce(name, [Record(b"x")])
        written.append(trx.statuses["g0"].last_sequence)

    write()

    def guard() -> None:
        known = written[-1]
        try:
            with store.transaction("s") as trx:
                trx.produce("g5", [], expected_sequence=known)
                trx.produce("g0", [], expected_sequence=known)
        except SequenceMismatch:
            return
        assert len({status.last_sequence for status in trx.statuses.values()}) == 1

    busily(1.0, guard, write)


@pytest.mark.usefixtures("switching")
def test_a_write_that_was_made_is_never_answered_with_an_error_of_ours(store: Store) -> None:
    def writer(at: int) -> Callable[[], object]:
        return lambda: store.produce("s", f"a{at}", [Record(b"x")])

    busily(1.5, writer(0), *(writer(at) for at in range(1, 5)))


def test_a_key_is_known_while_it_leaves_the_tail_for_the_first_index(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = store.produce("s", "a", [Record(b"x")], idempotency_key="k")
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(store.lookup("s", "k")))
    drop = Fences.drop_tail

    def slow(fences: Fences, watermark: int) -> None:
        thread.start()
        thread.join(0.2)  # it has ended, or waits for a lock of this thread
        drop(fences, watermark)

    with monkeypatch.context() as patch:
        patch.setattr(Fences, "drop_tail", slow)
        store.maintain()
    thread.join(PATIENCE)
    assert [found["a"].trx for found in told] == [status.trx]


def _erase_during(store: Store, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """Have another thread erase sequence 2 of `a` before the next call of this function returns."""
    function = getattr(owner, name)

    def slow(*arguments: Any) -> Any:
        found = function(*arguments)
        monkeypatch.undo()
        thread = threading.Thread(target=lambda: store.erase("s", "a", first=2))
        thread.start()
        thread.join(PATIENCE)
        return found

    monkeypatch.setattr(owner, name, slow)


def test_a_peek_keeps_nothing_that_was_erased_while_it_was_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.produce("s", "a", [Record(b"first"), Record(b"erased")])
    _erase_during(store, monkeypatch, read_segment, "_load_last")
    store.peek("s", "a")
    assert store.peek("s", "a").payload == b"first"


def test_a_peek_keeps_nothing_that_was_erased_after_its_view_was_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.produce("s", "a", [Record(b"first")])
    store.produce("s", "a", [Record(b"erased")])
    _erase_during(store, monkeypatch, Partition, "view")
    store.peek("s", "a")
    assert store.peek("s", "a").payload == b"first"


def test_a_commit_is_not_planned_on_half_of_what_a_reader_reads_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread has begun to commit; another one finds out that its look is old, and goes on from the index."""
    url, store_id = f"memory://{uuid4()}?remote=1", uuid4()
    with streamkit.connect(url) as mine, streamkit.connect(url) as others:
        store, other = mine.store(store_id), others.store(store_id)
        other.create_space("s", archive_grace=600.0)
        for at in range(4):
            other.produce("s", "a", [Record(b"%d" % at)])
        other.maintain()
        store.segment_status("s", "b")
        for at in range(4):
            other.produce("s", "a", [Record(b"%d" % at)])
        other.archive("s")
        for _ in range(2):
            other.produce("s", "a", [Record(b"late")])
        partition = store._shared.spaces["s"].partitions[0]
        folded, snapped, reset, done = (threading.Event() for _ in range(4))
        fresh, backend = partition.is_fresh, partition.backend
        threads: dict[str, threading.Thread] = {}

        def is_fresh(look: Any) -> bool:
            if threading.current_thread() is threads["reader"]:
                folded.set()
                snapped.wait(2)
                return False
            return fresh(look)

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(backend, name)

            def get(self, *args: Any) -> Any:
                found = backend.get(*args)
                if threading.current_thread() is threads["writer"] and not snapped.is_set():
                    snapped.set()
                    reset.wait(2)
                return found

            def scan(self, *args: Any, **options: Any) -> Any:
                if threading.current_thread() is threads["reader"]:
                    reset.set()
                    done.wait(1)
                return backend.scan(*args, **options)

        monkeypatch.setattr(partition, "is_fresh", is_fresh)
        monkeypatch.setattr(partition, "backend", Slow())
        told: list[int] = []

        def write() -> None:
            folded.wait(2)
            told.append(store.produce("s", "a", [Record(b"mine")]).last_sequence)
            done.set()

        threads["reader"] = threading.Thread(target=lambda: store.segment_status("s", "b"))
        threads["writer"] = threading.Thread(target=write)
        for thread in threads.values():
            thread.start()
        for thread in threads.values():
            thread.join(PATIENCE)
        assert told == [11]
        assert [entry.sequence for entry in other.consume_segment("s", "a")] == list(range(1, 12))
        assert other.verify().ok


_SIGNALS = """
import faulthandler, os, signal, sys, threading, time, uuid
import streamkit
from streamkit import Record
faulthandler.dump_traceback_later(100, exit=True)
url, what, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
store = streamkit.connect(url).store(uuid.uuid4())
store.produce("s", "read", [Record(b"x")] * 100)
stop, count = threading.Event(), {"done": 0, "refused": 0}
def write():
    while not stop.is_set():
        store.produce("s", "written", [Record(b"x")])
def handler(*_):
    try:
        store.produce("s", "handler", [Record(b"h")])
        count["done"] += 1
    except RuntimeError:
        count["refused"] += 1
threads = [threading.Thread(target=write, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.03)
end = time.monotonic() + seconds
while time.monotonic() < end or sum(count.values()) <= 5:
    if what == "read":
        list(store.consume_segment("s", "read"))
    elif what == "maintain":
        store.maintain("s")
    else:
        with store.lease("l"):
            pass
signal.setitimer(signal.ITIMER_REAL, 0)
stop.set()
for thread in threads:
    thread.join(10)
    assert not thread.is_alive()
there = sum(1 for _ in store.consume_segment("s", "handler"))
assert there == count["done"], (there, count)
assert count["done"] + count["refused"] > 5, count
os._exit(0)
"""


@pytest.mark.parametrize("what", ["read", "maintain", "lease"])
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_signal_handler_that_writes_never_waits_for_its_own_thread(kind: str, what: str, tmp_path: Path) -> None:
    url = tmp_path.as_uri() if kind == "local" else "memory://"
    ended = subprocess.run(
        [sys.executable, "-c", _SIGNALS, url, what, str(2.0 if EXHAUSTIVE else 0.6)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("kind", ["memory", "remote"])
def test_what_was_refused_to_a_signal_handler_is_not_written_by_a_neighbour(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamkit.connect(f"memory://{uuid4()}?remote={int(kind == 'remote')}") as client:
        store = client.store(uuid4())
        for segment in ("h", "w"):
            store.produce("s", segment, [Record(b"0")])
        committer = store._shared.spaces["s"].committers[0]
        neighbour = threading.Thread(target=lambda: store.produce("s", "w", [Record(b"w")]))
        commit_next, told = committer._commit_next, []
        monkeypatch.setattr(committer, "commit_alone", lambda _: None)

        def handler(*_: object) -> None:
            def commit_both(own: Any) -> None:
                monkeypatch.setattr(committer, "_commit_next", commit_next)
                neighbour.start()
                while len(committer._queue) < 2:
                    time.sleep(0.001)
                commit_next(own)

            monkeypatch.setattr(committer, "_commit_next", commit_both)
            try:
                store.produce("s", "h", [Record(b"from the handler")])
            except Reentered as error:
                told.append(error)

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            backend: Any = store._shared.backend
            with getattr(backend, "_inner", backend)._service.lock():
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.01)
        finally:
            signal.signal(signal.SIGUSR1, before)
        neighbour.join(PATIENCE)
        assert not neighbour.is_alive()
        assert told
        assert [entry.payload for entry in store.consume_segment("s", "h")] == [b"0"]
        assert [entry.payload for entry in store.consume_segment("s", "w")] == [b"0", b"w"]


def test_a_guard_of_a_leader_that_was_succeeded_is_fenced(store: Store) -> None:
    leases = []
    for _ in range(2):
        with store.lease("leader") as lease:
            leases.append(lease)
    old, new = leases
    store.produce("s", "a", [Record(b"1")], lease=new)
    assert store.produce("s", "a", [], expected_sequence=1, lease=new).last_sequence == 1
    with pytest.raises(Fenced):
        store.produce("s", "a", [], expected_sequence=1, lease=old)
    trx = store.transaction("s", lease=old)
    with pytest.raises(Fenced), trx:
        trx.produce("a", [], expected_sequence=1)


class Guarded(MemoryBackend):
    """A third party's backend: one lock of its own. `held` is called by the main thread while it holds the lock."""

    lock = threading.Lock()
    held: Callable[[], object] | None = None

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        with self._taken():
            return super().get(partition, keys)

    def put(self, *args: Any, **options: Any) -> str:
        with self._taken():
            return super().put(*args, **options)

    @contextlib.contextmanager
    def _taken(self) -> Iterator[None]:
        assert self.lock.acquire(timeout=PATIENCE), "the thread waits for itself"
        try:
            held = type(self).held
            if held is not None and threading.current_thread() is threading.main_thread():
                type(self).held = None
                held()
            yield
        finally:
            self.lock.release()


class GuardedDriver(MemoryDriver):
    def open(self, store: UUID) -> MemoryBackend:
        return Guarded(self._service, store, self._limits, self._clock, self._request)


def test_a_handler_inside_a_third_partys_backend_is_refused_and_not_waited_for() -> None:
    """The neighbour leads and waits for the backend's lock. The main thread holds it below the handler's call."""
    with Client("guarded://", GuardedDriver(), 5.0, None, 64 << 20, SYSTEM_CLOCK) as client:
        store = client.store(uuid4())
        store.produce("s", "a", [Record(b"0")])
        committer = store._shared.spaces["s"].committers[0]
        neighbour = threading.Thread(target=lambda: store.produce("s", "a", [Record(b"neighbour")]))
        refusals: list[BaseException] = []

        def handle() -> None:
            neighbour.start()
            while not committer._leader.alive.locked():
                time.sleep(0.001)
            try:
                store.produce("s", "a", [Record(b"handler")])
            except (Reentered, OutcomeUnknown) as error:
                refusals.append(error)

        Guarded.held = handle
        store._shared.backend.get(b"", [b"a row"])
        neighbour.join(PATIENCE)
        assert not neighbour.is_alive()
        assert refusals
        assert [entry.payload for entry in store.consume_segment("s", "a")] == [b"0", b"neighbour"]


def test_a_package_of_a_user_is_no_backend_whatever_its_name() -> None:
    """The handler's call waits for the thread leader, as every other call does."""
    billing: dict[str, Any] = {"__name__": "streamkit_billing.invoices"}
    exec("def charge(produce):\n    return produce()\n", billing)
    with Client("guarded://", GuardedDriver(), 5.0, None, 64 << 20, SYSTEM_CLOCK) as client:
        store = client.store(uuid4())
        store.produce("s", "a", [Record(b"0")])
        committer = store._shared.spaces["s"].committers[0]
        neighbour = threading.Thread(target=lambda: store.produce("s", "a", [Record(b"neighbour")]))

        def free() -> None:
            while not committer._queue:
                time.sleep(0.001)
            Guarded.lock.release()

        freeing = threading.Thread(target=free)
        Guarded.lock.acquire()
        neighbour.start()
        while not committer._leader.alive.locked():
            time.sleep(0.001)
        freeing.start()
        try:
            billing["charge"](lambda: store.produce("s", "a", [Record(b"invoice")]))
        finally:
            for thread in (freeing, neighbour):
                thread.join(PATIENCE)
        assert [entry.payload for entry in store.consume_segment("s", "a")] == [b"0", b"neighbour", b"invoice"]


def test_a_backend_is_marked_while_another_thread_adds_to_its_class() -> None:
    class Growing:
        def __getattribute__(self, name: str) -> Any:
            setattr(Marked, f"added_{len(vars(Marked))}", None)
            return object.__getattribute__(self, name)

    class Marked:
        first = Growing()

        def call(self) -> bool:
            return inside_backend()

    mark_backend(Marked())
    assert Marked().call()


@pytest.mark.usefixtures("switching")
def test_callers_of_one_transaction_wake_each_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for itself here, so a lost wake-up is a failure. A caller in three is stopped while it waits."""
    monkeypatch.setattr(commit, "_HEARTBEAT", 10 * PATIENCE)
    store.produce("s", "other", [Record(b"")])
    (committer,) = store._shared.spaces["s"].committers
    stopped: set[str] = set()

    class Stopped(BaseException):
        pass

    waited = committer._wait

    def wait(request: Request) -> bool:
        again = waited(request)
        name = request.parts[0].segment
        if request.done and name in stoppable and len(request.parts) == 1:
            stopped.add(name)
            raise Stopped
        return again

    monkeypatch.setattr(committer, "_wait", wait)
    names = [str(number) for number in range(12)]
    stoppable = set(names[::3])
    together = threading.Barrier(len(names))

    def write(name: str) -> None:
        for number in range(40):
            if number < 10:
                together.wait(PATIENCE)  # else each thread may have ended when the next one begins
            with contextlib.suppress(Stopped):
                store.produce("s", name, [Record(b"%d" % number)])

    threads = [threading.Thread(target=write, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert stopped
    for name in names:
        assert [entry.sequence for entry in store.consume_segment("s", name)] == list(range(1, 41))
