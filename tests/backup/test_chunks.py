"""Chunks never overlap, and together they have the requested transactions, for every earlier backup."""

from __future__ import annotations

from random import Random

from streamkit.backup.chunks import missing_from
from streamkit.backup.format import Chunk


def runs(numbers: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def test_what_no_chunk_has_is_left_and_lies_between_them() -> None:
    dice = Random(1)
    for _ in range(2000):
        chunks, at = [], 1
        while at < 40:
            there = sorted(dice.sample(range(at, at + 8), dice.randint(1, 8)))
            chunks.append(Chunk("", runs(there), ""))
            at = there[-1] + dice.randint(1, 5)
        numbers = sorted(dice.sample(range(1, 50), dice.randint(0, 45)))
        left, used = missing_from(numbers, dice.sample(chunks, len(chunks)))
        held = {number for chunk in used for first, last in chunk.runs for number in range(first, last + 1)}
        assert left == [number for number in numbers if number not in held]
        assert all(held.intersection(numbers, range(chunk.first, chunk.last + 1)) for chunk in used)
        assert not any(chunk.first <= number <= chunk.last for chunk in used for number in left)
