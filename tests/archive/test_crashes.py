"""An archiver that stops anywhere: at every moment every entry is read exactly once, and the next archiver goes on."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.archived_world import SPACE, World, filled
from harness.power import Disk, PowerCut
from streamkit import Record
from streamkit.archive.compact import compact_space
from streamkit.archive.location import path_name
from streamkit.errors import CorruptData, LeaseLost, LeaseNotAcquired, TransientError
from streamkit.testing import CRASHES, Crash, Fault, Plan
from streamkit.testing.fault_plan import FAULTS

pytest.importorskip("deltalake")

from deltalake import DeltaTable


@pytest.fixture(params=["memory", "remote"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return filled(request.param, tmp_path)


def check(world: World, before: Any) -> None:
    """Check a store after a fault: reads are unchanged. After another archive run each entry is in the table once."""
    assert world.look() == before
    world.clock.sleep(61)
    with world.process() as client:
        world.run(client)
        assert world.look() == before
        store = client.store(world.id)
        store.produce(SPACE, "a0", [Record(b"more")])
        assert len(list(store.consume_space(SPACE))) == len(before[0]) + 1
    world.clock.sleep(61)
    assert world.cold() == sorted((entry.segment, entry.sequence) for entry in before[0])


LOOKS = ("get", "read", "scan")


def calls(kind: str, path: Path, fault: Fault) -> list[Any]:
    """The calls at which `fault` can happen. A sample has other calls for each fault, and fewer looks."""
    world = filled(kind, path / "trace")
    client = world.process()
    world.run(client)
    driver: Any = client._driver
    found = [call for call in driver.faults.trace if fault in FAULTS[call.kind]]
    assert {"put", "delete"} & {call.kind for call in found}
    shift = list(Fault).index(fault)
    return [call for at, call in enumerate(found, shift) if EXHAUSTIVE or at % (10 if call.kind in LOOKS else 2) == 0]


@pytest.mark.exhaustive_only("memory")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("fault", CRASHES)
def test_an_archiver_that_stops_at_any_call_of_the_storage_loses_and_doubles_nothing(
    kind: str, fault: Fault, tmp_path: Path
) -> None:
    for number, call in enumerate(calls(kind, tmp_path, fault)):
        world = filled(kind, tmp_path / str(number))
        before = world.look()
        client = world.process(Plan.at(call.number, fault))
        with contextlib.suppress(Crash):
            world.run(client)
        check(world, before)


@pytest.mark.exhaustive_only("memory")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "remote"])
@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.CONFLICT, Fault.UNAVAILABLE])
def test_a_bad_day_of_the_storage_loses_and_doubles_nothing(kind: str, fault: Fault, tmp_path: Path) -> None:
    fine = (TransientError, LeaseNotAcquired, LeaseLost)
    for number, call in enumerate(calls(kind, tmp_path, fault)):
        world = filled(kind, tmp_path / str(number))
        before = world.look()
        client = world.process(Plan.at(call.number, fault))
        with contextlib.suppress(*fine):
            world.run(client)
        check(world, before)


POINTS = ["create", "write_file", "commit"]


class Stop(Exception):
    pass


def steps(monkeypatch: pytest.MonkeyPatch, point: str, number: int, after: bool) -> Iterator[int]:
    """Stop at the call `number` of one of the functions that write to the table."""
    from streamkit.archive import table, write

    owner: Any = write if point == "write_file" else table.Table
    inner = getattr(owner, point)
    count = 0

    def call(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == number and not after:
            raise Stop
        result = inner(*arguments)
        if count == number:
            raise Stop
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, point, call)
        yield count


@pytest.mark.exhaustive_only("memory")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("after", [False, True])
def test_an_archiver_that_stops_at_any_call_of_the_table_loses_and_doubles_nothing(
    world: World, point: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = world.look()
    stopped = 0
    for number in (1, 2, 5):
        for _ in steps(monkeypatch, point, number, after):
            try:
                world.process().store(world.id).archive(SPACE, target_file_bytes=60)
            except Stop:
                stopped += 1
        assert world.look() == before
        world.clock.sleep(61)
    assert stopped
    check(world, before)


def test_a_lost_answer_of_the_table_is_settled_by_looking(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit landed, and the service said that it did not."""
    from deltalake.exceptions import DeltaError

    from streamkit.archive.table import Table

    before = world.look()
    inner = Table._append
    lost = []

    def call(self: Table, *arguments: Any) -> bool:
        done = inner(self, *arguments)
        if not lost:
            lost.append(1)
            raise DeltaError("connection reset")
        return done

    monkeypatch.setattr(Table, "_append", call)
    report = world.process().store(world.id).archive(SPACE, target_file_bytes=60)
    assert lost
    assert report.entries == len(before[0])
    check(world, before)


# -- power cuts -------------------------------------------------------------------------------------------------------


def archive_twice(world: World) -> None:
    """Two archive runs. The first one makes the table. After the grace the archived transactions leave the log."""
    with world.process() as client:
        world.run(client)
        client.store(world.id).produce(SPACE, "a0", [Record(b"later")])
        world.run(client)


def compact(world: World) -> None:
    assert compact_space(world.process().store(world.id)._archive(SPACE), 64 << 20, 0.0)[:2] != (0, 0)


