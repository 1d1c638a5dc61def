"""Retries: a request that was throttled, or could not be made, is made again, with jitter, up to a deadline.

A write is made again only where the backend says that it was not applied. A lost answer (Ambiguous) of a put is not
retried here: the caller of put knows how to resolve it. A delete is repeated until it is answered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from .backend import (
    ANY,
    Ambiguous,
    Backend,
    Conflict,
    DeletesIf,
    Etag,
    Expect,
    Grant,
    KeepsCopies,
    Limits,
    Range,
    RemovesLeftovers,
    Row,
    Scrubs,
    ServiceTime,
    Value,
)
from .clock import Clock
from .errors import PermanentError, Throttled, TransientError, Unavailable
from .statistics import Counters

__all__ = [
    "RetryingBackend",
    "attempts",
    "delete_all",
    "delete_row",
    "delete_rows",
    "put_settled",
    "send_until_answered",
]

_FEW = 4
"""Rows at once that come through where more are throttled."""

_ANSWERS = 6
"""Lost answers to one write before it is given up."""
_KEYS = 1000
"""Rows that one call deletes."""

_T = TypeVar("_T")
_A = TypeVar("_A")


def delete_rows(backend: Backend, partition: bytes, keys: Sequence[bytes]) -> None:
    """Delete rows. Unavailable if the answer was lost, too: to be called again."""
    try:
        backend.delete(partition, keys)
    except Ambiguous as error:
        raise Unavailable(f"some rows may not be deleted yet; try again: {error}") from error


def delete_all(backend: Backend, partition: bytes, keys: Sequence[bytes]) -> None:
    """Delete any number of rows as `delete_rows` does, some in each call."""
    for at in range(0, len(keys), _KEYS):
        delete_rows(backend, partition, keys[at : at + _KEYS])


def delete_row(backend: Backend, partition: bytes, key: bytes, etag: Etag) -> bool:
    """Delete a row if it has this etag, or with any etag if the backend has no such deletion. True if it is gone.

    Unavailable if the answer was lost: to be called again.
    """
    try:
        if isinstance(backend, DeletesIf):
            backend.delete_if(partition, key, etag)
        else:
            delete_rows(backend, partition, [key])
    except Conflict:
        return False
    except Ambiguous as error:
        raise Unavailable(f"a row may not be deleted yet; try again: {error}") from error
    return True


def send_until_answered(clock: Clock, write: Callable[[], object], remedy: str) -> None:
    """Send a write that may be applied twice, until its answer comes. Unavailable if no answer comes.

    `remedy`: the next step, for the error.
    """
    for attempt in range(_ANSWERS):
        try:
            write()
            return
        except Ambiguous:
            clock.sleep(0.05 * 2**attempt)
    raise Unavailable(f"the storage's answers are lost one after the other; {remedy}")


def put_settled(
    backend: Backend,
    clock: Clock,
    partition: bytes,
    key: bytes,
    data: bytes,
    expect: Expect | Etag,
    remedy: str,
    *,
    durable: bool = True,
) -> Etag | None:
    """Put a row whose data no other writer puts for another reason, and resolve a lost answer by reading the row.

    Return its etag; None if another row exists. Unavailable if no answer comes. `remedy`: the next step, for the error.
    """
    for attempt in range(_ANSWERS):
        try:
            return backend.put(partition, key, data, expect, durable=durable)
        except (Conflict, Ambiguous) as error:
            # A conflict may be with the first try of this very row.
            there = backend.get(partition, [key])[0]
            if there is not None and there.data == data:
                return there.etag
            if isinstance(error, Conflict):
                return None
            clock.sleep(0.05 * 2**attempt)
    raise Unavailable(f"the storage's answers are lost one after the other; {remedy}")


def attempts(clock: Clock, most: int = 100) -> Iterator[int]:
    """Count the attempts at a change that another process may overtake. It pauses before the third and later ones.

    The pauses are random and grow to half a second, so that processes that compete do not meet again and again.
    """
    for attempt in range(most):
        if attempt > 1:
            clock.sleep(min(0.01 * 2**attempt, 0.5) * (0.5 + random.random() / 2))
        yield attempt


class RetryingBackend:
    """A Backend around another one. Leases are not retried: their holder has its own deadline."""

    def __init__(self, inner: Backend, clock: Clock, counters: Counters, timeout: float) -> None:
        self._inner = inner
        self._clock = clock
        self._counters = counters
        self._timeout = timeout
        self.limits: Limits = inner.limits

    @property
    def requests(self) -> Mapping[str, int]:
        """The inner backend's counts, repeated requests included."""
        return self._inner.requests

    def service_time(self) -> ServiceTime | None:
        """Return the service's clock: see `Backend.service_time`."""
        return self._inner.service_time()

    def _retry(self, call: Callable[[], _T]) -> _T:
        deadline = self._clock.monotonic() + self._timeout
        attempt = 0
        while True:
            try:
                return call()
            except TransientError as error:
                attempt += 1
                self._wait(error, attempt, deadline)

    def _wait(self, error: TransientError, attempt: int, deadline: float) -> None:
        longest = min((0.2 if isinstance(error, Throttled) else 0.05) * 2**attempt, 5.0)
        rest = deadline - self._clock.monotonic()
        if rest <= 0:
            raise error
        self._counters["retries"] += 1
        self._clock.sleep(min(longest * (0.5 + random.random() / 2), rest))

    def _retry_in_parts(
        self,
        call: Callable[[Sequence[_A]], list[_T]],
        wanted: Sequence[_A],
        most: int = 1 << 62,
        is_end: Callable[[list[_T]], bool] | None = None,
    ) -> list[_T]:
        """Run a call that may be throttled: halve the items of a refused call, so that it succeeds beside the calls of
        others. At most `most` items are sent at once, until the answer is the end."""
        deadline = self._clock.monotonic() + self._timeout
        done: list[_T] = []
        attempt, size = 0, len(wanted)
        while True:
            try:
                done += call(wanted[len(done) : len(done) + size])
                if len(done) >= len(wanted) or (is_end is not None and size < len(wanted) and is_end(done)):
                    return done
                attempt = 0  # it comes through: the next refusal is no reason to wait longer
            except TransientError as error:
                attempt += 1
                if isinstance(error, Throttled):
                    size = max(min(size // 2, most), 1)
                self._wait(error, attempt, deadline)

    def get(self, partition: bytes, keys: Sequence[bytes]) -> list[Value | None]:
        """Return values: see `Backend.get`. A throttled call is repeated in smaller parts."""
        return self._retry_in_parts(lambda part: self._inner.get(partition, part), keys)

    def read(self, partition: bytes, ranges: Sequence[Range]) -> list[bytes | None]:
        """Return parts of values: see `Backend.read`. A throttled call is repeated in smaller parts."""
        return self._retry_in_parts(lambda part: self._inner.read(partition, part), ranges)

    def read_on(self, partition: bytes, ranges: Sequence[Range], first: int) -> list[bytes | None]:
        """Read as `read` does, for ranges whose rows are created one after the other from index `first` on. If it is
        throttled, it reads few at a time and stops after the first missing row: then fewer values come back."""
        return self._retry_in_parts(
            lambda part: self._inner.read(partition, part), ranges, _FEW, lambda done: None in done[first:]
        )

    def scan(self, partition: bytes, start: bytes, end: bytes, *, limit: int = 0, values: bool = True) -> Iterator[Row]:
        """Iterate over rows: see `Backend.scan`. A scan that fails continues after its last row."""
        deadline = self._clock.monotonic() + self._timeout
        attempt = count = 0
        while True:
            try:
                rest = limit - count if limit else 0
                for row in self._inner.scan(partition, start, end, limit=rest, values=values):
                    yield row
                    count += 1
                    start = row.key + b"\x00"
                    if attempt:
                        attempt = 0
                    deadline = self._clock.monotonic() + self._timeout
                return
            except TransientError as error:
                attempt += 1
                self._wait(error, attempt, deadline)

    def put(
        self, partition: bytes, key: bytes, value: bytes, expect: Expect | Etag = ANY, *, durable: bool = True
    ) -> Etag:
        """Set one row: see `Backend.put`. Conflict and Ambiguous are not retried."""
        return self._retry(lambda: self._inner.put(partition, key, value, expect, durable=durable))

    def delete(self, partition: bytes, keys: Sequence[bytes]) -> None:
        """Remove rows: see `Backend.delete`."""
        self._retry(lambda: delete_rows(self._inner, partition, keys))

    def delete_if(self, partition: bytes, key: bytes, etag: Etag) -> None:
        """See `streamkit.backend.DeletesIf`; a backend that is none deletes the row with any etag."""

        def delete() -> None:
            if not delete_row(self._inner, partition, key, etag):
                raise Conflict(key)

        self._retry(delete)

    def scrub(self, partition: bytes) -> str | None:
        """See `streamkit.backend.Scrubs`; where the backend keeps nothing there is nothing to do."""
        inner = self._inner
        return self._retry(lambda: inner.scrub(partition)) if isinstance(inner, Scrubs) else None

    def remove_leftovers(self) -> str | None:
        """See `streamkit.backend.RemovesLeftovers`; a backend that is none has no leftovers."""
        inner = self._inner
        return self._retry(inner.remove_leftovers) if isinstance(inner, RemovesLeftovers) else None

    def kept_copies(self) -> str | None:
        """See `streamkit.backend.KeepsCopies`. None too if the storage refuses to tell."""
        inner = self._inner
        try:
            return self._retry(inner.kept_copies) if isinstance(inner, KeepsCopies) else None
        except PermanentError:
            return None

    def acquire(self, name: str, ttl: float) -> Grant | None:
        """Take a lease: see `Backend.acquire`. Not retried."""
        return self._inner.acquire(name, ttl)

    def renew(self, grant: Grant) -> Grant:
        """Renew a lease: see `Backend.renew`. Not retried."""
        return self._inner.renew(grant)

    def release(self, grant: Grant) -> None:
        """Release a lease: see `Backend.release`. Not retried."""
        self._inner.release(grant)

    def close(self) -> None:
        """Close the inner backend."""
        self._inner.close()
