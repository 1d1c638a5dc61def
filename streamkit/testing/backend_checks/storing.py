"""Stores: which exist, deleting, closing, forking, counting."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from unittest import SkipTest
from uuid import UUID, uuid4

from ...backend import ANY, NEXT, Backend, Conflict, Driver, Grant, Range
from ...errors import StoreClosed, TransientError
from .subject import Broken, Subject, hold, refuses, same

__all__ = ["Storing"]

P = b"storing"
END = b"\xff"


class Storing(Subject):
    def exists(self, store: UUID, driver: Driver | None = None) -> bool:
        """Return True if the driver lists the store."""
        return store in set((driver or self.driver).stores())

    def patiently(self, call: Callable[[], object]) -> None:
        """A service may need a moment after a store was deleted; it must say so by a TransientError."""
        for _ in range(120):
            try:
                call()
                return
            except TransientError:
                self.sleep(0.5)
        raise Broken("a deleted store could not be made again for a minute")

    def test_a_store_that_nobody_wrote_to_reads_empty(self) -> None:
        """Reading a store that does not exist failed, or made it."""
        for backend in (self.backend, self.stranger()):
            same(backend.get(P, [b"k", b"l"]), [None, None], "rows of a store that does not exist")
            same(backend.read(P, [Range(b"k", 0, 9)]), [None], "a range in a store that does not exist")
            same(list(backend.scan(P, b"", END)), [], "a scan of a store that does not exist")
        hold(not self.exists(self.store), "reading a store made it")

    def test_the_first_write_makes_the_store(self) -> None:
        """A store is not listed after its first write, or a write made another one appear."""
        other = self.connect()
        first, second = uuid4(), uuid4()
        self.open(first).put(P, b"k", b"1", NEXT)
        hold(self.exists(first) and self.exists(first, other), "the store is not listed after its first write")
        hold(not self.exists(second), "a store is listed that nobody wrote to")
        self.open(second, other).put(b"", b"k", b"2")
        hold(self.exists(second) and self.exists(second, other), "the second store is not listed")
        listed = list(self.driver.stores())
        same(len(listed), len(set(listed)), "the stores, each listed once")
        hold(all(isinstance(store, UUID) for store in listed), f"stores gave something else than UUIDs: {listed[:3]}")

    def test_stores_are_independent(self) -> None:
        """A row of one store shows, or is an obstacle, in another."""
        stores = [uuid4() for _ in range(3)]
        backends = [self.open(store) for store in stores]
        for number, backend in enumerate(backends):
            backend.put(P, b"k", b"%d" % number, NEXT)
            backend.put(b"", b"own %d" % number, b"")
        for number, backend in enumerate(backends):
            same(self.content(P, backend), {b"k": b"%d" % number}, "the store's rows")
            same(self.content(b"", backend), {b"own %d" % number: b""}, "the store's rows")

    def test_a_deleted_store_is_gone(self) -> None:
        """A deleted store is still listed or still has rows, or its neighbour was hurt."""
        gone, kept = uuid4(), uuid4()
        rows = [b"%06d" % number for number in range(min(self.limits.page, 1000) + 5)]
        backend, neighbour = self.open(gone), self.open(kept)
        self.backend = backend
        self.fill(P, rows)
        backend.put(b"another", b"1", b"x" * 10_000, NEXT)
        neighbour.put(P, b"k", b"kept")
        grant = backend.acquire("leader", 60)
        hold(grant is not None, "a lease that nobody holds was not granted")
        backend.close()
        self.driver.delete(gone)
        for driver in (self.driver, self.connect()):
            hold(not self.exists(gone, driver), "the deleted store is still listed")
            hold(self.exists(kept, driver), "the store beside the deleted one is gone")
            found = self.open(gone, driver)
            same(list(found.scan(P, b"", END)), [], "the rows of the deleted store")
            same(found.get(b"another", [b"1"]), [None], "a row of the deleted store")
        same(self.content(P, neighbour), {b"k": b"kept"}, "the rows of the store beside it")

    def test_rows_that_are_to_be_kept_are_left_where_a_store_is_deleted(self) -> None:
        """A row that was to be kept is gone, or one that was not is left, or the store is still listed."""
        if not self.limits.remote:
            raise SkipTest("nothing is kept where a deleted store refuses writes")
        self.backend.put(P, b"1", b"gone", NEXT)
        self.backend.put(P, b"2", b"kept", NEXT)
        self.backend.put(P, b"k", b"gone")
        self.backend.put(b"", b"2", b"gone")
        self.driver.delete(self.store, [(P, b"2"), (b"another", b"2")])
        again = self.open()
        for driver in (self.driver, self.connect()):
            hold(not self.exists(self.store, driver), "the deleted store is still listed")
            again = self.open(self.store, driver)
            same(self.content(P, again), {b"2": b"kept"}, "the kept rows")
            same(self.content(b"", again), {}, "the partition without kept rows")
        refuses(Conflict, lambda: self.backend.put(P, b"2", b"late", NEXT), "a put with NEXT where a row was kept")
        self.patiently(lambda: again.put(P, b"k", b"new"))
        hold(self.exists(self.store), "the store that was made again is not listed")
        self.driver.delete(self.store)
        same(self.content(P, self.open()), {}, "the rows after another deletion that keeps none")

    def test_deleting_again_is_fine(self) -> None:
        """Deleting a store that does not exist, or twice, failed."""
        self.driver.delete(uuid4())
        self.backend.put(P, b"k", b"1")
        self.backend.close()
        self.driver.delete(self.store)
        self.driver.delete(self.store)
        self.connect().delete(self.store)

    def test_a_deleted_store_can_be_made_again(self) -> None:
        """A store that was deleted could not be made again, or came back with old rows."""
        self.backend.put(P, b"5", b"old", NEXT)
        self.backend.put(P, b"k", b"old")
        self.backend.close()
        self.driver.delete(self.store)
        again = self.open()
        self.patiently(lambda: again.put(P, b"1", b"new", NEXT))
        same(self.content(P, again), {b"1": b"new"}, "the rows of the store that was made again")
        hold(self.exists(self.store), "the store that was made again is not listed")

    def test_who_has_a_deleted_store_open_cannot_write_to_it(self) -> None:
        """A write to a store that was deleted meanwhile was acknowledged into nothing, or into its successor."""
        if self.limits.remote:
            raise SkipTest("a remote backend cannot know that the store was deleted")
        writers = [self.backend, self.stranger()]
        for number, backend in enumerate(writers):
            backend.put(P, b"%d" % number, b"old", NEXT)
        self.connect().delete(self.store)

        def refused() -> None:
            for backend in writers:
                for expect in (NEXT, ANY):
                    write = partial(backend.put, P, b"9", b"late", expect)
                    refuses(StoreClosed, write, "a put into a store that was deleted")

        refused()
        hold(not self.exists(self.store), "a refused write made the deleted store again")
        again = self.open()
        again.put(P, b"1", b"new", NEXT)
        refused()
        same(self.content(P, again), {b"1": b"new"}, "the rows of the store that was made again")

    def test_after_close_every_call_raises(self) -> None:
        """A closed backend answered as if it were open: an error looked like an empty store."""
        self.backend.put(P, b"k", b"1")
        grant = self.backend.acquire("leader", 60) or Grant("leader", 1, 60, "")
        other = self.open()
        self.backend.close()
        self.backend.close()
        calls: dict[str, Callable[[], object]] = {
            "get": lambda: self.backend.get(P, [b"k"]),
            "read": lambda: self.backend.read(P, [Range(b"k", 0, 1)]),
            "scan": lambda: list(self.backend.scan(P, b"", END)),
            "put": lambda: self.backend.put(P, b"k", b"2"),
            "delete": lambda: self.backend.delete(P, [b"k"]),
            "acquire": lambda: self.backend.acquire("another", 60),
            "renew": lambda: self.backend.renew(grant),
            "release": lambda: self.backend.release(grant),
        }
        for name, call in calls.items():
            refuses(StoreClosed, call, f"{name} after close")
        same(self.data(P, b"k", other), b"1", "the row through a backend that is still open")
        other.put(P, b"k", b"3")
        other.release(grant)

    def test_a_scan_that_is_closed_in_between_does_not_look_finished(self) -> None:
        """The backend was closed during a scan, and the scan ended as if there were no more rows."""
        keys = [b"%06d" % number for number in range(2 * min(self.limits.page, 1000) + 5)]
        self.fill(P, keys)
        backend = self.open()
        scan = backend.scan(P, b"", END)
        seen = [next(scan).key]
        backend.close()
        try:
            seen += [row.key for row in scan]
        except StoreClosed:
            return
        same(seen, keys, "the keys of a scan that did not raise StoreClosed")

    def test_closing_a_driver_again_is_fine(self) -> None:
        """Closing a driver twice failed, or disturbed another driver."""
        driver = self.connect()
        self.open(driver=driver).put(P, b"k", b"1")
        driver.close()
        driver.close()
        same(self.data(P, b"k"), b"1", "the row through another driver")

    def test_the_limits_are_constant_and_make_sense(self) -> None:
        """`limits` changed, or has values that the engine cannot work with."""
        limits = self.backend.limits
        self.backend.put(P, b"k", b"1")
        same(self.backend.limits, limits, "the limits after a write")
        same(self.stranger().limits, limits, "the limits of another backend of the same root")
        hold(limits.page >= 1, f"a page has at least one row: {limits}")
        hold(isinstance(limits.remote, bool), f"remote is True or False: {limits}")

    def test_requests_are_counted(self) -> None:
        """`requests` is not a count per kind that grows with the requests to the service."""
        backend = self.stranger()
        same(sum(backend.requests.values()), 0, "the requests of a backend that did nothing yet")
        backend.put(P, b"k", b"1")
        first = dict(backend.requests)
        backend.get(P, [b"k"])
        list(backend.scan(P, b"", END))
        second = dict(backend.requests)
        hold(all(isinstance(kind, str) and count >= 0 for kind, count in second.items()), f"{second}")
        hold(all(second.get(kind, -1) >= count for kind, count in first.items()), f"{first}, then {second}")
        if self.limits.remote:
            hold(sum(first.values()) >= 1, f"a write was not counted: {first}")
            hold(sum(second.values()) >= sum(first.values()) + 2, f"get and scan were not: {first}, {second}")

    def test_the_service_time_comes_with_answers_and_never_goes_back(self) -> None:
        """`service_time` went back, stood still for seconds while the service answered, or was never known."""
        backend = self.stranger()
        backend.put(P, b"k", b"1")
        told = backend.service_time()
        if told is None:
            hold(not self.limits.remote, "an answer came, and the service's clock is not known")
            return
        hold(told.earliest <= told.latest, f"{told}: the earliest is later than the latest")
        for wait in (0.0, 1.1, 1.1, 0.0):
            self.sleep(wait)
            same(len(backend.get(P, [b"k", b"absent"])), 2, "the values of two keys")
            before, told = told, backend.service_time()
            hold(told is not None and told.latest >= before.latest, f"the service's time was {before}, then {told}")
            assert told is not None
            hold(not wait or told.latest > before.latest, f"{wait} s later the service's time still was {told}")
            hold(told.earliest <= told.latest, f"{told}: the earliest is later than the latest")

    def test_a_fork_does_not_disturb_its_parent(self) -> None:
        """A forked child hung, failed with something else than StoreClosed, or broke the parent's backend."""
        if not hasattr(os, "fork"):
            raise SkipTest("this system does not fork")
        self.backend.put(P, b"k", b"1")
        child = os.fork()
        if not child:
            os._exit(_in_child(self.backend))
        deadline = time.monotonic() + 60
        done, status = 0, 0
        while not done and time.monotonic() < deadline:
            same(self.data(P, b"k"), b"1", "the row that the parent reads beside its child")
            done, status = os.waitpid(child, os.WNOHANG)
        if not done:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise Broken("the child hangs after 60 s")
        same(os.waitstatus_to_exitcode(status), 0, "exit code of the child (1: a wrong answer, 2: a wrong error)")
        self.backend.put(P, b"k", b"2")
        same(self.data(P, b"k", self.stranger()), b"2", "the parent's writes after its child ended")


def _in_child(backend: Backend) -> int:
    try:
        for _ in range(5):
            (value,) = backend.get(P, [b"k"])
            if value is None or value.data != b"1":
                return 1
        backend.put(b"storing, the child's", b"k", b"child")
        backend.close()
        return 0
    except StoreClosed:
        return 0
    except BaseException:
        return 2
