"""Entries that are gone before a view or a route came by: they say so, and go on."""

from __future__ import annotations

from pathlib import Path

from fix_stores import Subject

from streamkit import Record
from streamkit.views import Index


def test_what_was_trimmed_before_is_missing_and_said_and_what_was_seen_stays(subject: Subject, tmp_path: Path) -> None:
    store = subject.store
    for at in range(6):
        store.produce("log", "s", [Record(b"%d" % at)])

    def payloads(index: Index) -> list[bytes]:
        return [entry.payload for entry in index.range()]

    seen, half = Index(lambda entry: entry.segment), Index(lambda entry: entry.segment)
    before = store.view("before", seen, ["log"], tmp_path / "before")
    before.catch_up()
    behind = store.view("behind", half, ["log"], tmp_path / "behind")
    route = store.route("copy", "log", "copies")
    behind.catch_up()
    route.catch_up()
    for at in range(6, 9):
        store.produce("log", "s", [Record(b"%d" % at)])
    store.trim("log", "s", before=8)
    assert before.catch_up().complete is False
    assert payloads(seen) == [b"0", b"1", b"2", b"3", b"4", b"5", b"7", b"8"], "what it saw stays"
    status = route.catch_up()
    assert (status.state, status.missing) == ("current", 1)
    assert [entry.payload for entry in store.consume_space("copies")] == payloads(seen)
    status = behind.rebuild()
    assert (status.complete, payloads(half)) == (False, [b"7", b"8"]), "a rebuild is smaller, and says so"


def test_erasing_removes_what_was_published(subject: Subject, tmp_path: Path) -> None:
    store = subject.store
    store.produce("log", "s", [Record(b"a"), Record(b"b")])
    view = store.view("v", Index(lambda entry: entry.payload.decode()), ["log"], tmp_path / "one")
    view.publish()
    store.erase("log", "s", first=1, last=1, dry_run=True)
    assert len(view._snapshots().all()) == 1
    store.erase("log", "s", first=1, last=1)
    assert view._snapshots().all() == []
    fresh = Index(lambda entry: entry.payload.decode())
    with store.view("v", fresh, ["log"], tmp_path / "two") as other:
        assert other.catch_up().complete is True, "nobody misses what was erased on purpose"
        assert fresh.keys() == ["b"]


def test_a_route_whose_source_was_made_again_copies_it_at_once(subject: Subject) -> None:
    store = subject.store
    for at in range(4):
        store.produce("log", "s", [Record(b"old%d" % at)])
    store.route("copy", "log", "copies").catch_up()
    store.delete_space("log")
    store.produce("log", "s", [Record(b"new")])
    other = subject.stranger()
    status = other.route("copy", "log", "copies").catch_up()
    assert status.state == "current"
    assert [entry.payload for entry in other.consume_space("copies")] == [b"old0", b"old1", b"old2", b"old3", b"new"]
