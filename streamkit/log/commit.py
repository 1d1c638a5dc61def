"""The commit: one conditional write that makes entries visible and gives them their position, at the same moment.

Group commit: while one commit of a partition is in flight, further requests queue up, and the next transaction takes
all of them. Each request is judged for itself, so that one caller's mismatch is never its neighbour's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from uuid import UUID

from ..backend import ABSENT, Ambiguous, Append, Conflict, Delete, Etag, Op, Put
from ..errors import Fenced, OutcomeUnknown, SequenceMismatch, StreamkitError, TransactionIdMismatch, Unavailable
from ..index.upkeep import bring_forward, rows_of
from ..model import TRX
from ..warn import warn
from .keys import HEAD, idempotency_key, segment_key, transaction_key, transaction_number
from .partition import Partition
from .record_format import Body, KeyUse, encode_transaction
from .rows import Head, KeyRow, SegmentRow, decode_row, encode_row

__all__ = ["Committer", "Part", "Request", "new_id"]

_MOST_FRAMES = 4096
_ATTEMPTS = 6
_LOSSES = 1000
_TAIL_BYTES = 16 << 20
_TAIL_FRAMES = 1 << 15
"""Whoever opens the space reads them first, in a microsecond each."""


_chance = random.Random()
"""Of this module alone, so that a program that seeds the common one makes no id twice."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_chance.seed)


def new_id(milliseconds: int) -> bytes:
    """A version 7 UUID: unique, and it tells when it was made."""
    bits = _chance.getrandbits(74)
    return (milliseconds << 80 | 0x7 << 76 | bits >> 62 << 64 | 0b10 << 62 | bits & 0x3FFFFFFFFFFFFFFF).to_bytes(
        16, "big"
    )


class Part:
    """What one request writes to one segment."""

    __slots__ = ("body", "expected", "segment", "size")

    def __init__(self, segment: str, body: Body, size: int, expected: int | None) -> None:
        self.segment = segment
        self.body = body
        self.size = size
        """Bytes of payload."""
        self.expected = expected
        """The segment's last sequence, if the caller insists."""


class Request:
    """One caller's transaction, from its validation to its result."""

    __slots__ = ("content", "done", "error", "fence", "key", "parts", "result", "trx", "turn")

    def __init__(self, parts: Sequence[Part], key: str | None = None, fence: tuple[str, int] | None = None) -> None:
        self.parts = parts
        self.key = None if key is None else _digest(key.encode())
        self.content = b"" if key is None else _content(parts)
        self.fence = fence
        self.done = False
        self.result: dict[str, SegmentRow] = {}
        self.trx: TRX | None = None
        self.error: BaseException | None = None
        self.turn: threading.Lock | None = None
        """Held while the caller waits for another thread; released when it is done, or is to lead."""

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done = True


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _content(parts: Sequence[Part]) -> bytes:
    """Says the same for the same records, however they were compressed: the raw bytes decide, not the packed ones."""
    content = hashlib.blake2b(digest_size=16)
    for part in parts:
        name = part.segment.encode()
        content.update(b"%d %d %d " % (len(name), part.body.count, part.body.raw) + name + part.body.digest)
    return content.digest()


