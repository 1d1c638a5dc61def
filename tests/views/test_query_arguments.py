"""Every question to a ready-made view gets a correct answer, or an error of streamkit: no sqlite3 error, no
OverflowError."""

from __future__ import annotations

import datetime
import json
import math
import os
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import CorruptData, Record, Store, StreamkitError
from streamkit.views import Index, Latest, Links, Query, Reduce, Search, Vectors

ODD: list[Any] = [
    None, True, False, 0, 1, -1, 10, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**400, 0.5, -0.0, math.nan,
    math.inf, -math.inf, 1 + 2j, Decimal("1"), "", " ", "a", "a\0b", "\0", "\ud800", "\U0010ffff", "a" * 100_000, "*",
    '"', '""', '"a', "'", "a'b", "a.b", "[", "]", "[0]", "[99999999999999999999]", "$", "$.a", "..", "a..b", ".a", "@",
    "@segment", "@payload", "%", "a AND", "NEAR(", "{", "a:b", "^a", "-a", "\\", "a\\", "é", " ".join("a" * 5000),
    "(" * 1000, b"", b"a", b"\xff", bytearray(b"a"), [], [1], ["a"], [None], [[]], [2**63], [math.nan], ["\ud800"],
    [10**400, 1], list(range(20_000)), (), (1,), ("a", "b"), (None,), (2**70,), ("\ud800",), (math.nan,), ({},), {},
    {"a": 1}, {"eq": 1}, {"gte": None}, {"in": "a"}, {"in": 7}, {"prefix": 7}, {"prefix": "\U0010ffff"}, {"exists": 7},
    {"like": "x"}, {"gte": 2**63}, {1: 1}, {"eq": {}}, {"eq": [2**63]}, {"ne": math.nan}, set(), {1}, frozenset(),
    object, object(), len, datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1), range(3), uuid4(),
]  # fmt: skip


@pytest.fixture
def store() -> Iterator[Store]:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        for payload in ({"a": 1, "n": "10"}, {"a": "1", "n": 10}, {"a": True, "n": 9.5}, {"a": [1], "n": None}, "text"):
            store.produce("log", "s", [Record(json.dumps(payload).encode())])
        yield store


@pytest.fixture
def kinds(store: Store, tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "Index": Index(lambda entry: ["a", 1, ("a", 1), b"a"]),
        "Latest": Latest(lambda entry: entry.segment),
        "Links": Links(lambda entry: ["a"]),
        "Query": Query(["a", "n"]),
        "Reduce": Reduce(lambda state, entry: state + 1, 0),
        "Search": Search(lambda entry: entry.payload.decode()),
        "Vectors": Vectors(lambda entry: [1.0, entry.sequence], 2),
    }
    for name, kind in found.items():
        store.view(name, kind, ["log"], tmp_path / name).catch_up()
    return found


QUESTIONS: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "Index.get": lambda kinds, odd: kinds["Index"].get(odd),
    "Index.get limit": lambda kinds, odd: kinds["Index"].get("a", limit=odd),
    "Index.get reverse": lambda kinds, odd: kinds["Index"].get("a", reverse=odd),
    "Index.count": lambda kinds, odd: kinds["Index"].count(odd),
    "Index.range start": lambda kinds, odd: kinds["Index"].range(odd),
    "Index.range end": lambda kinds, odd: kinds["Index"].range("a", odd),
    "Index.range prefix": lambda kinds, odd: kinds["Index"].range(prefix=odd),
    "Index.keys": lambda kinds, odd: kinds["Index"].keys(odd, odd),
    "Index.keys limit": lambda kinds, odd: kinds["Index"].keys(limit=odd),
    "Latest.get": lambda kinds, odd: kinds["Latest"].get(odd),
    "Latest.entries": lambda kinds, odd: list(kinds["Latest"].entries(limit=odd)),
    "Links.of": lambda kinds, odd: kinds["Links"].of(odd),
    "Links.to": lambda kinds, odd: kinds["Links"].to(odd),
    "Links.entries": lambda kinds, odd: kinds["Links"].entries(source=odd, target=odd),
    "Links.entries limit": lambda kinds, odd: kinds["Links"].entries(limit=odd),
    "Query.find where": lambda kinds, odd: kinds["Query"].find(odd),
    "Query.find path": lambda kinds, odd: kinds["Query"].find({odd: 1}),
    "Query.find value": lambda kinds, odd: kinds["Query"].find({"a": odd}),
    "Query.find eq": lambda kinds, odd: kinds["Query"].find({"a": {"eq": odd}}),
    "Query.find ne": lambda kinds, odd: kinds["Query"].find({"a": {"ne": odd}}),
    "Query.find gte": lambda kinds, odd: kinds["Query"].find({"n": {"gte": odd}}),
    "Query.find in": lambda kinds, odd: kinds["Query"].find({"n": {"in": odd}}),
    "Query.find prefix": lambda kinds, odd: kinds["Query"].find({"n": {"prefix": odd}}),
    "Query.find exists": lambda kinds, odd: kinds["Query"].find({"n": {"exists": odd}}),
    "Query.find operator": lambda kinds, odd: kinds["Query"].find({"n": {odd: 1}}),
    "Query.find @segment": lambda kinds, odd: kinds["Query"].find({"@segment": odd}),
    "Query.find @sequence": lambda kinds, odd: kinds["Query"].find({"@sequence": {"lt": odd}}),
    "Query.find order": lambda kinds, odd: kinds["Query"].find(order=odd),
    "Query.find limit": lambda kinds, odd: kinds["Query"].find(limit=odd),
    "Query.count": lambda kinds, odd: kinds["Query"].count({"a": odd}),
    "Query.explain": lambda kinds, odd: kinds["Query"].explain({"a": odd}, order=odd),
    "Query()": lambda kinds, odd: Query(odd),
    "Query([])": lambda kinds, odd: Query([odd]),
    "Search.search": lambda kinds, odd: kinds["Search"].search(odd),
    "Search.search syntax": lambda kinds, odd: kinds["Search"].search(odd, syntax=True),
    "Search.search limit": lambda kinds, odd: kinds["Search"].search("a", odd),
    "Search.search order": lambda kinds, odd: kinds["Search"].search("a", order=odd),
    "Search.count": lambda kinds, odd: kinds["Search"].count(odd),
    "Search()": lambda kinds, odd: Search(lambda entry: "", tokenizer=odd),
    "Vectors.nearest": lambda kinds, odd: kinds["Vectors"].nearest(odd),
    "Vectors.nearest number": lambda kinds, odd: kinds["Vectors"].nearest([odd, 1.0]),
    "Vectors.nearest limit": lambda kinds, odd: kinds["Vectors"].nearest([1.0, 0.0], odd),
    "Vectors()": lambda kinds, odd: Vectors(lambda entry: None, odd),
    "Reduce()": lambda kinds, odd: Reduce(lambda state, entry: state, odd),
    "Reduce(type)": lambda kinds, odd: Reduce(lambda state, entry: state, 0, type=odd),
}


