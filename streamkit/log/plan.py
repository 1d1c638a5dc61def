"""The plan of a transaction: which requests may go into it together. Decided without I/O but for idempotency keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import Fenced, SequenceMismatch, SpaceExists, StreamkitError, TransactionIdMismatch
from .answers import WINDOW
from .commit_base import CommitBase
from .floors import Retained
from .idempotency import find_use, first_result
from .partition import Partition
from .posted_answers import settle
from .request import Request
from .rows import SegmentRow
from .segment_view import counted
from .space_full import check_room
from .statuses import written

__all__ = ["Plan", "mismatch"]


class Plan:
    """The requests of the next transaction, those that wait for its outcome, and those that are refused or answered."""

    __slots__ = (
        "_added",
        "_ids",
        "_keys",
        "_last",
        "base",
        "before",
        "behind",
        "given_up",
        "lead",
        "new_fences",
        "partition",
        "posted",
        "ready",
        "unconfirmed",
        "voids",
        "waiting",
    )

    def __init__(self, partition: Partition, base: CommitBase, before: Mapping[str, SegmentRow]) -> None:
        self.partition = partition
        self.base = base
        self.before = dict(before)
        self.ready: list[Request] = []
        self.unconfirmed: list[tuple[Request, StreamkitError]] = []
        """Requests that the known state refuses. That state may be old."""
        self.posted: list[Request] = []
        """The ready requests that are posted, or may be, because they depend on no neighbour here."""
        self.behind = False
        """Answers to a posted request may be in headers that were not read."""
        self.lead = b""
        """The lead that the transaction names."""
        self.waiting = 0
        self.voids: list[bytes] = []
        """Ids that the transaction settles without a frame."""
        self.given_up: list[tuple[Request, StreamkitError]] = []
        """Posted requests that are refused now but could fit later. Each fails once no process can commit it any
        more."""
        self.new_fences: dict[str, int] = {}
        self._ids: set[bytes] = set()
        self._last: dict[str, int] = {}
        self._keys: set[bytes] = set()
        self._added: dict[str, tuple[int, int]] = {}
        """(entries, bytes) of the ready requests, by segment and in all."""

    def add(self, request: Request) -> None:
        """Add, answer or refuse `request`; or leave it as it is, if that depends on a neighbour's outcome."""
        if request.void is not None:
            if request.void in self._ids:
                return  # the request to void may be committed just now
            self._ids.add(request.void)
        if request.id is not None and not self._is_open(request, request.id):
            return
        if request.key is not None:
            if request.key in self._keys:
                return
            if self._answer(request, request.key):
                return
        if request.condition is not None:
            if any(other.control is not None for other in self.ready):
                return  # a neighbour may change the settings
            if not request.condition():
                self.unconfirmed.append((request, _other_settings(self.partition.space)))
                return
        retention = self.partition.retention
        if retention is not None and retention.when_full != "reject":
            retention = None  # it refuses nothing
        if retention is not None and not self._has_room(request, retention):
            return
        if request.fence is not None:
            name, token = request.fence
            highest = self.partition.fence(name)
            if token < highest:
                request.fail(_fenced(self.partition.space, name, token, highest))
                return
            if token < self.new_fences.get(name, 0):
                return
        last: dict[str, int] = {}
        alone = request.void is None
        for part in request.parts:
            segment = part.segment
            committed = self.before[segment].last_sequence
            now = last.get(segment, self._last.get(segment, committed))
            if part.expected is not None and part.expected != now:
                if part.expected < committed or segment not in self._last:
                    error = mismatch(self.partition.space, segment, part.expected, committed, last.get(segment))
                    self.unconfirmed.append((request, error))
                return
            # An expectation that depends on the log alone, and does not hold, will never hold again.
            alone = alone and (part.expected in (None, last.get(segment, committed)))
            last[segment] = now + (part.body.count if part.body is not None else 0)
        if retention is not None:
            self._use_room(request)
        self._last.update(last)
        if request.id is not None:
            self._ids.add(request.id)
        if alone:
            self.posted.append(request)
        if request.key is not None:
            self._keys.add(request.key)
        if request.fence is not None:
            name, token = request.fence
            if token > self.partition.fence(name):
                self.new_fences[name] = token
        self.ready.append(request)

    def _has_room(self, request: Request, retention: Retained) -> bool:
        """True if the space has room for `request`. If not, it is refused, unless another process has posted it."""
        full = check_room(self.partition, retention, request, self._added, self.before)
        if full is None:
            return True
        if request.foreign:
            pass  # its own process refuses it, once no process can commit it when there is room again
        elif request.id is not None:
            self.given_up.append((request, full))
            self.voids.append(request.id)
        else:
            self.unconfirmed.append((request, full))
        return False

    def _use_room(self, request: Request) -> None:
        """Count the entries and bytes of a request that is ready."""
        for part in request.parts:
            if part.body is not None:
                for name in (part.segment, ""):
                    count, size = self._added.get(name, (0, 0))
                    self._added[name] = count + part.body.count, size + part.size

    def _is_open(self, request: Request, id: bytes) -> bool:
        """True if a posted request is still to be committed. A settled one is answered."""
        answers = self.partition.answers
        settled = answers.get(id)
        if settled is not None:
            settle(self.partition, request, *settled)
            return False
        if request.checked < answers.since:
            self.behind = True
            return False
        if self.base.number >= request.since + WINDOW:
            request.id = None  # no process commits it any more
            request.leave()
            return not request.foreign
        return id not in self._ids

    def add_posted(self, requests: Sequence[Request]) -> bool:
        """Add the requests that another process has posted, if they fit. False: plan again, the log has moved."""
        partition, base = self.partition, self.base
        segments = [part.segment for request in requests for part in request.parts]
        self.before.update(partition.ask(counted, partition.load_statuses(segments)))
        if base.generation != partition.generation:
            return False
        for request in requests:
            if request.since > base.number or request.checked < partition.answers.since:
                continue  # it knows more than this process, or may be settled
            count = len(self.unconfirmed)
            self.add(request)
            for refused, error in self.unconfirmed[count:]:
                refused.fail(error)  # it held when it was posted, so that it never will again
            del self.unconfirmed[count:]
        return True

    def is_current(self) -> bool:
        """True if the known state includes a look at the log that began after every refused request was queued."""
        refused = (*self.unconfirmed, *self.given_up)
        return all(request.arrived < self.base.completed for request, _ in refused)

    def refuse_unconfirmed(self) -> None:
        mismatches = [error for _, error in self.unconfirmed if isinstance(error, SequenceMismatch)]
        self.partition.counters["conflicts"] += len(mismatches)
        for request, error in self.unconfirmed:
            request.fail(error)

    def _answer(self, request: Request, key: bytes) -> bool:
        """Answer a request whose idempotency key was used before."""
        partition = self.partition
        use = find_use(partition, key)
        if use is None:
            return False
        rows, trx = first_result(partition, use)
        if use.content != request.content:
            request.fail(
                TransactionIdMismatch(
                    f"the idempotency key was used before with other content, in {partition.where(use.number)}; "
                    "a key names one transaction. Repeat it with the same records, times and ids in them included, or "
                    "choose another key",
                    written(partition, rows, trx, use.count),
                )
            )
        else:
            request.replayed = True
            request.succeed(rows, trx, use.count)
        return True


