"""The source of a group: the log of a space, partition by partition, or some of its segments."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice

from ..checksum import crc32
from ..gaps import Gap
from ..lexkey import LexKey
from ..log.segment_view import row_of
from ..log.visible import floor_of
from ..model import Entry
from ..places import Place, ends, last_sequences, places_after, read_from, removal_mark, segments_there
from ..store import Store, inner
from .events import Stream, StreamCursor
from .lane import Location

__all__ = ["BLOCK", "DELAY", "KEY", "Source", "key_hash", "queue_class", "segment_of"]

DELAY = "streamkit.delay"
"""The metadata of a job that is not to be delivered at once: milliseconds after its timestamp."""
KEY = "streamkit.key"
"""The metadata that is a job's key."""
_JOBS = re.compile(r"(jobs|delayed)/-?\d+/\d+")
BLOCK = 1000
"""Entries that are handed to a lane at once, at most."""
_BLOCK_BYTES = 4 << 20
_KEPT = 64
"""Pages of `BLOCK` positions each, whose entries are kept."""
_AHEAD = 128


def key_hash(entry: Entry, key: str | None) -> int:
    """Hash the value of the metadata `key`; hash the segment's name if `key` is None or the entry lacks the
    metadata."""
    text = entry.segment if key is None else entry.metadata.get(key)
    return crc32((entry.segment if text is None else text).encode())


def segment_of(priority: int, bucket: int, delayed: bool) -> str:
    """Name the segment that holds a queue's jobs of one kind."""
    return f"{'delayed' if delayed else 'jobs'}/{priority}/{bucket}"


@lru_cache(maxsize=4096)
def queue_class(segment: str) -> tuple[int, int, bool]:
    """Return (priority, bucket, delayed) of such a segment."""
    kind, priority, bucket = segment.split("/")
    return int(priority), int(bucket), kind == "delayed"


