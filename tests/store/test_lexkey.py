"""LexKey: the known answers byte for byte, the order of keys, and exactly what is below one."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkit import LexKey, Unsigned

VECTORS = json.loads((Path(__file__).parent / "data" / "lexkey-vectors.json").read_text(encoding="utf-8"))
DECODE: dict[str, Any] = {
    "str": str,
    "uuid": UUID,
    "int": int,
    "unsigned": Unsigned,
    "float": float,
    "bool": bool,
    "bytes": bytes.fromhex,
    "datetime": datetime.fromisoformat,
    "none": lambda _: None,
}

INTS = st.integers(-(1 << 63), (1 << 63) - 1)
UNSIGNED = st.integers(0, (1 << 64) - 1).map(Unsigned)
FLOATS = st.floats(allow_nan=False)
TIMES = st.datetimes(datetime(1678, 1, 1), datetime(2262, 1, 1), timezones=st.just(UTC))
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
FIXED = st.one_of(INTS, UNSIGNED, FLOATS, st.uuids(), st.booleans(), st.none())


def parts_of(vector: dict[str, Any]) -> list[Any]:
    return [DECODE[kind](value) for part in vector["parts"] for kind, value in part.items()]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["hex"][:24])
def test_a_known_answer(vector: dict[str, Any]) -> None:
    key = LexKey.encode(*parts_of(vector))
    assert key.hex() == vector["hex"]
    assert key == bytes.fromhex(vector["hex"])
    assert LexKey.from_hex(vector["hex"]) == key


def test_all_known_answers_are_there() -> None:
    assert len(VECTORS) == 19


def test_a_key_is_bytes() -> None:
    key = LexKey.encode("a", 1)
    assert isinstance(key, bytes)
    assert key == b"a\x00" + (1 | 1 << 63).to_bytes(8, "big")
    assert hash(key) == hash(bytes(key))
    assert {bytes(key): 1}[key] == 1
    assert repr(key) == f"LexKey({key.hex()})"
    assert json.loads(json.dumps(key.hex())) == key.hex()


def test_first_and_last_are_the_key_and_one_byte() -> None:
    for parts in (("a",), ("a", 1), (b"\xff",), (None,)):
        key = LexKey.encode(*parts)
        assert LexKey.encode_first(*parts) == key + b"\x00"
        assert LexKey.encode_last(*parts) == key + b"\xff"
        assert isinstance(LexKey.encode_first(*parts), LexKey)
        assert isinstance(LexKey.encode_last(*parts), LexKey)


@given(INTS, INTS)
def test_ints_sort_as_numbers(one: int, two: int) -> None:
    assert (LexKey.encode(one) < LexKey.encode(two)) == (one < two)


@given(UNSIGNED, UNSIGNED)
def test_unsigned_ints_sort_as_numbers(one: Unsigned, two: Unsigned) -> None:
    assert (LexKey.encode(one) < LexKey.encode(two)) == (one < two)


@given(FLOATS, FLOATS)
def test_floats_sort_as_numbers(one: float, two: float) -> None:
    before = (one, math.copysign(1, one)) < (two, math.copysign(1, two))  # -0.0 before 0.0
    assert (LexKey.encode(one) < LexKey.encode(two)) == before


@given(TIMES, TIMES)
def test_times_sort_as_times(one: datetime, two: datetime) -> None:
    assert (LexKey.encode(one) < LexKey.encode(two)) == (one < two)


@given(TIMES, st.integers(-12, 14))
def test_a_time_is_one_key_in_every_zone(time: datetime, hours: int) -> None:
    assert LexKey.encode(time.astimezone(timezone(timedelta(hours=hours)))) == LexKey.encode(time)


@given(TIMES)
def test_a_time_is_its_nanoseconds(time: datetime) -> None:
    nanoseconds = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    assert LexKey.encode(time) == LexKey.encode(nanoseconds)


@given(NAMES, NAMES)
def test_texts_sort_by_code_point(one: str, two: str) -> None:
    assert (LexKey.encode(one) < LexKey.encode(two)) == (one < two)


@given(st.tuples(NAMES, INTS, NAMES), st.tuples(NAMES, INTS, NAMES))
def test_keys_sort_by_their_parts(one: tuple[str, int, str], two: tuple[str, int, str]) -> None:
    assert (LexKey.encode(*one) < LexKey.encode(*two)) == (one < two)


@given(st.lists(NAMES, min_size=1, max_size=3), st.lists(NAMES, min_size=1, max_size=4))
def test_children_are_exactly_the_keys_below(parent: list[str], other: list[str]) -> None:
    start, end = LexKey.encode(*parent).children()
    below = len(other) > len(parent) and other[: len(parent)] == parent
    assert (start <= LexKey.encode(*other) < end) == below


@given(NAMES, FIXED, st.binary(max_size=5))
def test_children_are_below_whatever_their_parts(name: str, part: Any, more: bytes) -> None:
    start, end = LexKey.encode(name).children()
    assert start <= LexKey.encode(name, part) < end
    assert start <= LexKey.encode(name, part, more) < end
    assert not start <= LexKey.encode(name) < end


def test_a_longer_name_is_no_child() -> None:
    start, end = LexKey.encode("order-4").children()
    assert start <= LexKey.encode("order-4", "x") < end
    assert start <= LexKey.encode("order-4", b"\xff" * 20) < end
    for name in ("order-42", "order-4 ", "order-4\u00ff", "order-5", "order-", "order-4/x"):
        assert not start <= LexKey.encode(name, "x") < end
        assert not start <= LexKey.encode(name) < end


@given(st.binary(max_size=40))
def test_hex_text_comes_back(data: bytes) -> None:
    key = LexKey.from_hex(LexKey(data).hex())
    assert key == data
    assert isinstance(key, LexKey)


@pytest.mark.parametrize("text", ["0", "zz", "0x00", "é", "00 0"])
def test_what_is_not_hexadecimal_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        LexKey.from_hex(text)


@pytest.mark.parametrize("wrong", [object(), [], ("a",), {"a": 1}, 1j, bytearray(b"x"), memoryview(b"x"), timedelta()])
def test_another_type_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a key part is"):
        LexKey.encode("a", wrong)


@pytest.mark.parametrize(
    "wrong",
    [1 << 63, -(1 << 63) - 1, math.nan, "\ud800", datetime(2024, 1, 1), datetime(9999, 1, 1, tzinfo=UTC)],
    ids=repr,
)
def test_a_value_that_does_not_fit_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError):
        LexKey.encode("a", wrong)


@pytest.mark.parametrize("wrong", [-1, 1 << 64])
def test_unsigned_has_64_bits(wrong: int) -> None:
    with pytest.raises(ValueError, match="Unsigned takes 0 to"):
        Unsigned(wrong)


@pytest.mark.parametrize("wrong", [1.5, True, "1", None])
def test_unsigned_takes_ints_alone(wrong: Any) -> None:
    with pytest.raises(TypeError, match="Unsigned takes an int, not"):
        Unsigned(wrong)


def test_text_that_is_not_utf8_is_no_part() -> None:
    with pytest.raises(ValueError, match="lone surrogate") as refused:
        LexKey.encode("\ud800")
    assert type(refused.value) is ValueError


def test_a_bool_is_no_int_and_unsigned_is_no_signed() -> None:
    assert LexKey.encode(True) == b"\x01"
    assert LexKey.encode(False) == b"\x00"
    assert LexKey.encode(1) != LexKey.encode(Unsigned(1)) != LexKey.encode(True)
