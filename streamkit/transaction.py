"""Transactions over several segments."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TypeVar

from .causation import present_causes, with_causes
from .errors import Fenced, StoreClosed
from .leases import Lease, LeaseGrant
from .log.commit import Committer
from .log.plan import mismatch
from .log.request import Part, Request
from .log.statuses import written_later
from .model import TRX, Record, SegmentStatus
from .names import check_name, check_names
from .terminal import amount
from .warn import warn
from .writing import Writer, check_key, check_lease, fence

__all__ = ["Draft", "Transaction", "add_all"]

R = TypeVar("R", bound=Request)


class Draft:
    """The parts of a transaction and its state, for threads and coroutines alike.

    ResourceWarning if it is dropped with records in it, or is never entered. Dropped records are logged, too.
    """

    ended = True

    def __init__(self, writer: Writer, space: str, key: str | None, lease: Lease | LeaseGrant | None) -> None:
        self.space = check_name(space, "space")
        self._statuses: dict[str, SegmentStatus] = {}
        self._written: Callable[[], dict[str, SegmentStatus]] | None = None
        self.trx: TRX | None = None
        self.replayed = False
        self._writer = writer
        self._key = check_key(key)
        self._lease = check_lease(lease, writer.store)
        self._parts: list[Part] = []
        self._expected: dict[str, int] = {}
        self._last: dict[str, int] = {}
        """The last sequence of each segment after the transaction's parts so far."""
        self.entered = False
        self.ended = False

    def add(self, segment: str, records: Iterable[Record], expected_sequence: int | None) -> None:
        """Add records of one segment. SequenceMismatch if an expectation contradicts an earlier part."""
        self.check_open()
        records = with_causes(self.space, records)
        digest = self._key is not None
        part = self._writer.part(self.space, check_name(segment, "segment"), records, expected_sequence, digest)
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

    def add_all(self, parts: Sequence[tuple[str, list[Record]]]) -> None:
        """Add the records of many segments, which are instances of Record without sequences."""
        if self._last or present_causes() is not None:
            for segment, records in parts:
                self.add(segment, records, None)
            return
        self.check_open()
        check_names([segment for segment, _ in parts], "segment")
        self._parts += self._writer.parts(self.space, parts, self._key is not None)

    def check_open(self) -> None:
        """Raise StoreClosed if the transaction has ended."""
        if self.ended:
            raise StoreClosed("the transaction has ended: begin another one")

    @property
    def guards(self) -> bool:
        """Nothing is to be written; it only says where segments must be."""
        return all(part.body is None for part in self._parts)

    def guard(self) -> None:
        """Raise SequenceMismatch where a segment is not as expected. Asks the storage."""
        if self._parts:
            self._statuses = self._writer.guard(self.space, self._parts, self._lease)

    @property
    def is_open(self) -> bool:
        """True if its space is, so that `committer` does no I/O."""
        return self._writer.is_open(self.space)

    def committer(self) -> Committer:
        """Return the committer of the segments' partition. CrossPartition if they are on several."""
        return self._writer.committer(self.space, self._parts)

    def request(self, make: Callable[[Sequence[Part], str | None, tuple[str, int] | None], R]) -> R:
        """Return the parts as a request, made by `make`."""
        return make(self._parts, self._key, fence(self._lease))

    def committed(self, committer: Committer, request: Request) -> None:
        """Take over the result of the committed request."""
        assert request.trx is not None
        self.trx = request.trx
        self.replayed = request.replayed
        self._written = written_later(committer.partition, request.result, request.trx, request.count)

    @property
    def statuses(self) -> dict[str, SegmentStatus]:
        """Return each segment's status after the commit; empty before it. The first call makes them."""
        make = self._written
        if make is not None:
            self._statuses, self._written = make(), None
        return self._statuses

    def fenced(self) -> None:
        """Note that another holder has the lease."""
        if isinstance(self._lease, Lease):
            self._lease.lost.set()

    def __del__(self) -> None:
        if self.ended or (self.entered and not self._parts):
            return
        parts = amount(len(self._parts), "part") if self._parts else "nothing in it"
        text = (
            f"a transaction on the space {self.space!r} was dropped with {parts}, and nothing was written: it is "
            "committed at the end of its block, `with store.transaction(…) as trx:`"
        )
        if self._parts and sys.is_finalizing():  # the end of the program imports no module any more
            print(text, file=sys.stderr)
        elif self._parts:
            warn("%s", text, space=self.space)  # Python does not show a ResourceWarning unless it is asked to
        warnings.warn(text, ResourceWarning, stacklevel=2, source=self)


class Transaction:
    """A transaction over several segments, all or nothing. The end of its `with` block commits it, unless the block
    raises.

    ResourceWarning if it is dropped without one.
    """

    def __init__(self, draft: Draft) -> None:
        self.space = draft.space
        self._draft = draft

    @property
    def statuses(self) -> dict[str, SegmentStatus]:
        """The status of each segment, after the commit."""
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

    def produce(self, segment: str, records: Iterable[Record], *, expected_sequence: int | None = None) -> None:
        """Add records. Invalid records are refused here, and a wrong expected sequence at the commit."""
        self._draft.add(segment, records, expected_sequence)

    def __enter__(self) -> Transaction:
        self._draft.entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        draft = self._draft
        draft.ended = True
        if kind is not None:
            return
        if draft.guards:
            draft.guard()
            return
        committer, request = draft.committer(), draft.request(Request)
        try:
            committer.commit(request)
        except Fenced:
            draft.fenced()
            raise
        draft.committed(committer, request)


def add_all(transaction: Transaction, parts: Sequence[tuple[str, list[Record]]]) -> None:
    """Add the records of many segments at once, for the sinks: instances of Record, without sequences. Telemetry does
    not see it."""
    transaction._draft.add_all(parts)
