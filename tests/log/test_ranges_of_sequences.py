"""Ranges of erased sequences: an erasure may have hundreds of thousands of them."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from streamkit.log.floors import Erasure, joined, overlapping
from streamkit.removing.ranges import Ranges


def test_ranges_hold_what_was_named_and_nothing_else() -> None:
    dice = Random(5)
    for _ in range(500):
        given = [
            (first, first + dice.choice((0, 0, 1, 5))) for first in dice.choices(range(1, 60), k=dice.randint(0, 12))
        ]
        erased = {sequence for first, last in given for sequence in range(first, last + 1)}
        found = joined(given)
        assert [sequence for first, last in found for sequence in range(first, last + 1)] == sorted(erased)
        assert all(before[1] + 1 < after[0] for before, after in pairwise(found))
        ranges = Ranges([Erasure("s", *one) for one in given])
        first = dice.randint(1, 70)
        asked = range(first, first + dice.choice((0, 1, 10, 70)) + 1)
        assert list(overlapping(found, asked[0], asked[-1])) == [
            one for one in found if any(one[0] <= sequence <= one[1] for sequence in asked)
        ]
        assert ranges.holds("s", asked[0], asked[-1]) == any(sequence in erased for sequence in asked)
        assert ranges.lacks("s", asked[0], asked[-1]) == sum(sequence not in erased for sequence in asked)
        assert not ranges.holds("t", asked[0], asked[-1])
