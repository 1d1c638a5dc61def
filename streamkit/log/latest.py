"""The last entries of segments that were peeked at: a cache that holds a few megabytes, whatever is in them."""

from __future__ import annotations

import threading

from ..model import Entry

__all__ = ["Latest"]

_BYTES = 8 << 20
"""For a space: ten thousand small entries. A small function has 128 MB in all."""
_ENTRY = 600
"""Bytes of an entry beside its payload and its metadata."""


class Latest:
    """The entries that were kept last stay. Safe between threads; looking one up takes no lock."""

    def __init__(self, partitions: int) -> None:
        """The cache of one partition of a space that has `partitions`."""
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._bytes = 0
        self._most = _BYTES // partitions
        self.drops = 0
        """The number of drops. An entry that was read before a drop is not kept after it."""

    def get(self, segment: str) -> Entry | None:
        return self._entries.get(segment)

    def clear(self) -> None:
        with self._lock:
            self.drops += 1
            self._entries = {}
            self._bytes = 0

    def drop(self, segment: str) -> None:
        with self._lock:
            self.drops += 1
            old = self._entries.pop(segment, None)
            if old is not None:
                self._bytes -= _size(old)

    def keep(self, entry: Entry, drops: int) -> None:
        """`drops`: as they were before it was read."""
        size = _size(entry)
        if size > self._most >> 4:
            return
        with self._lock:
            if drops != self.drops:
                return
            entries = self._entries
            old = entries.pop(entry.segment, None)
            if old is not None:
                self._bytes -= _size(old)
            while entries and self._bytes + size > self._most:
                self._bytes -= _size(entries.pop(next(iter(entries))))
            if not entries:
                self._bytes = 0
            entries[entry.segment] = entry
            self._bytes += size


def _size(entry: Entry) -> int:
    metadata = entry.metadata
    return _ENTRY + len(entry.payload) + sum(200 + 4 * (len(name) + len(metadata[name])) for name in metadata)
