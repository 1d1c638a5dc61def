"""The ranges of sequences that an erasure names."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter

from ..log.floors import Erasure, joined, overlapping
from ..log.keys import data_range
from ..log.request import Part

__all__ = ["Ranges"]


class Ranges:
    """The sequences of segments that are erased."""

    def __init__(self, erasures: Sequence[Erasure]) -> None:
        self.by_segment: dict[str, list[tuple[int, int]]] = {}
        for erasure in erasures:
            self.by_segment.setdefault(erasure.segment, []).append((erasure.first, erasure.last))
        for segment, ranges in self.by_segment.items():
            self.by_segment[segment] = joined(ranges)
        self.spans = sorted((*data_range(segment, parts[0][0]), segment) for segment, parts in self.by_segment.items())
        """The rows of each segment in the index, from the first erased entry on: (first key, end, segment). The ranges
        do not overlap."""
        self._ends = [end for _, end, _ in self.spans]

    def spans_in(self, first_key: bytes, last_key: bytes) -> list[tuple[bytes, bytes, str]]:
        """The items of `spans` that may contain keys of first_key..last_key."""
        at = bisect_right(self._ends, first_key)
        return self.spans[at : bisect_right(self.spans, last_key, at, key=itemgetter(0))]

    def reason(self, segment: str, sequence: int) -> str:
        ranges = self.by_segment.get(segment, ())
        at = bisect_left(ranges, (sequence + 1, 0)) - 1 if ranges else -1
        return "erased" if at >= 0 and ranges[at][0] <= sequence <= ranges[at][1] else ""

    def has_segment(self, part: Part) -> bool:
        return part.segment in self.by_segment

    def holds(self, segment: str, first: int, last: int) -> bool:
        """True if one of the sequences first..last is erased."""
        return bool(overlapping(self.by_segment.get(segment, ()), first, last))

    def lacks(self, segment: str, first: int, last: int) -> int:
        """Count the sequences of first..last that are not erased."""
        parts = overlapping(self.by_segment.get(segment, ()), first, last)
        return last - first + 1 - sum(min(last, high) - max(first, low) + 1 for low, high in parts)
