"""Erased entries leave a view, by its own `erase` or a new build, and its file and published ones too."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from fix_local import as_user

import streamkit
from streamkit import Entry, Record
from streamkit.errors import Unavailable
from streamkit.views import Index, Latest, Links, Query, Search, Vectors, View, publish
from streamkit.views.publish import published_views

MAKES: dict[str, Callable[[], View]] = {
    "index": lambda: Index(lambda entry: entry.payload.decode()),
    "search": lambda: Search(lambda entry: entry.payload.decode()),
    "links": lambda: Links(lambda entry: [entry.payload.decode()]),
    "query": lambda: Query(["x"]),
    "vectors": lambda: Vectors(lambda entry: [float(entry.sequence), 1.0], 2),
}


@pytest.mark.parametrize("kind", sorted(MAKES))
def test_a_ready_made_view_forgets_them_and_its_file_too(tmp_path: Path, kind: str) -> None:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(f"secretword{at}".encode()) for at in range(6)])
        store.produce("log", "other", [Record(b"secretword9")])
        view = store.view(kind, MAKES[kind](), ["log"], tmp_path / "v")
        view.catch_up()
        view.publish()
        view.erase(SimpleNamespace(space="log", segment="s", first_sequence=2, last_sequence=4, reason="erased"))
        rows = [payload for (payload,) in view.db.execute("select payload from entries order by id")]
        assert rows == [b"secretword0", b"secretword4", b"secretword5", b"secretword9"]
        for file in (tmp_path / "v.builds").iterdir():
            assert b"secretword1" not in file.read_bytes()
        assert view._snapshots().all() == []
        store.produce("log", "s", [Record(b"later")])
        assert view.catch_up().entries == 8
        with pytest.raises(ValueError, match="does not follow"):
            view.erase(SimpleNamespace(space="x", segment="s", first_sequence=1, last_sequence=1, reason="erased"))


def test_a_view_without_erase_is_built_anew(tmp_path: Path) -> None:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"a")])
        calls: list[int] = []
        kind = Latest(lambda entry: calls.append(entry.sequence) or entry.segment)  # type: ignore[func-returns-value]
        view = store.view("latest", kind, ["log"], tmp_path / "v")
        view.catch_up()
        view.erase(SimpleNamespace(space="log", segment="s", first_sequence=1, last_sequence=1, reason="erased"))
        assert calls == [1, 1]


def test_a_view_that_could_not_be_told_what_was_erased_is_told_later(tmp_path: Path) -> None:
    """The view removes erased entries, also if it has applied others before."""

    class Busy(Index):
        fails = 0

        def erase(self, db: sqlite3.Connection, gap: Any) -> None:
            self.fails -= 1
            if self.fails >= 0:
                raise Unavailable("not now")
            super().erase(db, gap)

    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"secretword1"), Record(b"kept2")])
        index = Busy(lambda entry: entry.payload.decode())
        view = store.view("index", index, ["log"], tmp_path / "v")
        view.catch_up()
        store.erase("log", "s", last=1)
        for fails in (1, 1, 0):
            index.fails = fails
            store.produce("log", "s", [Record(b"later")])
            with pytest.raises(Unavailable) if fails else nullcontext():
                view.catch_up()
        assert index.keys() == ["kept2", "later"]


def test_the_build_that_is_read_is_told_too_while_another_one_is_built(tmp_path: Path) -> None:
    class Picky(Index):
        refuses = False

        def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
            if self.refuses and any(entry.payload == b"bad" for entry in entries):
                raise ValueError("bad")
            super().apply(db, entries)

    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"secretword"), Record(b"kept"), Record(b"bad")])
        index = Picky(lambda entry: entry.payload.decode())
        view = store.view("index", index, ["log"], tmp_path / "v")
        view.catch_up()
        index.refuses = True
        assert view.rebuild().state == "paused"
        store.erase("log", "s", last=1)
        assert view.catch_up().state == "paused"
        assert index.keys() == ["bad", "kept"]
        for file in (tmp_path / "v.builds").iterdir():
            assert b"secretword" not in file.read_bytes()
        index.refuses = False
        view.resume()
        assert view.catch_up().state == "current"
        assert index.keys() == ["bad", "kept"]


@pytest.mark.parametrize("partitions", [1, 3])
def test_reading_on_tells_a_view_what_was_erased_of_what_it_has_applied(tmp_path: Path, partitions: int) -> None:
    url = f"memory://{uuid4().hex}"
    with streamkit.connect(url) as client, streamkit.connect(url) as elsewhere:
        store = client.store(uuid4())
        store.create_space("log", partitions)
        for at in range(6):
            store.produce("log", "s", [Record(b"secretword%d" % at)])
            store.produce("log", "t", [Record(b"kept%d" % at)])
        index = Index(lambda entry: entry.payload.decode())
        calls: list[str] = []
        latest = Latest(lambda entry: calls.append(entry.segment) or entry.segment)  # type: ignore[func-returns-value]
        views = [
            store.view("index", index, ["log"], tmp_path / "v"),
            store.view("latest", latest, ["log"], tmp_path / "w"),
        ]
        for view in views:
            view.catch_up()
        elsewhere.store(store.id).erase("log", "s", first=2, last=6)
        views[0].publish()  # as a process does that has not heard of it
        for view in views:
            view.catch_up()
        assert index.keys()[-1] == "secretword0"
        assert index.get("secretword3") == []
        found = latest.get("s")
        assert found is not None
        assert found.payload == b"secretword0", "without a method of its own it is built anew"
        for file in tmp_path.rglob("*"):
            assert not file.is_file() or b"secretword3" not in file.read_bytes(), file
        (published,) = views[0]._snapshots().all()
        assert published.entries == 12
        fresh = Index(lambda entry: entry.payload.decode())
        with elsewhere.store(store.id).view("index", fresh, ["log"], tmp_path / "fresh") as view:
            view.catch_up()
            assert fresh.keys() == index.keys()
        count = len(calls)
        store.produce("log", "t", [Record(b"later")])
        for view in views:
            assert view.catch_up().state == "current"
        assert len(calls) == count + 1, "it is told once"


def test_a_view_is_built_anew_where_the_log_does_not_tell_any_more_what_was_erased(tmp_path: Path) -> None:
    url = f"memory://{uuid4().hex}"
    with streamkit.connect(url) as client, streamkit.connect(url) as elsewhere:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"secret")])
        store.produce("log", "t", [Record(b"kept")])
        with store.view("index", Index(lambda entry: entry.payload.decode()), ["log"], tmp_path / "v") as view:
            view.catch_up()
        other = elsewhere.store(store.id)
        other.erase("log", "s")
        other.produce("log", "u", [Record(b"between")])
        other.trim("log", before=other.end_offset("log"))  # with the transaction that erased it
        other.produce("log", "u", [Record(b"last")])
        other.maintain()
        with streamkit.connect(url) as later:
            index = Index(lambda entry: entry.payload.decode())
            status = later.store(store.id).view("index", index, ["log"], tmp_path / "v").catch_up()
            assert index.keys() == ["last"]
            assert status.complete is False


def test_two_processes_may_remove_what_was_published_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is faster, after this one has seen what there is."""
    with streamkit.connect(f"file://{tmp_path}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"%d" % at) for at in range(5)])
        with store.view("latest", Latest(lambda entry: entry.payload.decode()), ["log"]) as view:
            view.publish()
            view.publish()
            unlink = os.unlink

            def late(path: str) -> None:
                unlink(path)
                if "_published" in str(path):
                    unlink(path)

            with monkeypatch.context() as patch:
                patch.setattr(os, "unlink", late)
                assert store.erase("log", "s", first=2, last=2).entries == 1
            assert not list(tmp_path.rglob("*.sqlite.zst"))


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.s3)])
def test_an_erasure_in_a_space_that_does_not_exist_removes_published_views_of_that_space_alone(
    tmp_path: Path, kind: str, again: bool, request: pytest.FixtureRequest
) -> None:
    """And so does one in a space of that name that was made since."""
    pytest.importorskip("deltalake")
    url = f"file://{tmp_path / 'root'}" if kind == "local" else request.getfixturevalue("s3_bucket").url("views")
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        for space in ("gone", "kept"):
            store.produce(space, "s", [Record(b"secretword")])
        views = {"gone": ["gone"], "both": ["kept", "gone"], "kept": ["kept"], "damaged": ["kept"]}
        for name, spaces in views.items():
            with store.view(name, Index(lambda entry: entry.payload.decode()), spaces, tmp_path / name) as view:
                view.publish()
        assert store.erase("gnoe", "s").views == 0
        assert published_views(store) == dict.fromkeys(views, 1)
        store.delete_space("gone")
        if again:
            store.produce("gone", "t", [Record(b"new")])
            with store.view("new", Index(lambda entry: entry.payload.decode()), ["gone"], tmp_path / "new") as view:
                view.publish()
        assert store.erase("gone", "s", dry_run=True).views == 0
        report = store.erase("gone", "s")
        assert (report.views, report.unreached) == (2, ())
        assert published_views(store) == {"kept": 1, "damaged": 1, **({"new": 1} if again else {})}
        place = publish._place(*publish._directory(store, "_published", "damaged"))
        ((name, _),) = place.names()
        place.write(name, iter([b"not a database"]))
        assert store.erase("gone", "s").views == 1
        assert published_views(store) == {"kept": 1, **({"new": 1} if again else {})}