def _in_lists(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    while some := list(islice(entries, _AHEAD)):
        yield some


class Source:
    """Reads blocks of neighbouring entries, and keeps the latest. Threads share it."""

    def __init__(self, store: Store, space: str, segments: tuple[str, ...] | None, queue: bool) -> None:
        self.space = space
        self.queue = queue
        self._store = store
        self._spaces = inner(store).spaces
        self._segments = segments
        self._number = -1
        self._names: list[str] = []
        self._looked = float("-inf")
        self._mark: tuple[object, ...] = ()
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Stream, int], dict[int, Entry]] = OrderedDict()
        """Entries by (stream, page) and position."""
        self._kept_bytes = 0
        self._read: dict[Stream, list[Entry]] = {}
        """The latest that was read of each partition at once: more than a block, where transactions are large."""

    def incarnation(self) -> bytes:
        """Return the space's incarnation as this process knows it; empty if unknown. No I/O."""
        known = self._spaces.get(self.space)
        return known.settings.incarnation if known is not None else b""

    def is_same(self, incarnation: bytes) -> bool:
        """True if the space is, as far as is known, the one with this incarnation, and not one made again."""
        if not incarnation:
            return True
        known = self._spaces.get(self.space)
        return known is None or known.settings.incarnation in (incarnation, b"")

    # -- where it ends ------------------------------------------------------------------------------------------

    def ends(self) -> dict[Stream, StreamCursor]:
        """The end of each stream. Asks the storage: one request for each partition."""
        places = self._refresh()
        if not self.queue and self._segments is None:
            return {place.partition: StreamCursor(place.position, place.number, place.index) for place in places}
        found: dict[Stream, StreamCursor] = {}
        number = sum(place.number for place in places)
        wanted: Iterable[str] = self._segments or ()
        if self.queue:
            if number != self._number:
                names = segments_there(self._store, self.space)
                self._names = sorted(name for name in names if _JOBS.fullmatch(name))
                self._number = number
            wanted = self._names
        names = list(wanted) if places else []
        for name, last in zip(names, last_sequences(self._store, self.space, names), strict=True):
            found[name] = StreamCursor(last + 1)
        return found

    def beginning(self, stream: Stream) -> StreamCursor:
        return StreamCursor(0, 1, 0) if isinstance(stream, int) else StreamCursor(1)

    def after(self, offset: LexKey | bytes | str) -> dict[Stream, StreamCursor]:
        """The streams after an offset. InvalidOffset."""
        places = places_after(self._store, self.space, offset)
        if not self.queue and self._segments is None:
            return {place.partition: StreamCursor(place.position, place.number, place.index) for place in places}
        found = self.ends()  # before the read: entries that come meanwhile are after them
        left = set(found)
        for entry in self._store.consume_space(self.space, offset=offset, gaps="skip") if left else ():
            if entry.segment in left:
                found[entry.segment] = StreamCursor(entry.sequence)
                left.remove(entry.segment)
                if not left:
                    break
        return found

    # -- reading ------------------------------------------------------------------------------------------------

    def read(
        self, stream: Stream, start: StreamCursor, count: int, most: int
    ) -> tuple[list[list[Entry]], StreamCursor]:
        """Read at most `count` entries from `start` on, in at most `most` lists: a list ends where entries are missing,
        and has at most a block. Also returns the place where the stream continues. An entry is at `position_of(…)`."""
        lists: list[list[Entry]] = []
        read: dict[int, Entry] = {}
        size, expected = 0, -1
        left = self._left_at(stream, start.position)
        mark = self._mark
        rest = self._walk(stream, self._after(stream, left[-1]) if left else start)
        for entry in chain(left, rest):
            position = self.position_of(stream, entry)
            if position != expected or len(lists[-1]) == BLOCK:
                if len(lists) == most:
                    break
                lists.append([])
            lists[-1].append(entry)
            read[position] = entry
            expected = position + 1
            size += len(entry.payload)
            if len(read) >= count or size >= _BLOCK_BYTES:
                break
        self._keep(stream, read, mark)
        return lists, self._after(stream, lists[-1][-1]) if lists else start

    def _after(self, stream: Stream, entry: Entry) -> StreamCursor:
        if isinstance(stream, str):
            return StreamCursor(entry.sequence + 1)
        place = Place.after(entry)
        return StreamCursor(place.position, place.number, place.index)

    def start_of(self, stream: Stream, entry: Entry) -> StreamCursor:
        if isinstance(stream, str):
            return StreamCursor(entry.sequence)
        place = Place.of(entry)
        return StreamCursor(place.position, place.number, place.index)

    def position_of(self, stream: Stream, entry: Entry) -> int:
        if isinstance(stream, str):
            return entry.sequence
        origin = entry.origin
        return origin.position + entry.sequence - origin.first_sequence

    def _left_at(self, stream: Stream, position: int) -> list[Entry]:
        """Return entries from `position` on that an earlier block of the same transactions has already read."""
        self._drop_removed()
        read = self._read.get(stream)
        if not read:
            return []
        at = bisect_left(read, position, key=lambda entry: self.position_of(stream, entry))
        return read[at:] if at else []

    def _walk(self, stream: Stream, start: StreamCursor) -> Iterator[Entry]:
        if isinstance(stream, str):
            yield from self._store.consume_segment(self.space, stream, min_sequence=start.position, gaps="skip")
            return
        mark = self._mark
        for entries in read_from(self._store, self.space, Place(stream, start.number, start.index, start.position)):
            with self._lock:
                if mark is self._mark:
                    self._read[stream] = entries
            yield from entries

    def _keep(self, stream: Stream, entries: dict[int, Entry], mark: tuple[object, ...]) -> None:
        """Keep entries, unless something was removed since they were read. `mark`: that of before."""
        with self._lock:
            if mark is not self._mark:
                return
            for position, entry in entries.items():
                name = stream, position // BLOCK
                page = self._kept.get(name)
                if page is None:
                    page = self._kept[name] = {}
                if position not in page:
                    page[position] = entry
                    self._kept_bytes += len(entry.payload)
            while len(self._kept) > _KEPT or self._kept_bytes > _KEPT * _BLOCK_BYTES:
                _, page = self._kept.popitem(last=False)
                self._kept_bytes -= sum([len(entry.payload) for entry in page.values()])

    def load(self, locations: Iterable[Location]) -> list[Entry | None]:
        """The entries at `locations`, None for those that are not there any more."""
        wanted = list(locations)
        self._drop_removed()
        is_expired = self._expiry()
        found: list[Entry | None] = [None] * len(wanted)
        missing: dict[Stream, list[int]] = {}
        page: dict[int, Entry] | None = None
        last: tuple[Stream, int] | None = None
        for at, location in enumerate(wanted):
            name = (location.stream, location.position // BLOCK)
            if name != last:
                page, last = self._kept.get(name), name
            entry = page.get(location.position) if page is not None else None
            if entry is None or is_expired(entry):
                missing.setdefault(location.stream, []).append(at)
            else:
                found[at] = entry
        for stream, places in missing.items():
            places.sort(key=lambda at: wanted[at].position)
            near: list[int] = []
            for at in places:
                if near and wanted[at].position - wanted[near[-1]].position > BLOCK:
                    self._fetch(stream, near, wanted, found)
                    near = []
                near.append(at)
            self._fetch(stream, near, wanted, found)
        return found

    def _expiry(self) -> Callable[[Entry], bool]:
        """A test of cached entries: a retention removes entries without a record in the log."""
        known = inner(self._store).look_up(self.space)[0]
        partitions = {
            each.partition: each for each in (known.partitions if known is not None else ()) if each.retention
        }
        floors = {number: each.ask(floor_of).number for number, each in partitions.items()}
        firsts: dict[str, int] = {}

        def is_expired(entry: Entry) -> bool:
            partition = partitions.get(entry.origin.partition)
            if partition is None or partition.retention is None:
                return False
            if entry.trx.number < floors[partition.partition]:
                return True
            retention, segment = partition.retention, entry.segment
            if retention.per == "space" or not (retention.max_entries or retention.max_bytes):
                return False
            if segment not in firsts:
                firsts[segment] = partition.ask(row_of, segment).first_sequence
            return entry.sequence < firsts[segment]

        return is_expired

    def look(self) -> None:
        """Ask the storage if entries were removed."""
        self._looked = float("-inf")
        self._drop_removed()

    def _drop_removed(self) -> None:
        """Nothing is handed out that was removed: looked up each time, or each second where that is a request."""
        shared = inner(self._store)
        now = shared.clock.monotonic()
        look = now - self._looked >= (1.0 if shared.backend.limits.remote else 0.0)
        if look:
            self._looked = now
        mark = removal_mark(self._store, self.space, look=look)
        if mark != self._mark:
            self._mark = mark
            with self._lock:
                self._kept.clear()
                self._kept_bytes = 0
                self._read.clear()

    def _refresh(self) -> list[Place]:
        self._looked = inner(self._store).clock.monotonic()
        return ends(self._store, self.space)

    def _fetch(self, stream: Stream, near: list[int], wanted: list[Location], found: list[Entry | None]) -> None:
        """Read entries that are not cached: those `wanted` at `near`, in order. Their neighbours from the same read are
        cached: they are wanted next."""
        start, first, last = wanted[near[0]].start, wanted[near[0]].position, wanted[near[-1]].position
        mark = self._mark
        if isinstance(stream, int):
            self._refresh()
            lists = read_from(self._store, self.space, Place(stream, start.number, start.index, start.position))
        else:
            lists = _in_lists(self._walk(stream, StreamCursor(max(first, start.position))))
        read: dict[int, Entry] = {}
        for entries in lists:
            for entry in entries:
                position = self.position_of(stream, entry)
                if first <= position < last + BLOCK:
                    read[position] = entry
            if position >= last:
                break
        for at in near:
            found[at] = read.get(wanted[at].position)
        self._keep(stream, read, mark)

    def trimmed_after(self, stream: Stream, start: StreamCursor, end: StreamCursor) -> int:
        """The number of entries from `start` on that were trimmed or have expired, as far as a look at floors tells.

        A queue trims only jobs that are done, so the statuses of its many segments are not read.
        """
        if self.queue or start.position >= end.position:
            return 0
        if isinstance(stream, str):
            first = self._store.segment_status(self.space, stream).first_sequence
        else:
            known = inner(self._store).look_up(self.space)[0]
            first = 0 if known is None else known.partitions[stream].ask(floor_of).position
        return max(0, min(first, end.position) - start.position)

    def is_trimmed(self, stream: Stream, position: int) -> bool:
        """True if the entry that is missing at `position` was trimmed, and not erased or deleted."""
        if isinstance(stream, str):
            at = self._store.consume_segment(
                self.space, stream, min_sequence=position, max_sequence=position, gaps="yield"
            )
            found = next(at, None)
            return isinstance(found, Gap) and found.reason in ("trimmed", "expired")
        # A trimmed entry is missing together with all earlier ones.
        entries = next(read_from(self._store, self.space, Place(stream, 1, 0, 0), erased=True), None)
        return entries is None or self.position_of(stream, entries[0]) > position
