"""Keys of Index and Latest: no two are confused, and they are in order."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkit
from streamkit import Record, Store, Unavailable
from streamkit.views import Index, Latest, Links

INSTANT = datetime(2024, 1, 1, 12, tzinfo=UTC)
IN_ORDER: list[Any] = [
    -math.inf, -(2**63), -1, -0.5, 0, 5e-324, 1, 1.5, 2**53, 2**53 + 1, 2**63 - 1, math.inf,
    "", "\0", "1", "a", "a\0", "a\0b", "ab", "b", "\uffff", "\U0001f600",
    False, True,
    b"", b"\0", b"\0a", b"\x01", b"1", b"a", b"a\0b", b"u", b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\0\0\0\0\0\0\x01", b"\xff",
    (), (None,), (False,), (True,), (-math.inf,), (-(2**63),), (-1,), (-0.5,), (0,), (1,), (1, None), (1, "a"), (1.5,),
    (2**53,), (2**53 + 1,), (2**63 - 1,), (2**63,), (2**64 - 1,), (1e300,), (math.inf,), ("",), ("", ""),
    ("\0",), ("1",), ("a",), ("a", "b\0c"), ("a", b"b"), ("a", ("b",)), ("a\0b", "c"), ("a\0b\0c",), ("aa",),
    ("tenant-a", "x\0y"), ("tenant-a\0x", "y"), ("u",), (b"",), (b"\0",), (b"\0\xff",), (b"\x01",), (b"u",),
    (UUID(int=0x75),), (UUID(int=1 << 100),), (INSTANT,), (INSTANT + timedelta(microseconds=1),), ((),), ((), 1),
    ((None,),), ((1,), 0), ((1, 2),), (("a",), "b"), (("a", "b"),), (("b",),),
]  # fmt: skip
"""Keys that all differ from each other."""


def said(key: Any) -> Any:
    """The key with its types, at every depth, because True equals 1 and is another key."""
    return (type(key), [said(part) for part in key] if isinstance(key, tuple) else key)


@pytest.fixture
def store() -> Iterator[Store]:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        yield client.store(uuid4())


def opened(store: Store, kind: Any, keys: Sequence[Any], path: Path) -> Any:
    """The n-th entry has the n-th key."""
    store.produce("log", "s", [Record(b"") for _ in keys])
    made = kind(lambda entry: keys[(entry.sequence - 1) % len(keys)])
    view = store.view("v", made, ["log"], path)
    status = view.catch_up()
    assert status.error is None, status.error
    return view


def test_each_key_finds_its_own_entries_only(store: Store, tmp_path: Path) -> None:
    index = opened(store, Index, IN_ORDER, tmp_path / "index")
    latest = opened(store, Latest, IN_ORDER, tmp_path / "latest")
    count = len(IN_ORDER)
    for at, key in enumerate(IN_ORDER, 1):
        assert [entry.sequence for entry in index.get(key)] == [at], key
        assert index.count(key) == 1, key
        found = latest.get(key)
        assert found is not None
        assert found.sequence == at + count, key
    assert len(latest.view) == count


def test_keys_come_back_as_they_were_and_in_order(store: Store, tmp_path: Path) -> None:
    shuffled = sorted(IN_ORDER, key=lambda key: hash(repr(key)))
    index = opened(store, Index, shuffled, tmp_path / "index")
    assert list(map(said, index.keys())) == list(map(said, IN_ORDER))
    for first in range(0, len(IN_ORDER), 5):
        for last in range(first, len(IN_ORDER), 7):
            found = index.range(IN_ORDER[first], IN_ORDER[last])
            assert [shuffled[entry.sequence - 1] for entry in found] == IN_ORDER[first : last + 1]


def test_a_prefix_is_of_the_same_kind(store: Store, tmp_path: Path) -> None:
    index = opened(store, Index, IN_ORDER, tmp_path / "index")
    assert index.keys(prefix="a") == ["a", "a\0", "a\0b", "ab"]
    assert index.keys(prefix=b"a") == [b"a", b"a\0b"]
    assert len(index.keys(prefix=b"")) == sum(isinstance(key, bytes) for key in IN_ORDER)
    assert index.keys(prefix=("a",)) == [("a",), ("a", "b\0c"), ("a", b"b"), ("a", ("b",))]
    assert index.keys(prefix=("a\0b",)) == [("a\0b", "c")]
    assert index.keys(prefix=()) == [key for key in IN_ORDER if isinstance(key, tuple)]


def test_equal_numbers_and_instants_are_one_key(store: Store, tmp_path: Path) -> None:
    berlin = INSTANT.astimezone(timezone(timedelta(hours=2)))
    index = opened(store, Index, [1, 1.0, (1, INSTANT), (1.0, berlin), -0.0, (0.0,), (-0.0,)], tmp_path / "index")
    assert [index.count(key) for key in (1.0, (1.0, INSTANT), 0, (0,))] == [2, 2, 1, 2]


@pytest.mark.parametrize("kind", [Index, Latest])
@pytest.mark.parametrize(
    "key",
    [2**63, -(2**63) - 1, math.nan, (2**64,), (math.nan,), (datetime(2024, 1, 1),), ("\ud800",), "\ud800"],
)
def test_what_has_no_place_in_the_order_is_refused(store: Store, tmp_path: Path, kind: Any, key: Any) -> None:
    view = opened(store, kind, ["a"], tmp_path / "v")
    with pytest.raises(ValueError) as raised:
        view.get(key)
    assert type(raised.value) is ValueError


PARTS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False),
        st.text(alphabet="a\0\x01\xffb"),
        st.binary(max_size=4),
        st.uuids(),
        st.datetimes(timezones=st.just(UTC)),
    ),
    lambda parts: st.lists(parts, max_size=3).map(tuple),
    max_leaves=6,
)


@settings(max_examples=2000 if EXHAUSTIVE else 40)
@given(st.lists(st.lists(PARTS, max_size=4).map(tuple), min_size=1, max_size=20))
def test_tuples_are_one_key_if_they_are_equal(tuples: list[tuple[Any, ...]]) -> None:
    def norm(part: Any) -> Any:
        """Numbers are equal whatever their type; True is none."""
        if isinstance(part, tuple):
            return tuple(map(norm, part))
        return ("number", part) if type(part) in (int, float) else (type(part).__name__, part)

    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            index = opened(store, Index, tuples, Path(folder) / "v")
            for key in tuples:
                wanted = [at for at, other in enumerate(tuples, 1) if norm(other) == norm(key)]
                assert [entry.sequence for entry in index.get(key)] == wanted
            assert list(map(norm, index.keys())) == list(dict.fromkeys(norm(key) for key in sorted(tuples, key=_order)))
            index.close()


def _order(part: Any) -> Any:
    ranks = [type(None), bool, float, str, bytes, UUID, datetime, tuple]
    rank = ranks.index(float if type(part) is int else type(part))
    return (rank, [_order(inner) for inner in part] if isinstance(part, tuple) else 0 if part is None else part)


@pytest.mark.parametrize("kind", [Index, Latest])
def test_a_file_of_an_earlier_release_is_built_anew_beside_it(
    store: Store, tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[Any] = ["text", 7, ("a", "b"), b"a\0b"]
    with monkeypatch.context() as patch:
        patch.setattr(kind, "layout", 0)
        opened(store, kind, keys, tmp_path / "v").close()
    old = os.path.realpath(tmp_path / "v")
    made = kind(lambda entry: keys[entry.sequence - 1])
    with store.view("v", made, ["log"], tmp_path / "v") as view:
        assert made.get("text") and made.get(7), "their form is the same"  # noqa: PT018
        with pytest.raises(Unavailable, match="catch_up"):
            made.get(("a", "b"))
        assert view.catch_up().entries == 4
        assert made.get(("a", "b"))
        assert os.path.realpath(tmp_path / "v") != old
        assert not os.path.exists(old), "nobody has it open"


def test_links_are_text_and_nothing_that_would_become_text(store: Store, tmp_path: Path) -> None:
    for wrong in ([1], [("a", 1)], [("a", "b", "c")], [None], [("a", b"b")]):
        view = store.view("v", Links(_constant(wrong)), ["log"], tmp_path / uuid4().hex)
        store.produce("log", "s", [Record(b"")])
        error = view.catch_up().error
        assert error is not None
        assert "a link is a name, or a pair of names" in error.error


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda entry: value