def test_a_published_view_that_this_user_may_not_list_is_unreached(shared_directory: Path) -> None:
    store_id = uuid4()
    url = f"file://{shared_directory}/stores?mode=group"
    (shared_directory / "stores").mkdir()
    os.chown(shared_directory / "stores", 1, 1)
    os.chmod(shared_directory / "stores", 0o2770)

    def publish_alone() -> None:
        os.umask(0o077)
        with streamkit.connect(url) as client, client.store(store_id) as store:
            store.produce("log", "s", [Record(b"secretword")])
            with store.view("v", Latest(lambda entry: entry.segment), ["log"]) as view:
                view.publish()

    def erase() -> None:
        with streamkit.connect(url) as client, client.store(store_id) as store:
            report = store.erase("log", "s")
            assert report.entries == 1
            (place,) = report.unreached
            assert "give this user access" in place
            assert "/_published" in place

    def erase_again() -> None:
        with streamkit.connect(url) as client, client.store(store_id) as store:
            report = store.erase("log", "s")
            assert (report.views, report.unreached) == (1, ())

    with streamkit.connect(f"file://{shared_directory}/warm") as client:  # imports what the other users may not read
        warm = client.store(uuid4())
        warm.produce("log", "s", [Record(b"1")])
        with warm.view("v", Latest(lambda entry: entry.segment), ["log"]) as view:
            view.publish()
        warm.erase("log", "s")
    assert as_user(1, 1, publish_alone) == 0
    assert as_user(2, 1, erase) == 0
    assert as_user(1, 1, erase_again) == 0
    assert not list(shared_directory.glob("stores/archive/*/_published/v/*"))
