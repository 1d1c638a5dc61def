"""The state of one partition in this process: the index up to a watermark, and the tail of the log after it.

It can be read again from the store. It only moves forward. The precondition of a write refuses a write that relies on
old state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from ..backend import Etag
from ..checksum import crc32
from ..errors import CorruptData, StoreClosed, StreamkitError, UnsupportedVersion, remedy_for, repair_for
from .answers import Answers
from .archive_reader import ArchiveReader, ArchiveUnreadable
from .commit_base import CommitBase, LoneBase, SharedBase
from .context import Context
from .fences import Fences
from .floors import Changed, Control, Erasure, Floor, Retained
from .freshness import Freshness, Look
from .index_reader import Index, RunGone
from .index_rows import decode_index_row
from .keys import fence_key, partition_key, segment_key, transaction_key, transaction_number, transaction_prefix
from .latest import Latest
from .lone import Lone, LoneEncoder, Shared
from .moved import Moved
from .packs import Packs
from .policy import policy_of
from .record_format import Header, decode_header, entry_reader
from .refresher import Refresher
from .request import Part
from .rows import NOTHING, FenceRow, Head, SegmentRow, Settings
from .searches import Searches
from .still_in_log import still_in_log_from
from .tail import Tail
from .unindexed import Unindexed
from .view import LogView

__all__ = ["Partition", "seed_of"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_KNOWN = 40 << 10
"""Segments, about 480 bytes each with their names: 20 MB. More are known where one transaction writes to more."""
_TOGETHER = 5000
"""Segments whose statuses are looked up together."""
_SHARE = 8
"""A share of the oldest segments is removed at once: removing them one by one from a dict costs a search each."""


def seed_of(settings: Settings, partition: bytes) -> int:
    """The start value of the checksums of a partition's rows."""
    return crc32(settings.incarnation, crc32(partition))


