"""What a write takes beside its records, and transactions over several segments."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from .errors import StoreClosed
from .leases import Lease
from .log.plan import mismatch
from .log.request import Part, Request
from .model import TRX, Record, SegmentStatus
from .names import check_name

if TYPE_CHECKING:
    from .store import Store

__all__ = ["Transaction", "check_key", "check_lease", "fence"]


class Transaction:
    """Several segments, all or nothing. Committed at the end of its `with` block, dropped if that raises.

    ResourceWarning if it is dropped without one.
    """

    _ended = True

    def __init__(self, store: Store, space: str, key: str | None, lease: Lease | None) -> None:
        self.space = space
        self.statuses: dict[str, SegmentStatus] = {}
        """After the commit: each segment's status."""
        self.trx: TRX | None = None
        """After the commit."""
        self._store = store
        self._key = key
        self._lease = lease
        self._parts: list[Part] = []
        self._expected: dict[str, int] = {}
        self._last: dict[str, int] = {}
        """Where segments are expected, and where the parts so far bring them from there."""
        self._entered = False
        self._ended = False

    def produce(self, segment: str, records: Iterable[Record], *, expected_sequence: int | None = None) -> None:
        """Add records. What is wrong with them is said here; what is wrong with their place, at the commit."""
        if self._ended:
            raise StoreClosed("the transaction has ended: begin another one")
        part = self._store._part(check_name(segment, "segment"), records, expected_sequence, self._key is not None)
        if part is None:
            return
        by_then = self._last.get(segment)
        if part.expected is not None:
            if by_then is not None and part.expected != by_then:
                raise mismatch(self.space, segment, part.expected, self._expected[segment], by_then)
            by_then = part.expected
            self._expected.setdefault(segment, by_then)
        if by_then is not None:
            self._last[segment] = by_then + (0 if part.body is None else part.body.count)
        self._parts.append(part)

    def __enter__(self) -> Transaction:
        self._entered = True
        return self

    def __del__(self) -> None:
        if self._ended or (self._entered and not self._parts):
            return
        parts = f"{len(self._parts)} parts" if self._parts else "nothing in it"
        warnings.warn(
            f"a transaction on the space {self.space!r} was dropped with {parts}, and nothing was written: it is "
            "committed at the end of its block, `with store.transaction(…) as trx:`",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if kind is not None or not self._parts:
            return
        if all(part.body is None for part in self._parts):
            self.statuses = self._store._guard(self.space, self._parts)
            return
        request = Request(self._parts, self._key, fence(self._lease))
        self.statuses = self._store._commit(self.space, request, self._lease)
        self.trx = request.trx


def check_key(key: str | None) -> str | None:
    if key is not None and not isinstance(key, str):
        raise TypeError(f"an idempotency key is str or None, not {type(key).__name__}")
    if key == "":
        raise ValueError("an idempotency key is not empty; None is for no key")
    if key is not None and not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise ValueError("an idempotency key has no lone surrogates, which are not text") from error
    return key


def check_lease(lease: Lease | None) -> Lease | None:
    if lease is not None and not isinstance(lease, Lease):
        raise TypeError(f"lease is what `store.lease(…)` gave, not {type(lease).__name__}")
    return lease


def fence(lease: Lease | None) -> tuple[str, int] | None:
    return None if lease is None else (lease.key, lease.token)
