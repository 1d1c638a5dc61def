"""Rows of trimmed entries leave the table of a space that asks for it, and readers of the store notice nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from fix_covered import EXHAUSTIVE, sample

from harness.archived_world import SPACE, World
from harness.removals import REMOVALS, RemovalWorld
from harness.removals import SPACE as REMOVED_SPACE
from streamkit import Entry, Record, Retention, Store
from streamkit.archive import trimmed_rows
from streamkit.archive.table import Table
from streamkit.errors import InvalidOffset, UnsupportedVersion
from streamkit.removing.erase import record_expired
from streamkit.store import inner
from streamkit.testing import Crash

pytest.importorskip("deltalake")

import duckdb
import polars
from deltalake import DeltaTable

Rows = list[tuple[str, int, bytes]]
COLUMNS = ["segment", "sequence", "payload"]


def url_of(store: Store, space: str = SPACE) -> str:
    return store._archive(space).table.url


def table_rows(store: Store, space: str = SPACE) -> dict[str, Rows]:
    """The table's rows by engine. A row of an erased entry has no payload."""
    table = DeltaTable(url_of(store, space)).to_pyarrow_table(columns=COLUMNS)
    found = {
        "delta-rs": zip(*(table[name].to_pylist() for name in COLUMNS), strict=True),
        "duckdb": duckdb.from_arrow(table).project(", ".join(COLUMNS)).fetchall(),
        "polars": polars.read_delta(url_of(store, space)).select(COLUMNS).rows(),
    }
    return {engine: sorted(row for row in rows if row[2] is not None) for engine, rows in found.items()}


def cold_rows(store: Store, space: str = SPACE) -> Rows:
    entries = [entry for entry in store.consume_space(space) if entry.tier == "cold"]
    return sorted((entry.segment, entry.sequence, entry.payload) for entry in entries)


@pytest.mark.parametrize(
    ("removal", "partitions"), list(sample([(name, count) for name in REMOVALS for count in (1, 4)], 3))
)
def test_other_engines_read_what_readers_read_after_every_kind_of_removal(
    tmp_path: Path, removal: str, partitions: int
) -> None:
    world = RemovalWorld.make(tmp_path.as_uri(), partitions)
    store = world.store
    for turn in range(2):
        # A space that is made again has settings of its own.
        store.change_space(REMOVED_SPACE, trimmed_rows="remove")
        REMOVALS[removal](world, turn)
        store.change_space(REMOVED_SPACE, trimmed_rows="remove")
        for upkeep in (store.maintain, store.archive):
            world.write(1)
            upkeep(REMOVED_SPACE)
            wanted = cold_rows(store, REMOVED_SPACE)
            if wanted:
                assert table_rows(store, REMOVED_SPACE) == dict.fromkeys(("delta-rs", "duckdb", "polars"), wanted)
        assert not store.verify(REMOVED_SPACE).findings
    world.client.close()


def test_rows_of_trimmed_entries_stay_by_default(tmp_path: Path) -> None:
    world = filled_world(tmp_path)
    with world.process() as client:
        store = client.store(world.id)
        assert store.space_settings(SPACE).trimmed_rows == "keep"  # type: ignore[union-attr]
        store.archive(SPACE)
        before = table_rows(store)
        store.trim(SPACE, "a", keep_entries=1)
        store.archive(SPACE)
        store.maintain()
        assert table_rows(store) == before
        assert before["duckdb"] != cold_rows(store)
        # The setting is changed at any time, and takes away what was trimmed before.
        store.change_space(SPACE, trimmed_rows="remove")
        store.maintain()
        assert table_rows(store)["duckdb"] == cold_rows(store)
        store.change_space(SPACE, trimmed_rows="keep")
        assert store.space_settings(SPACE).trimmed_rows == "keep"  # type: ignore[union-attr]
        store.trim(SPACE, "b", keep_entries=1)
        store.maintain()
        assert table_rows(store)["duckdb"] != cold_rows(store)


def test_a_wider_retention_does_not_bring_back_entries_whose_rows_are_gone(tmp_path: Path) -> None:
    world = filled_world(tmp_path)
    with world.process() as client:
        store = client.store(world.id)
        store.change_space(SPACE, trimmed_rows="remove")
        store.set_retention(SPACE, Retention(max_entries=3))
        store.archive(SPACE)
        kept = cold_rows(store)
        assert len(kept) == 9
        store.set_retention(SPACE, Retention())
    with world.process() as client:
        store = client.store(world.id)
        assert cold_rows(store) == kept == table_rows(store)["duckdb"]