def cut_at(disk: Disk, number: int, torn: bool) -> Any:
    def before(call: int) -> None:
        if call == number:
            disk.keep(torn)
            raise PowerCut

    return before


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("work", [archive_twice, compact])
def test_a_power_cut_at_any_moment_loses_and_doubles_nothing(work: Any, torn: bool, tmp_path: Path) -> None:
    """The log is as it was; of the archive remains what was synced."""
    cuts = 0
    # Without the whole of it: every fifth moment, others when the file system is worse.
    for step, number in enumerate(range(1, 1000) if EXHAUSTIVE else range(1 + torn, 1000, 5)):
        world = filled("remote", tmp_path / str(number) / "archive")
        (tmp_path / str(number)).mkdir()
        if work is compact:
            world.run(world.process())
        disk = Disk(world.archive)
        expected = [world.look()]
        try:
            with disk.watch(cut_at(disk, number, torn)):
                work(world)
            disk.keep(torn)
        except PowerCut:
            cuts += 1
        entries = list(world.process().store(world.id).consume_space(SPACE))
        disk.swap()
        world.clock.sleep(61)
        now = world.look()
        assert now[0] == entries
        assert now[0][: len(expected[0][0])] == expected[0][0]
        check(world, now)
        if cuts == step:
            break
    assert cuts > 4


@pytest.mark.parametrize("torn", [False, True])
def test_what_was_archived_is_there_after_a_power_cut_although_the_log_let_go_of_it(torn: bool, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    world = filled("remote", tmp_path / "archive")
    disk = Disk(world.archive)
    with disk.watch():
        for at in range(9):
            store = world.process().store(world.id)
            store.produce(SPACE, f"c{at}", [Record(b"%d" % at)])
            world.run(world.process())
            if at == 0:
                table = DeltaTable(store._archive(SPACE).table.url)
                table.alter.set_table_properties({"delta.checkpointInterval": "4"})
        compact(world)
    before = world.look()
    assert {entry.tier for entry in before[0]} == {"cold"}
    assert list((world.archive / str(world.id) / path_name(SPACE) / "_delta_log").glob("*.checkpoint.parquet"))
    disk.keep(torn)
    disk.swap()
    assert world.look() == before
    check(world, before)


# -- damage -----------------------------------------------------------------------------------------------------------


def half_removed(path: Path) -> tuple[World, Any, Path]:
    """A world and its table. Transactions of the first archive run have left the log, those of the second have not."""
    world = filled("remote", path / "archive")
    world.run(world.process())
    store = world.process().store(world.id)
    for at in range(12):
        store.produce(SPACE, f"a{at % 3}", [Record(b"later %d" % at)] * 2)
    assert store.archive(SPACE).removed == 0
    store.produce(SPACE, "a0", [Record(b"tail")])
    return world, world.look(), world.archive / str(world.id) / path_name(SPACE)


def last(table: Path, pattern: str) -> Path:
    return max(table.glob(pattern), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize("pattern", ["*.parquet", "_delta_log/*.json"])
def test_a_reader_takes_from_the_log_what_a_damaged_archive_lacks(pattern: str, tmp_path: Path) -> None:
    for damage in (Path.unlink, lambda path: path.write_bytes(b"")):
        world, before, table = half_removed(tmp_path / str(id(damage)))
        damage(last(table, pattern))  # type: ignore[operator]
        after = world.look()
        assert after == before
        # The tier says where an entry was read.
        tiers, archived = ([entry.tier for entry in look[0]] for look in (after, before))
        assert tiers[0] == "cold"
        assert tiers == sorted(tiers)
        assert tiers.count("cold") < archived.count("cold")
        # The log keeps it.
        with world.process() as client, pytest.raises(CorruptData):
            world.run(client)
        assert world.look() == before


def test_the_log_lets_go_of_nothing_that_the_archive_has_damaged(tmp_path: Path) -> None:
    """Damage is refused, also in a column that a removal does not need."""
    world, before, table = half_removed(tmp_path)
    path = last(table, "*.parquet")
    data = path.read_bytes()
    at = data.index(b"later ")
    path.write_bytes(data[:at] + b"Later" + data[at + 5 :])
    world.clock.sleep(3720)
    with world.process() as client, pytest.raises(CorruptData, match="CRC"):
        client.store(world.id).maintain()
    assert world.look() == before


def test_what_only_a_damaged_file_holds_is_corrupt(tmp_path: Path) -> None:
    world, before, table = half_removed(tmp_path)
    first = min(table.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    first.write_bytes(b"")
    store = world.process().store(world.id)
    with pytest.raises(CorruptData, match=first.name):
        list(store.consume_space(SPACE))
    with pytest.raises(CorruptData, match=first.name):
        list(store.consume_segment(SPACE, "a0"))
    assert list(store.consume_segment(SPACE, "a0", min_sequence=9))
    assert store.peek(SPACE, "a0") == before[3]["a0"]


def test_a_copy_of_the_log_that_a_killed_process_left_does_not_stop_an_erasure(tmp_path: Path) -> None:
    """The process was killed while it wrote a checkpoint: a Parquet file, but not one of entries."""
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        store.produce(SPACE, "a", [Record(b"1", {"owner": "x"}), Record(b"2")])
        store.archive(SPACE)
        table = store._archive(SPACE).table
        DeltaTable(table.url).create_checkpoint()
        assert table.directory is not None
        left = Path(table.directory) / ".streamkit-killed"
        shutil.copytree(Path(table.directory) / "_delta_log", left / "_delta_log")
        assert list(left.rglob("*.checkpoint.parquet"))
        store.erase(SPACE, "a", first=2)
        store.erase(SPACE, metadata={"owner": "x"})
        store.archive(SPACE)
        assert [entry.payload for entry in store.consume_space(SPACE)] == []
