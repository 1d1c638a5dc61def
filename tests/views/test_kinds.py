"""The ready-made views: their results, the order, and refused questions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

import streamkit
from streamkit import Entry, PermanentError, Record, Store
from streamkit.views import Index, Latest, Links, Query, Reduce, Search, Vectors, View

V = TypeVar("V", bound=View)
Open = Callable[[V], V]


@pytest.fixture
def store() -> Iterator[Store]:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        yield client.store(uuid4())


@pytest.fixture
def opened(store: Store, tmp_path: Path) -> Callable[[V], V]:
    """The view, brought up to the end of the store."""

    def make(view: V) -> V:
        store.view(type(view).__name__, view, ["log"], tmp_path / type(view).__name__).catch_up()
        return view

    return make


def write(store: Store, *payloads: Any, segment: str = "s", metadata: dict[str, str] | None = None) -> None:
    store.produce("log", segment, [Record(json.dumps(payload).encode(), metadata) for payload in payloads])


def value(entry: Entry) -> Any:
    return json.loads(entry.payload)


def values(entries: list[Entry]) -> list[Any]:
    return [value(entry) for entry in entries]


def test_reduce_is_the_fold(store: Store, opened: Open[Any]) -> None:
    write(store, *range(10))
    total = opened(Reduce(lambda state, entry: state + value(entry), 0))
    assert total.get() == 45
    counts = opened(Reduce(_count, {}, version=2))
    assert counts.get() == {"s": 10}
    counts.get()["s"] = 5
    assert counts.get() == {"s": 10}, "what one gets is one's own"


def _count(state: dict[str, int], entry: Entry) -> dict[str, int]:
    state[entry.segment] = state.get(entry.segment, 0) + 1
    return state


def test_what_is_found_is_the_entry_itself(store: Store, opened: Open[Any]) -> None:
    store.create_space("log", partitions=3)
    for segment in "abcdef":
        write(store, 1, 2, segment=segment, metadata={"by": "x\u00e9"})
    latest = opened(Latest(lambda entry: entry.segment))
    for wanted in store.consume_space("log"):
        if wanted.sequence == 2:
            found = latest.get(wanted.segment)
            assert found == wanted
            assert (found.stream_id, found.metadata, found.trx) == (wanted.stream_id, wanted.metadata, wanted.trx)
            assert list(store.consume_space("log", offset=found.space_offset)) is not None
    assert latest.get("nobody") is None
    assert [entry.segment for entry in latest.entries()] == list("abcdef")
    assert len(latest) == 6


def test_latest_keeps_the_newest_of_each_key_in_and_between_batches(store: Store, tmp_path: Path) -> None:
    latest = Latest(lambda entry: value(entry)["k"])
    view = store.view("latest", latest, ["log"], tmp_path / "v")
    for at in range(12):
        write(store, {"k": at % 3, "n": at}, {"k": at % 2, "n": at + 0.5}, {"k": None})
        if at % 4 == 0:
            view.catch_up()
    view.catch_up()
    assert [value(latest.get(key))["n"] for key in range(3)] == [10.5, 11.5, 11]


def test_index_finds_by_several_keys_ranges_and_prefixes_in_both_directions(store: Store, opened: Open[Any]) -> None:
    write(store, "apple", "april", "berry", "apple", "", "beet")
    index = opened(Index(lambda entry: [value(entry), len(value(entry))] if value(entry) else None))
    assert [entry.sequence for entry in index.get("apple")] == [1, 4]
    assert [entry.sequence for entry in index.get("apple", reverse=True, limit=1)] == [4]
    assert [entry.sequence for entry in index.get(5)] == [1, 2, 3, 4]
    assert values(index.range("apple", "beet")) == ["apple", "apple", "april", "beet"]
    assert values(index.range(prefix="ap", reverse=True)) == ["april", "apple", "apple"]
    assert values(index.range("b", limit=1)) == ["beet"]
    assert index.keys() == [4, 5, "apple", "april", "beet", "berry"]
    assert index.keys(prefix="b", reverse=True) == ["berry", "beet"]
    assert (index.count("apple"), index.count("nothing"), index.get("nothing")) == (2, 0, [])


def test_index_takes_tuples_bytes_and_floats_and_nothing_else(store: Store, opened: Open[Any]) -> None:
    write(store, 3, 1, 2)
    index = opened(Index(lambda entry: [("n", value(entry)), b"\xff\xff", value(entry) / 2]))
    assert values(index.range(("n", 1), ("n", 2))) == [1, 2]
    assert values(index.range(prefix=b"\xff")) == [3, 1, 2]
    assert values(index.range(0.5, 1)) == [1, 2]
    with pytest.raises(TypeError, match="a key is str"):
        index.get(None)
    with pytest.raises(ValueError, match="prefix"):
        index.range("a", prefix="b")


def test_search_finds_words_phrases_and_prefixes_the_best_first(store: Store, opened: Open[Any]) -> None:
    write(
        store,
        "a red fox",
        "the red house and the fox",
        "fox fox fox red",
        "a redwood",
        'it said "stop" AND went NOT on',
        7,
    )
    search = opened(Search(lambda entry: value(entry) if isinstance(value(entry), str) else None))
    assert [entry.sequence for entry in search.search("red fox", order="oldest")] == [1, 2, 3]
    assert next(iter(search.search("fox"))).sequence == 3
    assert [entry.sequence for entry in search.search('"red fox"')] == [1]
    assert sorted(entry.sequence for entry in search.search("red*")) == [1, 2, 3, 4]
    assert [entry.sequence for entry in search.search('stop AND NOT "')] == [5]
    assert [entry.sequence for entry in search.search("house OR redwood", syntax=True, order="newest")] == [4, 2]
    assert (len(search.search("red*", limit=2)), search.count("fox"), search.search("  ")) == (2, 3, [])
    with pytest.raises(ValueError, match="no query of FTS5"):
        search.search('"', syntax=True)


def test_links_go_both_ways(store: Store, opened: Open[Any]) -> None:
    store.produce("log", "alice", [Record(b'["bob", "carol"]'), Record(b'["bob"]'), Record(b"[]")])
    store.produce("log", "carol", [Record(b'["bob"]')])
    links = opened(Links(value))
    assert (links.of("alice"), links.of("bob"), links.to("bob")) == (["bob", "carol"], [], ["alice", "carol"])
    assert [entry.sequence for entry in links.entries(source="alice", target="bob")] == [1, 2]
    assert [entry.segment for entry in links.entries(target="bob", reverse=True, limit=1)] == ["carol"]
    pairs = opened(Links(lambda entry: [("x", entry.segment)], version=2))
    assert pairs.of("x") == ["alice", "carol"]


def test_query_filters_by_paths_and_says_how(store: Store, opened: Open[Any]) -> None:
    for at in range(20):
        write(store, {"user": {"id": at % 4}, "n": at, "tags": [f"t{at % 3}"], "name": f"n{at:02}", "it's": True})
    store.produce("log", "s", [Record(b"no json"), Record(b"\xff")])
    query = opened(Query(["user.id", "tags[0]", "it's"]))
    assert [value(entry)["n"] for entry in query.find({"user.id": 3})] == [3, 7, 11, 15, 19]
    assert [value(e)["n"] for e in query.find({"user.id": 3, "n": {"gte": 7, "lt": 15}}, reverse=True)] == [11, 7]
    assert [value(e)["n"] for e in query.find({"tags[0]": ["t1", "t2"]}, name={"prefix": "n0"})] == [1, 2, 4, 5, 7, 8]
    assert [value(e)["n"] for e in query.find({"user.id": 1}, order="n", reverse=True, limit=2)] == [17, 13]
    assert len(query.find({"it's": True})) == 20
    assert len(query.find({"nothing": {"exists": True}})) == 0
    assert len(query.find({"nothing": None})) == 20
    assert [e.sequence for e in query.find({"@sequence": {"gt": 20}})] == [21, 22]
    assert query.count({"user.id": {"ne": 3}}) == 15
    assert "USING INDEX 'user.id'" in query.explain({"user.id": 3})[0]
    assert query.explain({"n": 3})[0].startswith("SCAN")
    for wrong in ({"a'b]": 1}, {"": 1}, {"@payload": 1}, {"n": {"like": "x"}}):
        with pytest.raises(ValueError):
            query.find(wrong)


def test_query_keeps_what_is_nested_deeper_than_sqlite_reads(store: Store, opened: Open[Any]) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        store.produce("log", "s", [Record(b"[" * deep + b"]" * deep) for deep in (600, 3000)])
        write(store, {"a": 1}, [{"a": 2}] * 1000)
        query = opened(Query(["a", "[999].a"]))
    finally:
        sys.setrecursionlimit(limit)
    assert [entry.sequence for entry in query.find(a=1)] == [3]
    assert [entry.sequence for entry in query.find({"[999].a": 2})] == [4]
    assert query.count() == 4


def test_another_set_of_indexed_paths_answers_the_same(store: Store, tmp_path: Path) -> None:
    write(store, {"a": 1, "b": 2})
    store.view("q", Query(["a"]), ["log"], tmp_path / "q").catch_up()
    query = Query(["b", "a"])
    view = store.view("q", query, ["log"], tmp_path / "q")
    write(store, {"a": 1, "b": 3})
    view.catch_up()
    assert [value(entry)["b"] for entry in query.find(a=1)] == [2, 3]
    assert "USING INDEX 'b'" in query.explain(b=3)[0]


@pytest.mark.parametrize("how", ["numpy", "python"])
def test_vectors_come_the_nearest_first(
    store: Store, opened: Open[Any], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sqlite_vec", None)
    if how == "python":
        monkeypatch.setitem(sys.modules, "numpy", None)
    write(store, [1, 0], [0, 5], [3, 3], [-1, 0], None)
    vectors = opened(Vectors(value, 2))
    assert values(vectors.nearest([2, 0.1], limit=3)) == [[1, 0], [3, 3], [0, 5]]
    cosines = [round(cosine, 3) for _, cosine in vectors.similar([1, 0])]
    assert cosines == [1.0, 0.707, 0.0, -1.0]
    for wrong in ([1, 2, 3], [0, 0], [float("nan"), 1]):
        with pytest.raises(ValueError):
            vectors.nearest(wrong)


def test_vectors_by_the_extension_say_the_same(store: Store, opened: Open[Any]) -> None:
    pytest.importorskip("sqlite_vec")
    write(store, [1, 0], [0, 5], [3, 3], [-1, 0])
    vectors = opened(Vectors(value, 2))
    assert [round(cosine, 3) for _, cosine in vectors.similar([1, 0])] == [1.0, 0.707, 0.0, -1.0]


def test_a_kind_that_belongs_to_no_view_says_so(store: Store, tmp_path: Path) -> None:
    latest = Latest(lambda entry: entry.segment)
    with pytest.raises(PermanentError, match="belongs to no view yet"):
        latest.get("x")
    view = store.view("one", latest, ["log"], tmp_path / "one")
    with pytest.raises(ValueError, match="make another"):
        store.view("two", latest, ["log"], tmp_path / "two")
    write(store, 1)
    view.catch_up()
    assert view.get("s").sequence == 1, "a view's methods are those of its kind too"
    with pytest.raises(AttributeError):
        view.nothing  # noqa: B018
