"""Expectations of flumedb's own tests for a log with views, by their names there, as far as they apply.

Not applicable: a `map` between log and views (a payload is what it is), and when a state is written to its file (it is
written with each batch). A live read of an index is a follower of the space: what `wait_for` says has come is in both.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

import streamkit
from streamkit import InvalidOffset, Record, Store, StoreClosed
from streamkit.views import Index, Links, OpenView, Query, Reduce


def append(store: Store, *values: Any) -> streamkit.SegmentStatus:
    return store.produce("log", "s", [Record(json.dumps(value).encode()) for value in values])


def value(entry: streamkit.Entry) -> Any:
    return json.loads(entry.payload)


def total() -> Reduce[int]:
    return Reduce(lambda state, entry: state + int(value(entry)), 0)


def index() -> Index:
    return Index(lambda entry: value(entry)["key"])


class TestFlumedb:
    """flumedb: test/memlog.js, level.js, offset.js, rebuild.js"""

    def test_views(self, subject: Subject, tmp_path: Path) -> None:
        view = subject.store.view("stats", total(), ["log"], tmp_path / "v")
        assert (view.name, view.spaces, view.catch_up().state) == ("stats", ("log",), "current")

    def test_empty_db(self, subject: Subject, tmp_path: Path) -> None:
        with subject.store.view("stats", total(), ["log"], tmp_path / "v") as view:
            assert view.get() == 0, "it does not wait for a first entry"

    def test_simple(self, subject: Subject, tmp_path: Path) -> None:
        view = subject.store.view("stats", total(), ["log"], tmp_path / "v")
        view.wait_for(append(subject.store, 1).space_offset)
        assert view.get() == 1

    def test_append(self, subject: Subject, tmp_path: Path) -> None:
        view = subject.store.view("stats", total(), ["log"], tmp_path / "v")
        for at in range(1, 6):
            view.wait_for(append(subject.store, at).space_offset)
            assert view.get() == at * (at + 1) // 2, "what was appended is in what is read next"

    def test_get_items_in_stream(self, subject: Subject) -> None:
        append(subject.store, {"foo": 1}, {"foo": 3})
        found = list(subject.store.consume_space("log"))
        again = [next(subject.store.consume_segment("log", "s", min_sequence=one.sequence, limit=1)) for one in found]
        assert [value(entry) for entry in again] == [{"foo": 1}, {"foo": 3}]

    def test_disable_ready_to_stall_all_reads(self, subject: Subject, tmp_path: Path) -> None:
        """Readers wait while a view is not ready, and all get an answer as soon as it is."""
        began, go, told = threading.Event(), threading.Event(), list[int]()

        class Slow(Reduce[int]):
            def apply(self, db: Any, entries: Any) -> None:
                began.set()
                go.wait(60)
                super().apply(db, entries)

        slow = Slow(lambda state, entry: state + 1, 0)
        view = subject.store.view("stats", slow, ["log"], tmp_path / "v")
        status = append(subject.store, 1, 2)
        builder = threading.Thread(target=view.catch_up)
        builder.start()
        began.wait(60)

        def wait() -> None:
            view.wait_for(status.space_offset, timeout=60)
            told.append(view.get())

        waiting = [threading.Thread(target=wait) for _ in range(5)]
        for thread in waiting:
            thread.start()
        assert (told, view.get()) == ([], 0)
        go.set()
        for thread in (builder, *waiting):
            thread.join(60)
        assert told == [2] * 5, "none of those that waited hangs"

    def test_rebuild_a_view_that_is_ahead(self, tmp_path: Path) -> None:
        """A view of another log is refused with an error, and not applied in silence. The error names the rebuild."""
        url, id = f"file://{tmp_path}/stores", uuid4()
        with streamkit.connect(url) as client:
            append(client.store(id), 1)
        shutil.copytree(tmp_path / "stores", tmp_path / "backup")
        with streamkit.connect(url) as client:
            append(client.store(id), 2, 3)
            with client.store(id).view("stats", total(), ["log"], tmp_path / "v") as view:
                assert view.catch_up().entries == 3
        shutil.rmtree(tmp_path / "stores")
        shutil.move(tmp_path / "backup", tmp_path / "stores")
        with streamkit.connect(url) as client, client.store(id).view("stats", total(), ["log"], tmp_path / "v") as view:
            with pytest.raises(InvalidOffset, match="is ahead of its log"):
                view.catch_up()
            assert view.get() == 6, "what it had is not touched"
            assert (view.rebuild().entries, view.get()) == (1, 1)
            append(client.store(id), 7)
            assert (view.catch_up().entries, view.get()) == (2, 8)

    def test_close(self, subject: Subject, tmp_path: Path) -> None:
        view = subject.store.view("stats", total(), ["log"], tmp_path / "v")
        runner = threading.Thread(target=view.run)
        runner.start()
        view.close()
        view.close()
        runner.join(60)
        assert not runner.is_alive()

    def test_append_after_close(self, subject: Subject, tmp_path: Path) -> None:
        view = subject.store.view("stats", total(), ["log"], tmp_path / "v")
        subject.store.close()
        with pytest.raises(StoreClosed):
            append(subject.store, 1)
        for ask in (view.catch_up, view.status, view.rebuild):
            with pytest.raises(StoreClosed):
                ask()
        view.close()
        with pytest.raises(StoreClosed):
            view.get()

    def test_basic_rebuild(self, subject: Subject, tmp_path: Path) -> None:
        seen: list[int] = []

        def key(entry: streamkit.Entry) -> int:
            seen.append(value(entry)["foo"])
            return seen[-1]

        found = Index(key)
        view = subject.store.view("level", found, ["log"], tmp_path / "v")
        append(subject.store, {"foo": 1})
        append(subject.store, {"foo": 2})
        view.catch_up()
        view.rebuild()
        for foo in (3, 4, 5):
            append(subject.store, {"foo": foo})
        view.catch_up()
        assert (seen, len(found.get(4))) == ([1, 2, 1, 2, 3, 4, 5], 1)


class TestIndex:
    """test-flumeview-index, which flumeview-level and flumeview-hashtable run: index.js, read.js, live.js"""

    def fill(self, subject: Subject, count: int) -> list[dict[str, Any]]:
        dice = random.Random(count)
        data = [{"key": f"{dice.randrange(10)}#{dice.random()}", "i": at} for at in range(count)]
        append(subject.store, *data)
        return data

    @pytest.mark.parametrize("count", [3, 1000])
    def test_simple_then_reload_then_retest(self, subject: Subject, tmp_path: Path, count: int) -> None:
        data = self.fill(subject, count)
        for store in (subject.store, subject.stranger()):
            found = index()
            with store.view("index", found, ["log"], tmp_path / "v") as view:
                view.catch_up()
                for one in data:
                    assert list(map(value, found.get(one["key"]))) == [one]
                assert found.get("#none") == []

    def test_read(self, subject: Subject, tmp_path: Path) -> None:
        data = sorted(self.fill(subject, 100), key=lambda one: str(one["key"]))
        found = index()
        with subject.store.view("index", found, ["log"], tmp_path / "v") as view:
            view.catch_up()
            assert list(map(value, found.range())) == data
            assert found.keys() == [one["key"] for one in data]
            assert list(map(value, found.range(reverse=True, limit=7))) == data[:-8:-1]
            first, last = data[20]["key"], data[30]["key"]
            assert list(map(value, found.range(first, last))) == data[20:31]

    def test_empty_close(self, subject: Subject, tmp_path: Path) -> None:
        """A read of an empty index while it is closed gives nothing, or an error that says so (expectations 1 to 4)."""
        found, read = index(), list[list[Any]]()
        view: OpenView = subject.store.view("index", found, ["log"], tmp_path / "v")
        assert found.range() == []
        threads = [threading.Thread(target=lambda: read.append(found.range())), threading.Thread(target=view.close)]
        threading.excepthook, before = (lambda told: read.append([told.exc_type])), threading.excepthook
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        finally:
            threading.excepthook = before
        assert read in ([[]], [[StoreClosed]])
        with pytest.raises(StoreClosed):
            found.range()

    def test_live(self, subject: Subject, tmp_path: Path) -> None:
        """A follower sees each entry once, and the index finds each entry that it has seen."""
        found, live = index(), list[dict[str, Any]]()
        view = subject.store.view("index", found, ["log"], tmp_path / "v")
        follower = subject.store.follow_space("log", timeout=60)
        for at in range(5):
            append(subject.store, {"key": f"#{at}"})
            entry = next(follower)
            live.append(value(entry))
            view.wait_for(entry.space_offset)
            assert list(map(value, found.range())) == live


class TestReduce:
    """flumeview-reduce: test/index.js, persistant.js, key-value.js, reload.js, stream.js"""

    def test_simple(self, subject: Subject, tmp_path: Path) -> None:
        view = subject.store.view("view", total(), ["log"], tmp_path / "v")
        assert view.get() == 0
        append(subject.store, 10, 20)
        status = view.catch_up()
        assert (view.get(), status.entries, status.version) == (30, 2, 1)

    def test_reload(self, subject: Subject, tmp_path: Path) -> None:
        append(subject.store, 1, 2, 3, 4, 5)
        for store in (subject.store, subject.stranger()):
            with store.view("view", total(), ["log"], tmp_path / "v") as view:
                view.catch_up()
                assert view.get() == 15

    def test_remote(self, subject: Subject, tmp_path: Path) -> None:
        """1 and 2: a view that begins from another one's state, and goes on from there."""
        append(subject.store, 1, 2, 3, 4, 5)
        with subject.store.view("view", total(), ["log"], tmp_path / "here") as view:
            view.publish()
        counted: list[int] = []

        def add(state: int, entry: streamkit.Entry) -> int:
            counted.append(1)
            return state + int(value(entry))

        with subject.stranger().view("view", Reduce(add, 0), ["log"], tmp_path / "there") as view:
            view.catch_up()
            assert (view.get(), counted) == (15, [])
            append(subject.store, 6)
            view.catch_up()
            assert (view.get(), counted) == (21, [1])

    def test_stream(self, subject: Subject, tmp_path: Path) -> None:
        """The state, then each change of it; after it was opened again, from where it was."""
        seen: list[int] = []
        for turn in range(2):
            with subject.store.view("view", total(), ["log"], tmp_path / "v") as view:
                seen.append(view.get())
                for at in range(3):
                    view.wait_for(append(subject.store, 10 * turn + at).space_offset)
                    seen.append(view.get())
        assert seen == [0, 0, 1, 3, 3, 13, 24, 36]