def test_a_table_without_trimmed_rows_is_for_releases_that_know_of_them(tmp_path: Path) -> None:
    world = filled_world(tmp_path)
    with world.process() as client:
        store = client.store(world.id)
        store.change_space(SPACE, trimmed_rows="remove")
        store.archive(SPACE)
        assert DeltaTable(url_of(store)).metadata().configuration["streamkit.format"] == "1"
        store.trim(SPACE, "a", keep_entries=2)
        store.maintain()
        assert DeltaTable(url_of(store)).metadata().configuration["streamkit.format"] == "2"
        DeltaTable(url_of(store)).alter.set_table_properties({"streamkit.format": "3"}, raise_if_not_exists=False)
    with world.process() as client, pytest.raises(UnsupportedVersion, match="reads 1 and 2"):
        list(client.store(world.id).consume_space(SPACE))


@pytest.mark.parametrize("value", ["never", "", 1])
def test_another_value_is_refused(tmp_path: Path, value: Any) -> None:
    with World("memory", tmp_path).process() as client, pytest.raises((TypeError, ValueError), match="'keep' or 'rem"):
        client.store(World("memory", tmp_path).id).change_space(SPACE, trimmed_rows=value)


def filled_world(path: Path) -> World:
    """Ten entries in each of three segments, in files of some transactions; two more in the log."""
    world = World("memory", path)
    with world.process() as client:
        store = client.store(world.id)
        for at in range(5):
            for name in "abc":
                store.produce(SPACE, name, [Record(b"%d/%d" % (at, n), {"n": str(n)}) for n in range(2)])
        store.archive(SPACE, target_file_bytes=24)
        store.produce(SPACE, "a", [Record(b"hot")] * 2)
    return world


# -- stopped anywhere --------------------------------------------------------------------------------------------------

STEPS = [
    (trimmed_rows, "write_file"),
    (Table, "allow_holes"),
    (Table, "thin"),
    (Table, "_verify"),
    (Table, "_append"),
    (Table, "sync"),
]


def killed_at(call: int, step: tuple[Any, str], where: str, patch: pytest.MonkeyPatch) -> list[int]:
    """Kill the process at call `call` of a step. Returns the list of calls, which grows."""
    original, calls = getattr(*step), list[int]()

    def killed(*given: Any, **named: Any) -> Any:
        calls.append(len(calls) + 1)
        if calls[-1] == call and where == "before":
            raise Crash
        result = original(*given, **named)
        if calls[-1] == call:
            raise Crash
        return result

    patch.setattr(*step, killed)
    return calls


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step[1])
def test_a_run_that_is_killed_at_any_step_is_completed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str], where: str
) -> None:
    at = 0
    while True:
        at += 1
        world = filled_world(tmp_path / str(at))
        with world.process() as client:
            store = client.store(world.id)
            store.change_space(SPACE, trimmed_rows="remove")
            store.trim(SPACE, "a", keep_entries=5)
            store.trim(SPACE, "b", before=4)
        before = world.look()
        with monkeypatch.context() as patch:
            calls = killed_at(at, step, where, patch)
            with contextlib.suppress(Crash):
                world.process().store(world.id).maintain()
        assert world.look() == before
        world.clock.sleep(61)
        with world.process() as client:
            store = client.store(world.id)
            store.maintain()
            assert table_rows(store)["duckdb"] == cold_rows(store)
            assert not store.verify(SPACE).findings
        assert world.look() == before
        if len(calls) < at:
            assert at > 1, "the step is never made"
            return


# -- beside a space that keeps the rows --------------------------------------------------------------------------------


def same(entries: list[Entry]) -> list[tuple[Any, ...]]:
    return [(e.segment, e.sequence, e.timestamp, e.payload, dict(e.metadata), e.tier) for e in entries]


def everything(store: Store, moments: list[int]) -> list[Any]:
    """The entries and gaps of readers, in every order and from several times on."""
    names = list(store.get_segments(SPACE))
    found: list[Any] = [names]
    found.append(same(list(store.consume_space(SPACE))))
    found.append(same(list(store.consume_space(SPACE, reverse=True, limit=7))))
    for name in names:
        status = store.segment_status(SPACE, name)
        found.append((status.first_sequence, status.last_sequence, status.last_timestamp))
        found.append(same(list(store.consume_segment(SPACE, name))))
        found.append(same(list(store.consume_segment(SPACE, name, reverse=True, limit=3))))
    for moment in moments:
        found.append(same(list(store.consume_space(SPACE, min_timestamp=moment))))
        found.append(same(list(store.consume_space(SPACE, max_timestamp=moment, reverse=True))))
    found.append(store.to_arrow(SPACE, columns=["segment", "sequence", "payload"]).read_all().to_pylist())
    return found