def check_fence(partition: Partition, fence: tuple[str, int] | None) -> None:
    """Raise Fenced if a later holder of a lease has written, as far as this process knows."""
    if fence is not None and fence[1] < (highest := partition.fence(fence[0])):
        raise _fenced(partition.space, *fence, highest)


def _fenced(space: str, name: str, token: int, highest: int) -> Fenced:
    return Fenced(
        f"the lease {name!r} with token {token} was succeeded by one with token {highest}, which has written to the "
        f"space {space!r}: stop, this holder is not the leader any more"
    )


def _other_settings(space: str) -> SpaceExists:
    return SpaceExists(f"the settings of space {space!r} are no longer the expected ones; read them again")


def mismatch(space: str, segment: str, expected: int, actual: int, by_then: int | None = None) -> SequenceMismatch:
    """`by_then`: where earlier parts of the same transaction bring the segment."""
    if by_then is not None and by_then != actual:
        return SequenceMismatch(
            f"segment {segment!r} of space {space!r} was expected at sequence {expected}, but this transaction itself "
            f"brings it to {by_then} by then: put its records into one produce, or expect the sequence that it reaches",
            expected,
            by_then,
        )
    return SequenceMismatch(
        f"segment {segment!r} of space {space!r} was expected at sequence {expected} and is at {actual}: "
        "read the newer entries, and decide again",
        expected,
        actual,
    )
