"""Writing: the callers' records become parts of a request, and the space's committer commits it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from . import speed
from .arguments import check_type
from .errors import Fenced, TransactionTooLarge
from .handle import Handle
from .leases import Lease, LeaseGrant, check_store
from .log.commit import Committer
from .log.partition import Partition
from .log.plan import check_fence, mismatch
from .log.record_format import SMALL, Body, compress_body, encode_body
from .log.request import Part, Request
from .log.rows import NOTHING
from .log.statuses import present, written
from .log.validate import listed, prepare
from .model import Record, SegmentStatus, no_status
from .names import InternalName

__all__ = ["Writer", "check_key", "check_lease", "fence"]

_twin: Any = speed.twin
_parts: Any = speed.twin and speed.twin.Parts(Record, Part, Body, SMALL)

_INTERNAL = 1 << 30
"""Bytes of payload that a transaction of an internal space may have at most: as many as a transaction can."""


class Writer:
    """The writes of one handle of a store. Holds no state of its own."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._shared = handle.shared
        self._most_bytes = handle.shared.most_bytes
        self.store = handle.shared.id

    def lone(self, space: str, segment: str, records: Iterable[Record], expected: int | None = None) -> Part | None:
        """Check the names, and make the part as `part` does, in one step. None where that has to be done in several, as
        for wrong arguments."""
        if _twin is None:
            return None
        part: Part | None = _parts.lone(space, segment, records, self._most_bytes, expected)
        return part

    def commit_part(self, space: str, part: Part) -> SegmentStatus:
        """Commit a part that has a body, as `commit_one` does a request."""
        known = self._shared.spaces.get(space)
        if known is None or self._handle.closed or known.only is None:
            committer = self.committer(space, (part,))
        else:
            committer = known.only
        made = committer.commit_alone(part)
        if made is None:
            request = Request((part,))
            committer.commit_queued(request)
            return self.status(committer.partition, part.segment, request)
        status = made[5]
        if status is None:
            status = written(committer.partition, {part.segment: made[2]}, made[4], made[3].count)[part.segment]
        return status

    def _most(self, space: str) -> int:
        """The most bytes of payload of a transaction: the setting is for callers' records, not for internal state."""
        return _INTERNAL if isinstance(space, InternalName) else self._most_bytes

    def part(
        self, space: str, segment: str, records: Iterable[Record], expected: int | None, digest: bool
    ) -> Part | None:
        """Check and encode the records for one segment. None if there are no records and no expectation."""
        most = self._most(space)
        if _twin is not None and (expected is None or (type(expected) is int and expected >= 0)):
            if type(records) is not list:
                records = listed(records)
            made: tuple[bytes, int, int, int] | None = _parts.encode(records, most, digest)
            if made is not None:
                data, flags, count, size = made
                return Part(segment, compress_body(data, flags, count, data if digest else b""), size, expected)
        if type(records) is list and len(records) == 1 and expected is None:
            record = records[0]
            if type(record) is Record and record.metadata is None and record.sequence is None:
                payload = record.payload
                if type(payload) is bytes and (size := len(payload)) <= most:
                    return Part(segment, encode_body([payload], None, digest=digest), size, None)
        payloads, metadata, expected, size = prepare(records, expected, most)
        if size > most:
            raise self._too_large(size)
        if not payloads:
            return None if expected is None else Part(segment, None, 0, expected)
        return Part(segment, encode_body(payloads, metadata, digest=digest), size, expected)

    def parts(self, space: str, given: Sequence[tuple[str, list[Record]]], digest: bool) -> list[Part]:
        """Make parts as `part` does, for many segments, without expectations."""
        parts: list[Part] = []
        for segment, records in given:
            part = self.part(space, segment, records, None, digest)
            if part is not None:
                parts.append(part)
        return parts

    def guard(self, space: str, parts: Sequence[Part], lease: Lease | LeaseGrant | None) -> dict[str, SegmentStatus]:
        """The present statuses of segments that nothing is written to. SequenceMismatch where one is not expected."""
        known = self._handle.space(space)
        segments = list(dict.fromkeys(part.segment for part in parts))
        rows, end = dict.fromkeys(segments, NOTHING), (0, 0, 0)
        if known is not None:
            partition = known.partition_of(segments)
            partition.refresh(segments)
            check_fence(partition, fence(lease))
            rows, end = partition.statuses(segments)
        for part in parts:
            actual = rows[part.segment].last_sequence
            if part.expected is not None and part.expected != actual:
                raise mismatch(space, part.segment, part.expected, actual)
        if known is None:
            return {segment: no_status(space, segment) for segment in segments}
        return present(known.partition_of(segments), rows, end)

    def commit(self, space: str, request: Request, lease: Lease | LeaseGrant | None = None) -> dict[str, SegmentStatus]:
        """The statuses after it, by segment."""
        partition = self._committed(space, request, lease)
        assert request.trx is not None
        return written(partition, request.result, request.trx, request.count)

    def commit_one(
        self, space: str, segment: str, request: Request, lease: Lease | LeaseGrant | None = None
    ) -> SegmentStatus:
        """Commit as `commit` does, and return the status of one of its segments."""
        partition = self._committed(space, request, lease)
        return self.status(partition, segment, request)

    def status(self, partition: Partition, segment: str, request: Request) -> SegmentStatus:
        """The status of a segment after a committed request."""
        if request.status is not None:
            return request.status
        assert request.trx is not None
        return written(partition, request.result, request.trx, request.count)[segment]

    def _committed(self, space: str, request: Request, lease: Lease | LeaseGrant | None) -> Partition:
        committer = self.committer(space, request.parts)
        try:
            committer.commit(request)
        except Fenced:
            if isinstance(lease, Lease):
                lease.lost.set()
            raise
        return committer.partition

    def append(self, space: str, request: Request) -> None:
        """Commit as `commit` does, for callers that need no statuses."""
        self.committer(space, request.parts).commit(request)

    def is_open(self, space: str) -> bool:
        """True if `committer` does no I/O."""
        return space in self._shared.spaces and not self._handle.closed

    def committer(self, space: str, parts: Sequence[Part]) -> Committer:
        """Return the committer of `parts`; the space is created if it does not exist. No I/O if it is open."""
        lone = len(parts) == 1
        if not lone and (size := sum([part.size for part in parts])) > self._most(space):
            raise self._too_large(size)
        known = self._shared.spaces.get(space)
        if known is None or self._handle.closed:
            self._handle.check_open()
            known = self._shared.ready(space, tuple([part.segment for part in parts]))
        if known.only is not None:
            return known.only
        if lone:
            return known.committer(parts[0].segment)
        partition = known.partition_of([part.segment for part in parts])
        return known.committers[partition.partition]

    def _too_large(self, size: int) -> TransactionTooLarge:
        return TransactionTooLarge(
            f"a transaction of {size} bytes of payload; one holds at most {self._most_bytes}. Split it, or raise "
            "max_transaction_bytes of connect()"
        )


def check_key(key: str | None) -> str | None:
    check_type(key, str, "an idempotency key is str or None", optional=True)
    if key == "":
        raise ValueError("an idempotency key is not empty; None is for no key")
    if key is not None and not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise ValueError("an idempotency key has no lone surrogates, which are not text") from error
    return key


def check_lease(lease: Lease | LeaseGrant | None, store: UUID) -> Lease | LeaseGrant | None:
    """`lease`, for a write to a store. TypeError, or ValueError for a Lease of another store; a grant names none."""
    check_type(
        lease, Lease | LeaseGrant, "lease is what `store.lease(…)` or `store.acquire_lease(…)` gave", optional=True
    )
    if isinstance(lease, Lease):
        check_store(lease, store)
    return lease


def fence(lease: Lease | LeaseGrant | None) -> tuple[str, int] | None:
    return None if lease is None else (lease.key, lease.token)
