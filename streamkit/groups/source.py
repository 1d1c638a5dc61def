"""The source of a group: the log of a space, partition by partition, or some of its segments."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

from ..checksum import crc32
from ..gaps import Gap
from ..lexkey import LexKey
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

    def read(self, stream: Stream, start: StreamCursor, count: int) -> tuple[list[Entry], StreamCursor]:
        """Read at most `count` entries without a gap between them, from `start` or the first existing one after it.
        Also returns the place where the stream continues. The first is at `position_of(…)`."""
        entries: list[Entry] = []
        size, expected = 0, -1
        left = self._left_at(stream, start.position)
        mark = self._mark
        for entry in left or self._walk(stream, start):
            position = self.position_of(stream, entry)
            if entries and position != expected:
                break
            entries.append(entry)
            expected = position + 1
            size += len(entry.payload)
            if len(entries) >= count or size >= _BLOCK_BYTES:
                break
        if not entries:
            return [], start
        first = self.position_of(stream, entries[0])
        self._keep((stream, first), dict(enumerate(entries, first)), mark)
        if isinstance(stream, str):
            return entries, StreamCursor(expected)
        place = Place.after(entries[-1])
        return entries, StreamCursor(place.position, place.number, place.index)

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
        at = position - self.position_of(stream, read[0])
        return read[at:] if 0 < at < len(read) and self.position_of(stream, read[at]) == position else []

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

    def _keep(self, block: tuple[Stream, int], entries: dict[int, Entry], mark: tuple[object, ...]) -> None:
        """Keep entries of a block, unless something was removed since they were read. `mark`: that of before."""
        with self._lock:
            if mark is not self._mark:
                return
            self._kept[block] = {**self._kept.pop(block, {}), **entries}
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)

    def load(self, locations: Iterable[Location]) -> list[Entry | None]:
        """The entries at `locations`, None for those that are not there any more."""
        wanted = list(locations)
        self._drop_removed()
        found: list[Entry | None] = [None] * len(wanted)
        missing: dict[tuple[Stream, StreamCursor], list[int]] = {}
        block: dict[int, Entry] | None = None
        last: tuple[Stream, int] | None = None
        for at, location in enumerate(wanted):
            name = (location.stream, location.start.position)
            if name != last:
                block, last = self._kept.get(name), name
            entry = block.get(location.position) if block is not None else None
            if entry is None:
                missing.setdefault((location.stream, location.start), []).append(at)
            else:
                found[at] = entry
        for (stream, start), places in missing.items():
            self._fetch(stream, start, {wanted[at].position: at for at in places}, found)
        return found

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
                self._read.clear()

    def _refresh(self) -> list[Place]:
        self._looked = inner(self._store).clock.monotonic()
        return ends(self._store, self.space)

    def _fetch(self, stream: Stream, start: StreamCursor, places: dict[int, int], found: list[Entry | None]) -> None:
        """Read the entries of one block that are not cached. Their neighbours from the same read are cached: they are
        wanted next."""
        first, last, mark = min(places), max(places), self._mark
        if isinstance(stream, int):
            self._refresh()
            lists = read_from(self._store, self.space, Place(stream, start.number, start.index, start.position))
        else:
            lists = _in_lists(self._walk(stream, StreamCursor(max(first, start.position))))
        read: dict[int, Entry] = {}
        for entries in lists:
            for entry in entries:
                position = self.position_of(stream, entry)
                if first <= position < start.position + BLOCK:
                    read[position] = entry
            if position >= last:
                break
        for position, at in places.items():
            found[at] = read.get(position)
        if read:
            self._keep((stream, start.position), read, mark)

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
