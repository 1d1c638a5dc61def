"""Loads of segments whose blocks are not in memory, from a local disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

import streamkit
from harness.codecs import CODECS, using
from streamkit import CorruptData, Record, Store
from streamkit.backend import Range
from streamkit.index import block_cache
from streamkit.index.upkeep import bring_forward, merge_all_with
from streamkit.log.keys import data_range, run_key
from streamkit.log.partition import Partition
from streamkit_local import files

SPACE = "space"
ID = UUID(int=7)
SMALL = [f"order-{number:03}" for number in range(300)]
LONG = [f"order-{number:03}-long" for number in range(5, 300, 30)]
COUNT = 60
"""Entries of a long segment, which has two rows. The first one ends a block that begins with rows of others."""


def partition_of(store: Store) -> Partition:
    known = store._known(SPACE)
    assert known is not None
    return known.partitions[0]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, dice = tmp_path_factory.mktemp("cold") / "store", Random(7)
    store = streamkit.connect(path.as_uri()).store(ID)
    for turn in range(COUNT // 5):
        with store.transaction(SPACE) as transaction:
            for segment in LONG + SMALL * (turn == 0):
                count = 5 if segment in LONG else 1
                transaction.produce(segment, [Record(dice.randbytes(180)) for _ in range(count)])
        if turn % 6 == 5:
            bring_forward(partition_of(store))
    merge_all_with(partition_of(store))
    store._handle.shared.close()
    return path


@pytest.fixture(params=CODECS)
def store(request: pytest.FixtureRequest, written: Path, tmp_path: Path) -> Iterator[Store]:
    shutil.copytree(written, tmp_path / "store")
    with using(request.param):
        store = streamkit.connect((tmp_path / "store").as_uri()).store(ID)
        yield store
        store._handle.shared.close()


def sequences(store: Store, segment: str) -> list[int]:
    return [entry.sequence for entry in store.consume_segment(SPACE, segment)]


def blocks_of(store: Store, segment: str) -> list[bytes]:
    """The blocks, as they are stored, that may have rows of a segment."""
    partition = partition_of(store)
    runs = partition.index
    (run,) = runs.manifest.runs  # type: ignore[attr-defined]
    (file,) = run.files
    tail = runs._tail(file)  # type: ignore[attr-defined]
    assert tail.single
    start, end = data_range(segment, 1)
    ranges = [
        Range(run_key(file.id), file.start + tail.offsets[number], tail.offsets[number + 1] - tail.offsets[number])
        for number in range(tail.block_of(start), tail.last_block(end) + 1)
    ]
    return [part for part in partition.backend.read(partition.key, ranges) if part is not None]


def in_two_blocks(store: Store) -> list[str]:
    found = [segment for segment in LONG if len(blocks_of(store, segment)) == 2]
    assert len(found) > 3
    return found


def test_a_row_at_the_end_of_a_block_is_found_where_the_next_block_begins_with_another(store: Store) -> None:
    """Most segments have one row, so the block before the one that begins with a row of a segment is not read first."""
    for segment in {*LONG, *in_two_blocks(store)}:
        assert sequences(store, segment) == list(range(1, COUNT + 1))
        some = store.consume_segment(SPACE, segment, min_sequence=50, max_sequence=52)
        assert [entry.sequence for entry in some] == [50, 51, 52]
    assert [sequences(store, segment) for segment in SMALL] == [[1]] * len(SMALL)


def test_damage_of_a_block_is_found_by_all_loads_that_need_it(store: Store, tmp_path: Path) -> None:
    assert sequences(store, SMALL[0]) == [1]
    segment = in_two_blocks(store)[1]
    block = blocks_of(store, segment)[0]
    (row,) = [path for path in (tmp_path / "store").rglob("*.row") if block in path.read_bytes()]
    whole = row.read_bytes()
    at = whole.index(block) + len(block) // 2
    with row.open("r+b") as file:
        file.seek(at)
        file.write(bytes([whole[at] ^ 1]))
    found, refused = [], []
    for other in [*SMALL, *LONG]:
        try:
            found.append(sequences(store, other))
        except CorruptData:
            refused.append(other)
    assert segment in refused
    assert len(refused) < 20
    assert all(part == list(range(1, len(part) + 1)) and len(part) in (1, COUNT) for part in found)


def test_a_block_that_is_read_once_takes_no_room(store: Store) -> None:
    cache = store._handle.shared.blocks
    for segment in SMALL[:3]:
        assert sequences(store, segment) == [1]
    size = cache.blocks.size
    reads = []
    for _ in range(4):
        before = store._handle.shared.backend.requests["read"]
        assert sequences(store, SMALL[200]) == [1]
        reads.append(store._handle.shared.backend.requests["read"] - before)
        if block_cache._twin is None and len(reads) == 1:
            assert cache.blocks.size == size
    assert reads[0] >= 1
    assert reads[2:] == [0, 0], "a block that is read again is kept"
    assert cache.blocks.size > size


def test_a_load_goes_on_where_its_files_were_closed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sequences(store, LONG[0]) == list(range(1, COUNT + 1))
    for segment in SMALL:
        files._cached.clear()
        assert sequences(store, segment) == [1]
