"""Reduce: the state after a restart is the state before it, or the view says that it cannot keep such a state."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import pytest

import streamkit
from streamkit import Entry, PermanentError, Record, Store
from streamkit.exact import same
from streamkit.views import Reduce


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Totals:
    cents: Decimal
    by: dict[str, tuple[int, int]]


class Seen(msgspec.Struct):
    names: set[str]


@pytest.fixture
def store() -> Iterator[Store]:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"%d" % at) for at in range(6)])
        yield store


KEPT: list[tuple[str, Any, Callable[[], Any]]] = [
    ("numbers", None, lambda: {"a": 1, "b": [0.5, -0.0, True, None]}),
    ("keys that are numbers", None, lambda: {1: "a", 2: "b"}),
    ("bytes", None, lambda: [b"a", "a"]),
    ("a tuple", tuple[int, str], lambda: (1, "a")),
    ("tuples in a dict", dict[str, tuple[int, Decimal]], lambda: {"a": (1, Decimal("1.10"))}),
    ("tuples as keys", dict[tuple[str, int], int], lambda: {("a", 1): 2}),
    ("a set", set[str], lambda: {"a", "b"}),
    ("a Decimal", Decimal, lambda: Decimal("1.10")),
    ("a datetime", datetime.datetime, lambda: datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)),
    ("an enum", dict[str, Colour], lambda: {"a": Colour.RED}),
    ("a dataclass", Totals, lambda: Totals(Decimal("2"), {"a": (1, 2)})),
    ("a Struct", Seen, lambda: Seen({"a"})),
]
REFUSED: list[tuple[str, Callable[[], Any]]] = [
    ("a tuple in a dict", lambda: {"secret": (1, 2)}),
    ("six tuples", lambda: [(at,) for at in range(6)]),
    ("a set in a list", lambda: [{"secret"}]),
    ("a Decimal in a dict", lambda: {"secret": Decimal("1")}),
    ("a datetime", lambda: {"secret": datetime.datetime(2024, 1, 1)}),
    ("a named tuple", lambda: [Point(1, 2)]),
    ("an enum", lambda: {"secret": Colour.RED}),
    ("a dataclass", lambda: {"secret": Totals(Decimal(1), {})}),
    ("a Counter", lambda: Counter("secret")),
    ("a defaultdict", lambda: {"secret": defaultdict(int)}),
    ("a deque", lambda: deque([1])),
    ("an object", lambda: {"secret": object()}),
    ("an int of 65 bits", lambda: {"secret": 2**65}),
    ("a lone surrogate", lambda: {"secret": "\ud800"}),
]


@pytest.mark.parametrize(("type", "make"), [one[1:] for one in KEPT], ids=[one[0] for one in KEPT])
def test_a_state_is_the_same_after_a_restart(store: Store, tmp_path: Path, type: Any, make: Callable[[], Any]) -> None:
    given: list[Any] = []

    def fold(state: Any, entry: Entry) -> Any:
        given.append(state)
        return make()

    for last in (True, False):
        reduce = Reduce(fold, make(), type=type)
        with store.view("v", reduce, ["log"], tmp_path / "v", batch=2) as view:
            assert view.catch_up().error is None
            assert same(reduce.get(), make())
        if last:
            store.produce("log", "s", [Record(b"after the restart")])
    assert len(given) == 7
    assert all(same(state, make()) for state in given)


@pytest.mark.parametrize("make", [one[1] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_a_state_that_would_come_back_different_is_refused(
    store: Store, tmp_path: Path, make: Callable[[], Any]
) -> None:
    reduce = Reduce(lambda state, entry: make() if entry.sequence >= 4 else {"n": entry.sequence}, {})
    with store.view("v", reduce, ["log"], tmp_path / "v") as view:
        status = view.catch_up()
        assert status.state == "paused"
        assert status.error is not None
        assert status.error.sequence == 4, "just before the entry after which it would be"
        assert "Reduce cannot keep its state" in status.error.error
        assert "type=dict[str, tuple[int, Decimal]]" in status.error.error, "the fix is named"
        assert "secret" not in status.error.error
        assert reduce.get() == {"n": 3}
    with pytest.raises(TypeError, match="Name its type in full"):
        Reduce(lambda state, entry: state, [make()])


def test_the_error_says_where_and_how_it_would_differ() -> None:
    with pytest.raises(TypeError, match=r"\[key\]\[0\]: tuple became list"):
        Reduce(lambda state, entry: state, {"a": [(1, 2)]})


def test_a_number_may_become_another_kind_of_number(store: Store, tmp_path: Path) -> None:
    """The type of the initial value alone is no promise."""
    for at, initial in enumerate((0, 0.0, None, "", True)):
        reduce = Reduce(lambda state, entry: entry.sequence / 2 if entry.sequence % 2 else entry.sequence, initial)
        with store.view("v", reduce, ["log"], tmp_path / str(at), batch=1) as view:
            assert view.catch_up().error is None
            assert same(reduce.get(), 6)


def test_a_state_of_another_type_names_the_version(store: Store, tmp_path: Path) -> None:
    with store.view("v", Reduce(lambda state, entry: "text", ""), ["log"], tmp_path / "v") as view:
        view.catch_up()
    other = Reduce(lambda state, entry: state, 0, type=int)
    with store.view("v", other, ["log"], tmp_path / "v"), pytest.raises(PermanentError, match="new version"):
        other.get()