@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_no_foreign_error_leaves_a_view(kinds: dict[str, Any], question: str) -> None:
    for odd in ODD:
        try:
            QUESTIONS[question](kinds, odd)
        except Exception as error:
            if _is_ours(error):
                continue
            raise AssertionError(f"{question}({odd!r:.60}): {type(error).__name__}: {error}") from error


def _is_ours(error: Exception) -> bool:
    """A builtin error itself is fine. One of its subclasses, as UnicodeEncodeError, comes from inside."""
    if isinstance(error, StreamkitError):
        return "SQLite refuses" not in str(error)  # the error names the fault of the question
    return type(error) in (TypeError, ValueError) and "\ud800" not in str(error)


@pytest.mark.parametrize("question", ["Index.get", "Latest.entries", "Links.of", "Query.count", "Search.count"])
def test_a_damaged_file_is_corrupt_data(kinds: dict[str, Any], question: str) -> None:
    kind = kinds[question.partition(".")[0]]
    path = Path(os.path.realpath(kind._opened.path))
    kind._opened.close()
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    data[size:] = b"\xff" * (len(data) - size)
    path.write_bytes(data)
    kind._opened = kind._opened.store.view(kind._opened.name, kind, ["log"], kind._opened.path)
    with pytest.raises(CorruptData, match="rebuild"):
        QUESTIONS[question](kinds, 1 if question == "Latest.entries" else "a" if question != "Query.count" else 7)


def found(query: Query, *args: Any, **options: Any) -> list[int]:
    return [entry.sequence for entry in query.find(*args, **options)]


def test_a_value_is_compared_with_values_of_its_kind(kinds: dict[str, Any]) -> None:
    query = kinds["Query"]
    assert found(query, a=1) == [1]
    assert found(query, a="1") == [2]
    assert found(query, a=True) == [3]
    assert found(query, a="[1]") == [], "a list is no text"
    assert found(query, a=False) == []
    assert found(query, {"n": {"gte": 9}}) == [2, 3]
    assert found(query, {"n": {"gte": "1"}}) == [1]
    assert found(query, {"n": {"lt": 10}}) == [3]
    assert found(query, {"a": {"gte": True}}) == [3]
    assert found(query, {"a": {"ne": 1}}) == [2, 3, 4, 5]
    assert found(query, {"a": {"ne": True}}) == [1, 2, 4, 5]
    assert found(query, a=[1, True, None]) == [1, 3, 5]
    assert found(query, {"a": {"prefix": "["}}) == []
    assert found(query, n=None) == [4, 5]
    for wrong in ({"@sequence": "1"}, {"@segment": 1}, {"@sequence": True}, {"@segment": None}, {"n": {"gte": None}}):
        with pytest.raises(TypeError):
            query.find(wrong)


def test_a_query_of_words_ends_nowhere_but_at_its_end(kinds: dict[str, Any]) -> None:
    search = kinds["Search"]
    assert [entry.sequence for entry in search.search("text\0")] == [5]
    assert search.search("text\0nothing") == []
    with pytest.raises(ValueError, match="NUL"):
        search.search("text\0nothing", syntax=True)
