"""Exact equality of values before and after a round trip."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import time
import uuid
import zoneinfo
from array import array
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

import msgspec
import pytest

from streamkit.exact import difference, same


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Text(enum.StrEnum):
    A = "a"


class Number(enum.IntEnum):
    ONE = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Struct(msgspec.Struct):
    x: Any


class Wider(Struct):
    y: Any = 0


@dataclasses.dataclass
class Data:
    x: Any
    hidden: Any = dataclasses.field(default=0, compare=False)


@dataclasses.dataclass(slots=True, frozen=True)
class Frozen:
    x: Any


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


class Slotted:
    __slots__ = ("x",)


class Subtext(str):
    pass


class Always:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("secret")


Point = namedtuple("Point", "x y")
UTC = datetime.UTC
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NAN = float("nan")

MAKERS: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: False, lambda: 0, lambda: 1, lambda: 2**70, lambda: "", lambda: "1",
    lambda: b"", lambda: b"1", lambda: bytearray(b"1"), lambda: memoryview(b"1"), lambda: array("i", [1]),
    lambda: array("q", [1]), lambda: Subtext("1"), lambda: 0.0, lambda: -0.0, lambda: 1.0, lambda: float("nan"),
    lambda: math.inf, lambda: -math.inf, lambda: complex(0.0, 1), lambda: complex(-0.0, 1), lambda: Decimal("1"),
    lambda: Decimal("1.0"), lambda: Decimal("1E+1"), lambda: Decimal("10"), lambda: Decimal("0"),
    lambda: Decimal("-0"), lambda: Decimal("NaN"), lambda: Decimal("-NaN"), lambda: Decimal("NaN7"),
    lambda: Decimal("sNaN"), lambda: Decimal("Infinity"), lambda: Fraction(1), lambda: Fraction(1, 2),
    lambda: uuid.UUID(int=1), lambda: PurePosixPath("1"), lambda: range(1), lambda: datetime.timedelta(1),
    lambda: datetime.date(2024, 1, 1), lambda: datetime.datetime(2024, 1, 1), lambda: datetime.time(1),
    lambda: datetime.time(1, fold=1), lambda: datetime.time(1, tzinfo=UTC),
    lambda: datetime.datetime(2024, 1, 1, tzinfo=UTC), lambda: datetime.datetime(2024, 1, 1, tzinfo=BERLIN),
    lambda: datetime.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    lambda: datetime.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
    lambda: datetime.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")),
    lambda: datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(0), "X")),
    lambda: datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    lambda: datetime.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo.no_cache("Europe/Paris")),
    lambda: Colour.RED, lambda: Colour.GREEN, lambda: Text.A, lambda: Number.ONE, lambda: Flags.A,
    lambda: Flags.A | Flags.B, list, tuple, set, frozenset, dict,
    lambda: deque(), lambda: deque(maxlen=2), lambda: [1], lambda: [True], lambda: [1.0], lambda: (1,), lambda: (1, 2),
    lambda: (2, 1), lambda: Point(1, 2), lambda: {1}, lambda: {True}, lambda: {1.0}, lambda: {"1"},
    lambda: frozenset({1}), lambda: {float("nan")}, lambda: {float("nan"), float("nan")}, lambda: {(1, float("nan"))},
    lambda: {Decimal("1.0")}, lambda: {Decimal("1.00")}, lambda: {1: 1}, lambda: {True: 1}, lambda: {"1": 1},
    lambda: {1: True}, lambda: {1: {2: [3]}}, lambda: {1: {2: (3,)}}, lambda: {float("nan"): 1},
    lambda: {float("nan"): 2}, lambda: Counter("a"), lambda: defaultdict(int, a=1), lambda: defaultdict(list, a=1),
    lambda: OrderedDict(a=1, b=2), lambda: OrderedDict(b=2, a=1), lambda: {"a": 1, "b": 2}, lambda: Struct(1),
    lambda: Struct(True), lambda: Struct([1]), lambda: Wider(1), lambda: Wider(1, 2), lambda: Data(1),
    lambda: Data(1, 1), lambda: Data(1.0), lambda: Frozen(1), lambda: Frozen("1"), lambda: Plain(1),
    lambda: Plain(2), lambda: Slotted(), lambda: int, lambda: str, lambda: len,
]  # fmt: skip
"""Functions that make values. No two of these values are the same."""


def test_equal_values_made_twice_are_the_same() -> None:
    for make in MAKERS:
        assert difference(make(), make()) is None, make()
        assert same([{"k": make()}], [{"k": make()}]), make()


def test_no_two_different_values_are_the_same() -> None:
    for at, make in enumerate(MAKERS):
        for other in MAKERS[at + 1 :]:
            a, b = make(), other()
            assert not same(a, b), (a, b)
            assert not same(b, a), (a, b)
            assert not same({"k": [a]}, {"k": [b]}), (a, b)


def test_the_order_of_a_dict_or_a_set_does_not_count() -> None:
    assert same({"a": 1, "b": [2]}, {"b": [2], "a": 1})
    assert same({8, 0, "x"}, {"x", 0, 8})
    assert same({(1, NAN): 1, (2, float("nan")): 2}, {(2, float("nan")): 2, (1, float("nan")): 1})


def test_the_difference_names_the_place_and_no_value() -> None:
    assert difference({"secret": [Struct((1, 2))]}, {"secret": [Struct([1, 2])]}) == "[key][0].x: tuple became list"
    assert difference("secret", "other") == "the str changed"
    assert difference([1, 2], [1]) == "the length of the list changed"
    assert difference({"secret": 1}, {"other": 1}) == "a key of the dict changed"
    assert "secret" not in str(difference([Always()], [Always()]))


def test_fields_count_and_what_an_instance_holds_beside_them_does_not() -> None:
    left, right = Data(1), Data(1)
    left.cached = 1  # type: ignore[attr-defined]
    assert same(left, right)
    assert not same(Data(1, 1), Data(1, 2))
    assert difference(Plain(1), Plain("1")) == ".x: int became str"


def test_pydantic_models_are_compared_by_field() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        model_config = pydantic.ConfigDict(extra="allow")
        x: Any

    assert same(Model(x=(1,)), Model(x=(1,)))
    assert not same(Model(x=(1,)), Model(x=[1]))
    assert not same(Model(x=1, y=1), Model(x=1, y=2))


def test_a_value_that_contains_itself_is_compared() -> None:
    def cycle(last: Any) -> list[Any]:
        found: list[Any] = [1]
        found.append({"again": found})
        found.append(last)
        return found

    assert same(cycle(1), cycle(1))
    assert not same(cycle(1), cycle(1.0))


def test_depth_and_sharing_cost_no_more_than_the_parts_there_are() -> None:
    def deep(last: Any) -> Any:
        for _ in range(20_000):
            last = [last]
        return last

    def shared(last: Any) -> Any:
        for _ in range(200):
            last = [last, last]
        return last

    began = time.process_time()
    for make in (deep, shared):
        assert same(make(1), make(1))
        assert not same(make(1), make(True))
    assert time.process_time() - began < 5
