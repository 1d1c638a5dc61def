"""The refresher reads new transactions of a partition from its head and its log.

It does the I/O. The partition applies the records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ..backend import Range, TellsChanges
from ..errors import CorruptData, remedy_for
from ..reentry import inside_backend, refused
from ..retry import RetryingBackend
from .freshness import Look
from .keys import HEAD, partition_key, transaction_number
from .rows import Head, decode_row

if TYPE_CHECKING:
    from .partition import Partition

__all__ = ["Looks", "Refresher"]

_TAIL_BYTES = 16 << 20
"""Bytes by which the tail grows before the head is read again: others may have indexed it."""
_FEW = 4
_AHEAD = 16
"""The most transactions that one read takes, while the log keeps growing."""
_QUIET = 8
"""Transactions that are asked for at first where all that is indexed is archived: since that, less was committed than
makes an upkeep due, as in a space that is seldom written to."""
_BEHIND = 2000
"""Milliseconds, by the writers' clocks. After an older transaction, a reader is not at the end yet."""
_BATCHES = 8
"""Reads of a tail after which it is looked up whether others have indexed it."""
_LISTED = 512
"""Transactions of a list that are held at once."""
_EMPTY = 600.0
"""Seconds between two checks whether an empty partition has lost its head."""
_WHOLE = 256 << 20
"""The most bytes of a row."""


class Looks:
    """The looks at the end of a partition's log. The refresher counts them."""

    __slots__ = ("begun", "completed")

    def __init__(self) -> None:
        self.begun = 0
        """The number of looks that have begun."""
        self.completed = 0
        """The last look that has reached the end: every transaction that was committed before it is known."""


