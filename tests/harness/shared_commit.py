"""A commit that threads share, and a fault in it: the storage's, or one thread's, at any step.

The first thread's write is held back until the others have queued up behind it, so that they are committed together,
with expectations, idempotency keys, fences and several segments. Then it is let go, and something goes wrong. Nobody
may wait for ever, everybody must be told the truth about its own request, and the partition must go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

from harness.passing import PassingBackend, PassingDriver
from streamkit import Entry, Record
from streamkit.backend import ANY, NEXT, Backend, Driver, Etag, Expect, Range, Row, Value
from streamkit.client import Client
from streamkit.errors import OutcomeUnknown, SequenceMismatch, StreamkitError
from streamkit.store import Store
from streamkit.testing import FaultyDriver, Injector, ManualClock, Plan

from .cuts import Cut, Interrupt
from .frames import frames_of_threads

__all__ = ["NAMES", "PLAIN", "SPACE", "Held", "SharedCommit"]

SPACE = "space"
PATIENCE = 30.0
"""Real seconds after which a thread counts as one that waits for ever."""
NAMES = ("first", "plain", "next", "rival", "once", "again", "several", "led", "deposed", "wrong")
PLAIN = ("first", "plain", "second", "third")
"""Threads that only write, each to a segment of its own."""

Write = Callable[[Store], object]


class Held(PassingDriver):
    """A driver around `inner` that holds the first append back, and then does something at one of the calls."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.hold = False
        self.held, self.go = threading.Event(), threading.Event()
        self.calls = 0
        """The number of calls since the write was let go."""
        self.at = -1
        self.act: Callable[[], None] | None = None
        """A function for the call with this number, called before it; it may raise."""

    def step(self) -> None:
        if self.go.is_set():
            number, self.calls = self.calls, self.calls + 1
            if number == self.at and self.act is not None:
                self.act()

    def open(self, store: UUID) -> Backend:
        return _HeldBackend(self, self.inner.open(store))


class _HeldBackend(PassingBackend):
    def __init__(self, driver: Held, inner: Backend) -> None:
        super().__init__(inner)
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        self._driver.step()
        return super().get(partition, keys)

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        self._driver.step()
        return super().read(partition, ranges)

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        self._driver.step()
        return super().scan(partition, start, end, limit=limit, values=values)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        driver = self._driver
        if driver.hold and expect is NEXT:
            driver.hold = False
            driver.held.set()
            assert driver.go.wait(PATIENCE)
        driver.step()
        etag = super().put(partition, key, value, expect, durable=durable)
        driver.step()
        return etag

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        self._driver.step()
        super().delete(partition, keys)


class _Caller(threading.Thread):
    """One thread with one write, and its answer."""

    def __init__(self, name: str, store: Store, write: Write, cut: Cut | None) -> None:
        super().__init__(name=name, daemon=True)
        self.payload = name.encode()
        self.told: object = None
        self.error: BaseException | None = None
        self._store = store
        self._write = write
        self._cut = cut

    def run(self) -> None:
        try:
            if self._cut is None:
                self.told = self._write(self._store)
            else:
                with self._cut:
                    self.told = self._write(self._store)
        except BaseException as error:
            self.error = error

    def waits(self) -> bool:
        """True if the write is in the queue behind another one, or has ended."""
        frame = frames_of_threads().get(self.ident or 0)
        while frame is not None and not frame.f_code.co_filename.endswith("commit.py"):
            frame = frame.f_back
        return not self.is_alive() or (frame is not None and frame.f_code.co_name == "_wait")


