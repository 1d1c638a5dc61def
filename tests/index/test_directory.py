"""The compiled way from a segment's name to its entries, in files of a local disk: the same as the way in Python."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.codecs import CODECS, choose, using
from streamkit import CorruptData, Record, Store, StreamkitError
from streamkit.index import merge, upkeep
from streamkit.index.runs import Runs
from streamkit.index.upkeep import bring_forward
from streamkit.log import policy
from streamkit.log.partition import Partition
from streamkit_local import files

pytestmark = pytest.mark.skipif(len(CODECS) < 2, reason="the compiled twin is not installed: make speed")

SPACE = "space"
ID = UUID(int=26)
SEGMENTS = [f"order-{number}" for number in range(60)] + ["é🎉", "large", "order"]
BOUNDS = ((0, 0), (2, 0), (5, 7), (0, 3), (900, 0), (1 << 70, 0), (1, 1 << 70))
DAMAGES = 600 if EXHAUSTIVE else 40
TIMES = 20


def partition_of(store: Store) -> Partition:
    known = store._known(SPACE)
    assert known is not None
    return known.partitions[0]


def opened(path: Path) -> Store:
    return streamkit.connect(path.as_uri()).store(ID)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with runs of one file and of several, which have some segments in all runs, some in one. A merge of most
    of them is under way."""
    path, dice = tmp_path_factory.mktemp("directory") / "store", Random(26)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "LOCAL", policy.LOCAL._replace(merge=80 << 10, fanout=8))
        patch.setattr(merge, "_SLICE", 16)
        patch.setattr(upkeep, "_MORE_STEPS", 1)
        store = opened(path)
        for turn in range(9):
            for segment in SEGMENTS:
                if segment == "order-7" and turn:
                    continue
                size, count = (1500, 4) if segment == "large" else (dice.randrange(1100), dice.choice((1, 1, 1, 3)))
                store.produce(SPACE, segment, [Record(dice.randbytes(size)) for _ in range(count)])
            if turn < 8:
                bring_forward(partition_of(store))
        (under_way,) = partition_of(store).head.manifest.merges
        assert len(under_way.files) == 2
        store._handle.shared.close()
    return path


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """True for each question that the directory has answered, False for one that it left to Python."""
    answers: list[bool] = []
    for name in ("entries", "last_entry"):
        monkeypatch.setattr(Runs, name, counted(getattr(Runs, name), answers))
    return answers


