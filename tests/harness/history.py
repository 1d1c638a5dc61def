"""Requests and answers of the clients of a store: the evidence that `oracle.judge` judges.

    history = History()
    history.write(store, "space", {"a": 2, "b": 1})            # two records for a and one for b, all or nothing
    reader = history.reader("space", limit=3)
    reader.page(store)                                         # any time, while others write
    judge(history, lambda: client.store(store_id))             # raises Violation with all that is wrong

A history makes the payloads itself, each of them once, so that every entry tells which attempt it is of. One may be
shared by any number of threads and stores of a process. Of several processes each has its own, with a name, and tells
its attempts to one that adds them to its history:

    history = History("writer 1", now=time.monotonic_ns, tell=lambda attempt: pickle.dump(attempt, pipe))
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from streamkit.backend import Ambiguous, Conflict
from streamkit.errors import OutcomeUnknown, StreamkitError, TransientError
from streamkit.leases import Lease
from streamkit.lexkey import LexKey
from streamkit.model import TRX, Entry, Record
from streamkit.statistics import Statistics
from streamkit.store import Store

__all__ = ["Attempt", "History", "Look", "Reader", "requests_in"]

Outcome = Literal["invoked", "ok", "failed", "unknown"]


class Attempt:
    """One call that writes: its request and its answer. `invoked` and `returned` are moments."""

    def __init__(
        self,
        number: int,
        space: str,
        parts: Mapping[str, tuple[bytes, ...]],
        expected: Mapping[str, int],
        key: str | None,
        fence: tuple[str, int] | None,
        invoked: int,
    ) -> None:
        self.number = number
        self.space = space
        self.parts = parts
        """The payloads for each segment, at least one."""
        self.expected = expected
        self.key = key
        self.fence = fence
        """(lease, token)"""
        self.invoked = invoked
        self.returned = 1 << 62
        self.requests = 0
        """The number of requests of its process to the storage meanwhile: a measure of its work. 0 if the service
        refused one, since the call then waited."""
        self.outcome: Outcome = "invoked"
        self.error: BaseException | None = None
        self.trx: TRX | None = None
        self.last: dict[str, int] = {}
        """The last sequence of each segment in the answer."""
        self.verdict: str | None = None
        """The later answer of `store.outcome`, if it was final."""

    def __repr__(self) -> str:
        parts = ", ".join(f"{len(payloads)} to {segment!r}" for segment, payloads in self.parts.items())
        key = f", key {self.key!r}" if self.key else ""
        fence = f", lease {self.fence}" if self.fence else ""
        told = f"transaction {self.trx.number}" if self.trx else repr(self.error) if self.error else ""
        return f"<attempt {self.number}: {parts} of {self.space!r}{key}{fence}: {self.outcome} {told}>"


class Look:
    """One reading of a space, or of a `segment` of it, from its start."""

    def __init__(self, space: str, segment: str | None, invoked: int) -> None:
        self.space = space
        self.segment = segment
        self.invoked = invoked
        self.returned = 1 << 62
        self.entries: list[Entry] = []
        self.whole = False
        """True if the read came to its end. If an error ended it, the entries before must still be correct."""


class Reader:
    """Reads a space page by page, each after the last offset of the page before, through whichever store."""

    def __init__(self, space: str, limit: int) -> None:
        self.space = space
        self.limit = limit
        self.entries: list[Entry] = []
        self._offset: LexKey | None = None

    def page(self, store: Store) -> int:
        """Read one more page. Returns the number of its entries; those of a failed page count, too."""
        count = 0
        for entry in store.consume_space(self.space, offset=self._offset, limit=self.limit):
            self.entries.append(entry)
            self._offset = entry.space_offset
            count += 1
        return count

    def finish(self, store: Store) -> None:
        """Read on to the end."""
        while self.page(store):
            pass


def requests_in(told: Statistics) -> int:
    """Count all kinds."""
    return sum(count for kind, count in told.requests.items() if not kind.startswith("bytes"))


class History:
    """Attempts, looks and readers, in one order of time.

    `name`: begins every payload; no two histories of one store have the same. `now`: the moments, which grow; for
    several processes, of a clock that they share. `tell`: is told of every attempt, before it is made and afterwards.
    """

    def __init__(
        self, name: str = "", now: Callable[[], int] | None = None, tell: Callable[[Attempt], None] | None = None
    ) -> None:
        self.attempts: list[Attempt] = []
        self.looks: list[Look] = []
        self.readers: list[Reader] = []
        self.leaks: list[str] = []
        """Errors that a store should never have let out."""
        self._lock = threading.Lock()
        self._name = name
        self._now = now or itertools.count(1).__next__
        self._tell = tell or (lambda attempt: None)
        self._of_key: dict[tuple[str, str], Mapping[str, tuple[bytes, ...]]] = {}

    def __repr__(self) -> str:
        return f"<History of {len(self.attempts)} attempts, {len(self.looks)} looks, {len(self.readers)} readers>"

    def _tick(self) -> int:
        with self._lock:
            return self._now()

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Attempts of other processes, as they were told last. One that never returned may have been made or not."""
        for attempt in attempts:
            self.attempts.append(attempt)
            if attempt.key is not None:
                self._of_key.setdefault((attempt.space, attempt.key), attempt.parts)

    def _invoke(
        self,
        space: str,
        counts: Mapping[str, int],
        expected: Mapping[str, int],
        key: str | None,
        fence: tuple[str, int] | None,
        size: int,
    ) -> Attempt:
        with self._lock:
            number = len(self.attempts)
            parts: Mapping[str, tuple[bytes, ...]] = {
                segment: tuple(f"{self._name}{number}/{segment}/{at}".encode().ljust(size, b".") for at in range(count))
                for segment, count in counts.items()
            }
            if key is not None:
                parts = self._of_key.setdefault((space, key), parts)
            attempt = Attempt(number, space, parts, expected, key, fence, self._now())
            self.attempts.append(attempt)
            return attempt

    def write(
        self,
        store: Store,
        space: str,
        counts: Mapping[str, int],
        *,
        expected: Mapping[str, int] | None = None,
        key: str | None = None,
        lease: Lease | None = None,
        size: int = 0,
    ) -> Attempt:
        """Write `counts` records to each segment in one transaction, and record the outcome.

        A `key` that was used before writes the same content again, and `counts` is ignored. `size`: the least bytes of
        a payload. A StreamkitError is noted in the attempt. Any other error is raised, and the outcome is unknown.
        """
        expected = expected or {}
        fence = None if lease is None else (lease.key, lease.token)
        attempt = self._invoke(space, counts, expected, key, fence, size)
        self._tell(attempt)
        before = store.statistics()
        try:
            if len(attempt.parts) == 1:
                ((segment, payloads),) = attempt.parts.items()
                status = store.produce(
                    space,
                    segment,
                    map(Record, payloads),
                    expected_sequence=expected.get(segment),
                    idempotency_key=key,
                    lease=lease,
                )
                attempt.trx, attempt.last = status.trx, {segment: status.last_sequence}
            else:
                with store.transaction(space, idempotency_key=key, lease=lease) as transaction:
                    for segment, payloads in attempt.parts.items():
                        transaction.produce(segment, map(Record, payloads), expected_sequence=expected.get(segment))
                attempt.trx = transaction.trx
                attempt.last = {name: status.last_sequence for name, status in transaction.statuses.items()}
            attempt.outcome = "ok"
        except StreamkitError as error:
            attempt.error = error
            attempt.outcome = "unknown" if isinstance(error, OutcomeUnknown) else "failed"
            self._leaked(error, "a write")
        except BaseException as error:
            attempt.error = error
            attempt.outcome = "unknown"
            raise
        finally:
            attempt.returned = self._tick()
            after = store.statistics()
            if after.retries == before.retries and not isinstance(attempt.error, TransientError):
                attempt.requests = requests_in(after) - requests_in(before)
            self._tell(attempt)
        return attempt

    def told(self, space: str, segment: str) -> int:
        """The last sequence of `segment` that any process got as an answer by now; 0 if there was none."""
        with self._lock:
            attempts = list(self.attempts)
        return max((a.last.get(segment, 0) for a in attempts if a.space == space and a.outcome == "ok"), default=0)

    def settle(self, store: Store) -> None:
        """Ask `store` what became of every attempt that ended with OutcomeUnknown, and keep a final answer."""
        for attempt in list(self.attempts):
            if isinstance(attempt.error, OutcomeUnknown) and attempt.verdict is None:
                answer = store.outcome(attempt.error.transaction_id)
                if answer != "unknown":
                    attempt.verdict = answer

    def look(self, store: Store, space: str, segment: str | None = None) -> Look:
        """Read all of a space, or of one segment. A StreamkitError ends the look, which is not whole then."""
        look = Look(space, segment, self._tick())
        with self._lock:
            self.looks.append(look)
        try:
            entries = store.consume_space(space) if segment is None else store.consume_segment(space, segment)
            for entry in entries:
                look.entries.append(entry)
            look.whole = True
        except StreamkitError as error:
            self._leaked(error, "a reading")
        finally:
            look.returned = self._tick()
        return look

    def reader(self, space: str, limit: int = 2) -> Reader:
        """A reader whose pages have `limit` entries; it must have read everything, once, in the end."""
        reader = Reader(space, limit)
        with self._lock:
            self.readers.append(reader)
        return reader

    def page(self, store: Store, reader: Reader) -> None:
        """One page; a StreamkitError ends it, and the next one goes on from there."""
        try:
            reader.page(store)
        except StreamkitError as error:
            self._leaked(error, "a page")

    def _leaked(self, error: StreamkitError, what: str) -> None:
        if isinstance(error, (Conflict, Ambiguous)):
            self.leaks.append(f"{what} raised {error!r}, which belongs between engine and backend")