class Committer:
    """Commits requests to one partition, one transaction at a time."""

    def __init__(self, partition: Partition, node: bytes, most_bytes: int) -> None:
        self.partition = partition
        self.node = node
        self.most_bytes = most_bytes
        self.unknown: dict[bytes, int] = {}
        """Transactions whose outcome could not be learned, and the numbers they were for."""
        self._attempt = (0, bytes(16))
        """Number and id of the transaction that was last written, or tried to be."""
        self._queue: deque[Request] = deque()
        self._mutex = threading.Lock()
        """Guards the queue and who leads; never held during I/O."""
        self._led = False
        """A thread is committing what is queued."""
        self._indexing = threading.Lock()
        self._next_upkeep = 0

    def commit(self, request: Request) -> None:
        """Returns when `request` has its result; raises its error."""
        with self._mutex:
            leads, self._led = not self._led, True
            if not leads:
                request.turn = threading.Lock()
                request.turn.acquire()
                self._queue.append(request)
        if not leads:
            self._follow(request)
        if not request.done:
            try:
                if leads:
                    self._commit_together([request])  # nobody leads, so nobody waits
                while not request.done:
                    self._commit_together(self._take())
            finally:
                self._hand_over(request)
        if request.error is not None:
            raise request.error
        self.keep_index()

    def _follow(self, request: Request) -> None:
        """Wait until a leader has committed `request`, or hands the lead over to this thread."""
        assert request.turn is not None
        try:
            request.turn.acquire()
        except BaseException:
            with self._mutex:
                leads = not request.done and not request.turn.locked()
                self._forget(request)
            if leads:
                self._hand_over(request)
            raise

    def _forget(self, request: Request) -> None:
        with contextlib.suppress(ValueError):
            self._queue.remove(request)

    def _hand_over(self, request: Request) -> None:
        """The thread of the first request that waits leads from now on, and this one's never again."""
        with self._mutex:
            if not request.done:
                self._forget(request)
            if self._queue:
                turn = self._queue[0].turn
                assert turn is not None
                turn.release()
            else:
                self._led = False

    def _take(self) -> list[Request]:
        """From the head of the queue, as much as one transaction may hold; at least one request."""
        limits = self.partition.limits
        most_frames = min(_MOST_FRAMES, (limits.ops - 4) // 2 if limits.atomic else _MOST_FRAMES)
        taken: list[Request] = []
        size = frames = 0
        with self._mutex:
            while self._queue:
                request = self._queue[0]
                size += sum([part.size for part in request.parts])
                frames += len(request.parts) + (request.key is not None)
                if taken and (size > self.most_bytes or frames > most_frames):
                    break
                taken.append(self._queue.popleft())
        return taken

    def _commit_together(self, requests: list[Request]) -> None:
        try:
            self._commit(requests)
        except StreamkitError as error:
            for request in requests:
                if not request.done:
                    request.fail(error)
        except BaseException:
            # This thread was interrupted: its neighbours must not wait for ever, and cannot know more than it does.
            for request in requests:
                if not request.done:
                    request.fail(self._unknown(*self._attempt))
            raise
        finally:
            for request in requests:
                if request.done and request.turn is not None:
                    request.turn.release()

    def _commit(self, requests: list[Request]) -> None:
        partition = self.partition
        segments = [part.segment for request in requests for part in request.parts]
        atomic = partition.limits.atomic
        sure = not partition.is_fresh()
        if sure:
            partition.refresh(segments)
        lost = 0
        while True:
            if atomic and partition.watermark != partition.number:
                bring_forward(partition)
            with partition.lock:
                base = _Base(partition)
            statuses = partition.learn_for_commit(segments)
            verdict = _Verdict(partition, base, statuses)
            for request in requests:
                verdict.judge(request)
            if verdict.doubts and not sure:
                # By what is known here an expectation does not hold; but that may be old. Look before refusing, also
                # where it can never hold any more: the sequence that the caller is told must be true.
                partition.refresh(segments)
                sure = True
                continue
            verdict.refuse_doubts()
            # Refused only because of a neighbour that is not committed yet: judged again after it is.
            if verdict.later:
                with self._mutex:
                    self._queue.extendleft(reversed(verdict.later))
            requests = verdict.ready
            if not requests or self._write(base, requests, verdict):
                return
            partition.counters["conflicts"] += 1
            lost += 1
            if lost > _LOSSES:
                raise Unavailable(
                    f"space {partition.space!r}, partition {partition.partition}: {lost} commits in a row met others' "
                    "writes; spread the writers over more partitions, or try again"
                )
            if partition.limits.remote and lost > 2:
                partition.clock.sleep(random.random() * min(0.01 * 2**lost, 0.5))
            partition.unlearn(segments)
            partition.refresh(segments)
            sure = True

    def _write(self, base: _Base, requests: Sequence[Request], verdict: _Verdict) -> bool:
        """Write one transaction of `requests`; False if another writer's is at its number."""
        partition = self.partition
        limits = partition.limits
        now = partition.clock.now()
        number, id = self._attempt = base.number + 1, new_id(now)
        timestamp = max(now, base.timestamp)
        before = verdict.before
        after: dict[str, SegmentRow] = {}
        parts: list[tuple[str, int, Body]] = []
        keys: list[KeyUse] = []
        count = 0
        for request in requests:
            for part in request.parts:
                segment, body = part.segment, part.body
                row = after.get(segment) or before[segment]
                first, last = row.last_sequence + 1, row.last_sequence + body.count
                parts.append((segment, first, body))
                row = SegmentRow(row.first_sequence or first, row.first_timestamp or timestamp, last, timestamp)
                after[segment] = request.result[segment] = row
                count += body.count
            if request.key is not None:
                given = tuple((segment, row.last_sequence) for segment, row in request.result.items())
                keys.append(KeyUse(request.key, request.content, given))
        header, record = encode_transaction(
            number=number,
            timestamp=timestamp,
            id=id,
            node=self.node,
            position=base.position,
            parts=parts,
            keys=tuple(keys),
            fences=verdict.new_fences,
            seed=partition.seed,
        )
        ops: list[Op] = [Append(transaction_key(number), record)]
        indexed = False
        if limits.atomic:
            rows = rows_of(partition, header, record, after, partition.etags)
            size = min(len(record), 1 << 20) + sum(len(put.key) + len(put.value) + 256 for put in rows)
            indexed = len(rows) + 2 <= limits.ops and size <= limits.batch_bytes
            head = Head(
                partition.settings,
                number,
                timestamp,
                base.position + count,
                number if indexed else base.watermark,
                base.head.archived,
                {**base.fences, **verdict.new_fences},
            )
            ops.append(Put(bytes(HEAD), encode_row(HEAD, head), ABSENT if base.etag is None else base.etag))
            if indexed:
                ops += rows
        etags = self._settle(ops, number, id)
        if etags is None or not self._still_counts(number, id):
            return False
        with partition.lock:
            if partition.number == base.number:
                if limits.atomic:
                    partition.head, partition.head_etag = head, etags[1] if etags else None
                    partition.etags.update(
                        (segment, etag)
                        for segment in after
                        for put, etag in zip(ops[2:], etags[2:], strict=False)
                        if put.key == segment_key(segment) and etag is not None
                    )
                for segment in after:
                    if segment not in partition.known:
                        partition.know(segment, before[segment])
                partition.take(header, record, indexed=indexed)
        partition.counters["transactions"] += 1
        partition.counters["entries"] += count
        trx = header.trx
        for request in requests:
            request.trx = trx
            request.done = True
        return True

    def _settle(self, ops: Sequence[Op], number: int, id: bytes) -> Sequence[Etag | None] | None:
        """Write `ops`, exactly once. The new etags (none if they are not known), or None if another writer won.

        A lost answer, and a conflict that may be one's own first try, are settled by reading the transaction back:
        own id, it is committed; another's, it is not and never will be; nothing, the same bytes are sent again.
        """
        partition = self.partition
        durable = partition.settings.durability != "buffered"
        lost = False
        for attempt in range(_ATTEMPTS):
            try:
                return partition.backend.write(partition.key, ops, durable=durable)
            except Conflict as error:
                cause: StreamkitError = error
            except Ambiguous as error:
                cause, lost = error, True
            except StreamkitError as error:
                if lost:
                    raise self._unknown(number, id) from error
                raise
            try:
                # The head before the transaction: if it has moved, whatever was sent is in the log by now, or never.
                moved = lost and isinstance(cause, Conflict) and self._moved(ops)
                value = partition.backend.get(partition.key, [ops[0].key])[0]
                found = value and partition.decode_header(value.data, number)
            except StreamkitError as error:
                raise self._unknown(number, id) from error
            if found is not None:
                if lost:
                    partition.counters["settled"] += 1
                if found.id != id:
                    return None
                partition.counters["settled"] += not lost
                return ()
            if isinstance(cause, Conflict) and (not lost or moved):
                # The head moved for another reason than a transaction, archiving for instance. Or the service is in
                # two minds; then nothing that was sent can land any more, unless an answer was lost before.
                return None
            partition.clock.sleep(min(0.05 * 2**attempt, 1.0))
        raise self._unknown(number, id)

    def _moved(self, ops: Sequence[Op]) -> bool:
        """Whether the head is another than the one that `ops` demand, so that they can never be applied."""
        demanded = next((op.expect for op in ops if isinstance(op, Put) and op.key == HEAD), None)
        if demanded is None:
            return False
        value = self.partition.backend.get(self.partition.key, [bytes(HEAD)])[0]
        return value is not None and value.etag != demanded

    def _unknown(self, number: int, id: bytes) -> OutcomeUnknown:
        self.unknown[id] = number
        transaction_id = UUID(bytes=id)
        return OutcomeUnknown(
            f"{self.partition.where(number)}: the answer to the commit was lost and reading it back failed; "
            f"ask store.outcome({str(transaction_id)!r})",
            transaction_id,
        )

    def _still_counts(self, number: int, id: bytes) -> bool:
        """A commit that took very long may have landed where the archive already was: then it is none."""
        partition = self.partition
        if partition.limits.atomic or partition.is_fresh():
            return True
        try:
            if not partition.archived_since(number) or partition.archive().has(partition, id, number, 0):
                return True
            partition.backend.write(partition.key, [Delete(transaction_key(number))])
        except StreamkitError as error:
            raise self._unknown(number, id) from error
        return False

    def keep_index(self) -> None:
        """Bring the index forward if it is far behind. Whoever comes along pays; the others go on."""
        partition = self.partition
        behind, upkeep = partition.number - partition.watermark, partition.limits.upkeep
        if behind < upkeep and partition.tail_bytes < _TAIL_BYTES and partition.tail_frames < _TAIL_FRAMES:
            return
        if partition.number < self._next_upkeep or not self._indexing.acquire(blocking=False):
            return
        try:
            bring_forward(partition)
        except StreamkitError as error:
            # What was acknowledged is in the log; the index may follow later.
            self._next_upkeep = partition.number + max(1, upkeep // 4)
            partition.counters["upkeep_failures"] += 1
            warn("%s: the index could not be brought forward: %s", partition.where(partition.number), error)
        finally:
            self._indexing.release()

    # -- lost answers -------------------------------------------------------------------------------------------

    def outcome(self, id: bytes) -> bool:
        """Whether the transaction is committed. If it is not, it never will be: the numbers it could get are taken."""
        partition = self.partition
        number = self.unknown.get(id)
        if partition.refresh() < (number or 1 << 64):
            self.commit(Request(()))
        if number is not None:
            header = partition.header(number)
            if partition.archived_since(number):
                # One that landed where the archive already was is in the log, and counts for nothing.
                committed = partition.archive().has(partition, id, number, 0)
            elif header is None:
                return False
            else:
                committed = header.id == id
            del self.unknown[id]
            return committed
        made = int.from_bytes(id[:6], "big")
        first, last = 1, partition.number
        while first < last:
            middle = (first + last) // 2
            header = partition.header(middle)
            # An hour: clocks differ, and a partition's timestamps never go back.
            if header is None or header.timestamp < made - 3_600_000:
                first = middle + 1
            else:
                last = middle
        rows = partition.backend.scan(partition.key, transaction_key(first), transaction_key(1 << 64))
        headers = (partition.decode_header(row.data, transaction_number(row.key)) for row in rows)
        if any(header.id == id for header in headers):
            return True
        return partition.archived_since(1) and partition.archive().has(partition, id, None, made)


class _Base:
    """What a commit builds on; taken in one moment, and stated by the commit's precondition."""

    __slots__ = ("etag", "fences", "head", "number", "position", "timestamp", "watermark")

    def __init__(self, partition: Partition) -> None:
        self.number = partition.number
        self.timestamp = partition.timestamp
        self.position = partition.position
        self.watermark = partition.watermark
        self.head = partition.head
        self.etag = partition.head_etag
        self.fences = partition.fences


class _Verdict:
    """Which requests may go into the next transaction, together."""

    def __init__(self, partition: Partition, base: _Base, before: Mapping[str, SegmentRow]) -> None:
        self.partition = partition
        self.base = base
        self.before = before
        self.ready: list[Request] = []
        self.later: list[Request] = []
        self.doubts: list[tuple[Request, SequenceMismatch]] = []
        self.new_fences: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._keys: set[bytes] = set()

    def judge(self, request: Request) -> None:
        if request.key is not None:
            if request.key in self._keys:
                self.later.append(request)
                return
            if self._answer(request, request.key):
                return
        if request.fence is not None:
            name, token = request.fence
            highest = self.base.fences.get(name, 0)
            if token < highest:
                request.fail(
                    Fenced(
                        f"the lease {name!r} with token {token} was succeeded by one with token {highest}, which has "
                        f"written to the space {self.partition.space!r}: stop, this holder is not the leader any more"
                    )
                )
                return
            if token < self.new_fences.get(name, 0):
                self.later.append(request)
                return
        last: dict[str, int] = {}
        for part in request.parts:
            segment = part.segment
            committed = self.before[segment].last_sequence
            now = last.get(segment, self._last.get(segment, committed))
            if part.expected is not None and part.expected != now:
                mismatch = _mismatch(self.partition.space, segment, part.expected, committed)
                if part.expected >= committed and segment in self._last:
                    self.later.append(request)
                else:
                    self.doubts.append((request, mismatch))
                return
            last[segment] = now + part.body.count
        self._last.update(last)
        if request.key is not None:
            self._keys.add(request.key)
        if request.fence is not None:
            name, token = request.fence
            if token > self.base.fences.get(name, 0):
                self.new_fences[name] = token
        self.ready.append(request)

    def refuse_doubts(self) -> None:
        for request, mismatch in self.doubts:
            request.fail(mismatch)

    def _answer(self, request: Request, key: bytes) -> bool:
        """Answer a request whose idempotency key was used before."""
        partition = self.partition
        use = partition.tail_keys.get(key)
        if use is None:
            row = idempotency_key(key)
            value = partition.backend.get(partition.key, [row])[0]
            if value is None:
                return False
            use = decode_row(KeyRow, row, value.data)
            if use.timestamp < partition.clock.now() - partition.settings.idempotency_window * 1000:
                return False
        if use.content != request.content:
            request.fail(
                TransactionIdMismatch(
                    f"the idempotency key was used before with other content, in {partition.where(use.number)}; "
                    "a key names one transaction: choose another for this one"
                )
            )
            return True
        statuses = partition.learn(segment for segment, _ in use.segments)
        for segment, last in use.segments:
            first = statuses[segment]
            request.result[segment] = SegmentRow(first.first_sequence, first.first_timestamp, last, use.timestamp)
        request.trx = TRX(use.id, use.node, use.number)
        request.done = True
        return True


def _mismatch(space: str, segment: str, expected: int, actual: int) -> SequenceMismatch:
    return SequenceMismatch(
        f"segment {segment!r} of space {space!r} was expected at sequence {expected} and is at {actual}: "
        "read what was written meanwhile, decide again",
        expected,
        actual,
    )
