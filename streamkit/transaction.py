"""What a write takes beside its records, and transactions over several segments."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from .errors import StoreClosed
from .leases import Lease
from .log.request import Part, Request
from .log.rows import SegmentRow
from .model import TRX, Record, SegmentStatus
from .names import check_name

if TYPE_CHECKING:
    from .store import Store

__all__ = ["Transaction", "check_key", "check_lease", "fence", "status_of"]


class Transaction:
    """Several segments, all or nothing. Committed at the end of its `with` block, dropped if that raises."""

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
        self._ended = False

    def produce(self, segment: str, records: Iterable[Record], *, expected_sequence: int | None = None) -> None:
        """Add records. What is wrong with them is said here; what is wrong with their place, at the commit."""
        if self._ended:
            raise StoreClosed("the transaction has ended: begin another one")
        part = self._store._part(check_name(segment, "segment"), records, expected_sequence, self._key is not None)
        if part is not None:
            self._parts.append(part)

    def __enter__(self) -> Transaction:
        return self

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
        self._store._commit(self.space, request, self._lease)
        self.trx = request.trx
        self.statuses = {
            segment: status_of(self.space, segment, row, request.trx) for segment, row in request.result.items()
        }


def status_of(space: str, segment: str, row: SegmentRow, trx: TRX | None) -> SegmentStatus:
    return SegmentStatus(
        space, segment, row.first_sequence, row.first_timestamp, row.last_sequence, row.last_timestamp, trx
    )


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
