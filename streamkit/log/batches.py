"""Batches: the entries of one frame, as readers yield them, or a gap before the next one.

A reader decides once for a batch, not for every entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from ..gaps import Gap
from ..metadata import NO_METADATA
from ..model import Entry, Origin
from .floors import REMOVED, Gaps, Removed, joined, overlapping
from .rows import SegmentRow
from .segment_view import row_of, sequence_gaps
from .view import LogView
from .visible import missing_error, stops_readers

__all__ = [
    "NOWHERE",
    "Batch",
    "Bounds",
    "RequiredText",
    "entries_and_gaps",
    "gap_batch",
    "without_erased",
    "without_hidden",
    "without_removed",
]

_ROWS = 4096
"""Segments whose statuses a walk keeps."""
NOWHERE = Origin(0, 0, 0, 0, 0)
"""The origin of a batch without entries."""


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """Inclusive; 0 means no bound."""

    min_sequence: int = 0
    max_sequence: int = 0
    min_timestamp: int = 0
    max_timestamp: int = 0
    gaps: Gaps = "skip"

    @property
    def by_time(self) -> bool:
        return bool(self.min_timestamp or self.max_timestamp)

    @property
    def empty(self) -> bool:
        return bool(
            (self.max_sequence and self.min_sequence > self.max_sequence)
            or (self.max_timestamp and self.min_timestamp > self.max_timestamp)
        )


class RequiredText:
    """Text that the metadata of an entry must hold. A reader passes over most other entries without decoding them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = list(texts)
        self.encoded = [text.encode() for text in self.texts]
        self.passed = 0
        """Entries that were passed over."""


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Entries of one frame, at least one; or the gap before the next frame."""

    timestamp: int
    number: int
    origin: Origin
    entries: list[Entry]
    gap: Gap | None = None

    @property
    def first_index(self) -> int:
        """The index of the first entry in its transaction."""
        return self.origin.index + self.entries[0].sequence - self.origin.first_sequence

    @property
    def after(self) -> tuple[int, int]:
        """The place behind the last entry: (number, index in the transaction)."""
        return self.number, self.origin.index + self.entries[-1].sequence - self.origin.first_sequence + 1


def gap_batch(gap: Gap, gaps: Gaps) -> Batch | None:
    """The batch that reports a gap; None if the reader gets no gaps. EntriesRemoved if the gap stops it."""
    if gaps == "raise" and stops_readers(gap):
        raise missing_error(gap)
    return Batch(0, 0, NOWHERE, [], gap) if gaps == "yield" else None


def without_hidden(view: LogView, batches: Iterator[Batch], gaps: Gaps) -> Iterator[Batch]:
    """`batches` of a log, without entries that were removed from their segments or erased."""
    rows: dict[str, SegmentRow] = {}
    for batch in without_erased(view, batches):
        if batch.entries:
            first = batch.entries[0]
            row = rows.get(first.segment)
            if row is None:
                if len(rows) >= _ROWS:
                    rows.clear()
                row = rows[first.segment] = row_of(view, first.segment)
            count = row.first_sequence - first.sequence
            if count > 0:
                entries = batch.entries[count:]
                if gaps == "yield":
                    last = min(row.first_sequence - 1, batch.entries[-1].sequence)
                    for gap in sequence_gaps(view, first.segment, row, first.sequence, last):
                        yield Batch(batch.timestamp, batch.number, batch.origin, [], gap)
                if entries:
                    yield Batch(batch.timestamp, batch.number, batch.origin, entries)
                continue
        yield batch


def without_erased(view: LogView, batches: Iterator[Batch]) -> Iterator[Batch]:
    """`batches`, with a mark in the place of erased entries that may still be stored."""
    found: dict[str, list[tuple[int, int]]] = {}
    for erasure in view.erasing:
        found.setdefault(erasure.segment, []).append((erasure.first, erasure.last))
    ranges = {segment: joined(some) for segment, some in found.items()}
    for batch in batches:
        entries = batch.entries
        if entries and (erased := _erased_of(ranges.get(entries[0].segment, ()), entries)):
            # A batch may join several frames: each entry keeps the origin of its own frame.
            origins: dict[int, Origin] = {}
            marked = []
            for entry in entries:
                if id(entry.origin) not in origins:
                    origins[id(entry.origin)] = replace(entry.origin, holes=True)
                origin = origins[id(entry.origin)]
                if entry.sequence in erased:
                    entry = replace(entry, payload=REMOVED["erased"], metadata=NO_METADATA, origin=origin)
                else:
                    entry = replace(entry, origin=origin)
                marked.append(entry)
            batch = Batch(batch.timestamp, batch.number, origin, marked)
        yield batch


def _erased_of(ranges: Sequence[tuple[int, int]], entries: Sequence[Entry]) -> set[int]:
    """The sequences of a segment's entries that are in `ranges`, which are in order and do not touch."""
    first, last = entries[0].sequence, entries[-1].sequence
    erased = set[int]()
    for low, high in overlapping(ranges, first, last):
        erased.update(range(max(first, low), min(last, high) + 1))
    return erased


def without_removed(batches: Iterable[Batch]) -> Iterator[Batch]:
    """`batches` without removed entries. The entries around them become batches of their own."""
    for batch in batches:
        if batch.gap is not None:
            continue
        if not batch.origin.holes:
            yield batch
            continue
        run: list[Entry] = []
        for entry in batch.entries:
            if not isinstance(entry.payload, Removed):
                run.append(entry)
            elif run:
                yield Batch(batch.timestamp, batch.number, batch.origin, run)
                run = []
        if run:
            yield Batch(batch.timestamp, batch.number, batch.origin, run)


def entries_and_gaps(batch: Batch, gaps: Gaps) -> list[Entry | Gap]:
    """The entries of a batch that a reader gets if some of them are gone, with gaps if it asks for them."""
    if batch.gap is not None:
        return [batch.gap]
    if not batch.origin.holes:
        return list(batch.entries)
    found: list[Entry | Gap] = []
    for entry in batch.entries:
        payload = entry.payload
        if not isinstance(payload, Removed):
            found.append(entry)
        elif gaps == "yield":
            before = found[-1] if found else None
            first = entry.sequence
            if isinstance(before, Gap) and before.reason == payload.reason and before.last_sequence == first - 1:
                first = before.first_sequence
                found.pop()
            found.append(Gap(entry.space, entry.segment, first, entry.sequence, payload.reason))
    return found