class SharedCommit:
    """One run. `make_driver` reaches the same root whenever it is called.

    `before`: transactions that are there already, so that the index is brought forward behind what is shared. `names`:
    NAMES or PLAIN.
    """

    def __init__(
        self,
        make_driver: Callable[[ManualClock], Driver],
        plan: Plan | None = None,
        *,
        before: int = 0,
        names: Sequence[str] = NAMES,
    ) -> None:
        self._before = before
        self._names = names
        self._clock = ManualClock()
        self._make = make_driver
        self.driver = Held(FaultyDriver(make_driver(self._clock), plan or Plan()))
        self._id = uuid4()
        self._stack = ExitStack()
        self._stack.callback(lambda: make_driver(self._clock).delete(self._id))
        self.store = self._open(self.driver)

    def _open(self, driver: Driver) -> Store:
        client = Client("shared://", driver, 5.0, None, 64 << 20, self._clock)
        self._stack.callback(client.close)
        return client.store(self._id)

    def __enter__(self) -> SharedCommit:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, cut: Cut | None = None, victim: str = "") -> dict[str, _Caller]:
        """All threads, after they ended. AssertionError if one was not told the truth, or the store is not whole."""
        store, driver = self.store, self.driver
        for number in range(self._before):
            store.produce(SPACE, "before", [Record(b"%d" % number)])
        for segment in ("b", "2", "3") if self._names is PLAIN else ("b",):
            store.produce(SPACE, segment, [Record(b"begun")])
        leases = []
        for _ in range(2):
            with store.lease("leader") as lease:
                leases.append(lease)
        old, new = leases
        writes: dict[str, Write] = {
            "first": lambda s: s.produce(SPACE, "a", [Record(b"first")]),
            "plain": lambda s: s.produce(SPACE, "b", [Record(b"plain")]),
            "next": lambda s: s.produce(SPACE, "b", [Record(b"next")], expected_sequence=2),
            "rival": lambda s: s.produce(SPACE, "b", [Record(b"rival")], expected_sequence=2),
            "once": lambda s: s.produce(SPACE, "k", [Record(b"keyed")], idempotency_key="key"),
            "again": lambda s: s.produce(SPACE, "k", [Record(b"keyed")], idempotency_key="key"),
            "several": _several,
            "led": lambda s: s.produce(SPACE, "l", [Record(b"led")], lease=new),
            "deposed": lambda s: s.produce(SPACE, "l", [Record(b"deposed")], lease=old),
            "wrong": lambda s: s.produce(SPACE, "e", [Record(b"wrong")], expected_sequence=5),
            "second": lambda s: s.produce(SPACE, "2", [Record(b"second")], expected_sequence=1),
            "third": lambda s: s.produce(SPACE, "3", [Record(b"third")]),
        }
        callers = {name: _Caller(name, store, writes[name], cut if name == victim else None) for name in self._names}
        for name in {"once", "again"} & callers.keys():
            callers[name].payload = b"keyed"
        driver.hold = True
        for name, caller in callers.items():
            caller.start()
            if name == "first":
                while not driver.held.wait(0.01) and caller.is_alive():
                    pass
                driver.hold = False
            else:
                end = time.monotonic() + PATIENCE
                while driver.held.is_set() and not caller.waits() and time.monotonic() < end:
                    time.sleep(0.0005)
        driver.go.set()
        for caller in callers.values():
            caller.join(PATIENCE)
        stuck = [name for name, caller in callers.items() if caller.is_alive()]
        assert not stuck, f"{stuck} wait for ever"
        self._check(callers)
        return callers

    def _check(self, callers: Mapping[str, _Caller]) -> None:
        store, driver = self.store, self.driver
        faults: Injector = driver.inner.faults  # type: ignore[attr-defined]
        crashed = faults.crashed
        faults.plan, driver.act = Plan(), None
        faults.release()
        fresh = self._open(self._make(self._clock))
        outcomes = {
            name: store.outcome(caller.error.transaction_id)
            for name, caller in callers.items()
            if isinstance(caller.error, OutcomeUnknown) and not crashed
        }
        if not crashed:
            for turn in range(2):
                store.produce(SPACE, "after", [Record(b"after %d" % turn)])
        entries = list(fresh.consume_space(SPACE))
        numbers = [entry.trx.number for entry in entries]
        assert numbers == sorted(numbers)
        for segment in {entry.segment for entry in entries}:
            there = [entry for entry in entries if entry.segment == segment]
            assert [entry.sequence for entry in there] == list(range(1, len(there) + 1)), there
            assert list(fresh.consume_segment(SPACE, segment)) == there
        assert fresh.verify().ok
        if not crashed:
            assert list(store.consume_space(SPACE)) == entries
            assert [entry.payload for entry in entries][-2:] == [b"after 0", b"after 1"]
        for name, caller in callers.items():
            _check_told(name, caller, [e for e in entries if e.payload == caller.payload], outcomes.get(name))
        told = {name: caller.error for name, caller in callers.items()}
        if told.get("next", True) is None or told.get("rival", True) is None:
            assert sum(entry.payload in (b"next", b"rival") for entry in entries) == 1
        led = [entry.payload for entry in entries if entry.segment == "l"]
        assert led in ([], [b"led"], [b"deposed"], [b"deposed", b"led"])


def _several(store: Store) -> object:
    with store.transaction(SPACE) as trx:
        trx.produce("c", [Record(b"several")])
        trx.produce("nothing", [], expected_sequence=0)
        trx.produce("d", [Record(b"several"), Record(b"several")])
    return trx.statuses["c"]


def _check_told(name: str, caller: _Caller, there: list[Entry], outcome: str | None) -> None:
    """Compare the caller's answer with the log."""
    whole = 3 if name == "several" else 1
    error, told = caller.error, caller.told
    assert len(there) in (0, whole), (name, error, there)
    if error is None:
        assert len(there) == whole, (name, told, there)
        assert told.last_sequence == there[0].sequence, (name, told, there)  # type: ignore[attr-defined]
        assert told.trx == there[0].trx, (name, told, there)  # type: ignore[attr-defined]
        assert told.segment == there[0].segment, (name, told, there)  # type: ignore[attr-defined]
    elif isinstance(error, OutcomeUnknown):
        mine = [entry for entry in there if entry.trx.id == error.transaction_id]
        if outcome == "committed":
            assert mine, (name, error, there)
        elif outcome == "absent":
            assert not mine, (name, error, there)
            assert not there or name in ("once", "again"), (name, error, there)
    elif isinstance(error, StreamkitError) and name not in ("once", "again"):
        assert not there, (name, error, there)
        if isinstance(error, SequenceMismatch):
            assert error.expected != error.actual, (name, error)
    elif not isinstance(error, StreamkitError):
        assert isinstance(error, Interrupt | MemoryError) or type(error).__name__ == "Crash", (name, error)
