"""What this process knows of one partition: the index up to a watermark, and the tail of the log after it.

All of it can be learned again from the store. It only ever moves forward, and a write that relies on something stale
is refused by the precondition that it carries.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..backend import Backend, Etag, Op, Range, Value
from ..clock import Clock
from ..errors import CorruptData, StoreClosed, StreamkitError, UnsupportedVersion
from ..reentry import inside_backend, refused
from ..statistics import Counters
from .archive_reader import Cold
from .freshness import Freshness, Look
from .idempotency import key_row
from .keys import HEAD, partition_key, segment_key, transaction_key, transaction_number, transaction_prefix
from .latest import Latest
from .record_format import Header, decode_header, frames_start
from .rows import Head, KeyRow, Piece, SegmentRow, Settings, decode_row

__all__ = ["NOTHING", "News", "Partition"]

NOTHING = SegmentRow(0, 0, 0, 0)
_KNOWN = 200_000
_START = 2048
"""Bytes of a record that hold the header of most."""


class News(threading.Condition):
    """Notified when a transaction of any partition of a store becomes known here."""

    waiting = 0
    """Who waits counts itself before its last look: so who tells need not take the lock if nobody does."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        """To be entered instead of the condition, whose `__exit__` is Python: an interrupt there leaves it locked."""
        super().__init__(self.mutex)
        self._listeners: tuple[Callable[[], None], ...] = ()

    def tell(self) -> None:
        if self.waiting:
            with self.mutex:
                self.notify_all()
        for listener in self._listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Have it called whenever there is news, from any thread. It is quick, takes no lock and raises nothing."""
        with self.mutex:
            self._listeners = (*self._listeners, listener)

    def unlisten(self, listener: Callable[[], None]) -> None:
        with self.mutex:
            self._listeners = tuple([other for other in self._listeners if other != listener])


