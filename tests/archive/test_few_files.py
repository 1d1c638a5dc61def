"""A compacted space has few files whatever the number of its partitions. Its readers find the same as before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.removals import REMOVALS, SPACE, RemovalWorld
from streamkit import Entry, Record, Store

pytest.importorskip("deltalake")

from deltalake import DeltaTable

PARTITIONS = (1, 4, 64)
Row = tuple[str, int, bytes, tuple[tuple[str, str], ...]]


def row(entry: Entry) -> Row:
    return entry.segment, entry.sequence, entry.payload, tuple(sorted(entry.metadata.items()))


def filled(store: Store, partitions: int, rounds: int = 3, payload: bytes = b"") -> None:
    """Runs of the archiver, each with a file of every partition."""
    store.create_space(SPACE, partitions)
    for at in range(rounds):
        for name in range(2 * partitions + 3):
            store.produce(SPACE, f"s{name}", [Record(b"%d/%d" % (at, n) + payload, {"n": str(n)}) for n in range(2)])
        store.archive(SPACE)


def answers(url: str, id: UUID) -> dict[str, list[Row]]:
    """The answers of new readers, by the question."""
    with streamkit.connect(url) as client:
        store = client.store(id)
        entries = list(store.consume_space(SPACE))
        found = {
            "space": [row(entry) for entry in entries],
            "segments": [
                row(entry) for name in sorted(store.get_segments(SPACE)) for entry in store.consume_segment(SPACE, name)
            ],
            "backwards": [
                row(entry)
                for name in sorted(store.get_segments(SPACE))
                for entry in store.consume_segment(SPACE, name, reverse=True)
            ],
            "to_arrow": [
                (each["segment"], each["sequence"], each["payload"], tuple(each["metadata"] or ()))
                for each in store.to_arrow(SPACE).read_all().to_pylist()
            ],
        }
        if entries:
            middle = entries[len(entries) // 2].space_offset
            found["after an offset"] = [row(entry) for entry in store.consume_space(SPACE, offset=middle)]
        return found


def table_rows(store: Store) -> list[tuple[str, int, bytes]]:
    table = DeltaTable(store._archive(SPACE).table.url).to_pyarrow_table(columns=["segment", "sequence", "payload"])
    return sorted(tuple(each.values()) for each in table.to_pylist())


@pytest.mark.exhaustive_only(partitions=64)  # test_requests archives and reads a table of 64
@pytest.mark.parametrize("partitions", PARTITIONS)
def test_a_compacted_space_has_one_file_until_there_is_enough_for_more(tmp_path: Path, partitions: int) -> None:
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        filled(store, partitions)
        before, rows = answers(url, store.id), table_rows(store)
        report = store.compact(SPACE)
        assert report.before > partitions
        assert report.after == 1
        assert answers(url, store.id) == before
        assert table_rows(store) == rows
        assert not store.verify(SPACE).findings
        assert store.compact(SPACE).after == 1
        version = DeltaTable(store._archive(SPACE).table.url).version()
        store.compact(SPACE)
        assert DeltaTable(store._archive(SPACE).table.url).version() == version, "nothing was left to do"

        store.produce(SPACE, "s0", [Record(b"later")])
        store.archive(SPACE)
        before = answers(url, store.id)
        assert store.compact(SPACE).after == 1
        assert answers(url, store.id) == before


def test_a_file_that_is_half_full_is_left_alone(tmp_path: Path) -> None:
    url = tmp_path.as_uri()
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        filled(store, 8, payload=bytes(range(256)))
        size = sum(len(entry.payload) for entry in store.consume_space(SPACE))
        target = size // 4
        assert 4 <= store.compact(SPACE, target_file_bytes=target).after <= 8
        files = DeltaTable(store._archive(SPACE).table.url).file_uris()
        assert store.compact(SPACE, target_file_bytes=target).after == len(files)
        store.produce(SPACE, "s1", [Record(b"later")])
        store.archive(SPACE)
        before = answers(url, store.id)
        store.compact(SPACE, target_file_bytes=target)
        left = set(DeltaTable(store._archive(SPACE).table.url).file_uris())
        assert len(left & set(files)) >= len(files) - 1
        assert answers(url, store.id) == before
        assert not store.verify(SPACE).findings


@pytest.mark.parametrize("removal", REMOVALS if EXHAUSTIVE else ["trim the space", "erase by metadata"])
@pytest.mark.parametrize("partitions", PARTITIONS if EXHAUSTIVE else [4])
def test_what_is_removed_from_a_shared_file_is_in_no_answer(
    tmp_path: Path, partitions: int, removal: str, covered: Callable[[str, int], None]
) -> None:
    """A copy of the store is not compacted, and loses the same: its readers find the same."""
    world = RemovalWorld.make((tmp_path / "compacted").as_uri(), partitions)
    compared = 0
    for turn in range(2):
        shutil.copytree(tmp_path / "compacted", tmp_path / f"plain-{turn}")
        url = (tmp_path / f"plain-{turn}").as_uri()
        with streamkit.connect(url) as client:
            plain = RemovalWorld(client, url, client.store(world.store.id), partitions, world.segments)
            world.store.compact(SPACE, retention_hours=0)
            assert len(DeltaTable(world.store._archive(SPACE).table.url).file_uris()) <= 1 + turn
            for step in (partial(REMOVALS[removal], turn=turn), maintain, archive):
                for one in (plain, world):
                    step(one)
                wanted, found = answers(url, world.store.id), answers(world.url, world.store.id)
                if "again" in removal:  # two stores have written the entries, each in its own order
                    wanted, found = ({"space": sorted(each["space"])} for each in (wanted, found))
                assert found == wanted
                assert not world.store.verify(SPACE).findings
                compared += len(wanted)
        world.write(2)
        world.store.archive(SPACE)
    world.client.close()
    covered("answers of a compacted store, and of one that is not, compared", compared)


def maintain(world: RemovalWorld) -> None:
    world.store.maintain(SPACE)


def archive(world: RemovalWorld) -> None:
    world.store.archive(SPACE)
