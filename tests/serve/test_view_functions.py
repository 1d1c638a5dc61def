"""The functions of ready-made views over HTTP."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fix_serve import Served

import streamkit
from streamkit import Entry, Record
from streamkit.serve.keys import KeyFile
from streamkit.views import Index, Latest, Links, Reduce, Search, Vectors

ORDERS = [
    {"town": "Bonn", "amount": 5, "text": "a red bicycle", "vector": [1, 0], "parent": "root"},
    {"town": "Bonn", "amount": 7, "text": "a blue bicycle", "vector": [0, 1], "parent": "root"},
    {"town": "Rome", "amount": 9, "text": "a red chair", "vector": [1, 1], "parent": "a"},
]


def field(name: str) -> Any:
    return lambda entry: json.loads(entry.payload)[name]


def place(entry: Entry) -> tuple[str, int]:
    found = json.loads(entry.payload)
    return found["town"], found["amount"]


class Own(streamkit.View):
    version = 1

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table keys (key, id)")
        db.execute("create table entries (id)")

    def apply(self, db: sqlite3.Connection, entries: Any) -> None:
        pass


VIEWS = {
    "towns": lambda: Index(field("town")),
    "places": lambda: Index(place),
    "last": lambda: Latest(field("town")),
    "sum": lambda: Reduce(lambda state, entry: state + field("amount")(entry), 0),
    "texts": lambda: Search(field("text"), tokenizer="porter unicode61"),
    "near": lambda: Vectors(field("vector"), 2),
    "tree": lambda: Links(field("parent")),
    "own": Own,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose store has views of all kinds. They are closed: their program does not run."""
    place: Path = tmp_path_factory.mktemp("views")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        found = Served(f"file://{place / 'store'}")
        for segment, order in zip("abc", ORDERS, strict=True):
            found.store.produce("orders", segment, [Record(json.dumps(order).encode())])
        for name, make in VIEWS.items():
            with found.store.view(name, make(), ["orders"]) as view:
                view.catch_up()
        yield found
        found.close()


def segments(reply: Any) -> list[str]:
    assert reply.status == 200, reply.body
    return [entry["segment"] for entry in reply.json["entries"]]


@pytest.mark.parametrize(
    ("path", "query", "body", "wanted"),
    [
        ("towns/get", "key=Bonn", {"key": "Bonn"}, "ab"),
        ("towns/get", "key=Bonn&reverse=true", {"key": "Bonn", "reverse": True}, "ba"),
        ("towns/get", "key=nowhere", {"key": "nowhere"}, ""),
        ("towns/range", "", {}, "abc"),
        ("towns/range", "start=C&end=Z", {"start": "C", "end": "Z"}, "c"),
        ("towns/range", "prefix=Bo", {"prefix": "Bo"}, "ab"),
        ("last/get", "key=Bonn", {"key": "Bonn"}, "b"),
        ("last/get", "key=nowhere", {"key": "nowhere"}, ""),
        ("texts/search", "query=red+bicycles", {"query": "red bicycles"}, "a"),
        ("texts/search", "query=red&order=newest", {"query": "red", "order": "newest"}, "ca"),
        ("texts/search", "query=blue+OR+chair&syntax=true&order=oldest", None, "bc"),
        ("near/nearest", "vector=1,0.1", {"vector": [1, 0.1]}, "acb"),
        ("near/nearest", "vector=1,0.1&limit=1", {"vector": [1, 0.1], "limit": 1}, "a"),
        ("tree/links", "source=c", {"source": "c"}, "c"),
        ("tree/links", "target=root", {"target": "root"}, "ab"),
        ("tree/links", "target=root&reverse=true", {"target": "root", "reverse": True}, "ba"),
        ("tree/links", "", {}, "abc"),
    ],
)
def test_a_function_answers_without_the_program_of_the_view(
    served: Served, path: str, query: str, body: Any, wanted: str
) -> None:
    assert segments(served.ask("GET", f"views/{path}?{query}")) == list(wanted)
    if body is not None:
        assert segments(served.ask("POST", f"views/{path}", body)) == list(wanted)


def test_keys_that_are_no_text_come_in_a_body(served: Served) -> None:
    assert segments(served.ask("POST", "views/places/get", {"key": ["Bonn", 7]})) == ["b"]
    assert segments(served.ask("POST", "views/places/get", {"key": ["Bonn", "7"]})) == []
    assert segments(served.ask("POST", "views/places/range", {"prefix": ["Bonn"]})) == ["a", "b"]
    assert segments(served.ask("POST", "views/places/get", {"key": {"base64": "/w=="}})) == []


def test_an_answer_has_what_its_function_adds(served: Served) -> None:
    assert served.ask("GET", "views/sum/get").json == {"entries": [], "complete": True, "state": 21}
    near = served.ask("GET", "views/near/nearest?vector=1,0").json
    assert near["cosines"] == pytest.approx([1, 0.5**0.5, 0], abs=1e-6)
    assert served.ask("GET", "views/tree/links?target=root").json["names"] == ["a", "b"]
    assert served.ask("GET", "views/tree/links?source=c").json["names"] == ["a"]
    (entry,) = served.ask("GET", "views/last/get?key=Rome").json["entries"]
    assert (entry["space"], entry["sequence"], entry["json"]["amount"]) == ("orders", 1, 9)


