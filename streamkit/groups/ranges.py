"""Sets of whole numbers as ranges: (first, count) in order, as records hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["Range", "numbers_of", "ranges_of"]

Range = tuple[int, int]
"""(first, count)"""


def ranges_of(numbers: Iterable[int]) -> list[Range]:
    """Combine numbers, each given once and in any order, into ranges."""
    numbers = list(numbers)
    if len(numbers) == 1:
        return [(numbers[0], 1)]
    found: list[Range] = []
    first = count = 0
    for number in sorted(numbers):
        if count and number == first + count:
            count += 1
            continue
        if count:
            found.append((first, count))
        first, count = number, 1
    if count:
        found.append((first, count))
    return found


def numbers_of(ranges: Iterable[Range]) -> Iterator[int]:
    for first, count in ranges:
        yield from range(first, first + count)
