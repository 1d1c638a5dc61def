"""Views: data and position in one transaction, versions beside each other, pauses, waits, and the builder."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from fix_stores import Subject

import streamkit
from streamkit import Entry, Gap, InvalidOffset, PermanentError, Record, Retention, StoreClosed
from streamkit.views import OpenView, Reduce


class Names(streamkit.View):
    """Keeps each entry's segment and payload, in order."""

    def __init__(self, version: int = 1, fails: Callable[[Entry], bool] = lambda entry: False) -> None:
        self.version = version
        self.fails = fails
        self.batches: list[int] = []

    def setup(self, db: sqlite3.Connection) -> None:
        db.executescript("create table names (at integer primary key, segment text, payload text); create table x (y);")

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        self.batches.append(len(entries))
        for entry in entries:
            db.execute("insert into names (segment, payload) values (?, ?)", (entry.segment, entry.payload.decode()))
            if self.fails(entry):
                raise ValueError(f"cannot take {entry.payload.decode()}")


def names(view: OpenView) -> list[str]:
    return [payload for (payload,) in view.db.execute("select payload from names order by at")]


def write(subject: Subject, *payloads: str, segment: str = "s") -> streamkit.SegmentStatus:
    return subject.store.produce("orders", segment, [Record(payload.encode()) for payload in payloads])


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "views" / "names.sqlite")


def test_a_view_holds_what_was_committed_and_goes_on_from_there(subject: Subject, path: str) -> None:
    write(subject, "a", "b")
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    status = view.catch_up()
    assert (status.state, status.entries, names(view)) == ("current", 2, ["a", "b"])
    write(subject, "c")
    assert view.status().state == "behind"
    again = Names()
    view.close()
    with subject.stranger().view("names", again, spaces=["orders"], path=path) as view:
        view.catch_up()
        assert (names(view), again.batches) == (["a", "b", "c"], [1])
        with sqlite3.connect(path) as db:
            assert db.execute("select count(*) from names").fetchone() == (3,)


def test_a_view_of_nothing_is_empty_and_is_read_only(subject: Subject, path: str) -> None:
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    assert names(view) == []
    assert view.catch_up().entries == 0
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        view.db.execute("delete from names")


def test_two_spaces_come_by_time_each_once(subject: Subject, path: str) -> None:
    view = subject.store.view("names", Names(), spaces=["orders", "stock"], path=path)
    for at in range(6):
        subject.store.produce(("orders", "stock")[at % 2], "s", [Record(b"%d" % at)])
        if at == 2:
            view.catch_up()
    status = view.catch_up()
    assert sorted(names(view)) == list("012345")
    assert {space: position.entries for space, position in status.positions.items()} == {"orders": 3, "stock": 3}
    assert [name for name in names(view) if name in "024"] == ["0", "2", "4"]


def test_partitions_come_each_entry_once(subject: Subject, path: str) -> None:
    subject.store.create_space("orders", partitions=4)
    view = subject.store.view("names", Names(), spaces=["orders"], path=path, batch=3)
    for at in range(40):
        status = write(subject, str(at), segment=f"s{at % 7}")
        if at % 5 == 0:
            view.wait_for(status.space_offset)
            assert str(at) in names(view)
    view.catch_up()
    assert sorted(names(view), key=int) == [str(at) for at in range(40)]


def test_another_version_is_built_beside_and_replaces_the_old_one(subject: Subject, path: str) -> None:
    write(subject, "a", "b")
    old = subject.store.view("names", Names(1), spaces=["orders"], path=path)
    old.catch_up()
    kept = old.db
    failing = Names(2, lambda entry: entry.payload == b"b")
    new = subject.stranger().view("names", failing, spaces=["orders"], path=path)
    status = new.catch_up()
    assert (status.state, status.building) == ("paused", 1)
    assert names(new) == ["a", "b"], "until it is built the old one is read"
    failing.fails = lambda entry: False
    new.resume()
    assert new.catch_up().state == "current"
    write(subject, "c")
    new.catch_up()
    assert names(new) == ["a", "b", "c"]
    assert kept.execute("select count(*) from names").fetchone() == (2,)
    old.catch_up()
    assert names(old) == ["a", "b", "c"], "two versions that are deployed at once do not disturb each other"
    assert sqlite3.connect(path).execute("select json_extract(state, '$.version') from streamkit_view").fetchone() == (
        2,
    )
    old.close()
    new.rebuild()
    assert not [name for name in os.listdir(f"{path}.builds") if name.startswith("1-") and ".sqlite" in name]