class TestLinks:
    """flumeview-links: test/links.js, and flumeview-query: test/links.js, nested-links.js"""

    @pytest.fixture
    def links(self, subject: Subject, tmp_path: Path) -> Links:
        states = {"START": ["READY", "ERROR", "END"], "READY": ["START", "ERROR", "END"], "ERROR": [], "END": ["END"]}
        found = Links(lambda entry: [(value(entry)[0], to) for to in value(entry)[1]])
        append(subject.store, *states.items())
        subject.store.view("links", found, ["log"], tmp_path / "v").catch_up()
        return found

    def test_query(self, links: Links) -> None:
        assert links.to("ERROR") == ["START", "READY"]
        assert links.of("READY") == ["END", "ERROR", "START"]
        assert links.of("ERROR") == []

    def test_specify_index(self, links: Links) -> None:
        assert links.to("END") == ["START", "READY", "END"], "by either end, without reading the other"
        plan = links.db.execute("explain query plan select source from links where target = 'END'").fetchall()
        assert "USING COVERING INDEX links_to (target=?)" in plan[0][3]


class TestQuery:
    """flumeview-query: test/query.js, select.js, exact.js, scan.js, seek.js, random.js"""

    @pytest.fixture
    def query(self, subject: Subject, tmp_path: Path) -> Query:
        dice = random.Random(15)
        found = Query(["source", "dest", "rel", "nest.number"])
        names = ["alice", "bob", "bonnie", "carol"]
        append(
            subject.store,
            *(
                {
                    "i": at,
                    "source": dice.choice(names),
                    "dest": dice.choice(names),
                    "rel": dice.choice(["mentions", "follows"]),
                    "nest": {"number": dice.randrange(10), "okay": at % 2 == 0},
                    "mixed": dice.choice([True, "hello!", 3.5, None]),
                }
                for at in range(100)
            ),
        )
        subject.store.view("query", found, ["log"], tmp_path / "v").catch_up()
        return found

    @pytest.mark.parametrize(
        "where",
        [
            pytest.param({"source": "alice", "dest": "bob"}, id="source and dest are exact"),
            pytest.param({"dest": "bob", "rel": {"prefix": "m"}}, id="dest exact, rel is range"),
            pytest.param({"rel": {"prefix": "f"}}, id="range only"),
            pytest.param({"source": "alice", "dest": "bob", "rel": "follows"}, id="all exact"),
            pytest.param({"source": {"prefix": "a"}, "dest": {"prefix": "b"}}, id="all ranges"),
            pytest.param({"source": {"prefix": "a"}, "dest": {"prefix": "b"}, "rel": "follows"}, id="all but rel"),
            pytest.param({"nest.number": {"gte": 8, "lt": 10}}, id="select best index on partial nested queries"),
        ],
    )
    def test_an_index_is_used(self, query: Query, where: dict[str, Any]) -> None:
        assert "SEARCH entries USING INDEX" in query.explain(where)[0]
        assert list(map(value, query.find(where))) == [one for one in self.all(query) if meets(one, where)]

    def all(self, query: Query) -> list[Any]:
        return list(map(value, query.find()))

    def test_query_and_seek(self, query: Query) -> None:
        for begin in (10, 20):
            found = query.find({"i": {"gte": begin}}, limit=10)
            assert [value(entry)["i"] for entry in found] == list(range(begin, begin + 10))

    def test_random(self, query: Query) -> None:
        """An index finds the same entries as a scan."""
        dice, everything = random.Random(8), self.all(query)
        paths: list[Callable[[Any], tuple[str, Any]]] = [
            lambda one: ("source", one["source"]),
            lambda one: ("i", one["i"]),
            lambda one: ("nest.number", one["nest"]["number"]),
            lambda one: ("nest.okay", one["nest"]["okay"]),
            lambda one: ("mixed", one["mixed"]),
        ]
        for _ in range(300):
            where: dict[str, Any] = {}
            for path in dice.sample(paths, dice.randint(1, 3)):
                name, wanted = path(dice.choice(everything))
                operator = "eq" if wanted is None else dice.choice(["eq", "eq", "gt", "gte", "lt", "lte", "ne"])
                where[name] = {operator: wanted}
            assert list(map(value, query.find(where))) == [one for one in everything if meets(one, where)], where


def meets(one: Any, where: dict[str, Any]) -> bool:
    """A scan's answer: a value is compared with values of its kind."""

    def kind(found: Any) -> type:
        return float if type(found) is int else type(found)

    for path, wanted in where.items():
        found = one
        for name in path.split("."):
            found = found[name]
        for operator, limit in wanted.items() if isinstance(wanted, dict) else [("eq", wanted)]:
            if operator == "prefix":
                fits = found.startswith(limit)
            elif operator in ("eq", "ne"):
                same = kind(found) is kind(limit) and found == limit
                fits = same == (operator == "eq")
            elif kind(found) is not kind(limit):
                fits = False
            else:
                less, greater = found < limit, found > limit
                fits = {"gt": greater, "gte": not less, "lt": less, "lte": not greater}[operator]
            if not fits:
                return False
    return True
