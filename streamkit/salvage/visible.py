"""The entries of intact transactions that readers may see, and the sequences that are missing between them."""

from __future__ import annotations

from msgspec.structs import replace

from ..log.floors import REMOVED, Removed
from ..log.record_format import Header
from ..model import Entry
from .log import IntactLog, Transaction
from .report import LostEntries

__all__ = ["Visible"]


class Visible:
    """The remaining entries of one partition. Transactions come in their order."""

    def __init__(self, log: IntactLog) -> None:
        self.removed = log.removed
        self.trimmed = log.floor.number > 1
        """True if the space was trimmed: then a segment may begin at any sequence."""
        self.ends: dict[str, int] = {}
        """The last sequences that lost transactions gave to segments."""
        self._reached: dict[str, int] = {}
        self._erased = log.erased

    def parts(self, transaction: Transaction, missing: list[LostEntries]) -> list[list[Entry]]:
        """The entries of a transaction that are not removed, by segment, with holes for erased ones.

        Sequences that are missing before them are added to `missing`.
        """
        parts = []
        for entries in transaction.frames:
            segment = entries[0].segment
            floor = self.removed.get(segment, (0, ""))[0]
            left = [self._seen(entry) for entry in entries if entry.sequence > floor]
            if not left:
                continue
            before = max(self._reached.get(segment, 0), floor)
            begins = self.trimmed and segment not in self._reached
            if left[0].sequence > before + 1 and not begins:
                missing.append(LostEntries(segment, before + 1, left[0].sequence - 1))
            self._reached[segment] = left[-1].sequence
            parts.append(left)
        return parts

    def lose(self, header: Header) -> None:
        """A transaction whose entries cannot be read. Its sequences are not used again."""
        for frame in header.frames:
            last = frame.first_sequence + frame.count - 1
            self.ends[frame.segment] = max(last, self.ends.get(frame.segment, 0))

    def end(self, missing: list[LostEntries]) -> None:
        """Add the missing sequences at the ends of segments to `missing`."""
        for segment, last in self.ends.items():
            reached = max(self._reached.get(segment, 0), self.removed.get(segment, (0, ""))[0])
            if reached < last:
                missing.append(LostEntries(segment, reached + 1, last))

    def _seen(self, entry: Entry) -> Entry:
        """The entry, without its payload and metadata if it was erased."""
        for erasure in self._erased:
            if erasure.segment == entry.segment and erasure.first <= entry.sequence <= erasure.last:
                return _hole(entry)
        return _hole(entry) if isinstance(entry.payload, Removed) else entry


def _hole(entry: Entry) -> Entry:
    return replace(entry, payload=REMOVED["erased"], metadata={})
