"""Aggregates whose events were erased, trimmed or deleted: they can be loaded and written."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fix_stores import Subject

import streamkit
from harness.deep_search import files_below, found_in
from harness.doomed import killed_at
from streamkit import EntriesRemoved, LeaseNotAcquired, Store
from streamkit.archive.archiver import lease_name
from streamkit.eventsourcing import Aggregate, Repository, event
from streamkit.removing.snapshots import snapshots_of
from streamkit.store import inner


class Customer(Aggregate):
    name: str
    mails: int

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self.mails = 0

    @event
    def rename(self, name: str) -> None:
        self.name = name

    @event
    def mail(self) -> None:
        self.mails += 1


State = tuple[int, str, int]


def state(customer: Customer) -> State:
    return customer.version, customer.name, customer.mails


def filled(subject: Subject, snapshot_every: int) -> Repository[Customer]:
    """One customer: a name, which a subject gave, and three mails."""
    repository = Repository(subject.store, "people", Customer, snapshot_every=snapshot_every)
    repository.execute("c", lambda one: one.rename("Annabella"), metadata={"subject": "c"})
    for _ in range(3):
        repository.execute("c", lambda one: one.mail())
    return repository


@pytest.mark.parametrize(
    ("how", "every", "wanted"),
    [
        ("erase the first", 0, (4, "", 3)),
        ("erase the last", 0, (4, "Annabella", 2)),
        ("erase all", 0, (4, "", 0)),
        ("trim", 2, (4, "Annabella", 3)),
        ("trim all", 4, (4, "Annabella", 3)),
        ("delete", 0, (4, "", 0)),
        ("delete", 2, (4, "", 0)),
        ("delete what was trimmed", 0, (4, "", 0)),
    ],
)
def test_an_aggregate_of_which_events_are_missing_can_be_written(
    subject: Subject, how: str, every: int, wanted: State
) -> None:
    own, store = filled(subject, every), subject.store
    match how:
        case "erase the first":
            store.erase("people", metadata={"subject": "c"})
        case "erase the last":
            store.erase("people", "c", first=4)
        case "erase all":
            store.erase("people", "c")
        case "trim":
            store.trim("people", "c", before=3)
        case "trim all":
            store.trim("people", "c", keep_entries=0)
        case "delete":
            store.delete_segment("people", "c")
        case _:
            store.trim("people", "c", before=3)
            store.delete_segment("people", "c")
    fresh = Repository(subject.stranger(), "people", Customer, snapshot_every=every)
    assert state(fresh.load("c")) == wanted
    for repository in (fresh, own):
        version, name, mails = wanted
        wanted = (version + 1, name, mails + 1)
        repository.execute("c", lambda one: one.mail())
        assert repository.load("c").version == version + 1
    assert state(Repository(subject.stranger(), "people", Customer, snapshot_every=every).load("c")) == wanted


def test_what_was_trimmed_and_is_in_no_snapshot_is_told(subject: Subject) -> None:
    repository = filled(subject, 0)
    subject.store.trim("people", "c", before=3)
    fresh = Repository(subject.stranger(), "people", Customer)
    for at in (None, 3):
        with pytest.raises(EntriesRemoved, match=r"1 to 2 were trimmed, and no snapshot of 'c'"):
            fresh.load("c", at=at)
    repository.snapshot("c")  # this one still knows
    assert state(fresh.load("c")) == (4, "Annabella", 3)


@pytest.mark.parametrize("how", ["erase", "delete", "delete the space"])
def test_what_was_removed_is_in_no_snapshot_and_in_no_cache(subject: Subject, how: str, tmp_path: Path) -> None:
    repository, store = filled(subject, 2), subject.store
    other = Repository(subject.stranger(), "people", Customer, snapshot_every=2)
    other.load("c")
    store.trim("people", "c", before=1)
    repository.execute("d", lambda one: one.rename("Danielle"))
    repository.snapshot("d")
    assert subject.url.startswith("memory") or on_disk(tmp_path, b"Annabella")
    match how:
        case "erase":
            store.erase("people", metadata={"subject": "c"})
        case "delete":
            store.delete_segment("people", "c")
        case _:
            store.delete_space("people")
    wanted = (4, "", 3) if how == "erase" else (4, "", 0) if how == "delete" else (0, "", 0)
    if how == "erase":
        assert not on_disk(tmp_path, b"Annabella")
        assert on_disk(tmp_path, b"Danielle") or subject.url.startswith("memory")
    for space in inner(store).internal_names("snapshots"):
        assert list(store.consume_segment(space, "c")) == []
        assert [entry.segment for entry in store.consume_space(space)] == ["d"]
    mine = Repository(subject.stranger(), "people", Customer, snapshot_every=2)
    for one in (mine, repository, *([other] if how != "delete the space" else [])):
        assert state(one.load("c")) == wanted
        assert one.execute("c", state) == wanted


def test_an_aggregate_of_a_space_that_was_made_again_is_not_that_of_the_one_before(subject: Subject) -> None:
    repository = filled(subject, 0)
    subject.store.delete_space("people")
    again = Repository(subject.store, "people", Customer)
    again.execute("c", lambda one: one.rename("Bert"))
    for _ in range(5):
        again.execute("c", lambda one: one.mail())
    assert state(repository.load("c")) == (6, "Bert", 5)


def test_a_snapshot_of_what_was_erased_meanwhile_does_not_stay(subject: Subject, tmp_path: Path) -> None:
    repository = filled(subject, 0)
    other = Repository(subject.stranger(), "people", Customer, snapshot_every=1)
    customer = other.load("c")
    subject.store.erase("people", metadata={"subject": "c"})
    customer.mail()
    other.save(customer)
    assert not on_disk(tmp_path, b"Annabella")
    assert state(other.load("c")) == state(repository.load("c")) == (5, "", 4)


def test_an_erasure_that_was_stopped_is_completed_in_snapshots_too(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(subject, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_eraser_lease", lambda store, name, wait: store.lease(name, 1.0))
        with subject.stranger().lease(lease_name("people", 0)), pytest.raises(LeaseNotAcquired):
            subject.store.erase("people", metadata={"subject": "c"})
    fresh = Repository(subject.stranger(), "people", Customer, snapshot_every=2)
    assert state(fresh.load("c")) == (4, "", 3)  # no load begins from the stored snapshot
    subject.store.maintain("people")
    assert not on_disk(tmp_path, b"Annabella")
    assert [list(subject.store.consume_segment(snapshots_of("people"), "c"))] == [[]]


def test_who_erases_an_aggregate_erases_what_trimmed_events_left_in_its_snapshot(
    subject: Subject, tmp_path: Path
) -> None:
    filled(subject, 2)
    subject.store.trim("people", "c", before=3)
    subject.store.erase("people", "c")
    assert not on_disk(tmp_path, b"Annabella")
    fresh = Repository(subject.stranger(), "people", Customer, snapshot_every=2)
    with pytest.raises(EntriesRemoved, match="delete the segment"):
        fresh.load("c")
    subject.store.delete_segment("people", "c")
    fresh.execute("c", lambda one: one.mail())
    assert state(Repository(subject.stranger(), "people", Customer).load("c")) == (5, "", 1)


def on_disk(directory: Path, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in directory.rglob("*") if path.is_file())


def test_a_process_that_was_killed_while_it_wrote_a_snapshot_leaves_nothing_of_it_on_disk(tmp_path: Path) -> None:
    """A half-written record is behind the end of a log. No process reads it, so no snapshot is there to be erased."""
    at, wrote, is_killed = 1, 0, True
    while is_killed:
        id = uuid4()
        with streamkit.connect(f"file://{tmp_path}") as client:
            Repository(client.store(id), "people", Customer).execute("c", lambda one: one.rename("Annabella"))

        def write(id: UUID = id) -> None:
            with streamkit.connect(f"file://{tmp_path}") as client:
                Repository(client.store(id), "people", Customer).snapshot("c")

        is_killed = killed_at(at, write)
        wrote += len(found_in(files_below(tmp_path), b"Annabella")) > 1
        with streamkit.connect(f"file://{tmp_path}") as client:
            assert client.store(id).erase("people", "c").unreached == ()
            assert found_in(files_below(tmp_path), b"Annabella") == [], f"killed before call {at}"
            client.delete_store(id)
        at += 1
    assert wrote > 1