class Partition:
    """Shared by all threads of a store. `lock` guards the fields; it is never held during I/O.

    A thread may be stopped between any two changes: the field that says that they are made is set last, and until then
    the next one makes them again.
    """

    def __init__(
        self,
        backend: Backend,
        space: str,
        partition: int,
        settings: Settings,
        clock: Clock,
        counters: Counters,
        news: News,
    ) -> None:
        self.backend = backend
        self.limits = backend.limits
        self.space = space
        self.partition = partition
        self.clock = clock
        self.counters = counters
        self.key: bytes = bytes(partition_key(space, partition))
        self.seed = 0
        """Starts the checksums of this partition's transactions, so that a record of another one is not taken."""
        self._set(settings)
        self.lock = threading.RLock()
        self.news = news
        self.head: Head = Head(settings)
        """The head row as last read or written."""
        self.head_etag: Etag | None = None
        self.cold: Callable[[], Cold] | None = None
        """Opens the archive of the space; it is asked for nothing above `head.archived`."""
        self.loaded = False
        self.number = 0
        self.timestamp = 0
        self.position = 0
        self._counted = (0, 0)
        """A transaction's number, and how many entries it has."""
        self.watermark = 0
        self.fences: dict[str, int] = {}
        self.tail: dict[str, list[Piece]] = {}
        """Pieces of each segment in transactions after the watermark."""
        self.tail_bytes = 0
        self.tail_frames = 0
        self.tail_keys: dict[bytes, KeyRow] = {}
        self.known: dict[str, SegmentRow] = {}
        """Segments' statuses as of `number`."""
        self.etags: dict[str, Etag] = {}
        """Of segment rows, where writes are atomic: a commit states what it relied on."""
        self.guesses: dict[str, Value | None] = {}
        """Segment rows that are good enough for a commit only."""
        self.latest = Latest()
        self.generation = 0
        """Changes whenever rows that were read before can no longer be combined with what is known."""
        self._refreshing = threading.RLock()
        self._looking = False
        """Somebody is in there, or was stopped in there."""
        self._started = 0
        self._completed = 0
        self.freshness = Freshness(backend, clock)
        self.looked: Look | None = None
        """The latest look, by which nothing above `number` had been removed from the log."""

    def _set(self, settings: Settings) -> None:
        self.settings = settings
        self.seed = zlib.crc32(settings.incarnation, zlib.crc32(self.key))
        self._transactions = transaction_prefix(settings.incarnation)

    def transaction_key(self, number: int) -> bytes:
        """It names the incarnation: a record of an earlier one never takes the place of one of this."""
        return transaction_key(self._transactions, number)

    def where(self, number: int) -> str:
        return f"space {self.space!r}, partition {self.partition}, transaction {number}"

    def located(self, error: StreamkitError, number: int) -> StreamkitError:
        """The same error, saying where."""
        return type(error)(f"{self.where(number)}: {error}")

    def archive(self) -> Cold:
        """The archive. CorruptData if this client cannot know where it is; MissingDependency without the extra."""
        if self.cold is None:
            raise CorruptData(
                f"space {self.space!r} is archived up to transaction {self.head.archived}, and nothing says where: "
                "connect with archive=URL"
            )
        return self.cold()

    def archived_since(self, number: int) -> bool:
        """Whether `number`, which is not in the log, is in the archive by now."""
        self.look_at_head()
        return self.head.archived >= number

    def known_end(self) -> tuple[int, int, int]:
        """(number, index in the transaction) after the last entry that is known, and its timestamp."""
        with self.lock:
            number, timestamp, (counted, count) = self.number, self.timestamp, self._counted
        # Before the next transaction is after the last one, also where it is not known how many entries that has.
        return (number, count, timestamp) if number and number == counted else (number + 1, 0, timestamp)

    def end(self) -> tuple[int, int, int]:
        """Like known_end, but where the last entry ends, unless that is only in the archive. It may take a request."""
        number, index, timestamp = self.known_end()
        header = self.header(number - 1) if not index and number > 1 else None
        return (number, index, timestamp) if header is None else (number - 1, header.count, timestamp)

    def header(self, number: int) -> Header | None:
        """The header of a transaction, from the log; None if it is not there."""
        start = self._starts([self.transaction_key(number)])[0]
        return None if start is None else self.decode_header(start, number, whole=False)

    def _starts(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The starts of records, with their headers."""
        starts = self.backend.read(self.key, [Range(key, 0, _START) for key in keys])
        for at, start in enumerate(starts):
            if start is not None and len(start) == _START and (end := frames_start(start)) > _START:
                starts[at] = self.backend.read(self.key, [Range(keys[at], 0, end)])[0]
        return starts

    def decode_header(self, record: bytes, number: int, *, whole: bool = True) -> Header:
        try:
            return decode_header(record, self.seed, whole=whole)
        except (CorruptData, UnsupportedVersion) as error:
            raise self.located(error, number) from error

    # -- bringing it up to date ---------------------------------------------------------------------------------

    def refresh(self, segments: Sequence[str] = (), since: int | None = None) -> int:
        """See every transaction that was committed before this call, and the statuses of `segments`.

        Returns the number of the last transaction that is seen. `since` 0: a look that was completed by anyone at any
        time is late enough, as the caller began before the partition was opened.
        """
        arrived = self._started if since is None else since
        self.check_reentry()
        if self._looking and inside_backend():
            raise refused()
        with self._refreshing:
            self._looking = True
            # A look that began after this call did, by another thread, has seen all that this one must see.
            if not self.loaded or self._completed <= arrived:
                self._started += 1
                ticket = self._started
                if self.limits.atomic:
                    self._look(segments)
                else:
                    self._look_at_log(segments)
                self.loaded = True
                self._completed = ticket
            self._looking = False
        return self.number

    def check_reentry(self) -> None:
        """Reentered if this thread holds a lock of the partition: it could come to wait for itself."""
        if self._refreshing._is_owned() or self.lock._is_owned():  # type: ignore[attr-defined]
            raise refused()

    def is_fresh(self, look: Look | None) -> bool:
        """False if archived rows may have been deleted between `look` and the service's latest answer."""
        return self.freshness.holds(look, self.settings.archive_grace)

    def _look(self, segments: Sequence[str]) -> None:
        """Atomic writes: the head row tells all, and the index is as new as it is."""
        look = self.freshness.begin()
        names = [name for name in dict.fromkeys(segments) if name not in self.known]
        generation, known = self.generation, self.head_etag is not None
        value, *values = self.backend.get(self.key, [bytes(HEAD), *map(segment_key, names)])
        if value is None and known:
            raise self.gone()
        if value is None or value.etag == self.head_etag:
            self._learn(names, values, generation)
            self.looked = self.freshness.complete(look)
            return
        self._adopt(decode_row(Head, HEAD, value.data), value.etag, look)
        number = self.head.number
        if number > self.number:
            self._fold_tail(())
            if number > self.number:
                # Archived and removed before they were listed; or gone.
                self.look_at_head()
                if number > self.number:
                    raise CorruptData(f"{self.where(self.number + 1)} is missing, and the head is at {number}")
        if self.head.number == self.watermark == self.number:
            # Read beside a head that has moved, these rows may be older than it. A commit may still rely on them, as
            # it states their etags; a reader may not.
            with self.lock:
                self.guesses = dict(zip(names, values, strict=True))

    def _look_at_log(self, segments: Sequence[str]) -> None:
        """Fold what is in the log, one key at a time: is there a transaction after the last one that we know?"""
        listing = not self.loaded
        if listing:
            self.look_at_head()
            if not self.partition and self.head_etag is None:
                return
        while True:
            known, look = self.looked, self.freshness.begin()
            if listing:
                self._fold_tail(() if self.loaded else segments)
            at_end = listing or self._fold_next()
            number = self.number
            if self.is_fresh(known):
                if at_end:
                    self.looked = self.freshness.complete(look)
            else:
                # What was not there may have been archived and removed.
                self.look_at_head()
                if self.number > number:
                    listing = True
                    continue
            if at_end:
                if listing:
                    self.news.tell()
                return
            self.look_at_head()
            listing = True

    def _fold_next(self) -> bool:
        """Fold a few transactions after `number`; whether there is none after them."""
        for ahead in (1, 8):
            known, number = self.looked, self.number
            keys = [self.transaction_key(number + step) for step in range(1, ahead + 1)]
            records = self._records(keys)
            self._confirm(known)
            if self.number > number:
                return False
            for key, record in zip(keys, records, strict=True):
                if record is None:
                    return True
                self.fold(record, transaction_number(key))
        return False

    def _confirm(self, look: Look | None) -> None:
        """Before anything is folded that was read since `look`: a number that was archived and removed is free, and
        what is found there may be of a writer that came too late. What the head tells is above all such numbers."""
        if not self.limits.atomic and look is not None and not self.is_fresh(look):
            self.look_at_head()

    def _records(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """As much of the records as folding takes: all where frames are kept, else the headers."""
        if not self.limits.inline:
            return self._starts(keys)
        return [None if value is None else value.data for value in self.backend.get(self.key, keys)]

    def look_at_head(self) -> None:
        """Learn how far the index is by now, whoever brought it there."""
        look = self.freshness.begin()
        known, least = self.head_etag is not None, self.head.watermark
        value = self.backend.get(self.key, [bytes(HEAD)])[0]
        if value is not None:
            head = decode_row(Head, HEAD, value.data)
            if head.watermark < least:
                raise self.gone()
            self._adopt(head, value.etag, look)
        elif known:
            raise self.gone()
        else:
            self.looked = self.freshness.complete(look)

    def check_space(self) -> None:
        """CorruptData if the space was deleted, or made again: for who is to write rows that no precondition guards."""
        value = self.backend.get(bytes(partition_key(self.space, 0)), [bytes(HEAD)])[0]
        if value is None or decode_row(Head, HEAD, value.data).settings.incarnation != self.settings.incarnation:
            raise self.gone()

    def gone(self) -> CorruptData:
        """The head was there once, and is not, or is that of another space of this name."""
        return CorruptData(
            f"space {self.space!r}, partition {self.partition}: its head is gone; if the store was deleted, close it "
            "and open it again"
        )

    def _adopt(self, head: Head, etag: Etag, look: Look) -> None:
        """Where the index is ahead of what is known, go on from there; where it has caught up, forget the tail."""
        with self.lock:
            if self.head_etag is None and self.partition == 0:
                # The first head says what the space is made of; until now nothing was known.
                self._set(head.settings)
            elif head.settings.incarnation != self.settings.incarnation:
                raise self.gone()
            if head.watermark > self.number:
                self._start_from(head)
            else:
                self.drop_tail(head.watermark)
            self.head = head
            self.head_etag = etag
            self.looked = self.freshness.complete(look)
        self.news.tell()

    def _start_from(self, head: Head) -> None:
        """Forget what was folded, and go on from the index, which is ahead of it; the caller holds the lock."""
        self.tail.clear()
        self.tail_keys.clear()
        self.tail_bytes = self.tail_frames = 0
        self.known.clear()
        self.etags.clear()
        self.generation += 1
        self.timestamp, self.position = head.timestamp, head.position
        for name, token in head.fences.items():
            self.fences[name] = max(token, self.fences.get(name, 0))
        self.watermark = head.watermark
        self.number = head.watermark

    def _fold_tail(self, segments: Sequence[str]) -> None:
        """Fold what is in the log after `number`; and learn `segments` in the same round trip."""
        known, start = self.looked, self.transaction_key(self.number + 1)
        rows = self.backend.scan(self.key, start, self.transaction_key(1 << 64), values=False)
        keys = [row.key for row in rows]
        names = [name for name in dict.fromkeys(segments) if name not in self.known]
        for at in range(0, max(len(keys), 1), 512):
            batch = keys[at : at + 512]
            also = [] if at else [segment_key(name) for name in names]
            if not batch and not also:
                break
            generation = self.generation
            values: list[Value | None]
            if self.limits.inline:
                values = self.backend.get(self.key, [*batch, *also])
                records = [None if value is None else value.data for value in values[: len(batch)]]
                values = values[len(batch) :]
            else:
                records = self._starts(batch)
                values = self.backend.get(self.key, also) if also else []
            self._confirm(known)
            for key, record in zip(batch, records, strict=True):
                number = transaction_number(key)
                if number > self.number + 1 or record is None:
                    # What is not there may have been archived and removed since it was listed.
                    self.look_at_head()
                if number <= self.number:
                    continue
                if record is None:
                    raise CorruptData(f"{self.where(number)} is listed but not there")
                self.fold(record, number)
            if also:
                self._learn(names, values, generation)

    # -- folding ------------------------------------------------------------------------------------------------

    def fold(self, record: bytes, number: int) -> None:
        """Take the record of transaction `number` into what is known, or its start if frames are not kept.

        One that is known already is fine.
        """
        with self.lock:
            if number <= self.number:
                return
            header = self.decode_header(record, number, whole=self.limits.inline > 0)
            if header.number != number or number != self.number + 1:
                raise CorruptData(
                    f"{self.where(self.number + 1)} is missing: the next one that is there is {header.number}"
                )
            if header.ended:
                raise StoreClosed(f"the store with {self.where(number)} was deleted: open it again to start anew")
            self.take(header, record)

    def take(self, header: Header, record: bytes, *, indexed: bool = False) -> int:
        """Fold a transaction that follows on what is known; the caller holds the lock. How many entries it has."""
        number, timestamp = header.number, header.timestamp
        known, tail = self.known, self.tail
        inline = self.limits.inline
        base = frames_start(record)
        count = 0
        for ref in header.frames:
            segment, first = ref.segment, ref.first_sequence
            count += ref.count
            if not indexed:
                start, length = base + ref.start, ref.length
                frame = record[start : start + length] if length <= inline else None
                piece = Piece(number, timestamp, first, ref.count, start, length, frame)
                pieces = tail.get(segment)
                if pieces is None:
                    tail[segment] = [piece]
                elif pieces[-1].last_sequence < first:
                    pieces.append(piece)
                if frame is not None:
                    self.tail_bytes += length
            row = known.get(segment)
            if row is None:
                if first == 1:
                    self.know(segment, SegmentRow(1, timestamp, ref.count, timestamp))
            elif first > row.last_sequence:
                known[segment] = SegmentRow(
                    row.first_sequence or first,
                    row.first_timestamp or timestamp,
                    first + ref.count - 1,
                    timestamp,
                )
        if not indexed:
            self.tail_frames += len(header.frames)
            for use in header.keys:
                self.tail_keys[use.key] = key_row(header, use)
        for name, token in header.fences.items():
            if token > self.fences.get(name, 0):
                self.fences[name] = token
        self.timestamp = timestamp
        self.position = header.position + count
        self._counted = number, count
        self.number = number
        if indexed:
            self.watermark = number
        self.news.tell()
        return count

    def committed(
        self,
        header: Header,
        record: bytes,
        before: Mapping[str, SegmentRow],
        head: Head | None,
        ops: Sequence[Op],
        etags: Sequence[Etag | None],
        indexed: bool,
    ) -> None:
        """A transaction of this process is in the log; `before` are its segments' statuses without it.

        Where writes are atomic, with its `head`; then `ops` are what was written: the record, the head, and its rows of
        the index. `etags` are theirs, or empty.
        """
        counters = self.counters
        counters["transactions"] += 1
        with self.lock:
            if self.number == header.number - 1:
                known = self.known
                for ref in header.frames:
                    if ref.segment not in known:
                        self.know(ref.segment, before[ref.segment])
                counters["entries"] += self.take(header, record, indexed=indexed)
                if head is not None:
                    rows = {op.key: etag for op, etag in zip(ops[2:], etags[2:], strict=False) if etag is not None}
                    for ref in header.frames:
                        if (etag := rows.get(segment_key(ref.segment))) is not None:
                            self.etags[ref.segment] = etag
                    self.head = head
                    self.head_etag = etags[1] if etags else None
            else:
                counters["entries"] += header.count

    def drop_tail(self, watermark: int) -> None:
        """The index holds everything up to `watermark`."""
        with self.lock:
            if watermark <= self.watermark:
                return
            self.generation += 1
            for segment, pieces in list(self.tail.items()):
                if pieces[-1].number <= watermark:
                    del self.tail[segment]
                elif pieces[0].number <= watermark:
                    # A new list: a reader may hold the old one.
                    self.tail[segment] = [piece for piece in pieces if piece.number > watermark]
            self.tail_frames = sum([len(pieces) for pieces in self.tail.values()])
            self.tail_bytes = sum(
                piece.length for pieces in self.tail.values() for piece in pieces if piece.frame is not None
            )
            self.tail_keys = {key: row for key, row in self.tail_keys.items() if row.number > watermark}
            self.watermark = watermark

    def indexed(self, head: Head, etag: Etag | None, segments: Iterable[str]) -> None:
        """The index holds everything up to `head.watermark`; rows of `segments` were replaced."""
        with self.lock:
            self.drop_tail(head.watermark)
            if self.limits.atomic:
                self.unlearn(segments)
            self.head = head
            self.head_etag = etag

    # -- segments -----------------------------------------------------------------------------------------------

    def learn(self, segments: Iterable[str]) -> dict[str, SegmentRow]:
        """The statuses of `segments`, fetched if they are not known yet; NOTHING for one that does not exist."""
        found: dict[str, SegmentRow] = {}
        missing: list[str] = []
        for name in segments:
            row = self.known.get(name)
            if row is None:
                missing.append(name)
            else:
                found[name] = row
        self.counters["cache_hits"] += len(found)
        if missing:
            self.counters["cache_misses"] += len(missing)
            missing = list(dict.fromkeys(missing))
            for at in range(0, len(missing), 1000):
                found.update(self._fetch(missing[at : at + 1000]))
        return found

    def _fetch(self, names: Sequence[str]) -> dict[str, SegmentRow]:
        while True:
            generation = self.generation
            values: Sequence[Value | None]
            if self.watermark or self.limits.atomic:
                values = self.backend.get(self.key, [segment_key(name) for name in names])
            else:
                # The tail is the whole log, and says it all.
                values = [None] * len(names)
            found = self._learn(names, values, generation)
            if found is not None:
                return found

    def _learn(
        self, names: Sequence[str], values: Sequence[Value | None], generation: int
    ) -> dict[str, SegmentRow] | None:
        """Combine index rows with the tail; None if the tail was shortened after they were read."""
        found: dict[str, SegmentRow] = {}
        with self.lock:
            if generation != self.generation:
                return None
            for name, value in zip(names, values, strict=True):
                row = self.known.get(name)
                if row is None:
                    row = NOTHING
                    if value is not None:
                        row = decode_row(SegmentRow, segment_key(name), value.data)
                        if self.limits.atomic:
                            self.etags[name] = value.etag
                    pieces = self.tail.get(name)
                    if pieces and pieces[-1].last_sequence > row.last_sequence:
                        first, last = pieces[0], pieces[-1]
                        row = SegmentRow(
                            row.first_sequence or first.first_sequence,
                            row.first_timestamp or first.timestamp,
                            last.last_sequence,
                            last.timestamp,
                        )
                    self.know(name, row)
                found[name] = row
        return found

    def know(self, segment: str, row: SegmentRow) -> None:
        known = self.known
        if len(known) >= _KNOWN:
            oldest = next(iter(known))
            del known[oldest]
            self.etags.pop(oldest, None)
        known[segment] = row

    def learn_for_commit(self, segments: Iterable[str]) -> dict[str, SegmentRow]:
        """Like learn; but what a commit states as its precondition may be a guess."""
        if self.guesses:
            with self.lock:
                guesses, self.guesses = self.guesses, {}
                for name in segments:
                    if name in guesses and name not in self.known:
                        self._learn((name,), (guesses[name],), self.generation)
        return self.learn(segments)

    def unlearn(self, segments: Iterable[str]) -> None:
        """A commit that relied on these was refused: fetch them anew."""
        with self.lock:
            self.generation += 1
            for name in segments:
                self.known.pop(name, None)
                self.etags.pop(name, None)

    def statuses(self, segments: Sequence[str]) -> tuple[dict[str, SegmentRow], tuple[int, int, int]]:
        """Of all `segments` at one moment after the last refresh, and the known end at that moment."""
        while True:
            self.learn(segments)
            with self.lock:
                rows = {name: self.known[name] for name in segments if name in self.known}
                if len(rows) == len(segments):
                    return rows, self.known_end()

    def status(self, segment: str) -> SegmentRow:
        """As of the last refresh, or later."""
        row = self.known.get(segment)
        return self.learn((segment,))[segment] if row is None else row