OPERATIONS: dict[str, Callable[[Random, Store, list[str]], Any]] = {
    "trim a segment": lambda chance, store, names: store.trim(
        SPACE, chance.choice(names), keep_entries=chance.randint(0, 6)
    ),
    "trim a segment to bytes": lambda chance, store, names: store.trim(
        SPACE, chance.choice(names), keep_bytes=chance.randint(0, 40)
    ),
    "trim the space": lambda chance, store, names: store.trim(SPACE, keep_entries=chance.randint(10, 60)),
    "trim by age": lambda chance, store, names: store.trim(SPACE, max_age=chance.randint(20, 200) / 10),
    "retain": lambda chance, store, names: store.set_retention(
        SPACE, Retention(max_entries=chance.randint(2, 9), per="segment")
    ),
    "retain in the space": lambda chance, store, names: store.set_retention(
        SPACE, Retention(max_entries=chance.randint(20, 60), per="space")
    ),
    "retain all": lambda chance, store, names: store.set_retention(SPACE, Retention()),
    "erase": lambda chance, store, names: store.erase(SPACE, chance.choice(names), first=chance.randint(1, 30)),
    "erase by metadata": lambda chance, store, names: store.erase(SPACE, metadata={"n": str(chance.randint(0, 3))}),
    "delete": lambda chance, store, names: store.delete_segment(SPACE, chance.choice(names)),
    "compact": lambda chance, store, names: store.compact(SPACE, target_file_bytes=400),
    "optimize": lambda chance, store, names: DeltaTable(url_of(store)).optimize.compact(),
    "z-order": lambda chance, store, names: DeltaTable(url_of(store)).optimize.z_order(["number"]),
}


COUNTING = ("trim the space", "retain in the space")


def say_expired(store: Store) -> None:
    """A wider retention, before rows leave the table, brings nothing back."""
    known = inner(store).look_up(SPACE)[0]
    for committer in known.committers if known is not None else ():
        record_expired(committer)


@pytest.mark.exhaustive_only(partitions=1)
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("seed", range(60) if EXHAUSTIVE else [1])
def test_a_space_whose_table_loses_rows_answers_as_one_whose_table_keeps_them(
    tmp_path: Path, seed: int, partitions: int, covered: Callable[[str, int], None]
) -> None:
    """Bounds in bytes of a space count the bytes that are there, and so do bounds in entries of several partitions:
    these may keep more."""
    chance = Random(f"{seed}/{partitions}")
    worlds = [World("memory", tmp_path / name) for name in ("keep", "remove")]
    clients = [world.process() for world in worlds]
    stores = [client.store(world.id) for client, world in zip(clients, worlds, strict=True)]
    names = ["a", "b", "c", "d"]
    moments: list[int] = []
    done: list[str] = []
    for store in stores:
        store.create_space(SPACE, partitions)
    stores[1].change_space(SPACE, trimmed_rows="remove")
    for step in range(16 if EXHAUSTIVE else 12):
        written = [(chance.choice(names), chance.randint(1, 4)) for _ in range(6)]
        operation = chance.choice([name for name in OPERATIONS if partitions == 1 or name not in COUNTING])
        operation = operation if step else "compact"
        archives = chance.random() < 0.6 or not step
        state = chance.getstate()
        for world, store in zip(worlds, stores, strict=True):
            chance.setstate(state)
            for at, (name, count) in enumerate(written):
                store.produce(SPACE, name, [Record(b"%d.%d" % (step, at), {"n": str(n)}) for n in range(count)])
                world.clock.sleep(1.0)
            say_expired(store)
            if archives:
                store.archive(SPACE, target_file_bytes=90)
            OPERATIONS[operation](chance, store, names)
            say_expired(store)
            if step % 3 == 2:
                store.maintain()
        done.append(operation)
        moments.append(worlds[0].clock.now())
        assert worlds[0].clock.now() == worlds[1].clock.now()
        some = chance.sample(moments, min(2, len(moments)))
        assert everything(stores[0], some) == everything(stores[1], some), done
        for world in worlds:
            with world.process() as fresh:
                found = everything(fresh.store(world.id), some)
                assert found == everything(stores[0], some), done
    for store in stores:
        store.archive(SPACE)
        store.maintain()
        assert not store.verify(SPACE).findings
    assert table_rows(stores[1])["duckdb"] == cold_rows(stores[1])
    for client in clients:
        client.close()
    covered("histories beside a space that keeps its trimmed rows", 1)


def test_a_reader_that_named_a_place_is_told_as_before(tmp_path: Path) -> None:
    world = filled_world(tmp_path)
    with world.process() as client:
        store = client.store(world.id)
        store.change_space(SPACE, trimmed_rows="remove")
        offsets = [entry.space_offset for entry in store.consume_space(SPACE)]

        def told() -> list[Any]:
            found: list[Any] = []
            for offset in offsets:
                try:
                    found.append([(e.segment, e.sequence) for e in store.consume_space(SPACE, offset=offset)])
                except InvalidOffset:
                    raise
                except Exception as error:
                    found.append(str(error))
            return found

        store.trim(SPACE, "a", before=7)
        store.trim(SPACE, "c", keep_entries=0)
        before = told()
        store.maintain()
        assert table_rows(store)["duckdb"] == cold_rows(store)
        assert told() == before
        store.trim(SPACE, keep_entries=16)
        before = told()
        store.maintain()
        assert told() == before
