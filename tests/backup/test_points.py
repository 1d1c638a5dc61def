"""Points of a backup: copied, kept, refused and restored data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import urandom
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE
from fix_stores import Subject

import streamkit
from harness.deep_search import files_below, found_in
from harness.working_store import figures, prepare, spaces_of, work_once
from streamkit import Client, CorruptData, PermanentError, Record, Retention, Store
from streamkit.backup import repository, restore
from streamkit.backup.format import ROOT, backup_id, data_partition
from streamkit.store import inner
from streamkit.testing import Crash, Fault, FaultyDriver, ManualClock, Plan
from streamkit_memory import MemoryDriver


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Opens a store in a root of its own."""
    clients: list[Client] = []

    def make(id: UUID | None = None) -> Store:
        clients.append(streamkit.connect(f"file://{tmp_path}/{uuid4().hex}"))
        return clients[-1].store(id or uuid4())

    yield make
    for client in clients:
        client.close()


@pytest.fixture(autouse=True)
def no_wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait for the next second before a restore; one test checks that wait."""
    if "goes_on" not in request.node.name:
        monkeypatch.setattr(restore, "wait_for_tokens", lambda clock, point: None)


def payloads(store: Store, space: str) -> list[bytes]:
    return [entry.payload for entry in store.consume_space(space, gaps="skip")]


def rows_of(backups: Path, store: Store) -> Iterator[tuple[bytes, bytes]]:
    """All rows of the backup: (partition, key)."""
    with streamkit.connect(backups.as_uri()) as client:
        backend = inner(client.store(backup_id(store.id))).backend
        for space in (None, *spaces_of(store)):
            partition = ROOT if space is None else data_partition(space, 0)
            for row in backend.scan(partition, b"\x00", b"\xff" * 300):
                yield partition, row.key


def test_only_what_is_new_is_copied(subject: Subject, tmp_path: Path) -> None:
    store = subject.store
    for at in range(200):
        store.produce("a", f"s{at % 5}", [Record(b"%d" % at * 50)])
    store.produce("big", "s", [Record(bytes([at]) * 1_500_000) for at in range(4)])
    store.maintain()
    first = store.backup(tmp_path / "backups")
    again = store.backup(tmp_path / "backups")
    assert (again.files, again.bytes, again.point.number) == (0, 0, 2)
    store.produce("a", "s0", [Record(b"one more")])
    third = store.backup(tmp_path / "backups")
    assert third.bytes < first.bytes / 10
    assert third.point.transactions == first.point.transactions + 1
    assert [point.number for point in store.backups(tmp_path / "backups")] == [1, 2, 3]


def test_old_points_are_removed_with_all_that_only_they_need(
    subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store]
) -> None:
    store, backups = subject.store, tmp_path / "backups"
    prepare(store)
    for at in range(4):
        work_once(store, at)
        store.maintain()
        report = store.backup(backups, keep=2)
        assert report.removed == (at >= 2)
    points = store.backups(backups)
    assert [point.number for point in points] == [3, 4]
    kept = set(rows_of(backups, store))
    store.backup(backups, keep=1)
    assert len(set(rows_of(backups, store))) < len(kept)
    restored = elsewhere(store.id)
    restored.restore_backup(backups)
    found, expected = figures(restored), figures(subject.stranger())
    for name in expected:
        assert found[name] == expected[name], name
    with pytest.raises(PermanentError, match=r"no point 3; it has 5"):
        elsewhere(store.id).restore_backup(backups, point=3)


def test_a_store_that_is_not_at_its_url_removes_no_older_point(
    subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store], caplog: pytest.LogCaptureFixture
) -> None:
    store, backups = subject.store, tmp_path / "backups"
    store.produce("a", "s", [Record(b"1")])
    store.backup(backups, keep=1)
    report = elsewhere(store.id).backup(backups, keep=1)
    assert (report.point.number, report.point.spaces, report.removed) == (2, 0, 0)
    assert "check its URL" in caplog.text
    restored = elsewhere(store.id)
    restored.restore_backup(backups, point=1)
    assert payloads(restored, "a") == [b"1"]
    assert restored.backup(backups, keep=1).removed == 2


def test_older_points_go_when_all_spaces_were_deleted(subject: Subject, tmp_path: Path) -> None:
    store, backups = subject.store, tmp_path / "backups"
    for space in ("a", "b"):
        store.produce(space, "s", [Record(b"secret of " + space.encode())])
    store.backup(backups)
    for space in ("a", "b"):
        store.delete_space(space)
    assert store.backup(backups, keep=1).removed == 1
    assert not found_in(files_below(backups), b"secret of")


def test_a_backup_of_a_deleted_store_is_deleted_with_all_its_points(
    subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store]
) -> None:
    deleted, kept, backups = elsewhere(), subject.store, tmp_path / "backups"
    for store in (deleted, kept):
        store.produce("a", "s", [Record(f"secret of {store.id}".encode())])
        store.backup(backups)
    with streamkit.connect(backups.as_uri()) as client:
        client.delete_store(backup_id(deleted.id))
    assert deleted.backups(backups) == []
    assert [point.number for point in kept.backups(backups)] == [1]
    assert not found_in(files_below(backups), f"secret of {deleted.id}".encode())


def test_an_error_names_a_few_of_many_stores(tmp_path: Path, elsewhere: Callable[..., Store]) -> None:
    for _ in range(7):
        elsewhere().backup(tmp_path / "backups")
    with pytest.raises(PermanentError, match=r"it has backups of (\S+, ){4}\S+ and 2 others: name one of them"):
        elsewhere().restore_backup(tmp_path / "backups")


def test_a_store_that_has_something_is_not_overwritten(
    subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store]
) -> None:
    store = subject.store
    store.produce("a", "s", [Record(b"1")])
    store.backup(tmp_path / "backups")
    with pytest.raises(PermanentError, match="is not empty"):
        store.restore_backup(tmp_path / "backups")
    other = elsewhere()
    other.produce("mine", "s", [Record(b"2")])
    with pytest.raises(PermanentError, match="is not empty"):
        other.restore_backup(tmp_path / "backups", backup_of=store.id)
    with pytest.raises(PermanentError, match=f"it has backups of {store.id}: name one of them with backup_of"):
        other.restore_backup(tmp_path / "backups")
    with pytest.raises(PermanentError, match=r"no backup of the store .* or of any other store: name another"):
        other.restore_backup(tmp_path / "nothing")
    assert list(other.get_spaces()) == ["mine"]
    assert payloads(other, "mine") == [b"2"]


def test_one_space_alone_comes_back_beside_others(
    subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store]
) -> None:
    store = subject.store
    prepare(store)
    work_once(store, 1)
    store.backup(tmp_path / "backups")
    other = elsewhere()
    other.produce("mine", "s", [Record(b"2")])
    other.restore_backup(tmp_path / "backups", spaces=["orders"], backup_of=store.id)
    assert list(other.get_spaces()) == ["mine", "orders"]
    assert list(other.consume_space("orders")) == list(store.consume_space("orders"))
    assert other.get_groups("orders") == []
    with pytest.raises(PermanentError, match="has a space 'orders'"):
        other.restore_backup(tmp_path / "backups", spaces=["orders"], backup_of=store.id)
    with pytest.raises(PermanentError, match="has no space 'oders'"):
        other.restore_backup(tmp_path / "backups", spaces=["oders"], backup_of=store.id)
    assert other.verify().ok


def test_a_restored_store_goes_on(subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store]) -> None:
    store = subject.store
    store.create_space("a", partitions=3, idempotency_window=600.0)
    store.set_retention("b", Retention(max_entries=5))
    for at in range(20):
        store.produce("a", f"s{at % 6}", [Record(b"%d" % at)], idempotency_key=f"k{at}")
        store.produce("b", "s", [Record(b"%d" % at)])
    offset = store.end_offset("a")
    with store.lease("leader") as old:
        store.produce("a", "led", [Record(b"old leader")], lease=old)
    store.backup(tmp_path / "backups")
    restored = elsewhere(store.id)
    restored.restore_backup(tmp_path / "backups")
    with pytest.raises(streamkit.SequenceMismatch):
        restored.produce("a", "s0", [Record(b"x")], expected_sequence=1)
    status = restored.produce("a", "s1", [Record(b"1")], idempotency_key="k1")
    assert status.trx == next(iter(store.consume_segment("a", "s1"))).trx
    with restored.lease("leader") as new:
        assert new.token > old.token
        restored.produce("a", "led", [Record(b"new leader")], lease=new)
    restored.produce("b", "s", [Record(b"more")])
    assert payloads(restored, "b") == [b"16", b"17", b"18", b"19", b"more"]
    assert [entry.payload for entry in restored.consume_space("a", offset=offset)] == [b"old leader", b"new leader"]
    # The store that was set back is backed up to the same place, and its history is its own.
    assert restored.backup(tmp_path / "backups").point.number == 2
    again = elsewhere(store.id)
    again.restore_backup(tmp_path / "backups")
    assert figures(again) | {"keys": 0} == figures(restored) | {"keys": 0}
    assert again.verify().ok


def test_histories_that_parted_are_not_mixed(subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store]) -> None:
    store, backups = subject.store, tmp_path / "backups"
    store.produce("a", "s", [Record(b"1")])
    store.backup(backups)
    store.produce("a", "s", [Record(b"lost")] * 3)
    store.backup(backups)
    restored = elsewhere(store.id)
    restored.restore_backup(backups, point=1)
    for payload in (b"2", b"3", b"4"):
        restored.produce("a", "s", [Record(payload)])
    restored.backup(backups)
    again = elsewhere(store.id)
    again.restore_backup(backups)
    assert payloads(again, "a") == [b"1", b"2", b"3", b"4"]
    assert again.verify().ok


@pytest.mark.parametrize("maintained", [False, True])
def test_what_was_erased_later_does_not_come_back_with_an_older_point(
    subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store], maintained: bool
) -> None:
    store, backups = subject.store, tmp_path / "backups"
    secrets = [urandom(600) for _ in range(10)]  # nothing makes them smaller, so they can be searched for
    for at, secret in enumerate(secrets):
        store.produce("a", f"user-{at % 2}[*]", [Record(secret)])
    store.backup(backups)

    def is_stored(secret: bytes) -> bool:
        """True if any part of the text is in the backup."""
        stored = [path.read_bytes() for path in backups.rglob("*") if path.is_file()]
        return any(secret[at : at + 16] in data for data in stored for at in range(0, len(secret), 16))

    assert all(map(is_stored, secrets))
    store.erase("a", "user-1*", first=2, last=4)
    if maintained:
        store.maintain()
    store.backup(backups)
    restored = elsewhere(store.id)
    assert restored.restore_backup(backups, point=1).erasures == 1
    assert payloads(restored, "a") == payloads(store, "a")
    assert restored.verify().ok
    latest = elsewhere(store.id)
    assert latest.restore_backup(backups).erasures == 0
    assert payloads(latest, "a") == payloads(store, "a")
    store.backup(backups, keep=1)
    assert [is_stored(secret) for secret in secrets] == [at not in (3, 5, 7) for at in range(10)]


def test_texts_of_failures_that_quote_what_was_erased_later_do_not_come_back_with_an_older_point(
    tmp_path: Path, elsewhere: Callable[..., Store]
) -> None:
    store, backups, secret = elsewhere(), tmp_path / "backups", urandom(12).hex()

    def quote(payload: bytes) -> bool:
        if payload != b"fine":
            raise ValueError(payload.decode())
        return True

    store.produce("a", "user-0", [Record(b"fine")])
    store.produce("a", "user-1", [Record(secret.encode())])
    done = store.group("a", "done", segments=["user-0"])
    done.run(lambda delivery: None, drain=True)
    store.group("a", "dead", max_deliveries=1).run(lambda delivery: quote(delivery.entry.payload), drain=True)
    store.route("copies", "a", "there", lambda entry: quote(entry.payload)).catch_up()
    store.backup(backups)
    store.erase("a", "user-1")
    store.backup(backups)
    restored = elsewhere(store.id)
    assert restored.restore_backup(backups, point=1).erasures
    roots = [path for path in tmp_path.iterdir() if path != backups]
    assert found_in(files_below(*roots), secret.encode()) == []
    for opened in (store, restored):
        (route,) = opened.get_routes()
        assert (route.error, route.copied) == (None, 1)
        for name, acked in (("done", 1), ("dead", 1)):
            status = opened.group("a", name).status()
            assert (status.acked, status.dead, status.pending, status.ready, status.lag) == (acked, 0, 0, 0, 0)
    assert restored.verify().ok


def test_an_erasure_is_known_when_its_transaction_is_trimmed(
    subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store]
) -> None:
    store, backups = subject.store, tmp_path / "backups"
    for at in range(10):
        store.produce("a", f"user-{at % 2}", [Record(b"%d" % at)])
    store.backup(backups)
    store.erase("a", "user-1")
    store.trim("a", before=store.end_offset("a"))
    store.produce("a", "user-0", [Record(b"10")])
    store.maintain()
    store.trim("a", before=store.end_offset("a"))
    store.produce("a", "user-0", [Record(b"11")])
    store.maintain()
    store.backup(backups)
    store.backup(backups)
    restored = elsewhere(store.id)
    assert restored.restore_backup(backups, point=1).erasures == 1
    assert payloads(restored, "a") == [b"0", b"2", b"4", b"6", b"8"]
    latest = elsewhere(store.id)
    assert latest.restore_backup(backups, point=2).erasures == 0


def test_an_erasure_is_known_that_a_restored_store_made_before_it_was_as_long_as_the_lost_one(
    subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store]
) -> None:
    store, backups = subject.store, tmp_path / "backups"
    store.produce("a", "user-1", [Record(b"1")])
    store.backup(backups)
    for _ in range(20):
        store.produce("a", "user-0", [Record(b"0")])
    store.backup(backups)
    again = elsewhere(store.id)
    again.restore_backup(backups, point=1)
    again.erase("a", "user-1")
    for _ in range(30):
        again.produce("a", "user-0", [Record(b"0")])
    again.maintain()
    again.backup(backups)
    third = elsewhere(store.id)
    assert third.restore_backup(backups, point=1).erasures == 1
    assert payloads(third, "a") == []


def test_a_restored_store_knows_what_was_erased_before_and_tells_another_backup(
    tmp_path: Path, elsewhere: Callable[..., Store]
) -> None:
    store, here, there = elsewhere(), tmp_path / "here", tmp_path / "there"
    store.produce("a", "user-1", [Record(b"1")])
    store.backup(here)
    store.erase("a", "user-1")
    store.backup(there)
    again = elsewhere(store.id)
    again.restore_backup(there)
    again.backup(here)
    third = elsewhere(store.id)
    assert third.restore_backup(here, point=1).erasures == 1
    assert payloads(third, "a") == []


def test_a_damaged_row_is_found(subject: Subject, tmp_path: Path, elsewhere: Callable[..., Store]) -> None:
    store, backups = subject.store, tmp_path / "backups"
    for at in range(30):
        store.produce("a", "s", [Record(b"%d" % at * 100)])
    store.maintain()
    store.produce("a", "s", [Record(b"tail")])
    store.backup(backups)
    rows = list(rows_of(backups, store))
    assert len(rows) >= 3
    for partition, key in rows:
        with streamkit.connect(backups.as_uri()) as client:
            backend = inner(client.store(backup_id(store.id))).backend
            value = backend.get(partition, [key])[0]
            assert value is not None
            for damaged in (value.data[:9] + bytes([value.data[9] ^ 1]) + value.data[10:], value.data[:-40], b""):
                backend.put(partition, key, damaged)
                with pytest.raises(CorruptData, match="restore an earlier point"):
                    elsewhere(store.id).restore_backup(backups)
            backend.put(partition, key, value.data)
    elsewhere(store.id).restore_backup(backups)


class Place:
    """A root in memory that may fail, for a backup or for a store. Its leases end by `clock`."""

    def __init__(self, *, remote: bool = True) -> None:
        self.clock = ManualClock(time.time())
        self._name = uuid4().hex
        self._remote = remote

    def client(self, plan: Plan | None = None) -> tuple[FaultyDriver, Client]:
        inner_driver = MemoryDriver(self._name, clock=self.clock, sleep=self.clock.sleep, remote=self._remote)
        driver = FaultyDriver(inner_driver, plan or Plan())
        return driver, Client("memory://", driver, 0.05, None, 64 << 20, self.clock)


def sampled(calls: int) -> range:
    return range(0, calls, 1 if EXHAUSTIVE else max(1, calls // 4))


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_ANSWER, Fault.TWICE])
def test_a_backup_that_is_stopped_anywhere_is_completed_by_the_next(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[..., Store]
) -> None:
    url, id = f"memory://{uuid4().hex}?remote=1", uuid4()
    source = streamkit.connect(url).store(id)
    prepare(source)
    for at in range(3):
        work_once(source, at)
    source.maintain()

    drivers: list[FaultyDriver] = []

    def use(place: Place, plan: Plan | None = None) -> None:
        """Backups are kept in this place from now on."""

        def connect(url: str) -> Client:
            driver, client = place.client(plan)
            drivers.append(driver)
            return client

        monkeypatch.setattr(repository, "connect", connect)

    def run(place: Place, plan: Plan | None = None) -> int:
        use(place, plan)
        with suppress(Crash, streamkit.StreamkitError):
            source.backup("memory://backup", keep=1)
        drivers[-1].faults.release()
        place.clock.sleep(100)  # the lease of a process that was stopped ends
        return len(drivers[-1].faults.trace)

    expected = figures(streamkit.connect(url).store(id))
    for at in sampled(run(Place())):
        place = Place()
        run(place)
        source.produce("more", "s", [Record(b"%d" % at)])
        run(place, Plan.at(at, fault))
        use(place)
        source.backup("memory://backup", keep=1)
        restored = elsewhere(source.id)
        restored.restore_backup("memory://backup")
        found = figures(restored)
        assert all(found[name] == expected[name] for name in expected)
        assert payloads(restored, "more") == payloads(source, "more")


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_ANSWER, Fault.TWICE])
@pytest.mark.parametrize("remote", [False, True])
def test_a_restore_that_is_stopped_anywhere_is_completed_by_the_same_call(
    tmp_path: Path, fault: Fault, remote: bool
) -> None:
    store, backups = streamkit.connect(f"memory://{uuid4().hex}?remote=1").store(uuid4()), tmp_path / "backups"
    prepare(store)
    for at in range(3):
        work_once(store, at)
    store.backup(backups)
    store.erase("old", "s1", last=1)
    store.backup(backups)
    store.produce("later", "s", [Record(b"x")])

    def run(place: Place, plan: Plan | None = None) -> int:
        driver, client = place.client(plan)
        with suppress(Crash, streamkit.StreamkitError):
            client.store(store.id).restore_backup(backups, point=1)
        driver.faults.release()
        return len(driver.faults.trace)

    whole = Place(remote=remote)
    calls = run(whole)
    expected = payloads(whole.client()[1].store(store.id), "old")
    for at in sampled(calls):
        place = Place(remote=remote)
        run(place, Plan.at(at, fault))
        restored = place.client()[1].store(store.id)
        if at < calls - 1 and "later" not in restored.get_spaces():
            with suppress(PermanentError):  # it had been completed, and its answer was lost
                restored.restore_backup(backups, point=1)
        assert payloads(restored, "old") == expected
        assert list(restored.consume_space("orders")) == list(store.consume_space("orders"))
        assert restored.verify().ok


def test_records_of_many_mib_that_cannot_be_compressed_come_back(
    in_memory: Subject, tmp_path: Path, elsewhere: Callable[..., Store]
) -> None:
    """The log packs no such records, and a backup does. Neither point copies what the other one has."""
    store, backups = in_memory.store, tmp_path / "backups"
    sizes = [3 << 20, 10, 9 << 20]
    for number, size in enumerate(sizes, 1):
        store.produce("a", "s", [Record(urandom(size))])
        assert store.backup(backups).point.number == number
    restored = elsewhere(store.id)
    restored.restore_backup(backups)
    assert list(restored.consume_space("a")) == list(store.consume_space("a"))
    assert restored.verify().ok


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER], ids=str)
def test_a_lost_answer_at_any_write_of_a_restore_changes_nothing(tmp_path: Path, fault: Fault) -> None:
    id = uuid4()
    with streamkit.connect(f"memory://{uuid4().hex}") as client, client.store(id) as store:
        store.create_space("a", partitions=2)
        for at in range(4):
            store.produce("a", f"s{at}", [Record(b"%d" % at)])
        store.backup(tmp_path / "backups")
        entries = list(store.consume_space("a"))
    for at in range(100):
        root = uuid4().hex
        driver = FaultyDriver(MemoryDriver(root), Plan.at(at, fault, kind="put"))
        with Client("memory://", driver, 30.0, None, 64 << 20, ManualClock(time.time())) as client:
            client.store(id).restore_backup(tmp_path / "backups")
            assert list(client.store(id).consume_space("a")) == entries
        if not any(call.fault for call in driver.faults.trace):
            assert at > 5
            return
    raise AssertionError("it never ended")
