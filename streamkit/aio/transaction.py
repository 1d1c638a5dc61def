"""Transactions over several segments, for coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..model import TRX, Record, SegmentStatus
from ..transaction import Draft

if TYPE_CHECKING:
    from .store import AsyncStore

__all__ = ["AsyncTransaction", "as_given", "is_much", "tell_none"]

_BYTES = 64 << 10
_RECORDS = 256
"""More than these are checked and compressed in a thread: it would keep the event loop from other work."""


class _Added:
    """The result of `produce`; awaiting it is optional."""

    def __init__(self, transaction: AsyncTransaction, add: Callable[[], None]) -> None:
        self._transaction = transaction
        self._add = add
        self._error: Exception | None = None

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._transaction.encode().__await__()
        self.check()

    def add(self) -> None:
        try:
            self._add()
        except Exception as error:
            self._error = error

    def check(self) -> None:
        """Raise the error of the addition, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error


class AsyncTransaction:
    """A transaction over several segments, all or nothing. The end of its `async with` block commits it, unless it
    raises."""

    def __init__(self, store: AsyncStore, draft: Draft) -> None:
        self.space = draft.space
        self._store = store
        self._draft = draft
        self._added: list[_Added] = []
        self._large: list[_Added] = []
        """Large parts that are not encoded yet, in the order of the calls."""
        self._encoding: Future[None] | None = None

    @property
    def statuses(self) -> dict[str, SegmentStatus]:
        """Return each segment's status after the commit; empty before it."""
        return self._draft.statuses

    @property
    def trx(self) -> TRX | None:
        """Return the transaction's id after the commit; None before it."""
        return self._draft.trx

    @property
    def replayed(self) -> bool:
        """True if the idempotency key was used before: the statuses are those of the first use. Known after the
        commit."""
        return self._draft.replayed

    def produce(
        self, segment: str, records: Iterable[Record], *, expected_sequence: int | None = None
    ) -> Awaitable[None]:
        """Add records. An error in the records is raised here, by `await`, or at the end of the block at the latest.

        A wrong expected sequence is raised at the commit. The records are in the transaction when the call returns, so
        it need not be awaited.
        """
        self._draft.check_open()
        records = as_given(records)
        added = _Added(self, partial(self._draft.add, segment, records, expected_sequence))
        self._added.append(added)
        if self._large or self._encoding is not None or is_much(records):
            self._large.append(added)
        else:
            added.add()
            added.check()
        return added

    async def encode(self) -> None:
        """Check large records in a thread. If the call is cancelled, the check continues, and the next call waits for
        it."""
        while self._large or self._encoding is not None:
            if self._encoding is None:
                large, self._large = self._large, []
                self._encoding = self._store.calls.submit(_add_all, large)
            encoding = self._encoding
            await asyncio.shield(asyncio.wrap_future(encoding))
            if self._encoding is encoding:
                self._encoding = None

    async def __aenter__(self) -> AsyncTransaction:
        self._store.calls.check()
        self._draft.entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        draft = self._draft
        try:
            if kind is None:
                await self.encode()
            draft.ended = True
            if kind is None:
                await self._commit()
            elif isinstance(error, asyncio.CancelledError):
                tell_none(error)
        except asyncio.CancelledError as cancelled:
            tell_none(cancelled)
            raise
        finally:
            self._added.clear()  # they refer to the transaction: the ring would wait for the garbage collector

    async def _commit(self) -> None:
        for added in self._added:
            added.check()
        await self._store.commit(self._draft)


def as_given(records: Iterable[Record]) -> Iterable[Record]:
    """The records, read to their end. Another value stays as it is, and the check refuses it."""
    return records if isinstance(records, (Record, bytes, str, Mapping)) else list(records)


def tell_none(error: asyncio.CancelledError) -> None:
    """Note on a cancellation that nothing was sent, unless it names a transaction already."""
    if not hasattr(error, "transaction_id"):
        error.transaction_id = None  # type: ignore[attr-defined]


def _add_all(large: list[_Added]) -> None:
    for added in large:
        added.add()


def is_much(records: Iterable[Record]) -> bool:
    try:
        return isinstance(records, list) and (
            len(records) > _RECORDS or sum([len(record.payload) for record in records]) > _BYTES
        )
    except (AttributeError, TypeError):
        return False  # the check raises the error
