"""The last entries of segments that were peeked at: a cache of a few megabytes."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict

from ..model import Entry

__all__ = ["Latest"]

_BYTES = 8 << 20
"""Bytes of the cache of a space: ten thousand small entries. A small function has 128 MB in all."""
_ENTRY = 600
"""Bytes of an entry beside its payload and its metadata."""
_PLACE = 1024
"""Bytes of the cache for each place of a segment that a full cache remembers without an entry."""


class Latest:
    """The entries that were kept last stay. Safe between threads; looking one up takes no lock.

    A full cache takes the entry of another segment when that is kept for the second time. So peeks here and there among
    many segments do not take the place of the few that are peeked at again and again.
    """

    def __init__(self, partitions: int) -> None:
        """The cache of one partition of a space that has `partitions`."""
        self._lock = threading.RLock()
        self._entries: OrderedDict[str, tuple[Entry, int]] = OrderedDict()
        """Each with the number of the index that has no later entry of its segment; 0: of none."""
        self._bytes = 0
        self._most = _BYTES // partitions
        self._asked: array[int] | None = None
        """Hashes of segments whose entries were not kept, each at a place of its own, since the cache was full."""
        self._index: object = None
        self._number = 0
        """The number of `_index`."""
        self.drops = 0
        """The number of drops. An entry that was read before a drop is not kept after it."""

    def get(self, segment: str) -> Entry | None:
        kept = self._entries.get(segment)
        return None if kept is None else kept[0]

    def last_of(self, segment: str, index: object) -> Entry | None:
        """The entry that is kept of a segment, if it is the last one in `index`."""
        kept = self._entries.get(segment)
        # The index before its number: see `keep`.
        return kept[0] if kept is not None and self._index is index and kept[1] == self._number else None

    def clear(self) -> None:
        with self._lock:
            self.drops += 1
            self._entries = OrderedDict()
            self._bytes = 0
            self._asked = None

    def drop(self, segment: str) -> None:
        with self._lock:
            self.drops += 1
            old = self._entries.pop(segment, None)
            if old is not None:
                self._bytes -= _size(old[0])

    def keep(self, entry: Entry, drops: int, index: object = None) -> None:
        """`drops`: as they were before it was read. `index`: the index that has no later entry of the segment."""
        asked, segment = self._asked, entry.segment
        if asked is not None and segment not in self._entries:
            hashed = hash(segment)
            place = hashed % len(asked)
            if asked[place] != hashed:
                asked[place] = hashed
                return
        size = _size(entry)
        if size > self._most >> 4:
            return
        with self._lock:
            entries, number = self._entries, 0
            old = entries.get(segment)
            if drops != self.drops or (old is not None and old[0].sequence > entry.sequence):
                return
            if index is not None:
                if index is not self._index:
                    # Readers take no lock: while the number is the next one's, no entry is the last one of an index.
                    self._number += 1
                    self._index = index
                number = self._number
            if old is not None:
                del entries[segment]
                self._bytes -= _size(old[0])
            while entries and self._bytes + size > self._most:
                _, (gone, _) = entries.popitem(last=False)
                self._bytes -= _size(gone)
                if self._asked is None:
                    self._asked = array("q", bytes(8 * (1 + self._most // _PLACE)))
            if not entries:
                self._bytes = 0
            entries[segment] = entry, number
            self._bytes += size


def _size(entry: Entry) -> int:
    metadata, size = entry.metadata, _ENTRY + len(entry.payload)
    if not metadata:
        return size
    return size + sum(200 + 4 * (len(name) + len(metadata[name])) for name in metadata)