def test_an_answer_that_is_cut_says_so(served: Served) -> None:
    for path in ("towns/range?", "texts/search?query=bicycle&", "tree/links?"):
        assert served.ask("GET", f"views/{path}limit=1").json["complete"] is False
        assert served.ask("GET", f"views/{path}limit=3").json["complete"] is True


@pytest.mark.parametrize(
    ("path", "has"),
    [
        ("towns/search?query=x", "get and range"),
        ("last/range", "get"),
        ("sum/links", "get"),
        ("texts/get?key=x", "search"),
        ("near/range", "nearest"),
        ("tree/nearest?vector=1", "links"),
        ("own/get?key=x", "none of these functions"),
    ],
)
def test_a_view_that_lacks_the_function_names_those_it_has(served: Served, path: str, has: str) -> None:
    refused = served.ask("GET", f"views/{path}")
    assert (refused.status, refused.json["type"]) == (404, "urn:streamkit:not-found")
    assert f"it has {has}." in refused.json["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "towns/get",
        "sum/get?key=x",
        "towns/range?start=a&prefix=b",
        "towns/range?limit=0",
        "towns/range?limit=1001",
        "towns/range?seconds=0",
        "towns/range?seconds=nan",
        "towns/range?wait=31",
        "towns/range?wait=nan",
        "towns/range?at_least=xyz",
        "towns/range?word=x",
        "texts/search",
        "texts/search?query=%22&syntax=true",
        "texts/search?query=a&order=best",
        "near/nearest?vector=1",
        "near/nearest?vector=1,x",
        "near/nearest?vector=0,0",
        "near/nearest?vector=nan,1",
    ],
)
def test_a_question_that_is_not_valid_is_refused(served: Served, path: str) -> None:
    assert served.ask("GET", f"views/{path}").status == 400


@pytest.mark.parametrize(
    "key", [None, {"a": 1}, {"base64": "!"}, {"base64": 7}, 1 << 70, json.loads("[" * 40 + "]" * 40)]
)
def test_a_key_that_is_none_is_refused(served: Served, key: Any) -> None:
    assert served.ask("POST", "views/places/get", {"key": key}).status == 400


def test_an_answer_waits_for_an_offset(served: Served) -> None:
    with served.store.view("late", Index(field("town")), ["orders"]) as view:
        view.catch_up()
        status = served.store.produce("orders", "d", [Record(json.dumps({**ORDERS[0], "town": "Oslo"}).encode())])
        path = f"views/late/get?key=Oslo&at_least={quote(str(status.space_offset.hex()))}"
        behind = served.ask("GET", f"{path}&wait=0")
        assert (behind.status, behind.json["type"], behind.json["retryable"]) == (
            503,
            "urn:streamkit:view-behind",
            True,
        )
        assert segments(served.ask("GET", "views/late/get?key=Oslo")) == []
        builder = threading.Thread(target=view.catch_up)
        answers: list[Any] = []
        asker = threading.Thread(target=lambda: answers.append(served.ask("GET", f"{path}&wait=30")))
        asker.start()
        builder.start()
        asker.join()
        builder.join()
        assert segments(answers[0]) == ["d"]


def test_an_answer_has_a_bounded_size(served: Served) -> None:
    for _ in range(3):
        served.store.produce("large", "s", [Record(b"x" * (3 << 20))])
    with served.store.view("large", Index(lambda _: "k"), ["large"]) as view:
        view.catch_up()
    found = served.ask("GET", "views/large/get?key=k").json
    assert ([entry["sequence"] for entry in found["entries"]], found["complete"]) == ([1, 2], False)
    last = served.ask("GET", "views/large/get?key=k&reverse=true&limit=1").json
    assert ([entry["sequence"] for entry in last["entries"]], last["complete"]) == ([3], False)


def test_a_question_that_takes_too_long_is_stopped(served: Served) -> None:
    with served.store.view("many", Index(lambda _: range(3_000)), ["orders"]) as view:
        view.catch_up()
    stopped = served.ask("POST", "views/many/range", {"start": 0, "limit": 1_000, "seconds": 1e-9})
    assert (stopped.status, stopped.json["type"]) == (400, "urn:streamkit:invalid-argument")
    assert "was stopped" in stopped.json["detail"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_key_asks_only_views_of_its_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = KeyFile(tmp_path / "keys.json")
    bounds: list[tuple[dict[str, Any], int]] = [
        ({"spaces": ["ord"]}, 200),
        ({"spaces": ["other"]}, 403),
        ({"spaces": ["orders-of-others"]}, 403),
        ({"spaces": ["orders"], "segments": ["a"]}, 403),
    ]
    made = [(keys.create(["read"], **bound), status) for bound, status in bounds]
    guarded = Served(f"file://{tmp_path / 'store'}", keys=tmp_path / "keys.json")
    try:
        guarded.store.produce("orders", "a", [Record(json.dumps(ORDERS[0]).encode())])
        with guarded.store.view("towns", Index(field("town")), ["orders"]) as view:
            view.catch_up()
        for key, status in made:
            headers = {"Authorization": f"Bearer {key}"}
            body = {} if method == "POST" else None
            assert guarded.ask(method, "views/towns/range", body, headers).status == status
    finally:
        guarded.close()