def counted(method: Callable[..., Any], answers: list[bool]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        found = method(*arguments)
        answers.append(found is not None)
        return found

    return call


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StreamkitError as error:
        return type(error), str(error)


def contents(store: Store, segments: list[str]) -> Iterator[Any]:
    for segment in segments:
        for low, high in BOUNDS:
            read = store.consume_segment(SPACE, segment, min_sequence=low, max_sequence=high)
            yield outcome(lambda read=read: list(read))  # type: ignore[misc]
        yield outcome(lambda segment=segment: store.peek(SPACE, segment))  # type: ignore[misc]


def all_of(path: Path, segments: list[str], times: int = 1) -> list[Any]:
    store = opened(path)
    try:
        return [list(contents(store, segments)) for _ in range(times)]
    finally:
        store.close()


def rows_of(path: Path) -> list[Path]:
    return sorted((path / str(ID)).glob("*/*.row"))


def test_what_the_directory_finds_is_what_python_finds(path: Path, taken: list[bool]) -> None:
    segments = [*SEGMENTS, "nobody", "orde", "order-", "order-9999"]
    with using("python"):
        wanted = all_of(path, segments)
        assert not any(taken)
    taken.clear()
    with using("compiled"):
        first, again = all_of(path, segments, 2)
    assert first == again == wanted[0]
    assert taken.count(True) > 0.9 * len(taken)
    assert len(wanted[0]) == (len(BOUNDS) + 1) * len(segments)


def test_it_goes_on_where_its_files_were_closed(path: Path, taken: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CACHED", 1)
    with using("python"):
        wanted = all_of(path, SEGMENTS)
    taken.clear()
    with using("compiled"):
        assert all_of(path, SEGMENTS) == wanted
    assert taken.count(True) > 0.9 * len(taken)


def test_damage_is_found_wherever_it_is(path: Path, taken: list[bool]) -> None:
    """Each part of a file in turn: the header, the checksums, the blocks of rows, the tail."""
    dice, found = Random(62), 0
    rows = rows_of(path)
    for case in range(DAMAGES):
        row = rows[case % len(rows)]
        whole = row.read_bytes()
        at = dice.choice((dice.randrange(120), dice.randrange(len(whole)), len(whole) - 1 - dice.randrange(2000)))
        rest = bytes([whole[at] ^ 1 << dice.randrange(8)]) + whole[at + 1 :] if case % 7 else b""
        segments = dice.sample(SEGMENTS, 12)
        row.write_bytes(whole[:at] + rest)
        with using("python"):
            wanted = all_of(path, segments)
        with using("compiled"):
            (again, once) = all_of(path, segments, 2)
        row.write_bytes(whole)
        assert again == once == wanted[0], f"case {case}: {row.name}, byte {at} of {len(whole)}"
        found += any(isinstance(one, tuple) and one[0] is CorruptData for one in once)
    assert found > DAMAGES // 3


def test_damage_is_found_in_a_file_that_is_open_already(path: Path) -> None:
    whole = {row: row.read_bytes() for row in rows_of(path)}
    found = []
    for codec in CODECS:
        with using(codec):
            store = opened(path)
            assert len(list(store.consume_segment(SPACE, "order-1"))) > 8
            for row, data in whole.items():
                with row.open("r+b") as file:
                    file.write(data[:5000] + bytes(20_000) + data[25_000:])
            found.append(list(contents(store, SEGMENTS)))
            store.close()
        for row, data in whole.items():
            row.write_bytes(data)
    assert found[0] == found[1]
    assert CorruptData in {one[0] for one in found[0] if isinstance(one, tuple)}


def test_a_run_that_was_merged_meanwhile_is_read_from_the_file_that_is_open(path: Path, taken: list[bool]) -> None:
    with using("compiled"):
        reader, writer = opened(path), opened(path)
        before = list(contents(reader, SEGMENTS))
        for _ in range(3):
            for segment in SEGMENTS[:20]:
                writer.produce(SPACE, segment, [Record(b"more")])
            writer.maintain(SPACE)
            last = [len(list(reader.consume_segment(SPACE, segment))) for segment in SEGMENTS]
            assert last == [len(list(writer.consume_segment(SPACE, segment))) for segment in SEGMENTS]
        assert len(list(contents(reader, SEGMENTS))) == len(before)
        reader.close()
        writer.close()
    with using("python"):
        store = opened(path)
        assert last == [len(list(store.consume_segment(SPACE, segment))) for segment in SEGMENTS]
        store.close()


def test_reads_of_the_directory_count_as_requests(path: Path) -> None:
    with using("compiled"):
        store = opened(path)
        backend = store._handle.shared.backend
        assert len(list(store.consume_segment(SPACE, "order-48"))) > 8
        before = dict(backend.requests)
        entries = list(store.consume_segment(SPACE, "é🎉", max_sequence=8))
        after = backend.requests
        assert after["read"] == before["read"] + 1
        assert after["bytes_read"] >= before["bytes_read"] + sum(len(entry.payload) for entry in entries)
        store.close()


def test_a_codec_that_is_chosen_later_finds_the_same(path: Path) -> None:
    store = opened(path)
    found = []
    for codec in ("compiled", "python", "compiled"):
        with using(codec):
            found.append(list(contents(store, SEGMENTS)))
    choose(CODECS[-1])
    assert found[0] == found[1] == found[2]
    store.close()
