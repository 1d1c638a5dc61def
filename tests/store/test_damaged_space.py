"""A damaged space does not stop the work on the others, and it can be deleted."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from uuid import UUID, uuid4

import pytest

import streamkit
from harness.bit_flips import flipped
from streamkit import CorruptData, Record, Store
from streamkit.backend import Backend
from streamkit.cli.app import run
from streamkit.client import Client
from streamkit.log.keys import CATALOG, HEAD, RUNS, partition_key, space_key
from streamkit.names import partition_of
from streamkit.testing import Crash, Fault, FaultyDriver, ManualClock, Plan
from streamkit_memory import MemoryDriver

ID = UUID(int=7)
Place = Callable[[str, int], Path]
"""The directory of a partition of a space."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    def place(space: str, partition: int = 0) -> Path:
        name = blake2b(bytes(partition_key(space, partition)), digest_size=16).hexdigest()
        return tmp_path / "stores" / str(ID) / name

    return place


def opened(tmp_path: Path) -> Store:
    return streamkit.connect((tmp_path / "stores").as_uri()).store(ID)


def fill(store: Store, *spaces: str) -> None:
    for space in spaces:
        for n in range(5):
            store.produce(space, f"s{n}", [Record(b"payload %d" % n)])


def flip(directory: Path, text: bytes = b"payload 2") -> None:
    for path in directory.glob("*.log"):
        data = path.read_bytes()
        path.write_bytes(flipped(data, data.index(text)))


@pytest.fixture
def damaged(tmp_path: Path, place: Place) -> Iterator[Store]:
    """A store with three spaces; `orders`, which comes between the others, has a flipped bit."""
    with opened(tmp_path) as store:
        fill(store, "a", "orders", "z")
    flip(place("orders", 0))
    with opened(tmp_path) as store:
        yield store


def test_a_space_that_cannot_be_read_is_deleted_and_made_again(damaged: Store) -> None:
    with pytest.raises(CorruptData):
        damaged.segment_status("orders", "s1")
    damaged.delete_space("orders")
    assert list(damaged.get_spaces()) == ["a", "z"]
    assert damaged.produce("orders", "s1", [Record(b"new")]).last_sequence == 1
    assert damaged.verify().ok


@pytest.mark.parametrize("partition", [0, 1, 3])
def test_a_space_is_deleted_whichever_of_its_partitions_is_damaged(
    tmp_path: Path, place: Place, partition: int
) -> None:
    with opened(tmp_path) as store:
        store.create_space("orders", 4)
        for n in range(40):
            store.produce("orders", f"s{n}", [Record(b"payload 2")])
        fill(store, "z")
    flip(place("orders", partition))
    with opened(tmp_path) as store:
        store.delete_space("orders")
        assert list(store.get_spaces()) == ["z"]
    assert not any(place("orders", n).exists() and any(place("orders", n).glob(".new*")) for n in range(4))
    with opened(tmp_path) as store:
        fill(store, "orders")
        assert store.verify().ok
        assert len(list(store.consume_space("orders"))) == 5


@pytest.mark.parametrize("partition", [0, 1])
def test_a_space_is_deleted_although_the_head_of_a_log_is_cut_short(
    tmp_path: Path, place: Place, partition: int
) -> None:
    with opened(tmp_path) as store:
        store.create_space("orders", 2)
        for n in range(20):
            store.produce("orders", f"s{n}", [Record(b"payload")])
    (place("orders", partition) / "head").write_bytes(b"")
    with opened(tmp_path) as store:
        store.delete_space("orders")
        assert not list(store.get_spaces())
        assert not place("orders", partition).exists()
        assert store.verify().ok


def test_a_late_write_to_a_deleted_damaged_space_is_not_in_the_space_that_is_made_again(
    tmp_path: Path, place: Place
) -> None:
    with opened(tmp_path) as other:
        fill(other, "orders")
        flip(place("orders", 0))
        with opened(tmp_path) as store:
            store.delete_space("orders")
        with contextlib.suppress(streamkit.StreamkitError):
            other.produce("orders", "s1", [Record(b"late")])
    with opened(tmp_path) as store:
        assert not list(store.get_spaces())
        fill(store, "orders")
        assert [entry.payload for entry in store.consume_space("orders")] == [b"payload %d" % n for n in range(5)]
        assert store.verify().ok