def test_the_log_names_a_pause_once_in_each_process_and_again_when_it_fails_again(
    subject: Subject, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(subject, *"ab")

    def paused() -> list[bool]:
        found = [record for record in caplog.records if "the view 'names' is paused at" in record.getMessage()]
        caplog.clear()
        return [record.exc_info is not None for record in found]

    view = subject.store.view("names", Names(fails=lambda entry: entry.payload == b"b"), spaces=["orders"], path=path)
    view.catch_up()
    assert paused() == [True]
    view.catch_up()
    assert paused() == []
    view.resume()
    view.catch_up()
    assert paused() == [True]
    view.close()
    view = subject.store.view(
        "names", Names(), spaces=["orders"], path=path
    )  # a later process, with the fault corrected
    assert view.catch_up().state == "paused"
    view.catch_up()
    assert paused() == [False]


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_an_entry_that_cannot_be_applied_pauses_the_view_just_before_it(
    subject: Subject, path: str, batch: int
) -> None:
    write(subject, *"abcdefg")
    definition = Names(fails=lambda entry: entry.payload == b"e")
    view = subject.store.view("names", definition, spaces=["orders"], path=path, batch=batch)
    status = view.catch_up()
    assert status.state == "paused"
    assert status.error is not None
    assert (status.error.segment, status.error.sequence, status.error.error) == ("s", 5, "ValueError: cannot take e")
    assert (names(view), status.entries) == (list("abcd"), 4)
    with pytest.raises(PermanentError, match="paused at"):
        view.wait_for(subject.store.end_offset("orders"))
    tried = len(definition.batches)
    assert view.catch_up().state == "paused"
    assert len(definition.batches) == tried, "it is not tried again unasked"
    view.resume()
    assert view.catch_up().state == "paused"
    view.resume(skip=True)
    status = view.catch_up()
    assert (status.state, status.skipped, names(view)) == ("current", 1, list("abcdfg"))


def test_who_has_resumed_may_still_pass_over_the_entry(subject: Subject, path: str) -> None:
    class Erasing(Names):
        def erase(self, db: sqlite3.Connection, gap: Gap) -> None:
            db.execute("delete from names where payload = 'd'")

    write(subject, *"abcd")
    definition = Erasing(fails=lambda entry: entry.payload in (b"b", b"d"))
    view = subject.store.view("names", definition, spaces=["orders"], path=path)
    view.catch_up()
    view.resume()
    view.resume(skip=True)
    status = view.catch_up()
    assert status.error is not None
    assert (status.skipped, names(view), status.error.sequence) == (1, ["a", "c"], 4)
    subject.store.erase("orders", "s", first=4, last=4)
    view.resume(skip=True)
    assert (view.catch_up().skipped, view.status().state) == (1, "current"), "of what was erased nothing is passed over"
    view.resume(skip=True)
    write(subject, "e")
    assert (view.catch_up().skipped, names(view)) == (1, ["a", "c", "e"]), "what is not paused passes over nothing"


def test_a_view_that_has_applied_nothing_is_behind_by_what_there_is(subject: Subject, path: str) -> None:
    view = subject.store.view("names", Names(), spaces=["orders", "stock"], path=path)
    assert view.status().behind == 0
    write(subject, "a")
    status = view.status()
    assert (status.state, 0 < status.behind < 3600) == ("new", True), "not by the years since 1970"
    view.catch_up()
    assert view.status().behind == 0


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("raised", "said"),
    [(ValueError("no \udcff.txt"), r"ValueError: no \udcff.txt"), (Unprintable(), "Unprintable")],
    ids=["half a character", "no text"],
)
def test_a_failure_without_text_in_utf_8_pauses_the_view_too(
    subject: Subject, path: str, monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str
) -> None:
    monkeypatch.setattr(logging.getLogger("streamkit"), "disabled", True)  # xdist passes no such text on

    def fails(entry: Entry) -> bool:
        if entry.payload == b"b":
            raise raised
        return False

    write(subject, *"abc")
    view = subject.store.view("names", Names(fails=fails), spaces=["orders"], path=path)
    status = view.catch_up()
    assert status.error is not None
    assert (status.state, status.error.sequence, status.error.error) == ("paused", 2, said)
    view.resume(skip=True)
    assert (view.catch_up().skipped, names(view)) == (1, ["a", "c"])