class Refresher:
    """One partition's refresher. One thread at a time reads. The others share its result if it is late enough."""

    def __init__(self, partition: Partition, holds_lock: Callable[[], bool]) -> None:
        """Make the refresher. `holds_lock` tells if the calling thread holds the partition's lock."""
        self._partition = partition
        self._holds_lock = holds_lock
        self._refreshing = threading.RLock()
        self.looks = Looks()
        self._loaded = False
        self._checked = float("-inf")
        """When an empty partition is next asked whether it has lost its head, by the monotonic clock."""
        self._shortened = (0, 0)
        """`number` and `tail.bytes` when the head was last looked at for the length of the tail."""
        self._looking = False
        """A thread is refreshing, or was stopped while it refreshed."""
        backend = partition.backend
        self._change = backend.change if isinstance(backend, TellsChanges) else None
        self._seen: int | None = None
        """The backend's last change of the partition that this process knows all of."""

    def refresh(self, segments: Sequence[str] = (), since: int | None = None, *, load: bool = False) -> int:
        """See `Partition.refresh`."""
        arrived = self.looks.begun if since is None else since
        self.check_reentry()
        if self._looking and inside_backend():
            raise refused()
        known = None
        try:
            with self._refreshing:
                self._looking, known = True, self._partition.number
                # A look that began after this call did, by another thread, has seen all that this one must see.
                if not self._loaded or self.looks.completed <= arrived:
                    begun = self._begin()
                    seen = self._change(self._partition.key) if self._change is not None else None
                    self._read_log(segments, load)
                    self._loaded = True
                    self._seen = seen
                    self.looks.completed = begun
                self._looking = False
        finally:
            self._notify(known)
        return self._partition.number

    def is_current(self) -> bool:
        """See `Partition.is_current`."""
        seen, change = self._seen, self._change
        return (
            seen is not None
            and change is not None
            and not self._refreshing._is_owned()  # type: ignore[attr-defined]
            and not self._holds_lock()
            and change(self._partition.key) == seen
        )

    def _notify(self, known: int | None) -> None:
        """Wake the waiting threads once, if transactions were applied after `known`. The caller holds no lock.

        A catch-up applies thousands of transactions, and hundreds of threads may wait: so none is woken for each one.
        """
        if known is not None and self._partition.number != known:
            self._partition.notifier.notify_waiters()

    def _begin(self) -> int:
        self.looks.begun += 1
        return self.looks.begun

    def check_reentry(self) -> None:
        """Raise Reentered if this thread holds a lock of the partition, because it could wait for itself."""
        if self._refreshing._is_owned() or self._holds_lock():  # type: ignore[attr-defined]
            raise refused()

    def _read_log(self, segments: Sequence[str], load: bool) -> None:
        """Apply the transactions that follow the last known one."""
        partition = self._partition
        listing = not self._loaded
        if listing:
            if partition.head_etag is None or not partition.is_fresh(partition.looked):
                self.read_head()
            if not partition.partition and partition.head_etag is None:
                return
        while True:
            known, look = partition.looked, partition.freshness.begin()
            if listing:
                self._apply_tail(segments, load)
            # Where looks are no requests one tells that nothing follows, and that nothing is missing: mostly so.
            ended = listing or (not partition.remote and not self._is_gap())
            at_end = ended or self._apply_next()
            number = partition.number
            if partition.is_fresh(known) and (ended or not (at_end and self._is_gap())):
                if at_end:
                    partition.saw(look)
            else:
                # The missing transaction may have been archived and removed.
                self.read_head()
                if partition.number > number:
                    listing = True
                    continue
            if at_end:
                if not partition.number and partition.head_etag is None:
                    self._check_head()
                if listing:
                    self._shortened = partition.number, partition.tail.bytes
                else:
                    self.shorten_tail()
                return
            self.read_head()
            listing = True

    def _check_head(self) -> None:
        """Raise CorruptData if an empty partition has lost its head: it has files, and no transaction. Seldom: it asks
        the storage."""
        partition = self._partition
        now = partition.clock.monotonic()
        if now < self._checked:
            return
        if partition.index.has_files():
            # Another process may have begun it meanwhile. Its head is put before its first transaction leaves the log.
            rows = partition.backend.scan(
                partition.key, partition.transaction_key(0), partition.last_key, limit=1, values=False
            )
            if next(iter(rows), None) is None:
                self.read_head()
                if partition.head_etag is None:
                    raise partition.lost_head()
        self._checked = now + _EMPTY

    def _is_gap(self) -> bool:
        """True if transactions follow after a missing one. On a local disk, trimmed transactions leave the log at once,
        however fresh the last look is. The transaction that trims them stays."""
        partition = self._partition
        if partition.remote:
            return False
        start = partition.transaction_key(partition.number + 1)
        return any(partition.backend.scan(partition.key, start, partition.last_key, limit=1, values=False))

    def poll(self, ahead: int = 1) -> bool:
        """Apply the next `ahead` transactions, if they exist. True if there may be more."""
        partition = self._partition
        self.check_reentry()
        if self._looking and inside_backend():
            raise refused()
        known_number = None
        try:
            with self._refreshing:
                self._looking, known_number = True, partition.number
                begun = self._begin()
                known, look, number = partition.looked, partition.freshness.begin(), partition.number
                records = self._records([partition.transaction_key(number + step) for step in range(1, ahead + 1)])
                self._confirm(known)
                moved = partition.number > number
                if not moved:
                    end = records.index(None) if None in records else ahead
                    for at, record in enumerate(records[:end], number + 1):
                        assert record is not None
                        partition.apply(record, at)
                    if end:
                        self.shorten_tail()
                    if end == ahead:
                        moved = True
                    elif partition.is_fresh(known) and not self._is_gap():
                        partition.saw(look)
                    else:
                        self.read_head()
                        moved = partition.number > number + end
                if not moved:
                    self.looks.completed = begun
                self._looking = False
                return moved
        finally:
            self._notify(known_number)

    def accept(self, record: bytes, number: int, look: Look | None) -> None:
        known = None
        try:
            with self._refreshing:
                known = self._partition.number
                self._confirm(look)
                if self._partition.number == number - 1:
                    self._partition.apply(record, number)
        finally:
            self._notify(known)

    def catch_up(self, single: int) -> None:
        """See `Partition.catch_up`. It ends although others commit all the time, and when another process leads."""
        if self._partition.looked is None:
            self.read_head()  # nothing is known of it yet
        looks, ahead = 0, 1
        answers = self._partition.answers
        named_by = answers.lead.named_by
        while (
            answers.lead.named_by == named_by
            or not answers.lead.name
            or self._partition.clock.now() - answers.lead.timestamp > _BEHIND
        ) and self.poll(ahead):
            looks += 1
            if looks % _FEW == 0:
                self.read_head()
            ahead = 1 if looks < single else min(2 * ahead, _AHEAD)
        self._loaded = True

    def shorten_tail(self) -> None:
        """Read the head if the tail has become long, because others may have indexed it."""
        partition = self._partition
        number, size = self._shortened
        if partition.number - number >= 2 * partition.policy.upkeep or partition.tail.bytes - size >= _TAIL_BYTES:
            self.read_head()
            self._shortened = partition.number, partition.tail.bytes

    def _apply_next(self) -> bool:
        """Apply a few transactions after `number`. True if none follows them."""
        partition = self._partition
        for ahead in (1, 8):
            known, number = partition.looked, partition.number
            keys = [partition.transaction_key(number + step) for step in range(1, ahead + 1)]
            records = self._records(keys)
            if records[0] is None:
                return True
            self._confirm(known)
            if partition.number > number:
                return False
            for key, record in zip(keys, records, strict=True):
                if record is None:
                    return True
                partition.apply(record, transaction_number(key))
        return False

    def _confirm(self, look: Look | None) -> None:
        """Call it before records are applied that were read since `look`. The number of a removed transaction is free
        again, so a late writer may have put the record there. The head is above all such numbers."""
        if look is not None and not self._partition.is_fresh(look):
            self.read_head()

    def _records(self, keys: Sequence[bytes]) -> list[bytes | None]:
        partition = self._partition
        return [None if value is None else value.data for value in partition.backend.get(partition.key, keys)]

    def read_head(self) -> None:
        """See `Partition.read_head`."""
        partition = self._partition
        look = partition.freshness.begin()
        known, least = partition.head_etag is not None, partition.head.watermark
        value = partition.backend.get(partition.key, [bytes(HEAD)])[0]
        if value is not None:
            head = decode_row(Head, HEAD, value.data)
            if head.watermark < least:
                raise partition.missing_head(head)
            if self._is_foreign(head):
                partition.saw_foreign(value.etag, look)
            else:
                partition.adopt(head, value.etag, look)
        elif known:
            raise partition.missing_head()
        else:
            partition.saw_head(look)

    def _is_foreign(self, head: Head) -> bool:
        """True if this head is of a deleted space of the same name, and not this process's own space is gone."""
        partition = self._partition
        if (
            not partition.partition
            or partition.head_etag
            or head.settings.incarnation == partition.settings.incarnation
        ):
            return False
        self.check_space()
        return True

    def check_space(self) -> None:
        """See `Partition.check_space`."""
        partition = self._partition
        value = partition.backend.get(bytes(partition_key(partition.space, 0)), [bytes(HEAD)])[0]
        head = decode_row(Head, HEAD, value.data) if value is not None else None
        if head is None or head.settings.incarnation != partition.settings.incarnation:
            raise partition.missing_head(head)

    def _apply_tail(self, segments: Sequence[str], load: bool) -> None:
        """Apply the transactions after `number`. On a remote service one request reads all that are probably there,
        together with the parts of the index that `segments` need."""
        partition = self._partition
        known, head = partition.looked, partition.head
        ahead = partition.policy.upkeep
        if head.archived and head.archived == head.watermark:
            ahead = min(ahead, _QUIET)
        batches, strained = 0, False
        while partition.remote:
            number, index = partition.number, partition.index
            keys = [partition.transaction_key(number + step) for step in range(1, ahead + 1)]
            needed = index.needed(segments, load)
            retries = partition.counters["retries"]
            parts = self._read_on(list(needed.values()), keys)
            slow = partition.counters["retries"] > retries
            for id, part in zip(needed, parts, strict=False):
                if part is not None:
                    index.receive(id, part)
            self._confirm(known)
            if partition.number > number:
                continue
            records = parts[len(needed) :]
            end = records.index(None) if None in records else len(records)
            for at, record in enumerate(records[:end], number + 1):
                assert record is not None
                partition.apply(record, at)  # others may have applied it meanwhile
            if end == ahead:
                # If many processes begin at once, they make no vain reads, and read no transactions that others have
                # indexed.
                strained = strained or slow
                ahead = _FEW if strained else partition.policy.upkeep
                batches += 1
                if slow or batches % _BATCHES == 0:
                    self.read_head()  # if the log grows that fast, the index does too
                continue
            if len(records) < ahead or any(record is not None for record in records[end:]):
                break  # it was written in between, or something is lost: a list tells
            return
        self._apply_listed()

    def _read_on(self, ranges: Sequence[Range], keys: Sequence[bytes]) -> list[bytes | None]:
        """The bytes at `ranges`, and the rows at `keys`. The rows may end with the first missing one."""
        partition = self._partition
        backend = partition.backend
        wanted = [*ranges, *(Range(key, 0, _WHOLE) for key in keys)]
        if isinstance(backend, RetryingBackend):
            return backend.read_on(partition.key, wanted, len(ranges))
        return backend.read(partition.key, wanted)

    def _apply_listed(self) -> None:
        """Apply the listed transactions after `number`."""
        partition = self._partition
        known = partition.looked
        for batch in self._list():
            self._confirm(known)
            for number, record in batch[partition.apply_lone(batch) :]:
                if number > partition.number + 1 or record is None:
                    # It may have been archived and removed since it was listed.
                    self.read_head()
                if number <= partition.number:
                    continue
                if record is None:
                    raise CorruptData(
                        f"{partition.where(number)} is listed, but its row is gone: {remedy_for(partition.space)}"
                    )
                try:
                    partition.apply(record, number)
                except CorruptData:
                    self._check_ended()
                    raise

    def _check_ended(self) -> None:
        """Raise StoreClosed if this is the rest of a log whose deletion was interrupted."""
        partition = self._partition
        number, record = 0, None
        for batch in self._list():
            number, record = batch[-1]
        if record is not None and partition.decode_header(record, number).ended:
            raise partition.has_ended(number)

    def _list(self) -> Iterator[list[tuple[int, bytes | None]]]:
        """The log's transactions after `number`, a few hundred at a time; None for one that went after it was
        listed."""
        partition = self._partition
        remote, backend = partition.remote, partition.backend
        start, end = partition.transaction_key(partition.number + 1), partition.transaction_key(1 << 64)
        # Where a list costs a request it brings no values; else they are read as they lie there, one after the other.
        rows = backend.scan(partition.key, start, end, values=not remote)
        if remote:
            rows = iter(list(rows))
        while batch := list(islice(rows, _LISTED)):
            numbers = [transaction_number(row.key) for row in batch]
            records = self._records([row.key for row in batch]) if remote else [row.data for row in batch]
            yield list(zip(numbers, records, strict=True))