def test_maintain_goes_on_with_the_other_spaces_and_names_the_damaged_one(damaged: Store) -> None:
    watermarks = []
    with pytest.raises(CorruptData, match="space 'orders'"):
        damaged.maintain()
    for space in ("a", "z"):
        known = streamkit.store.inner(damaged).look_up(space)[0]
        assert known is not None
        watermarks.append(known.partitions[0].watermark)
    assert watermarks == [5, 5]
    with pytest.raises(CorruptData):
        damaged.maintain("orders")


def test_the_size_of_a_store_names_its_damaged_spaces_and_counts_the_others(damaged: Store) -> None:
    found = damaged.size()
    assert (found.entries, found.damaged) == (10, ("orders",))
    with pytest.raises(CorruptData):
        damaged.size("orders")
    damaged.delete_space("orders")
    assert damaged.size().damaged == ()


def test_the_commands_go_on_with_the_other_spaces(
    damaged: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STREAMKIT_URL", (tmp_path / "stores").as_uri())
    monkeypatch.setenv("STREAMKIT_STORE", str(ID))
    for command, printed in (("status", "5 entries"), ("size", "10 entries")):
        assert run([command]) == 1
        told = capsys.readouterr()
        assert printed in told.out
        assert "'orders'" in told.err
    assert run(["maintain"]) == 1
    assert "'orders'" in capsys.readouterr().err
    assert run(["rm", "orders", "--yes"]) == 0
    assert run(["status"]) == 0


# -- backups ---------------------------------------------------------------------------------------------------------


def test_a_backup_names_the_damaged_space_and_makes_no_point(damaged: Store, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=r"space 'orders' .*no new point.*skip_damaged"):
        damaged.backup(tmp_path / "kept")
    assert damaged.backups(tmp_path / "kept") == []


def test_a_backup_can_skip_a_damaged_space_and_names_it_in_the_point(damaged: Store, tmp_path: Path) -> None:
    point = damaged.backup(tmp_path / "kept", skip_damaged=True).point
    assert (point.spaces, point.transactions, point.skipped) == (2, 10, ("orders",))
    assert damaged.backups(tmp_path / "kept") == [point]
    with streamkit.connect((tmp_path / "other").as_uri()) as client, client.store(ID) as restored:
        assert restored.restore_backup(tmp_path / "kept").point.skipped == ("orders",)
        assert list(restored.get_spaces()) == ["a", "z"]
        assert restored.verify().ok


def test_a_backup_that_skips_a_space_removes_no_older_point(tmp_path: Path, place: Place) -> None:
    with opened(tmp_path) as store:
        fill(store, "a", "orders")
        store.backup(tmp_path / "kept")
    flip(place("orders", 0))
    with opened(tmp_path) as store:
        fill(store, "a")
        assert store.backup(tmp_path / "kept", keep=1, skip_damaged=True).removed == 0
        assert [point.skipped for point in store.backups(tmp_path / "kept")] == [(), ("orders",)]
        store.delete_space("orders")
        assert store.backup(tmp_path / "kept", keep=1, skip_damaged=True).removed == 2
    with streamkit.connect((tmp_path / "other").as_uri()) as client, client.store(ID) as restored:
        restored.restore_backup(tmp_path / "kept")
        assert restored.size().entries == 10


def test_the_backup_command_skips_a_damaged_space_and_ends_with_1(
    damaged: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STREAMKIT_URL", (tmp_path / "stores").as_uri())
    monkeypatch.setenv("STREAMKIT_STORE", str(ID))
    assert run(["backup", str(tmp_path / "kept")]) == 1
    assert "--skip-damaged" in capsys.readouterr().err
    assert run(["backup", str(tmp_path / "kept"), "--skip-damaged"]) == 1
    told = capsys.readouterr()
    assert "2 spaces" in told.out
    assert "'orders'" in told.err


# -- errors ----------------------------------------------------------------------------------------------------------

REMEDY = r"space 'orders', partition 0.*`streamkit salvage orders NEW` .* from a backup"


def test_every_error_names_the_damaged_space_and_how_to_salvage_it(damaged: Store) -> None:
    record = [Record(b"1")]
    calls: dict[str, Callable[[], object]] = {
        "consume": lambda: list(damaged.consume_space("orders")),
        "status": lambda: damaged.segment_status("orders", "s1"),
        "produce": lambda: damaged.produce("orders", "s1", record),
        "trim": lambda: damaged.trim("orders", keep_entries=1),
        "erase": lambda: damaged.erase("orders", "s1"),
        "maintain": lambda: damaged.maintain(),
        "size": lambda: damaged.size("orders"),
    }
    for call in calls.values():
        with pytest.raises(CorruptData, match=REMEDY):
            call()
    (finding,) = damaged.verify().findings
    assert re.search(REMEDY, finding.problem)


def test_a_name_with_a_space_is_quoted_in_the_remedy(tmp_path: Path, place: Place) -> None:
    with opened(tmp_path) as store:
        fill(store, "new orders")
    flip(place("new orders", 0))
    with opened(tmp_path) as store, pytest.raises(CorruptData, match="`streamkit salvage 'new orders' NEW`"):
        store.peek("new orders", "s1")


def test_a_lost_transaction_in_rows_names_the_space_and_the_remedy() -> None:
    with streamkit.connect("memory://") as client:
        id = uuid4()
        with client.store(id) as store:
            fill(store, "orders")
            backend = streamkit.store.inner(store).backend
            key = bytes(partition_key("orders", 0))
            rows = [row.key for row in backend.scan(key, b"TXN", b"TXO")]
            backend.delete(key, rows[1:2])
        with client.store(id) as store, pytest.raises(CorruptData, match=REMEDY):
            list(store.consume_space("orders"))


HARMS: dict[str, Callable[[Backend], None]] = {
    "row": lambda backend: damage_row(backend, bytes(CATALOG), bytes(space_key("orders"))),
    "head": lambda backend: backend.delete(bytes(partition_key("orders", 0)), [bytes(HEAD)]),
    "bad head": lambda backend: damage_row(backend, bytes(partition_key("orders", 0)), bytes(HEAD)),
    "rows": lambda backend: delete_rows(backend, bytes(partition_key("orders", 0))),
}
"""Damage to the catalog's row, a missing head, a damaged head, and a first partition without rows."""


def damage_row(backend: Backend, partition: bytes, key: bytes) -> None:
    (value,) = backend.get(partition, [key])
    assert value is not None
    backend.put(partition, key, flipped(value.data, len(value.data) - 1))


def delete_rows(backend: Backend, partition: bytes) -> None:
    backend.delete(partition, [row.key for row in backend.scan(partition, b"\x00", b"\xff" * 300)])


@pytest.mark.parametrize("harms", ["row", "head", "bad head", "row, head", "row, bad head", "row, rows"])
@pytest.mark.parametrize("url", ["memory://", "memory://?remote=1", "file://"])
def test_a_space_is_deleted_although_its_row_in_the_catalog_or_its_head_is_damaged(
    tmp_path: Path, url: str, harms: str
) -> None:
    url = f"file://{tmp_path}" if url == "file://" else url.replace("//", f"//{uuid4().hex}")
    with streamkit.connect(url) as client, client.store(ID) as store:
        store.create_space("orders", 3)
        for n in range(12):
            store.produce("orders", f"s{n}", [Record(b"payload")])
        fill(store, "a")
        for harm in harms.split(", "):
            HARMS[harm](streamkit.store.inner(store).backend)
    with streamkit.connect(url) as client, client.store(ID) as store:
        store.delete_space("orders")
        assert list(store.get_spaces()) == ["a"]
        backend = streamkit.store.inner(store).backend
        left = [row.key for at in range(3) for row in backend.scan(bytes(partition_key("orders", at)), b"I", b"J")]
        assert left == [], "no head, no file of the index"
        fill(store, "orders")
        assert store.verify().ok
        assert len(list(store.consume_space("orders"))) == 5


FILES: dict[str, Callable[[Backend, bytes, bytes], None]] = {
    "cut short": lambda backend, partition, key: replace_row(
        backend, partition, key, lambda data: data[: len(data) // 2]
    ),
    "flipped": lambda backend, partition, key: replace_row(backend, partition, key, lambda data: bytes(len(data))),
    "gone": lambda backend, partition, key: backend.delete(partition, [key]),
}


def replace_row(backend: Backend, partition: bytes, key: bytes, change: Callable[[bytes], bytes]) -> None:
    (value,) = backend.get(partition, [key])
    assert value is not None
    backend.put(partition, key, change(value.data))


@pytest.mark.parametrize("harm", FILES)
def test_an_error_about_a_file_of_the_index_or_the_log_names_the_space_and_the_next_step(harm: str) -> None:
    url = f"memory://{uuid4().hex}"
    with streamkit.connect(url) as client, client.store(ID) as store:
        store.create_space("orders", 2)
        for n in range(200):
            store.produce("orders", f"s{n % 40}", [Record(b"x" * 200)], idempotency_key=f"k{n}")
        store.maintain()
        backend, partition = streamkit.store.inner(store).backend, bytes(partition_key("orders", 1))
        keys = [row.key for row in backend.scan(partition, bytes(RUNS), bytes(RUNS) + b"\xff" * 99)]
        assert keys
        for key in keys:
            FILES[harm](backend, partition, key)
    names = [f"s{n}" for n in range(40)]
    calls: dict[str, Callable[[Store], object]] = {
        "status": lambda store: [store.segment_status("orders", name) for name in names],
        "consume": lambda store: list(store.consume_space("orders")),
        "segment": lambda store: [list(store.consume_segment("orders", name)) for name in names],
        "produce": lambda store: [store.produce("orders", name, [Record(b"y")]) for name in names],
        "lookup": lambda store: [store.lookup("orders", f"k{n}") for n in range(40)],
        "segments": lambda store: list(store.get_segments("orders")),
        "size": lambda store: store.size("orders"),
    }
    for name, call in calls.items():
        with streamkit.connect(url) as client, client.store(ID) as store, pytest.raises(CorruptData) as refused:
            call(store)
        assert re.match(
            r"space 'orders', partition 1: the (run|pack) .*`streamkit (repair orders|salvage orders NEW)`",
            str(refused.value),
        ), (name, refused.value)


# -- the list of the spaces ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["flipped", "gone"])
def test_a_list_of_the_spaces_that_cannot_be_read_is_repaired(tmp_path: Path, harm: str) -> None:
    with opened(tmp_path) as store:
        fill(store, "a", "orders", "z")
    directory = tmp_path / "stores" / str(ID) / blake2b(bytes(CATALOG), digest_size=16).hexdigest()
    if harm == "gone":
        shutil.rmtree(directory)
    else:
        flip(directory, b"orders")
    with opened(tmp_path) as store:
        with pytest.raises(CorruptData):
            list(store.get_spaces())
        assert any("`streamkit repair`" in finding.problem for finding in store.verify().findings)
        assert store.peek("orders", "s1").payload == b"payload 1", "a space is readable by its name"
        assert store.repair() > 0
        assert list(store.get_spaces()) == ([] if harm == "gone" else ["a", "z"])
        for space in ("a", "orders", "z"):
            store.repair(space)
        assert list(store.get_spaces()) == ["a", "orders", "z"]
        assert store.verify().ok
        assert store.repair() == 0
        store.delete_space("orders")
        assert list(store.get_spaces()) == ["a", "z"]


# -- a partition that is gone ----------------------------------------------------------------------------------------


def remove(place: Place, tmp_path: Path, partitions: int, *gone: int) -> None:
    """A store with the spaces `a` and `orders`. The directories of some partitions of `orders` are gone."""
    with opened(tmp_path) as store:
        fill(store, "a")
        store.create_space("orders", partitions)
        for n in range(12):
            store.produce("orders", f"s{n}", [Record(b"payload %d" % n)])
    for partition in gone:
        shutil.rmtree(place("orders", partition))


def segment_on(partition: int, partitions: int) -> str:
    """A segment of the partition."""
    return next(name for n in range(12) if partition_of(name := f"s{n}", partitions) == partition)


@pytest.fixture
def lost(tmp_path: Path, place: Place) -> Iterator[Store]:
    """A store in which the directory of `orders` is gone."""
    remove(place, tmp_path, 1, 0)
    with opened(tmp_path) as store:
        yield store


@pytest.mark.parametrize("partition", [0, 1])
def test_a_space_whose_partition_is_missing_is_not_taken_for_a_new_one(
    tmp_path: Path, place: Place, partition: int
) -> None:
    remove(place, tmp_path, 2, partition)
    segment = segment_on(partition, 2)
    calls: dict[str, Callable[[Store], object]] = {
        "produce": lambda store: store.produce("orders", segment, [Record(b"x")]),
        "create": lambda store: store.create_space("orders", 2) or store.segment_status("orders", segment),
        "consume": lambda store: list(store.consume_space("orders")),
        "segment": lambda store: list(store.consume_segment("orders", segment)),
        "status": lambda store: store.segment_status("orders", segment),
        "peek": lambda store: store.peek("orders", segment),
        "end": lambda store: store.end_offset("orders"),
        "size": lambda store: store.size("orders"),
        "maintain": lambda store: store.maintain("orders"),
        "backup": lambda store: store.backup(tmp_path / "kept"),
    }
    for call in calls.values():
        with (
            opened(tmp_path) as store,
            pytest.raises(CorruptData, match=rf"partition {partition}: .* is missing: .*sal"),
        ):
            call(store)
    assert not place("orders", partition).exists()


def test_the_loss_is_noticed_of_a_store_that_an_earlier_release_has_made(tmp_path: Path, place: Place) -> None:
    remove(place, tmp_path, 1)
    for mark in place("orders", 0).parent.glob("*.made"):
        mark.unlink()
    with opened(tmp_path) as store:
        assert store.peek("orders", "s1").sequence == 1
    shutil.rmtree(place("orders", 0))
    with opened(tmp_path) as store, pytest.raises(CorruptData, match="is missing"):
        store.peek("orders", "s1")


def test_verify_names_a_space_whose_partition_is_missing(lost: Store) -> None:
    (finding,) = lost.verify().findings
    assert finding.space == "orders"
    assert "is missing" in finding.problem
    assert not lost.verify("orders").ok


@pytest.mark.parametrize("partition", [1, 2])
def test_verify_names_a_missing_partition_that_is_not_the_first(tmp_path: Path, place: Place, partition: int) -> None:
    remove(place, tmp_path, 3, partition)
    with opened(tmp_path) as store:
        (finding,) = store.verify().findings
        assert (finding.space, finding.partition) == ("orders", partition)


def test_salvage_names_the_missing_partition_and_copies_the_others(tmp_path: Path, place: Place) -> None:
    remove(place, tmp_path, 3, 1)
    with opened(tmp_path) as store:
        report = store.salvage("orders", "saved")
        (damage,) = report.damage
        assert damage.endswith("is missing")
        assert 0 < report.entries < 12
        assert len(list(store.consume_space("saved"))) == report.entries


def test_a_backup_refuses_or_skips_a_space_whose_partition_is_missing(lost: Store, tmp_path: Path) -> None:
    with pytest.raises(CorruptData, match=r"space 'orders'.* is missing"):
        lost.backup(tmp_path / "kept")
    assert lost.backup(tmp_path / "kept", skip_damaged=True).point.skipped == ("orders",)


@pytest.mark.parametrize(("partitions", "gone"), [(1, [0]), (3, [0]), (3, [1]), (3, [0, 2]), (3, [0, 1, 2])])
def test_a_space_whose_partition_is_missing_is_deleted_and_created_again(
    tmp_path: Path, place: Place, partitions: int, gone: list[int]
) -> None:
    remove(place, tmp_path, partitions, *gone)
    with opened(tmp_path) as store:
        store.delete_space("orders")
        assert list(store.get_spaces()) == ["a"]
        store.create_space("orders", 3)
        fill(store, "orders")
        assert store.verify().ok
        assert len(list(store.consume_space("orders"))) == 5


def test_a_space_of_which_only_the_catalog_was_written_is_named_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A space without rows, on any storage: its creation was stopped, or all rows of the partition were deleted."""
    root = uuid4().hex
    stopped = FaultyDriver(MemoryDriver(root), Plan.at(0, Fault.CRASH_AFTER, kind="put"))
    with pytest.raises(Crash):
        Client("memory://", stopped, 30.0, None, 64 << 20, ManualClock()).store(ID).create_space("orders", 2)
    now = time.time() + 3600
    monkeypatch.setattr("streamkit.index.verify.time.time", lambda: now)
    with streamkit.connect(f"memory://{root}") as client, client.store(ID) as store:
        fill(store, "a")
        (finding,) = store.verify().findings
        assert "the catalog names the space, and its partition is missing" in finding.problem
        with pytest.raises(CorruptData, match=r"space 'orders' .*its partition is missing"):
            store.backup("memory://kept")
        store.delete_space("orders")
        assert list(store.get_spaces()) == ["a"]
        assert store.verify().ok