def test_an_entry_that_is_damaged_for_its_reader_pauses_the_view_too(subject: Subject, path: str) -> None:
    def fails(entry: Entry) -> bool:
        if entry.payload == b"b":
            raise streamkit.CorruptData("what repository.event(entry) says of an event that it does not know")
        return False

    write(subject, *"abc")
    view = subject.store.view("names", Names(fails=fails), spaces=["orders"], path=path)
    status = view.catch_up()
    assert status.error is not None
    assert (status.state, status.error.sequence, names(view)) == ("paused", 2, ["a"])
    view.resume(skip=True)
    assert (view.catch_up().skipped, names(view)) == (1, ["a", "c"])


def test_an_entry_that_fails_once_is_tried_again(subject: Subject, path: str) -> None:
    write(subject, *"abc")
    left = [1]
    definition = Names(fails=lambda entry: entry.payload == b"b" and bool(left) and bool(left.pop()))
    view = subject.store.view("names", definition, spaces=["orders"], path=path)
    assert view.catch_up().state == "current"
    assert names(view) == list("abc")


def test_entries_that_cannot_be_applied_are_skipped_and_recorded(subject: Subject, path: str) -> None:
    write(subject, *"abcdefg")
    definition = Names(fails=lambda entry: entry.payload in (b"a", b"d", b"g"))
    view = subject.store.view("names", definition, spaces=["orders"], path=path, on_error="skip")
    status = view.catch_up()
    assert (status.state, status.skipped, status.entries, names(view)) == ("current", 3, 7, list("bcef"))
    assert [row[0] for row in view.db.execute("select sequence from streamkit_skipped")] == [1, 4, 7]


def test_a_view_that_commits_by_itself_is_told_so(subject: Subject, path: str) -> None:
    class Commits(Names):
        def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
            super().apply(db, entries)
            db.commit() if entries[0].payload == b"a" else db.execute("commit")

    write(subject, "a")
    view = subject.store.view("names", Commits(), spaces=["orders"], path=path)
    error = view.catch_up().error
    assert error is not None
    assert "does not commit" in error.error
    view.resume(skip=True)
    write(subject, "b")
    error = view.catch_up().error
    assert error is not None
    assert "not authorized" in error.error
    assert names(view) == []


def test_waiting_reads_ones_own_write(subject: Subject, path: str) -> None:
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    status = write(subject, "a")
    view.wait_for(status.space_offset)
    assert names(view) == ["a"]
    view.wait_for(status.space_offset.hex(), timeout=0)
    with pytest.raises(InvalidOffset):
        view.wait_for(subject.store.produce("other", "s", [Record(b"x")]).space_offset)
    elsewhere = Subject(subject.url)
    try:
        for _ in range(3):
            foreign = elsewhere.store.produce("orders", "s", [Record(b"x")])
        with pytest.raises(InvalidOffset):
            view.wait_for(foreign.space_offset, timeout=1)
    finally:
        elsewhere.close()


def test_while_another_builds_a_reader_waits_no_longer_than_it_wants(subject: Subject, path: str) -> None:
    began, go = threading.Event(), threading.Event()

    class Slow(Names):
        def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
            began.set()
            go.wait(60)
            super().apply(db, entries)

    status = write(subject, "a")
    slow = subject.store.view("names", Slow(), spaces=["orders"], path=path)
    thread = threading.Thread(target=slow.catch_up)
    thread.start()
    began.wait(60)
    reader = subject.stranger().view("names", Names(), spaces=["orders"], path=path)
    with pytest.raises(TimeoutError):
        reader.wait_for(status.space_offset, timeout=0.05)
    assert names(reader) == []
    go.set()
    reader.wait_for(status.space_offset, timeout=60)
    assert names(reader) == ["a"]
    thread.join()


def test_run_follows_until_it_is_closed(subject: Subject, path: str) -> None:
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    thread = threading.Thread(target=view.run)
    thread.start()
    for at in range(5):
        status = write(subject, str(at))
        view.wait_for(status.space_offset, timeout=60)
        assert len(names(view)) == at + 1
    view.close()
    thread.join(60)
    assert not thread.is_alive()
    with pytest.raises(StoreClosed):
        view.catch_up()


