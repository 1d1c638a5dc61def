"""The subject of every check: a backend to try, and functions that state its duties."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TypeVar
from uuid import UUID, uuid4

from ...backend import Ambiguous, Backend, Conflict, Driver, Etag, Expect, Limits
from ...errors import TransientError

__all__ = ["Broken", "Subject", "hold", "refuses", "same", "together"]

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class Broken(AssertionError):
    """The backend does not keep a promise of the contract."""


def _short(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= 300 else f"{text[:280]}… ({len(text)} characters)"


def hold(condition: object, message: str) -> None:
    """Raise Broken with `message` unless the condition holds."""
    if not condition:
        raise Broken(message)


def same(found: object, wanted: object, what: str) -> None:
    """Raise Broken unless the two are equal."""
    if found != wanted:
        raise Broken(f"{what}: expected {_short(wanted)}, found {_short(found)}")


def refuses(error: type[E], call: Callable[[], object], what: str) -> E:
    """The error that `call` raised. Broken if it raised none; another one goes through."""
    try:
        result = call()
    except error as refusal:
        return refusal
    raise Broken(f"{what}: expected {error.__name__}, but it returned {_short(result)}")


def together(*jobs: Callable[[], T], timeout: float) -> list[T]:
    """Run all jobs at the same time, each in its own thread; their results in order, or the first one's error."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(jobs))

    def run(at: int, job: Callable[[], T]) -> None:
        try:
            barrier.wait(timeout)
            results[at] = job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(jobs)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    if len(results) < len(jobs):
        raise Broken(f"{len(jobs) - len(results)} of {len(jobs)} concurrent calls hang after {timeout:g} s")
    return [results[at] for at in range(len(jobs))]


class Subject:
    """One check's own store. pytest calls `setup_method` and `teardown_method` by itself, as `run_conformance` does.

    Override `make_driver`. The members before and after it may be overridden too.
    """

    lease_ttl: float = 1.0
    """Seconds; the shortest lease that is worth a try on this service."""
    lease_grace: float = 10.0
    """Seconds after the end of a lease within which the next one must be granted."""
    rounds: int = 20
    """The number of times that each race is run."""
    patience: float = 120.0
    """Seconds after which calls from several threads are taken to hang."""
    keeps: bool = False
    """The stores are left there: the storage under test is thrown away as a whole."""

    def make_driver(self) -> Driver:
        """Return a new driver of one and the same root. It shares only the service with the other drivers, like another
        process."""
        raise NotImplementedError("override make_driver: it returns a new driver of the root under test")

    def clock(self) -> float:
        """The time that `sleep` moves, in seconds: where leases are judged by an injected clock, that clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass by `clock`."""
        time.sleep(seconds)

    def setup_method(self, method: object = None) -> None:
        """Choose a new store for the check. Nothing is opened yet."""
        self._drivers: list[Driver] = []
        self._backends: list[Backend] = []
        self._stores: set[UUID] = set()
        self.store = uuid4()

    def teardown_method(self, method: object = None) -> None:
        """Close all backends and drivers, and delete the stores unless `keeps` is set."""
        for backend in self._backends:
            backend.close()
        for store in () if self.keeps else self._stores:
            self.driver.delete(store)
        for driver in self._drivers:
            driver.close()

    # Made when first asked for, because pytest may run `setup_method` before the fixtures that `make_driver` needs.
    @cached_property
    def driver(self) -> Driver:
        """The driver of the check, made by the first use."""
        return self.connect()

    @cached_property
    def backend(self) -> Backend:
        """The backend of the check's store, opened by the first use."""
        return self.open()

    @property
    def limits(self) -> Limits:
        """The limits of the backend."""
        return self.backend.limits

    def together(self, *jobs: Callable[[], T]) -> list[T]:
        """Run all jobs at the same time, and return their results in order. Broken after `patience` seconds."""
        return together(*jobs, timeout=self.patience)

    def connect(self) -> Driver:
        """Return a new driver. The check closes it at its end."""
        driver = self.make_driver()
        self._drivers.append(driver)
        return driver

    def open(self, store: UUID | None = None, driver: Driver | None = None) -> Backend:
        """Open the store, or the check's own one. The check closes the backend and deletes the store at its end."""
        store = store or self.store
        self._stores.add(store)
        backend = (driver or self.driver).open(store)
        self._backends.append(backend)
        return backend

    def stranger(self) -> Backend:
        """The same store through a driver of its own."""
        return self.open(driver=self.connect())

    def fill(self, partition: bytes, keys: Iterable[bytes], value: bytes = b"-") -> None:
        """Put `value` under all keys."""
        self.put_all(partition, dict.fromkeys(keys, value))

    def put_all(self, partition: bytes, rows: Mapping[bytes, bytes]) -> None:
        """Put all rows; several at once where each is a network request."""
        backend = self.backend
        if not self.limits.remote:
            for key, value in rows.items():
                backend.put(partition, key, value)
            return
        left = iter(list(rows.items()))  # the iterator of a list may be shared by threads

        def put() -> None:
            for key, value in left:
                backend.put(partition, key, value)

        self.together(*[put] * min(8, len(rows) or 1))

    def keys(self, partition: bytes, start: bytes = b"", end: bytes = b"\xff" * 301) -> list[bytes]:
        """Return the keys from `start` up to, but not including, `end`."""
        return [row.key for row in self.backend.scan(partition, start, end, values=False)]

    def content(self, partition: bytes, backend: Backend | None = None) -> dict[bytes, bytes]:
        """Return all rows of the partition, by key."""
        rows = (backend or self.backend).scan(partition, b"", b"\xff" * 301)
        return {row.key: row.data for row in rows}

    def data(self, partition: bytes, key: bytes, backend: Backend | None = None) -> bytes | None:
        """Return the value of one row, or None if there is no such row."""
        (value,) = (backend or self.backend).get(partition, [key])
        return None if value is None else value.data

    def wins(self, backend: Backend, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag) -> bool:
        """Put as a careful client does. True if `value`, which no other client writes, was put. `expect` is not ANY."""
        unsure = False
        for _ in range(100):
            try:
                backend.put(partition, key, value, expect)
                return True
            except Conflict:
                return unsure and self.data(partition, key, backend) == value
            except TransientError:
                self.sleep(0.05)
            except Ambiguous:
                unsure = True
                (there,) = backend.get(partition, [key])
                if there is not None and there.data == value:
                    return True
                if (None if there is None else there.etag) != (None if isinstance(expect, Expect) else expect):
                    return False
        raise Broken("a write was throttled or its answer lost 100 times in a row")
