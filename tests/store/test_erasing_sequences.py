"""An erasure names the sequences of one segment one by one."""

from __future__ import annotations

from typing import Any

import pytest
from fix_stores import Subject

from streamkit import Gap, Record, Retention


def test_exactly_the_named_sequences_are_erased(subject: Subject) -> None:
    store = subject.store
    store.produce("s", "a*", [Record(b"secret-%d." % number) for number in range(1, 21)])
    store.produce("s", "ab", [Record(b"other")])
    store.maintain()
    assert store.erase("s", "a*", sequences=[2, 3, 7, 20], dry_run=True).entries == 4
    report = store.erase("s", "a*", sequences=[2, 3, 7, 20, 99, 2])
    assert report.entries == 4
    there = subject.stranger()
    left = [entry.sequence for entry in there.consume_segment("s", "a*")]
    assert left == [number for number in range(1, 21) if number not in (2, 3, 7, 20)]
    gaps = [found for found in there.consume_segment("s", "a*", gaps="yield") if isinstance(found, Gap)]
    assert [(gap.first_sequence, gap.last_sequence, gap.reason) for gap in gaps] == [
        (2, 3, "erased"),
        (7, 7, "erased"),
        (20, 20, "erased"),
    ]
    assert [entry.payload for entry in there.consume_segment("s", "ab")] == [b"other"]
    stored = repr(subject.seen())
    for number in (2, 3, 7, 20):
        assert f"secret-{number}." not in stored
    assert store.erase("s", "a*", sequences=[2, 3]).entries == 0


def test_trimmed_sequences_are_erased_and_their_neighbours_are_not_named(subject: Subject) -> None:
    store = subject.store
    store.produce("s", "a", [Record(b"%d" % number) for number in range(1, 11)])
    store.trim("s", "a", before=6)
    assert store.erase("s", "a", sequences=[2, 4, 8]).entries == 1
    assert [entry.sequence for entry in subject.stranger().consume_segment("s", "a")] == [6, 7, 9, 10]


def test_sequences_and_metadata_together_take_what_both_name(subject: Subject) -> None:
    store = subject.store
    store.produce("s", "a", [Record(b"x", {"tag": "ab"[number % 2]}) for number in range(6)])
    assert store.erase("s", "a", sequences=[1, 2, 3], metadata={"tag": "a"}).entries == 2
    assert [entry.sequence for entry in store.consume_segment("s", "a")] == [2, 4, 5, 6]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"segment": None, "metadata": {"a": "b"}, "sequences": [1]}, ValueError),
        ({"sequences": []}, ValueError),
        ({"sequences": [0]}, ValueError),
        ({"sequences": "12"}, TypeError),
        ({"sequences": 7}, TypeError),
        ({"sequences": [1.5]}, TypeError),
        ({"sequences": [1], "last": 3}, ValueError),
    ],
)
def test_wrong_sequences_are_refused(subject: Subject, wrong: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        subject.store.erase("s", **{"segment": "a", **wrong})


def test_a_dry_run_counts_no_entries_that_another_process_has_erased_since(subject: Subject) -> None:
    store, other = subject.store, subject.stranger()
    store.produce("s", "a", [Record(b"%d" % number, {"odd": str(number % 2)}) for number in range(1, 11)])
    assert other.peek("s", "a").sequence == 10
    store.trim("s", "a", before=9)
    store.erase("s", metadata={"odd": "1"})
    found = other.erase("s", "a", dry_run=True)
    report = store.erase("s", "a")
    assert (found.entries, found.hidden) == (report.entries, report.hidden) == (1, 4)


def test_a_dry_run_counts_entries_that_have_expired_since_the_last_upkeep(subject: Subject) -> None:
    store = subject.store
    store.produce("s", "a", [Record(b"%d" % number, {"odd": str(number % 2)}) for number in range(1, 11)])
    store.set_retention("s", Retention(max_entries=2))
    found = store.erase("s", metadata={"odd": "1"}, dry_run=True)
    report = store.erase("s", metadata={"odd": "1"})
    assert (found.entries, found.hidden) == (report.entries, report.hidden) == (1, 4)