class Partition:
    """Shared by all threads of a store. Its lock guards the fields and is never held during I/O. Only this class
    takes the lock or sets a field: other code calls methods, or reads a `view()`.

    A thread may be stopped between any two changes: the field that says that they are made is set last, and until then
    the next one makes them again.
    """

    def __init__(self, context: Context, space: str, partition: int, settings: Settings) -> None:
        self.backend = context.backend
        self.policy = policy_of(self.backend.limits)
        self.remote = self.backend.limits.remote
        self.space = space
        self.partition = partition
        self.clock = context.clock
        self.counters = context.counters
        self.notifier = context.notifier
        self.moments = context.moments
        self._context = context
        self.key: bytes = bytes(partition_key(space, partition))
        self.seed = 0
        """Starts the checksums of this partition's transactions, so that a record of another one is not taken."""
        self._set(settings)
        self._lock = threading.RLock()
        self.head: Head = Head(settings)
        """The head row as last read or written."""
        self.index: Index = self.open_index(self.head)
        self.packs: Packs = self.open_packs(self.head)
        """The packed part of the log. The head names the index and the packs."""
        self.head_etag: Etag | None = None
        self.foreign_head: Etag | None = None
        """The etag of a head that a late upkeep of a deleted store of the same id left here."""
        self._partitions: Sequence[Partition] = ()
        self.number = 0
        self.timestamp = 0
        self.position = 0
        self.size = 0
        """Bytes of payload."""
        self.floor = Floor()
        self._searches = Searches()
        self.retention: Retained | None = None
        self.changed = Changed()
        self.thinned = 0
        """The last transaction that removed entries of segments; 0 if none did."""
        self.erasing: tuple[Erasure, ...] = ()
        """Erasures in head and tail. Readers no longer get their entries, but the bytes may still be stored."""
        self._counted = (0, 0)
        """A transaction's number, and how many entries it has."""
        self.tail = Tail(0)
        """Replaced, and not changed, when the index takes over its beginning."""
        self._fences = Fences()
        self.answers = Answers()
        self.ended = False
        """The store was deleted, so nothing can be committed."""
        self.lost = False
        """The space, or its store, was deleted since it was opened. It must be opened again."""
        self.cached: dict[str, SegmentRow] = {}
        """Segments' statuses as of `number`."""
        self._most_known = _KNOWN
        self.generation = 0
        """Changes when rows that were read before cannot be combined with the present state."""
        self.freshness = Freshness(self.backend, self.clock)
        self.looked: Look | None = None
        """The latest look at the log. At that time no transaction above `number` had been removed."""
        self._confirmed: Look | None = None
        """The latest look at `head`."""
        self.holds_lock: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        """True if the calling thread holds the lock."""
        self._refresher = Refresher(self, self.holds_lock)
        self.looks = self._refresher.looks
        self.is_current = self._refresher.is_current
        """True if nothing was written since the last refresh. False if nobody knows, as on a remote service."""
        self.check_reentry = self._refresher.check_reentry
        """Raise Reentered if this thread holds a lock of the partition, because it could wait for itself."""

    def _set(self, settings: Settings) -> None:
        self.settings = settings
        self.durable = settings.durability != "buffered"
        self.latest = Latest(settings.partitions)
        self.grace = min(settings.archive_grace, self.policy.clear)
        """Seconds by which looks are judged; a transaction's row stays for a tenth of it, at the least, after the
        transaction is somewhere else as well."""
        self.seed = seed_of(settings, self.key)
        self.reader = entry_reader(self.space, self.partition, settings.partitions, self.seed, settings.incarnation)
        self._transactions = prefix = transaction_prefix(settings.incarnation)
        self.lone = LoneEncoder(self.space, self.partition, settings, self.seed, prefix, self.policy.frame)
        self.last_key = transaction_key(self._transactions, 1 << 64)
        """The key after the keys of all transactions."""

    def transaction_key(self, number: int) -> bytes:
        """The key of a transaction. It names the incarnation: a record of an earlier one never takes the place of one
        of this."""
        return transaction_key(self._transactions, number)

    @property
    def watermark(self) -> int:
        """The index holds everything up to this number."""
        return self.tail.watermark

    @property
    def removal_grace(self) -> float:
        """Seconds for which a transaction's row stays by now after the transaction is somewhere else as well."""
        return min(self.head.archive_grace, self.policy.clear)

    def where(self, number: int) -> str:
        return f"space {self.space!r}, partition {self.partition}, transaction {number}"

    def with_location(self, error: StreamkitError, number: int) -> StreamkitError:
        """The error with the place, and with the remedy if it is damage."""
        return type(error)(self._with_remedy(f"{self.where(number)}: {error}", error))

    def _with_remedy(self, text: str, error: StreamkitError) -> str:
        remedy = remedy_for(self.space)
        return f"{text}: {remedy}" if isinstance(error, CorruptData) and remedy not in text else text

    def missing(self, number: int) -> CorruptData:
        """The error for a transaction that is not where it must be."""
        return CorruptData(f"{self.where(number)} is missing from the log: {remedy_for(self.space)}")

    def archive(self) -> ArchiveReader:
        """The space's archive, to be asked for nothing above `head.archived`. MissingDependency without the extra."""
        return self._context.archive_of(self.space)

    def archived_since(self, number: int) -> bool:
        """True if transaction `number`, which is not in the log, is in the archive by now."""
        self.read_head()
        return self.head.archived >= number

    def trimmed_since(self, number: int) -> bool:
        """True if transaction `number`, which is not in the log, was trimmed by now."""
        self.refresh()
        return self.floor.number > number

    def known_end(self) -> tuple[int, int, int]:
        """(number, index in the transaction) after the last entry that is known, and its timestamp."""
        with self._lock:
            number, timestamp, (counted, count) = self.number, self.timestamp, self._counted
        # Before the next transaction is after the last one, also where it is not known how many entries that has.
        return (number, count, timestamp) if number and number == counted else (number + 1, 0, timestamp)

    def join(self, partitions: Sequence[Partition]) -> None:
        """Tell the partition the partitions of its space. It is one of them."""
        self._partitions = partitions

    def ends(self) -> tuple[tuple[int, int], ...] | None:
        """(number, index) after all that is known of each partition of the space; None if it knows no others."""
        return tuple([(partition.number + 1, 0) for partition in self._partitions]) or None

    def end(self) -> tuple[int, int, int]:
        """The known end as `known_end` gives it, but at the end of the last entry, unless only the archive has that
        entry. It may take a request."""
        number, index, timestamp = self.known_end()
        header = self.header(number - 1) if not index and number > 1 else None
        return (number, index, timestamp) if header is None else (number - 1, header.count, timestamp)

    # -- views ------------------------------------------------------------------------------------------------

    def view(self) -> LogView:
        """A view of the present state."""
        with self._lock:
            return LogView(
                self,
                self.head,
                self.index,
                self.packs,
                self.tail,
                self.number,
                self.position,
                self.size,
                self.floor,
                self.retention,
                self.thinned,
                self.erasing,
                self._searches,
                self.head.archived,
            )

    def ask(self, question: Callable[Concatenate[LogView, _P], _T], *args: _P.args, **options: _P.kwargs) -> _T:
        """question(view, …), asked again of a later view if something moved."""
        view = self.view()
        while True:
            try:
                return question(view, *args, **options)
            except (Moved, ArchiveUnreadable) as error:
                view = self._next_view(view, error)

    def walk(self, walk: Callable[[LogView], Iterator[_T]]) -> Iterator[_T]:
        """Yield everything that walk(view) yields. If something moved, or the archive cannot be read, `walk` continues
        with another view."""
        view = self.view()
        while True:
            try:
                yield from walk(view)
                return
            except (Moved, ArchiveUnreadable) as error:
                view = self._next_view(view, error)

    def _next_view(self, view: LogView, error: Moved | ArchiveUnreadable) -> LogView:
        return self.later(view, error) if isinstance(error, Moved) else self._without_archive(view, error)

    def _without_archive(self, view: LogView, error: ArchiveUnreadable) -> LogView:
        """`view`, which reads archived transactions from the log as far back as the log still has all of them.

        Raises `error` if the log has no more of them than `view` reads from it already.
        """
        first = self.ask(still_in_log_from, view.head.archived)
        if first is None or max(first - 1, view.head.released) >= view.cold_until:
            raise error
        self.archive().warn_unreadable(self.where(view.head.archived), error)
        return replace(view, cold_until=max(first - 1, view.head.released))

    def later(self, view: LogView, moved: Moved) -> LogView:
        """A view that is later than `view`, which lacks something. CorruptData if nothing moved: then it is lost."""
        if self._is_latest(view):
            self.read_head()
        if self._is_latest(view) and not isinstance(moved, RunGone):
            self.refresh()  # a trim is in the log first
        if self._is_latest(view):
            if isinstance(moved, RunGone):
                where = f"space {self.space!r}, partition {self.partition}"
                raise CorruptData(f"{where}: {moved}: {repair_for(self.space)}") from moved
            raise CorruptData(str(moved)) from moved.__cause__
        return self.view()

    def look_again(self, view: LogView) -> None:
        """Raise Moved if the log says now that something was removed or archived since `view`."""
        self.refresh()
        now = self.view()
        if (now.head.archived, now.floor, now.thinned) != (view.head.archived, view.floor, view.thinned):
            raise Moved(f"space {self.space!r}, partition {self.partition}: entries were removed or archived meanwhile")

    def _is_latest(self, view: LogView) -> bool:
        """True if nothing that `view` names has moved since, as far as this process knows."""
        return (
            self.head is view.head
            and self.packs is view.packs
            and self.floor == view.floor
            and self.thinned == view.thinned
            and self.erasing == view.erasing
        )

    def commit_base(self) -> CommitBase:
        """The state that a commit builds on."""
        completed = self.looks.completed
        with self._lock:
            return CommitBase(
                completed,
                self.generation,
                self.number,
                self.timestamp,
                self.position,
                self.size,
                self.retention,
                self.looked,
            )

    def lone_base(self, segment: str) -> LoneBase | None:
        """The state that a commit to one segment builds on. None if the segment's status, or the end of the log, is not
        known, or if the space refuses records when it is full: then the commit has to be planned.

        It takes no lock. Each change of the state sets `number` last, and this reads the look and `number` first. If
        the rest is of a later transaction, then the number after `number` is taken, and the precondition of the write
        refuses it.
        """
        looked, number = self.looked, self.number
        row, retention = self.cached.get(segment), self.retention
        if row is None or looked is None or not self.looks.completed:
            return None
        if retention is not None and retention.when_full == "reject":
            return None
        return row, number, self.timestamp, self.position, self.size, looked

    def shared_base(self, parts: Sequence[Part]) -> SharedBase | None:
        """The state that a commit of `parts` builds on, as `lone_base`. None also if two write to the same segment."""
        looked, number, known, retention = self.looked, self.number, self.cached, self.retention
        rows = {part.segment: row for part in parts if (row := known.get(part.segment)) is not None}
        if len(rows) < len(parts) or looked is None or not self.looks.completed:
            return None
        if retention is not None and retention.when_full == "reject":
            return None
        return list(rows.values()), number, self.timestamp, self.position, self.size, looked

    def removal_mark(self) -> tuple[object, ...]:
        """A value that changes if entries may have been removed, as far as is known."""
        with self._lock:
            tail, floor, erasing, thinned = self.tail, self.floor.number, len(self.erasing), bool(self.thinned)
            removals = sum(map(len, tail.removals.values())) if tail.removals else 0
        removed = floor, removals, erasing, thinned
        # The tail forgets removals when the index has them.
        return removed, tail.watermark if any(removed) else 0

    def unindexed(self) -> Unindexed:
        """The transactions that the index lacks. It may look up segments in the index."""
        asked = False
        while True:
            with self._lock:
                head, tail, names = self.head, self.tail, self.tail.segments()
                statuses = {name: self.cached[name] for name in names if name in self.cached}
                if len(statuses) == len(names):
                    after = replace(
                        head,
                        settings=self.settings,
                        watermark=self.number,
                        timestamp=self.timestamp,
                        position=self.position,
                        size=self.size,
                        floor=self.floor,
                        thinned=self.thinned,
                        retention=self.retention,
                        changed=self.changed,
                        erasing=self.erasing,
                        lead=self.answers.lead,
                    )
                    return Unindexed(
                        head,
                        self.head_etag,
                        after,
                        statuses,
                        {name: list(pieces) for name, pieces in tail.pieces.items()},
                        dict(tail.keys),
                        dict(tail.records),
                        self._fences.tail(),
                        tail.watermark + 1,
                        asked,
                    )
            self.load_statuses(names)
            asked = True

    def known_head(self) -> tuple[Head, Etag | None]:
        """The head as it was last read or written, and its etag."""
        with self._lock:
            return self.head, self.head_etag

    @property
    def nothing_removed(self) -> bool:
        """True if no entry was ever removed or archived, as far as is known. It makes no view."""
        head = self.head
        return not (
            self.floor.number > 1 or self.thinned or head.archived or head.released or self.retention or self.erasing
        )

    def use_packs(self, packs: Packs) -> None:
        """Read packed transactions from `packs`, and not from those of the head. Verify and repair need this."""
        self.packs = packs

    def confirmed_head(self) -> Head:
        """The head, from a look that is still fresh. It shows that no row that was just read had been removed
        before."""
        if not self.is_fresh(self._confirmed):
            self.read_head()
        return self.head

    def header(self, number: int) -> Header | None:
        """The header of a transaction, from the log; None if it is not there."""
        record = self.record(number)
        return None if record is None else self.decode_header(record, number)

    def record(self, number: int) -> bytes | None:
        """A transaction, from the log; None if it is not there."""
        view = self.view()
        while True:
            try:
                record = view.record(number)
            except Moved as moved:
                view = self.later(view, moved)
                continue
            if record is not None or not self._is_packed_since(view, number):
                return record
            view = self.view()

    def records(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """(number, record) of transactions first..last in order, up to the first one that is not in the log."""
        view, number = self.view(), first
        while number <= last:
            reached = number
            try:
                for at, record in view.records(number, last):
                    yield at, record
                    number = at + 1
            except Moved as moved:
                view = self.later(view, moved)
                continue
            if number > last or (number == reached and not self._is_packed_since(view, number)):
                return
            view = self.view()

    def _is_packed_since(self, view: LogView, number: int) -> bool:
        """True if transaction `number`, which `view` lacks, is in a pack by now."""
        if self.packs is view.packs:
            self.read_head()
        return self.packs is not view.packs and self.ask(lambda view: view.packs.holds(number))

    def decode_header(self, record: bytes, number: int, *, whole: bool = True) -> Header:
        try:
            return decode_header(record, self.seed, whole=whole)
        except (CorruptData, UnsupportedVersion) as error:
            raise self.with_location(error, number) from error

    # -- bringing it up to date ---------------------------------------------------------------------------------

    def refresh(self, segments: Sequence[str] = (), since: int | None = None, *, load: bool = False) -> int:
        """See every transaction that was committed before this call, and read the statuses of `segments` with it.

        `load`: the caller is going to read the segments, too. `since` 0: any completed look is late enough, because
        the call began before the partition was opened. Returns the number of the last known transaction.
        """
        try:
            return self._refresher.refresh(segments, since, load=load)
        except StoreClosed:
            self.lost = True
            raise

    def poll(self) -> bool:
        """Take the next transaction, if it exists: one request. Only `refresh` takes all transactions."""
        return self._refresher.poll()

    def accept(self, record: bytes, number: int, look: Look | None) -> None:
        """Take a transaction that was read after `look`, if it is the next one."""
        self._refresher.accept(record, number, look)

    def catch_up(self, single: int = 2) -> None:
        """Read the transactions that others have written since. If there are many, read the head instead of some.

        `single`: the number of transactions to ask for one by one. After them more and more are read together.
        """
        self._refresher.catch_up(single)

    def shorten_tail(self) -> None:
        """Learn now and then how far others have brought the index, and forget the tail up to there."""
        self._refresher.shorten_tail()

    def read_head(self) -> None:
        """Read the head. If its index is ahead of the present state, continue from there."""
        try:
            self._refresher.read_head()
        except CorruptData as error:
            if type(error) is not CorruptData or f"space {self.space!r}" in str(error):
                raise
            where = f"space {self.space!r}, partition {self.partition}"
            raise CorruptData(self._with_remedy(f"{where}: {error}", error)) from error

    def check_space(self) -> None:
        """Raise StoreClosed if the space was deleted or made again, CorruptData if its head is lost.

        Call it before a write that no precondition guards.
        """
        self._refresher.check_space()

    def is_fresh(self, look: Look | None) -> bool:
        """False if rows may have been removed from the log between `look` and the service's latest answer."""
        return self.freshness.holds(look, self.grace)

    def mark_lost(self) -> None:
        """The space, or its store, was deleted since it was opened."""
        self.lost = True

    def missing_head(self, found: Head | None = None) -> StreamkitError:
        """The error for a head that is gone, or in whose place `found` is: StoreClosed if the space was deleted.

        A deletion leaves an empty transaction at the end of the log, and a space that is made again has another
        incarnation. Everything else is damage: CorruptData. It may read the log.
        """
        self.lost = True
        if found is not None and found.settings.incarnation != self.settings.incarnation:
            return self._was_deleted(f"space {self.space!r}, partition {self.partition}")
        if number := self.find_end():
            return self.has_ended(number)
        return CorruptData(
            f"space {self.space!r}, partition {self.partition}: its head is gone; if it or its store was deleted, open "
            "the store again with client.store(…)"
        )

    def lost_head(self) -> CorruptData:
        """The error for a head that is gone, while its files exist."""
        where = f"space {self.space!r}, partition {self.partition}"
        return CorruptData(f"{where} has lost its head: {repair_for(self.space)}")

    def saw(self, look: Look) -> None:
        """Note that `look` has found nothing new."""
        self.looked = self.freshness.complete(look)

    def saw_head(self, look: Look) -> None:
        """`look`, at the head, has found nothing new."""
        self.looked = self._confirmed = self.freshness.complete(look)

    def saw_foreign(self, etag: Etag, look: Look) -> None:
        """Note that `look` has found a head with this etag, which a late upkeep of a deleted store left here."""
        self.foreign_head = etag
        self.saw_head(look)

    def adopt(self, head: Head, etag: Etag, look: Look) -> None:
        """Take the head that `look` has found. If its index is ahead of the present state, continue from there; else
        drop the part of the tail that the index holds."""
        with self._lock:
            if self.head_etag is None and self.partition == 0:
                # The first head has the settings of the space.
                self._set(head.settings)
            elif head.settings.incarnation != self.settings.incarnation:
                raise self.missing_head(head)
            if head.version < self.head.version:
                return  # an older one: another thread has read a later one meanwhile
            self._advance_to(head, etag)
            self.saw_head(look)
        self.notifier.notify_waiters()

    def _advance_to(self, head: Head, etag: Etag | None) -> None:
        """Head and index are replaced before the tail is dropped that they hold now. The caller holds the lock."""
        if etag is None or etag != self.head_etag:
            self.head = head
            self.index, self.packs = self.open_index(head), self.open_packs(head)
        if head.watermark > self.number:
            self._start_from(head)
        else:
            self.drop_tail(head.watermark)
            self._adopt_removed(head)
        self.head_etag = etag

    def _adopt_removed(self, head: Head) -> None:
        """Take the removals that the head knows. Those in the tail are later. The caller holds the lock."""
        if head.floor.number > self.floor.number:
            self.floor = head.floor
        if self.thinned <= head.watermark:
            self.thinned = head.thinned
        later = tuple(erasure for erasure in self.erasing if erasure.number > head.watermark)
        self.erasing = head.erasing + later

    def _start_from(self, head: Head) -> None:
        """Forget the applied transactions and continue from the index, which is ahead. The caller holds the lock."""
        self.tail = Tail(head.watermark)
        self.cached.clear()
        self.generation += 1
        self.timestamp, self.position, self.size = head.timestamp, head.position, head.size
        self.moments.see(head.timestamp)
        self.floor, self.retention, self.thinned = head.floor, head.retention, head.thinned
        self.changed = head.changed
        self.erasing = head.erasing
        self.latest.clear()
        self._fences.forget()
        self.answers.restart(head.watermark, head.lead)
        self.number = head.watermark

    # -- applying -----------------------------------------------------------------------------------------------

    def apply(self, record: bytes, number: int) -> None:
        """Apply the record of transaction `number`. One that is applied already is fine."""
        with self._lock:
            if number <= self.number:
                return
            header = self.decode_header(record, number)
            if header.number != number or number != self.number + 1:
                raise CorruptData(
                    f"{self.where(self.number + 1)} is missing: the next existing one is {header.number}: "
                    f"{remedy_for(self.space)}"
                )
            if header.ended:
                raise self.has_ended(number)
            self.advance(header, record)

    def apply_lone(self, rows: list[tuple[int, bytes | None]]) -> int:
        """Apply the transactions at the beginning of `rows`, each (number, record), as `apply` does, if they are the
        next ones and have one frame and nothing else. Returns how many. It may be none."""
        with self._lock:
            number, known = self.number, self.cached
            read = None if self.answers.lead.name else self.lone.read(rows, number)
            if read is None:
                return 0
            done, pieces, timestamps, position, size, count = read
            self.tail.add_pieces(pieces, dict(rows[:done]))  # type: ignore[arg-type]  # they have records
            for segment, some in pieces.items():
                row = known.get(segment)
                if row is not None:
                    known[segment] = row.with_pieces(some)
                elif some[0].first_sequence == 1:
                    self.cache_status(segment, NOTHING.with_pieces(some))
            for timestamp in timestamps:
                self.moments.see(timestamp)
            self.timestamp = timestamps[-1]
            self.position, self.size = position, size
            self._counted = number + done, count
            self.number = number + done
            return done

    def look_for_end(self) -> bool:
        """Look at the end of the log. True if the log has ended, which a deletion of the space does before all else."""
        with suppress(StoreClosed):
            self.refresh()
        return self.ended

    def find_end(self) -> int:
        """The number of the first stored transaction, if a deletion of the space has left it there; else 0."""
        for row in self.backend.scan(self.key, self.transaction_key(0), self.last_key, limit=1):
            number = transaction_number(row.key)
            with suppress(CorruptData, UnsupportedVersion):
                if self.decode_header(row.data, number).ended:
                    return number
        return 0

    def has_ended(self, number: int) -> StoreClosed:
        """The error for a log that ends with transaction `number`."""
        self.ended = self.lost = True
        return StoreClosed(
            f"{self._was_deleted(self.where(number))}; if that raises this too, the deletion was interrupted: call "
            "delete_space() again, or delete_store()"
        )

    def _was_deleted(self, where: str) -> StoreClosed:
        return StoreClosed(f"{where}: the space, or its store, was deleted; open the store again with client.store(…)")

    def advance(self, header: Header, record: bytes) -> int:
        """Apply the next transaction, and return the number of its entries. The caller holds the lock."""
        number, timestamp = header.number, header.timestamp
        known = self.cached
        count = size = 0
        if header.control is not None:
            self._apply_control(header.control, number)
        self.tail.add(header, record, self.policy.frame)
        for ref in header.frames:
            segment, first = ref.segment, ref.first_sequence
            count += ref.count
            size += ref.size
            row = known.get(segment)
            if row is None:
                if first == 1:
                    self.cache_status(segment, NOTHING.with_entries(number, timestamp, 1, ref.count, ref.size))
            elif row is NOTHING and first == 1:
                known[segment] = SegmentRow(1, timestamp, ref.count, timestamp, number, number, ref.size)
            elif first > row.last_sequence:
                known[segment] = row.with_entries(number, timestamp, first, ref.count, ref.before + ref.size)
        if header.fences:
            self._fences.apply(number, header.fences)
        if header.answers or header.lead or self.answers.lead.name:
            self.answers.apply(header)
        self.timestamp = timestamp
        self.moments.see(timestamp)
        self.position = header.position + count
        self.size = header.size + size
        self._counted = number, count
        self.number = number
        return count

    def _apply_control(self, control: Control, number: int) -> None:
        """Apply the removals of a transaction. Twice is the same as once. The caller holds the lock."""
        for removal in control.removals:
            row = self.cached.get(removal.segment)
            if row is not None:
                self.cached[removal.segment] = row.without(removal)
            self.latest.drop(removal.segment)
            self.thinned = number
        floor = control.floor
        if floor is not None and floor.number > self.floor.number:
            self.floor = floor
            self.latest.clear()
        if control.retention is not None:
            self.retention = control.retention
        self.changed = self.changed.then(control.changed)
        if control.erasures:
            erasing = [Erasure(erasure.segment, erasure.first, erasure.last, number) for erasure in control.erasures]
            self.erasing = (*(erasure for erasure in self.erasing if erasure.number != number), *erasing)
            for segment in {erasure.segment for erasure in erasing}:
                self.latest.drop(segment)

    def committed(self, header: Header, record: bytes, after: Mapping[str, SegmentRow]) -> None:
        """A transaction of this process is in the log; `after` are the statuses of the segments that it writes to."""
        counters = self.counters
        counters["transactions"] += 1
        with self._lock:
            if self.number == header.number - 1:
                known = self.cached
                # A removal in the same transaction comes before its entries.
                for segment, row in after.items() if header.control is None else ():
                    if segment in known:
                        known[segment] = row
                    else:
                        self.cache_status(segment, row)
                counters["entries"] += self.advance(header, record)
            else:
                counters["entries"] += header.count
        self.notifier.notify_waiters()

    def committed_lone(self, base: LoneBase, made: Lone, part: Part, timestamp: int, count: int) -> None:
        """Apply a transaction as `committed` does, if it has one frame and nothing else: `part`, with `count` entries.
        `base` is the state before it."""
        counters, segment, (_, record, row, piece, _, _) = self.counters, part.segment, made
        counters["transactions"] += 1
        counters["entries"] += count
        with self._lock:
            if self.number == base[1]:
                number, known = base[1] + 1, self.cached
                if segment in known:
                    known[segment] = row
                else:
                    self.cache_status(segment, row)
                self.tail.add_lone(number, segment, piece, record)
                if timestamp != self.timestamp:
                    self.moments.see(timestamp)
                    self.timestamp = timestamp
                self.position, self.size = base[3] + count, base[4] + part.size
                self._counted = number, count
                self.number = number
        notifier = self.notifier
        if notifier.waiting or notifier.listeners:
            notifier.notify_waiters()

    def committed_shared(
        self, base: SharedBase, made: Shared, parts: Sequence[Part], timestamp: int, count: int
    ) -> None:
        """Apply a transaction as `committed_lone` does, with a frame for each of `parts`."""
        counters, (_, record, rows, pieces, _, _) = self.counters, made
        counters["transactions"] += 1
        counters["entries"] += count
        with self._lock:
            if self.number == base[1]:
                number, known, size = base[1] + 1, self.cached, base[4]
                for part, row in zip(parts, rows, strict=True):
                    size += part.size
                    if part.segment in known:
                        known[part.segment] = row
                    else:
                        self.cache_status(part.segment, row)
                self.tail.add_shared(number, parts, pieces, record)
                self.moments.see(timestamp)
                self.timestamp = timestamp
                self.position, self.size = base[3] + count, size
                self._counted = number, count
                self.number = number
        self.notifier.notify_waiters()

    def drop_tail(self, watermark: int) -> None:
        """The index holds everything up to `watermark`."""
        with self._lock:
            if watermark <= self.tail.watermark:
                return
            self.generation += 1
            self._fences.drop_tail(watermark)
            self.tail = self.tail.after(watermark)

    def indexed(self, head: Head, etag: Etag | None, before: Etag | None) -> None:
        """Take the head that this process has written in the place of the one with the etag `before`."""
        with self._lock:
            if self.head_etag == before:
                self._advance_to(head, etag)

    def open_index(self, head: Head) -> Index:
        """The index that `head` names. No request is made."""
        return self._context.make_index(self, head.manifest)

    def open_packs(self, head: Head) -> Packs:
        """The packs that `head` names. No request is made."""
        return Packs(self.backend, self.key, self.seed, head.packs, head.pack, self._context.tables)

    def fence(self, name: str) -> int:
        """The highest token of a lease, as of the last refresh or later; 0 if it has never written."""
        while True:
            with self._lock:
                generation, token = self.generation, self._fences.get(name)
            if token is not None:
                return token
            key = fence_key(name)
            data = self.ask(LogView.indexed, key)
            token = 0 if data is None else decode_index_row(FenceRow, key, data).token
            with self._lock:
                if generation == self.generation:
                    self._fences.keep(name, token)

    # -- segments -----------------------------------------------------------------------------------------------

    def load_statuses(self, segments: Iterable[str]) -> dict[str, SegmentRow]:
        """The statuses of `segments`; NOTHING for one that does not exist. Unknown ones are read from the index."""
        found: dict[str, SegmentRow] = {}
        missing: list[str] = []
        for name in segments:
            row = self.cached.get(name)
            if row is None:
                missing.append(name)
            else:
                found[name] = row
        self.counters["cache_hits"] += len(found)
        if missing:
            self.counters["cache_misses"] += len(missing)
            missing = list(dict.fromkeys(missing))
            # All of them have to be known at the same time.
            self._most_known = max(self._most_known, 2 * (len(missing) + len(found)))
            for at in range(0, len(missing), _TOGETHER):
                found.update(self._fetch(missing[at : at + _TOGETHER]))
        return found

    def _fetch(self, names: Sequence[str]) -> dict[str, SegmentRow]:
        keys = [segment_key(name) for name in names]
        while True:
            with self._lock:
                generation, view = self.generation, self.view()
            try:
                # Without an index the tail is the whole log, and says it all.
                values = view.index.get(keys) if view.tail.watermark else [None] * len(keys)
            except Moved as moved:
                self.later(view, moved)
                continue
            with self._lock:
                if generation == self.generation:
                    return self._combined(names, values)

    def _combined(self, names: Sequence[str], values: Sequence[bytes | None]) -> dict[str, SegmentRow]:
        """The statuses of segments, from their rows `values` in the index. The caller holds the lock."""
        found: dict[str, SegmentRow] = {}
        view = self.view()
        pieces, removals = view.tail.pieces, view.tail.removals
        self._make_room(len(names))
        known = self.cached
        for name, value in zip(names, values, strict=True):
            row = known.get(name)
            if row is None and value is None and name not in pieces and name not in removals:
                known[name] = found[name] = NOTHING
                continue
            if row is None:
                row = NOTHING if value is None else decode_index_row(SegmentRow, segment_key(name), value)
                row = view.with_tail(name, row)
                self.cache_status(name, row)
            found[name] = row
        return found

    def cache_status(self, segment: str, row: SegmentRow) -> None:
        """Remember a segment's status, and forget some of the oldest ones if there are too many."""
        if len(self.cached) >= self._most_known:
            self._make_room(1)
        self.cached[segment] = row

    def _make_room(self, count: int) -> None:
        """Forget the oldest statuses if there are too many with `count` more."""
        known = self.cached
        if len(known) + count > self._most_known:
            for name in list(islice(known, max(len(known) // _SHARE, count))):
                del known[name]

    def statuses(self, segments: Sequence[str]) -> tuple[dict[str, SegmentRow], tuple[int, int, int]]:
        """The statuses of all `segments` at one moment after the last refresh, and the known end at that moment."""
        while True:
            self.load_statuses(segments)
            with self._lock:
                rows = {name: self.cached[name] for name in segments if name in self.cached}
                if len(rows) == len(segments):
                    return rows, self.known_end()

    def status(self, segment: str) -> SegmentRow:
        """A segment's status, as of the last refresh or later."""
        row = self.cached.get(segment)
        return self.load_statuses((segment,))[segment] if row is None else row