def test_who_builds_may_close_it(subject: Subject, path: str) -> None:
    """A signal handler may close the view in the thread that builds it."""

    class Closes(Names):
        def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
            super().apply(db, entries)
            view.close()

    write(subject, "a")
    view = subject.store.view("names", Closes(), spaces=["orders"], path=path)
    thread = threading.Thread(target=view.run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    with pytest.raises(StoreClosed):
        view.catch_up()
    with subject.store.view("names", Names(2), spaces=["orders"], path=path) as newer:
        newer.catch_up()
        newer.rebuild()
    assert not [name for name in os.listdir(f"{path}.builds") if name.startswith("1-") and ".sqlite" in name]
    with subject.store.view("names", Names(), spaces=["orders"], path=path) as again:
        again.catch_up()
        assert names(again) == ["a"]


def test_run_ends_after_its_time(subject: Subject, path: str) -> None:
    write(subject, "a")
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    view.run(seconds=0)
    assert names(view) == ["a"]


def test_a_database_of_another_store_is_refused(subject: Subject, path: str) -> None:
    write(subject, "a")
    subject.store.view("names", Names(), spaces=["orders"], path=path).catch_up()
    other = subject.client.store(UUID(int=7)).view("names", Names(), spaces=["orders"], path=path)
    with pytest.raises(PermanentError, match="is of the view 'names' of the store"):
        other.catch_up()
    with pytest.raises(PermanentError, match="is of the view"):
        subject.store.view("others", Names(), spaces=["orders"], path=path).catch_up()


def test_a_space_that_was_made_again_is_viewed_anew(subject: Subject, path: str) -> None:
    write(subject, "a", "b")
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    view.catch_up()
    view.close()
    subject.client.delete_store(subject.id)
    subject.store = subject.connect().store(subject.id)
    write(subject, "c")
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    view.catch_up()
    assert names(view) == ["c"]


def test_a_space_that_was_deleted_and_written_again_is_viewed_anew_by_who_has_it_open(
    subject: Subject, path: str
) -> None:
    """The view forgets its memory of the old space too, and `wait_for` waits for an offset of the new one."""
    count: Reduce[int] = Reduce(lambda state, entry: state + 1, 0)
    view = subject.store.view("count", count, spaces=["orders"], path=path)
    write(subject, "a", "b", "c")
    view.catch_up()
    subject.store.delete_space("orders")
    status = write(subject, "d")
    view.wait_for(status.space_offset)
    assert (count.get(), view.status().entries) == (1, 1)
    write(subject, "e")
    other: Reduce[int] = Reduce(lambda state, entry: state + 1, 0)
    with subject.stranger().view("count", other, spaces=["orders"], path=path) as again:
        assert (again.catch_up().state, other.get()) == ("current", 2)


def test_a_view_of_other_spaces_is_built_beside_too(subject: Subject, path: str) -> None:
    write(subject, "a")
    subject.store.produce("stock", "s", [Record(b"b")])
    with subject.store.view("names", Names(), spaces=["orders"], path=path) as view:
        view.catch_up()
    with subject.store.view("names", Names(), spaces=["stock", "orders"], path=path) as view:
        assert names(view) == ["a"], "until it is built the other one is read"
        view.catch_up()
        assert names(view) == ["a", "b"]
    with subject.store.view("names", Names(), spaces=["orders", "stock"], path=path) as view:
        assert (view.catch_up().entries, view.view.batches) == (2, []), "in whatever order they are named"


def test_two_versions_that_are_deployed_at_once_are_built_and_read_at_once(subject: Subject, path: str) -> None:
    views = [
        store.view("names", Names(version), spaces=["orders"], path=path, batch=3)
        for version, store in ((1, subject.store), (2, subject.stranger()), (1, subject.stranger()))
    ]
    threads = [threading.Thread(target=view.run) for view in views]
    for thread in threads:
        thread.start()
    for at in range(20):
        status = write(subject, str(at))
        for view in views:
            view.wait_for(status.space_offset, timeout=60)
            assert names(view) == [str(each) for each in range(at + 1)]
    for view, thread in zip(views, threads, strict=True):
        view.close()
        thread.join(60)
        assert not thread.is_alive()


def test_a_version_stays_for_who_only_reads_it(subject: Subject, path: str) -> None:
    write(subject, "a")
    with subject.store.view("names", Names(1), spaces=["orders"], path=path) as builder:
        builder.catch_up()
        reader = subject.stranger().view("names", Names(1), spaces=["orders"], path=path)
        assert names(reader) == ["a"]
    write(subject, "b")
    with subject.stranger().view("names", Names(2), spaces=["orders"], path=path) as newer:
        newer.catch_up()
        newer.rebuild()
        assert names(newer) == ["a", "b"]
        assert names(reader) == ["a"]
        reader.close()
        newer.rebuild()
    assert not [name for name in os.listdir(f"{path}.builds") if name.startswith("1-") and ".sqlite" in name]


def test_waiting_ends_where_the_first_entries_were_trimmed(subject: Subject, path: str) -> None:
    first, last = write(subject, "a").space_offset, write(subject, "b").space_offset
    subject.store.trim("orders", before=last)
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    assert view.wait_for(first, timeout=60).entries == 0


def test_what_has_expired_before_a_view_came_by_is_missing_and_said(subject: Subject, path: str) -> None:
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    write(subject, "a")
    assert view.catch_up().complete
    subject.store.set_retention("orders", Retention(max_entries=2))
    write(subject, *"bcdef")
    subject.store.maintain()
    status = view.catch_up()
    assert (status.state, status.complete, names(view)) == ("current", False, ["a", "e", "f"])
    status = view.rebuild()
    assert (status.complete, names(view)) == (False, ["e", "f"])


def test_a_path_that_is_something_else_is_refused(subject: Subject, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    view = subject.store.view("names", Names(), spaces=["orders"], path=tmp_path / "mine")
    with pytest.raises(PermanentError, match="a file that no view has made"):
        view.catch_up()
    assert (tmp_path / "mine").read_text() == "precious"
    with pytest.raises(PermanentError, match="a directory"):
        subject.store.view("names", Names(), spaces=["orders"], path=tmp_path).catch_up()


def test_a_damaged_database_says_what_to_do_and_is_built_anew(subject: Subject, path: str) -> None:
    write(subject, *"abc")
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    view.catch_up()
    view.close()
    Path(os.path.realpath(path)).write_bytes(b"no database" * 1000)
    view = subject.store.view("names", Names(), spaces=["orders"], path=path)
    with pytest.raises(streamkit.CorruptData, match=r"rebuild\(\)"):
        view.catch_up()
    view.rebuild()
    assert names(view) == list("abc")


def test_a_published_view_is_where_a_fresh_process_begins(subject: Subject, tmp_path: Path) -> None:
    write(subject, *"abc")
    with subject.store.view("names", Names(), spaces=["orders"], path=tmp_path / "one") as view:
        view.publish()
    write(subject, "d")
    definition = Names()
    with subject.stranger().view("names", definition, spaces=["orders"], path=tmp_path / "two") as view:
        view.catch_up()
        assert (names(view), definition.batches) == (list("abcd"), [1])
    newer = Names(2)
    with subject.stranger().view("names", newer, spaces=["orders"], path=tmp_path / "three") as view:
        view.catch_up()
        assert (names(view), sum(newer.batches)) == (list("abcd"), 4), "it is of another version"


def test_arguments_are_checked(subject: Subject, path: str) -> None:
    store = subject.store
    with pytest.raises(TypeError, match=r"spaces=\['orders'\]"):
        store.view("names", Names(), spaces="orders", path=path)
    with pytest.raises(TypeError, match=r"not the class Names: write Names\(\)"):
        store.view("names", Names, spaces=["orders"], path=path)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"View has no apply\(self, db, entries\): a view needs one"):
        store.view("names", streamkit.View(), spaces=["orders"], path=path)
    with pytest.raises(ValueError, match="at least one space"):
        store.view("names", Names(), spaces=[], path=path)
    with pytest.raises(ValueError, match="on_error"):
        store.view("names", Names(), spaces=["o"], path=path, on_error="stop")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="version"):
        store.view("names", Names("2"), spaces=["o"], path=path)  # type: ignore[arg-type]
    with pytest.raises(streamkit.InvalidName):
        store.view("", Names(), spaces=["o"], path=path)
