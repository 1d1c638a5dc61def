"""Erasing entries that were archived, trimmed, expired or deleted before: no reader gets them, but their bytes are
stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from harness import foreign_engines
from harness.deep_search import files_below, found_in, rows_in_memory
from streamkit import Record, Retention, Store
from streamkit.archive_url import archive_place
from streamkit.backend import Driver
from streamkit.client import Client
from streamkit.clock import SYSTEM_CLOCK
from streamkit.eventsourcing import Aggregate, Repository, event
from streamkit.testing import Crash, Fault, FaultyDriver, ManualClock, Plan
from streamkit.views import Latest
from streamkit_local.driver import LocalDriver
from streamkit_memory.driver import MemoryDriver

Stored = Callable[[], Iterator[tuple[str, bytes]]]
GRACE = 60.0


class Place:
    """A store whose clock the test moves, and every byte of it."""

    def __init__(self, url: str, path: Path) -> None:
        self.clock = ManualClock(1_800_000_000.0)
        self.url, self.path = url, path
        driver: Driver = LocalDriver(path / "root", 5.0)
        if url.startswith("memory:"):
            driver = MemoryDriver(url.removeprefix("memory://"), clock=self.clock, sleep=self.clock.sleep)
        self.client = Client(url, driver, 5.0, None, 64 << 20, self.clock, archive_place(f"file://{path}/cold"))
        self.store: Store = self.client.store(uuid4())

    def stored(self) -> Iterator[tuple[str, bytes]]:
        yield from files_below(self.path)
        if self.url.startswith("memory:"):
            yield from rows_in_memory(self.url)

    def holds(self, tag: bytes) -> list[str]:
        return found_in(self.stored(), tag)

    def maintain(self) -> None:
        """Run upkeep until all transactions that may leave the log have left it."""
        for _ in range(2):
            self.store.maintain()
            self.clock.sleep(2 * GRACE)
        self.store.maintain()


@pytest.fixture(params=["memory", "local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = f"memory://{uuid4()}" if request.param == "memory" else f"file://{tmp_path}/root"
    found = Place(url, tmp_path)
    found.store.create_space("a", archive_grace=GRACE)
    yield found
    found.client.delete_store(found.store.id)
    found.client.close()


TAG = os.urandom(16).hex().encode()
KEPT = os.urandom(16).hex().encode()


def write(store: Store, segment: str, count: int = 3, tag: bytes = TAG) -> None:
    for at in range(count):
        store.produce("a", segment, [Record(tag + b" %d" % at, {"subject": segment, "note": tag.decode()})])


def test_a_pack_across_the_archive_boundary_loses_what_was_archived(place: Place) -> None:
    pytest.importorskip("deltalake")
    write(place.store, "user-17/mails", 30)
    place.store.archive("a")
    write(place.store, "other", 1, KEPT)
    place.maintain()
    assert len(place.holds(TAG)) == 2, "it is in the archive, and in a pack of the log"
    report = place.store.erase("a", "user-17/mails")
    assert (report.entries, report.packs, report.files) == (30, 1, 1)
    assert place.holds(TAG) == []
    assert [entry.payload for entry in place.store.consume_space("a")] == [KEPT + b" 0"]
    assert place.store.verify().ok


REMOVALS: dict[str, Callable[[Store], object]] = {
    "trimmed": lambda store: store.trim("a", "user-17/mails", keep_entries=0),
    "deleted": lambda store: store.delete_segment("a", "user-17/mails"),
    "expired": lambda store: store.set_retention("a", Retention(max_entries=1)),
    "trimmed with the space": lambda store: store.trim("a", keep_entries=1),
    "expired with the space": lambda store: store.set_retention("a", Retention(max_entries=1, per="space")),
}
SELECTORS: dict[str, tuple[str | None, dict[str, str] | None]] = {
    "its name": ("user-17/mails", None),
    "a glob": ("user-17/*", None),
    "metadata": (None, {"subject": "user-17/mails"}),
    "both": ("user-*", {"subject": "user-17/mails"}),
}


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("how", REMOVALS)
@pytest.mark.parametrize("archived", [False, True], ids=["in the log", "archived"])
def test_what_was_removed_before_is_erased_too(place: Place, how: str, archived: bool, selector: str) -> None:
    if archived:
        pytest.importorskip("deltalake")
    store = place.store
    write(store, "user-17/mails")
    if archived:
        store.archive("a")
    write(store, "other", 1, KEPT)
    REMOVALS[how](store)
    place.maintain()
    segment, metadata = SELECTORS[selector]
    found = store.erase("a", segment, metadata=metadata, dry_run=True)
    report = store.erase("a", segment, metadata=metadata)
    assert place.holds(TAG) == []
    assert (found.entries, found.hidden) == (report.entries, report.hidden)
    assert place.holds(KEPT)
    assert store.verify().ok


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_segment_that_was_deleted_and_written_again_is_erased_with_its_past(place: Place, selector: str) -> None:
    write(place.store, "user-17/mails")
    place.store.delete_segment("a", "user-17/mails")
    place.maintain()
    write(place.store, "user-17/mails", 2)
    segment, metadata = SELECTORS[selector]
    report = place.store.erase("a", segment, metadata=metadata)
    assert report.entries == 2
    assert place.holds(TAG) == []
    write(place.store, "user-17/mails", 1, KEPT)
    assert [entry.sequence for entry in place.store.consume_segment("a", "user-17/mails")] == [6]


def test_the_trimmed_part_of_a_transaction_is_erased_where_only_the_index_has_a_copy(place: Place) -> None:
    """Its pack has lost that part, and its row has left the log."""
    for _ in range(30):
        place.store.produce("a", "s", [Record(os.urandom(1500))])
    place.store.produce("a", "s", [Record(TAG + b" %d" % at, {"subject": "one"}) for at in range(5)])
    place.store.trim("a", "s", before=34)
    place.maintain()
    place.store.erase("a", metadata={"subject": "one"})
    assert place.holds(TAG) == []
    assert list(place.store.consume_segment("a", "s")) == []
    assert place.store.verify().ok


def test_bounds_hold_for_what_was_removed_before(place: Place) -> None:
    """Sequences 1 to 4 are trimmed and stored; 2 and 3 are erased."""
    tags = [os.urandom(16).hex().encode() for _ in range(5)]
    place.store.produce("a", "s", [Record(tag, {"subject": "one"}) for tag in tags])
    place.store.trim("a", "s", keep_entries=1)
    place.store.erase("a", "s", first=2, last=2)
    place.store.erase("a", "s", first=3, last=3, metadata={"subject": "one"})
    assert [bool(place.holds(tag)) for tag in tags] == [True, False, False, True, True]
    assert [entry.payload for entry in place.store.consume_segment("a", "s")] == [tags[4]]


def test_a_glob_over_segments_without_entries_erases_no_others(place: Place) -> None:
    write(place.store, "user-17/mails")
    write(place.store, "user-1/mails", tag=KEPT)
    for segment in ("user-17/mails", "user-1/mails"):
        place.store.trim("a", segment, keep_entries=0)
    report = place.store.erase("a", "user-17/*")
    assert (report.entries, report.hidden) == (0, 3)
    assert place.holds(TAG) == []
    assert place.holds(KEPT)


class Person(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    @event
    def say(self, text: str) -> None:
        self.said.append(text)


def test_older_snapshots_of_an_aggregate_that_nobody_can_read_are_erased(place: Place) -> None:
    people = Repository(place.store, "a", Person, snapshot_every=2)
    for at in range(8):
        person = people.load("user-17")
        person.say(f"{TAG.decode()} {at}")
        people.save(person)
    place.maintain()
    assert place.holds(TAG)
    place.store.erase("a", "user-17")
    assert place.holds(TAG) == []


def test_a_space_that_is_deleted_leaves_nothing_on_disk(place: Place) -> None:
    write(place.store, "user-17/mails")
    place.store.delete_space("a")
    assert place.holds(TAG) == []


def test_a_note_that_a_killed_process_had_not_finished_is_removed_from_disk(tmp_path: Path) -> None:
    """A local disk keeps a journal of rewritten records, with the entries of other segments in the same transaction."""
    place = Place("file://", tmp_path)
    write(place.store, "user-17/mails")
    logs = [path for path in tmp_path.rglob("*.log") if TAG in path.read_bytes()]
    place.store.erase("a", "user-17/mails")
    for log in logs:
        (log.parent / "anew.new").write_bytes(TAG)
    place.store.erase("a", "user-17/mails")
    assert place.holds(TAG) == []


@pytest.mark.parametrize("engine", [foreign_engines.optimize, foreign_engines.optimize_small])
def test_another_engine_leaves_nothing_in_the_log_of_the_table(tmp_path: Path, engine: Callable[[Path], None]) -> None:
    """delta-rs notes the least and the greatest value of columns."""
    pytest.importorskip("deltalake")
    place = Place(f"memory://{uuid4()}", tmp_path)
    for _ in range(3):
        write(place.store, "user-17/mails")
        place.store.archive("a")
    for log in tmp_path.rglob("_delta_log"):
        engine(log.parent)
    place.store.erase("a", "user-17/mails")
    assert place.holds(TAG) == []


@pytest.mark.parametrize("later", ["nothing", "optimize", "checkpoint", "sidecar", "compact", "archive"])
@pytest.mark.parametrize("kind", ["text", "nested"])
def test_columns_that_others_have_added_lose_the_values_of_erased_entries(
    tmp_path: Path, kind: str, later: str
) -> None:
    """Their least and greatest values are in the log of the table, and in its checkpoints."""
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("deltalake")
    place = Place(f"memory://{uuid4()}", tmp_path)
    place.store.create_space("a", partitions=2)
    for at in range(3):
        write(place.store, f"user-17/{at}", 1, b"z" + TAG)
        write(place.store, "other", 1, KEPT)
        place.store.archive("a")
    (log,) = tmp_path.rglob("_delta_log")
    other = place.client.store(place.store.id)
    assert len(list(other.consume_space("a"))) == 6
    rows = foreign_engines.rows_of(log.parent)
    texts = [payload.decode() for payload in rows["payload"].to_pylist()]
    values = pa.array(texts if kind == "text" else [{"said": [text], "by": text} for text in texts])
    foreign_engines.add_column(log.parent, "note", values)
    if later == "optimize":
        foreign_engines.optimize(log.parent)
    elif later == "checkpoint":
        foreign_engines.table_of(log.parent).create_checkpoint()
    elif later == "sidecar":
        foreign_engines.checkpoint_with_sidecar(log.parent)
    elif later == "compact":
        place.store.compact("a", retention_hours=0)
    elif later == "archive":
        write(place.store, "user-17/3", 1)
        place.store.archive("a")
    assert place.holds(TAG)
    place.store.erase("a", "user-17/*")
    assert place.holds(TAG) == []
    for store in (place.store, other):
        assert [entry.payload for entry in store.consume_space("a")] == [KEPT + b" 0"] * 3
    notes = foreign_engines.rows_of(log.parent)["note"].to_pylist()
    assert len([note for note in notes if note is not None]) == 3
    write(place.store, "other", 1, KEPT)
    place.store.archive("a")
    assert len(list(other.consume_space("a"))) == 4
    assert place.store.verify().ok


@pytest.mark.parametrize("how", ["restored", "overwritten", "vacuumed"])
def test_the_log_loses_the_values_of_a_column_that_others_have_added_and_removed(tmp_path: Path, how: str) -> None:
    """The present version of the table does not tell that an earlier one had the column."""
    pa = pytest.importorskip("pyarrow")
    deltalake = pytest.importorskip("deltalake")
    place = Place(f"memory://{uuid4()}", tmp_path)
    for at in range(3):
        write(place.store, f"user-17/{at}", 1)
        write(place.store, "other", 1, KEPT)
        place.store.archive("a")
    (log,) = tmp_path.rglob("_delta_log")
    table, rows = foreign_engines.table_of(log.parent), foreign_engines.rows_of(log.parent)
    notes = pa.array([payload.decode() for payload in rows["payload"].to_pylist()])
    foreign_engines.add_column(log.parent, "note", notes)
    if how == "overwritten":
        deltalake.write_deltalake(str(log.parent), rows, mode="overwrite", schema_mode="overwrite")
    else:
        foreign_engines.table_of(log.parent).restore(table.version())
    if how == "vacuumed":
        later = foreign_engines.table_of(log.parent)
        later.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        later.create_checkpoint()
    assert any("_delta_log" in name for name in place.holds(TAG))
    place.store.erase("a", "user-17/*")
    assert place.holds(TAG) == []
    assert [entry.payload for entry in place.store.consume_space("a")] == [KEPT + b" 0"] * 3
    assert place.store.verify().ok


def test_the_versions_of_a_table_stay_if_others_have_only_compacted_it(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    place = Place(f"memory://{uuid4()}", tmp_path)
    for _ in range(3):
        write(place.store, "user-17/mails")
        place.store.archive("a")
    (log,) = tmp_path.rglob("_delta_log")
    foreign_engines.optimize(log.parent)
    place.store.erase("a", "user-17/mails")
    assert (log / f"{0:020}.json").exists()


def test_an_erasure_completes_a_deletion_that_was_interrupted() -> None:
    """The deletion begins with the snapshots. The space itself is as before until its own log has ended."""
    at, survived = 0, 0
    while True:
        name, id = uuid4().hex, uuid4()
        with streamkit.connect(f"memory://{name}?remote=1") as client:
            store = client.store(id)
            people = Repository(store, "a", Person, snapshot_every=2)
            for text in ("one", "two", "three"):
                people.execute("user-17", lambda person, text=text: person.say(f"{TAG.decode()} {text}"))  # type: ignore[misc]
        killed = FaultyDriver(MemoryDriver(name, remote=True), Plan.at(at, Fault.CRASH_BEFORE))
        with suppress(Crash):
            Client("memory://", killed, 5.0, None, 64 << 20, SYSTEM_CLOCK, None).store(id).delete_space("a")
        with streamkit.connect(f"memory://{name}?remote=1") as client:
            survived += client.store(id).erase("a", "user-17").entries == 3
            assert found_in(rows_in_memory(f"memory://{name}"), TAG) == [], f"killed before call {at}"
        if not killed.faults.crashed:
            break
        at += 1
    assert at > 20
    assert survived > 8


def test_an_erasure_that_finds_nothing_overwrites_what_is_left_of_deleted_rows(place: Place) -> None:
    write(place.store, "user-17/mails")
    write(place.store, "other", 1, KEPT)
    place.store.trim("a", keep_entries=1)
    place.maintain()
    place.store.erase("a", metadata={"subject": "user-17/mails"})
    assert place.holds(TAG) == []
    assert place.holds(KEPT)


def test_a_dry_run_after_an_erasure_finds_nothing_to_erase(place: Place) -> None:
    write(place.store, "user-17/mails", 6)
    place.store.trim("a", "user-17/mails", before=4)
    place.store.delete_segment("a", "user-17/mails")
    write(place.store, "user-17/mails", 2)
    before = place.store.erase("a", "user-17/*", dry_run=True)
    assert (before.entries, before.hidden) == (2, 6)
    assert place.store.erase("a", "user-17/*", last=4).hidden == 4
    assert place.store.erase("a", "user-17/*", dry_run=True).hidden == 2
    place.store.erase("a", "user-17/*")
    after = place.store.erase("a", "user-17/*", dry_run=True)
    assert (after.entries, after.hidden) == (0, 0)
    write(place.store, "user-17/mails", 3)
    place.store.trim("a", "user-17/mails", keep_entries=1)
    again = place.store.erase("a", "user-17/*", dry_run=True)
    assert (again.entries, again.hidden) == (1, 2)


def test_an_erasure_by_metadata_names_only_places_that_may_hold_what_was_removed(place: Place) -> None:
    people = Repository(place.store, "a", Person, snapshot_every=2)
    write(place.store, "user-18", 3)
    place.store.trim("a", "user-18", before=2)
    assert place.store.erase("a", metadata={"subject": "user-17"}).unreached == ()
    for text in ("one", "two"):
        person = people.load("user-17")
        person.say(text)
        people.save(person)
    (text,) = place.store.erase("a", metadata={"subject": "user-17"}).unreached
    assert "Values made of them may be in snapshots of aggregates: erase" in text
    place.store.erase("a", "user-17")
    assert place.store.erase("a", metadata={"subject": "user-17"}).unreached == ()
    with place.store.view("latest", Latest(lambda entry: entry.segment), spaces=["a"], publish=True) as view:
        view.catch_up()
        view.publish()
        (text,) = place.store.erase("a", metadata={"subject": "user-17"}).unreached
        assert "may be in the published views 'latest': erase" in text
