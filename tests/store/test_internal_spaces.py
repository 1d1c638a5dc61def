"""Internal spaces: data of the package in a store that users neither see nor name."""

from __future__ import annotations

import pytest
from fix_stores import Subject
from hypothesis import given
from hypothesis import strategies as st

from streamkit import InvalidName, Record
from streamkit.names import check_name, internal_name
from streamkit.store import inner

NAME = internal_name("view", "orders", "totals")


def test_an_internal_space_is_written_and_read_like_any_other(subject: Subject) -> None:
    subject.store.create_space(NAME, partitions=2, durability="buffered")
    subject.store.produce(NAME, "a", [Record(b"1")], expected_sequence=0, idempotency_key="k")
    with subject.store.transaction(NAME) as transaction:
        transaction.produce("a", [Record(b"2")], expected_sequence=1)
    other = subject.stranger()
    entries = list(other.consume_space(NAME))
    assert [(entry.space, entry.payload) for entry in entries] == [(NAME, b"1"), (NAME, b"2")]
    assert list(other.consume_space(NAME, offset=entries[0].space_offset)) == entries[1:]
    assert [entry.payload for entry in other.follow_segment(NAME, "a", after=1, timeout=0)] == [b"2"]
    assert other.segment_status(NAME, "a").last_sequence == 2


def test_no_user_lists_it_and_no_user_can_name_it(subject: Subject) -> None:
    subject.store.produce(NAME, "a", [Record(b"1")])
    subject.store.produce("orders", "a", [Record(b"1")])
    assert list(subject.store.get_spaces()) == ["orders"]
    for call in (subject.store.create_space, subject.store.get_segments, subject.store.consume_space):
        with pytest.raises(InvalidName, match="control character"):
            call(str(NAME))
    with pytest.raises(InvalidName):
        subject.store.produce("orders", NAME, [Record(b"1")])


def test_those_of_a_kind_are_listed_for_the_package(subject: Subject) -> None:
    names = {internal_name("view", "orders", name) for name in ("a", "b", "x" * 255)}
    for name in [*names, internal_name("views"), internal_name("vie"), internal_name("w", "a")]:
        subject.store.produce(name, "a", [Record(b"1")])
    assert set(inner(subject.stranger()).internal_names("view")) == names


def test_upkeep_and_verify_and_outcome_know_it(subject: Subject) -> None:
    for number in range(40):
        status = subject.store.produce(NAME, "a", [Record(b"%d" % number)])
    subject.store.maintain()
    other = subject.stranger()
    report = other.verify()
    assert (report.transactions, report.findings) == (0, ()), "it is walked, and only the user's spaces are counted"
    assert other.outcome(status.trx.id) == "committed"
    assert other.repair() == 0


def test_it_goes_with_its_store(subject: Subject) -> None:
    subject.store.produce(NAME, "a", [Record(b"1")])
    subject.store.close()
    subject.client.delete_store(subject.id)
    assert inner(subject.stranger()).internal_names("view") == []


@given(st.lists(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=120), max_size=4), max_size=4))
def test_different_parts_give_different_names(parts: list[list[str]]) -> None:
    names = {tuple(each): internal_name("view", *each) for each in parts}
    assert len(set(names.values())) == len(names)
    for name in names.values():
        assert len(name.encode()) <= 255
        assert "\0" not in name or any("\0" in part for each in parts for part in each)
        assert name.startswith(internal_name("view"))
        assert check_name(name, "space") is name
