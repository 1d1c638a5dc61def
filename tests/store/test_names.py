"""Names: the legal ones, and the partition of a segment."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from fix_stores import Subject
from hypothesis import given
from hypothesis import strategies as st

from streamkit import InvalidName, PermanentError, Record
from streamkit.names import check_name, partition_of

LEGAL = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=63).filter("*".__ne__)


@given(LEGAL)
def test_any_text_without_control_characters_is_legal(name: str) -> None:
    assert check_name(name, "segment") == name


@given(st.text(max_size=300))
def test_legal_is_exactly_what_the_contract_says(name: str) -> None:
    control = any(unicodedata.category(character) == "Cc" for character in name)
    legal = 1 <= len(name.encode("utf-8", "surrogatepass")) <= 255 and not control and name != "*"
    legal = legal and not any("\ud800" <= character <= "\udfff" for character in name)
    try:
        check_name(name, "segment")
        taken = True
    except InvalidName:
        taken = False
    assert taken == legal


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "it is empty"),
        ("*", "reserved"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("\x7f", "control character"),
        ("\x85", "control character"),
        ("\ud800", "lone surrogate"),
        ("x" * 256, "256 bytes"),
        ("é" * 128, "256 bytes"),
        ("🎉" * 64, "256 bytes"),
    ],
)
def test_the_error_says_what_is_wrong_and_what_is_right(name: str, why: str) -> None:
    with pytest.raises(InvalidName, match=why) as caught:
        check_name(name, "space")
    assert str(caught.value).startswith("space name ")
    assert "1 to 255 bytes of UTF-8" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, PermanentError)
    assert not caught.value.retryable


@pytest.mark.parametrize("name", [None, b"a", 1, 1.5, ["a"], True])
def test_a_name_is_text(name: Any) -> None:
    with pytest.raises(TypeError, match="the segment name must be str"):
        check_name(name, "segment")


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127 + "x", "🎉" * 63 + "xyz"])
def test_the_longest_names_are_taken(subject: Subject, name: str) -> None:
    assert len(name.encode()) == 255
    subject.store.create_space(name, partitions=2)
    subject.store.produce(name, name, [Record(b"1")], idempotency_key="k" * 1000)
    subject.store.maintain()
    subject.store.produce(name, name, [Record(b"2")])
    other = subject.stranger()
    assert list(other.get_spaces()) == [name]
    assert list(other.get_segments(name)) == [name]
    assert [entry.payload for entry in other.consume_segment(name, name)] == [b"1", b"2"]
    assert other.peek(name, name).payload == b"2"


@given(LEGAL, st.integers(1, 64))
def test_a_segment_lives_on_one_partition(name: str, partitions: int) -> None:
    partition = partition_of(name, partitions)
    assert 0 <= partition < partitions
    assert partition_of(name, partitions) == partition
    assert partition_of(name, 1) == 0


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("{order-42}/items", "{order-42}/payments"),
        ("order-42", "{order-42}"),
        ("a{order-42}b", "order-42"),
        ("{order-42}{other}", "order-42"),
        ("{order-42}}", "order-42"),
        ("x{{order-42}y", "{order-42"),
    ],
)
def test_the_part_in_the_first_braces_decides(one: str, two: str) -> None:
    for partitions in (2, 7, 1000):
        assert partition_of(one, partitions) == partition_of(two, partitions)


def test_empty_or_open_braces_decide_nothing() -> None:
    names = ["{}a", "{}b", "{}c", "{a", "{b", "{c", "}a{", "}b{", "}c{"]
    assert len({partition_of(name, 1000) for name in names}) == len(names)


def test_where_segments_live_never_changes() -> None:
    """Stored spaces depend on it."""
    assert [partition_of(name, 1000) for name in ("a", "order-42", "é", "🎉", "{a}x")] == [343, 587, 743, 805, 343]


def test_segments_spread_over_the_partitions() -> None:
    counts = [0] * 4
    for number in range(4000):
        counts[partition_of(f"segment-{number}", 4)] += 1
    assert min(counts) > 900
