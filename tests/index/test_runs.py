"""Lookups in runs: the newest row of each key, in the order of keys, with few requests and bounded memory."""

from __future__ import annotations

import random
import tracemalloc
from uuid import uuid4

import pytest

from harness.run_rows import (
    PARTITION,
    SEED,
    Rows,
    data_row,
    key_row,
    many_rows,
    new_id,
    put_file,
    put_run,
    runs_of,
    segment_row,
)
from harness.sections import build_section
from streamkit.backend import Backend
from streamkit.errors import CorruptData
from streamkit.index import run_format
from streamkit.index.block_cache import BlockCache
from streamkit.index.run_format import encode_inline
from streamkit.index.runs import Runs
from streamkit.log.keys import DATA, KEYS, SEGMENTS, data_range, idempotency_key, run_key, segment_key
from streamkit.log.manifest import Manifest, Run, RunGone
from streamkit_memory.driver import MemoryDriver


class Counting:
    """Count the calls of a backend, and their ranges."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls: list[int] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._backend, name)

    def read(self, partition, ranges):  # type: ignore[no-untyped-def]
        self.calls.append(len(ranges))
        return self._backend.read(partition, ranges)


@pytest.fixture(params=["remote", "local"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return MemoryDriver(remote=request.param == "remote").open(uuid4())


@pytest.fixture
def remote() -> Counting:
    return Counting(MemoryDriver(remote=True).open(uuid4()))


def filled(backend: Backend, runs: int = 6, each: int = 400, files: int = 1) -> tuple[Manifest, Rows]:
    """A manifest with `runs` runs and an inline one, and their rows together."""
    chance = random.Random(1)
    sequences: dict[str, int] = {}
    truth: Rows = {}
    written: list[Run] = []
    for at in range(runs):
        rows = many_rows(chance, 100, range(at * each + 1, (at + 1) * each + 1), sequences)
        truth.update(rows)
        written.insert(0, put_run(backend, rows, at * each + 1, (at + 1) * each, files=files))
    rows = many_rows(chance, 100, range(runs * each + 1, runs * each + 30), sequences)
    truth.update(rows)
    keys = sorted(rows)
    inline = encode_inline(keys, [rows[key] for key in keys], SEED)
    return Manifest(inline, runs * each + 1, runs * each + 29, tuple(written)), truth


@pytest.mark.parametrize("files", [1, 4])
def test_the_newest_row_of_each_key(backend: Backend, files: int) -> None:
    manifest, truth = filled(backend, files=files)
    runs = runs_of(backend, manifest)
    wanted = [*truth, segment_key("nobody"), b"", b"\xff" * 20, idempotency_key(b"x" * 16)]
    for _ in range(2):
        assert runs.get(wanted) == [truth.get(key) for key in wanted]
        for key in wanted:
            assert runs.get([key]) == [truth.get(key)]
    assert runs.get([]) == []


@pytest.mark.parametrize("files", [1, 4])
def test_a_scan_is_in_key_order_and_whole(backend: Backend, files: int) -> None:
    manifest, truth = filled(backend, files=files)
    runs = runs_of(backend, manifest)
    assert list(runs.scan(b"", b"\xff")) == sorted(truth.items())
    for kind in (DATA, KEYS, SEGMENTS):
        start, end = kind.children()
        assert list(runs.scan(start, end)) == [row for row in sorted(truth.items()) if start <= row[0] < end]


def test_rows_that_several_runs_have_come_once(backend: Backend) -> None:
    names = [f"{n:05d}" for n in range(6000)]
    chance = random.Random(6)
    truth: Rows = {}
    written: list[Run] = []
    for number in range(1, 5):
        rows = dict(segment_row(name, number, number) for name in names if chance.randrange(4))
        truth.update(rows)
        written.insert(0, put_run(backend, rows, number, number, files=number))
    runs = runs_of(backend, Manifest(runs=tuple(written)))
    assert list(runs.scan(b"", b"\xff")) == sorted(truth.items())
    start, end = segment_key("01000"), segment_key("03000")
    assert list(runs.scan(start, end)) == [row for row in sorted(truth.items()) if start <= row[0] < end]


def test_a_segment_is_loaded_from_any_sequence(backend: Backend) -> None:
    manifest, truth = filled(backend, files=3)
    runs = runs_of(backend, manifest)
    for name in ("segment-1", "segment-50", "segment-99", "segment-1000", "segment-"):
        for first in (1, 2, 7, 1000):
            start, end = data_range(name, first)
            rows = [row for row in sorted(truth.items()) if start <= row[0] < end]
            assert list(runs.scan(start, end, name.encode())) == rows
            assert list(runs.scan(start, end)) == rows


def test_an_index_without_runs_is_empty(backend: Backend) -> None:
    runs = runs_of(backend, Manifest())
    assert runs.get([b"a"]) == [None]
    assert list(runs.scan(b"", b"\xff")) == []
    assert runs.needed(["a"], True) == {}


def test_a_lookup_takes_two_round_trips_and_none_when_it_is_known(remote: Counting) -> None:
    manifest, truth = filled(remote)
    keys = random.Random(2).sample(sorted(truth), 50)
    runs = runs_of(remote, manifest)
    assert runs.get(keys) == [truth[key] for key in keys]
    assert len(remote.calls) <= 2
    assert remote.calls[0] == len(manifest.runs)
    remote.calls.clear()
    assert runs.get(keys) == [truth[key] for key in keys]
    assert remote.calls == []


@pytest.mark.parametrize("files", [1, 4])
def test_a_segment_is_loaded_in_two_round_trips_when_all_that_is_needed_is_there(remote: Counting, files: int) -> None:
    manifest, truth = filled(remote, files=files)
    runs = runs_of(remote, manifest)
    needed = runs.needed(["segment-7"], True)
    for id, data in zip(needed, remote.read(PARTITION, [*needed.values()]), strict=True):
        runs.receive(id, data)
    remote.calls.clear()
    start, end = data_range("segment-7", 1)
    assert runs.get([segment_key("segment-7")]) == [truth[segment_key("segment-7")]]
    rows = list(runs.scan(start, end, b"segment-7"))
    assert rows == [row for row in sorted(truth.items()) if start <= row[0] < end]
    assert len(remote.calls) == 2


def test_a_scan_asks_all_runs_at_once(remote: Counting) -> None:
    manifest, truth = filled(remote)
    scan = runs_of(remote, manifest).scan(b"", b"\xff")
    assert next(scan) == min(truth.items())
    assert remote.calls == [len(manifest.runs)] * 2


def test_filters_spare_the_runs_that_hold_nothing_of_it(remote: Counting) -> None:
    runs = [
        put_run(remote, dict(segment_row(f"{n} {at}", 1, n) for n in range(1000)), at, at) for at in range(10, 0, -1)
    ]
    index = runs_of(remote, Manifest(runs=tuple(runs)), BlockCache(blocks_bytes=0))
    asked = 0
    for n in range(200):
        remote.calls.clear()
        assert index.get([segment_key(f"{n} 4")]) == [segment_row(f"{n} 4", 1, n)[1]]
        asked += sum(remote.calls[-1:])
    assert asked < 200 + 10 + 200 * 9 * 0.02 + 10


def test_a_long_scan_reads_ahead_in_few_calls_and_in_bounded_memory(remote: Counting) -> None:
    chance = random.Random(3)
    rows = {key: value + chance.randbytes(80) for key, value in (segment_row(f"{n:07d}", 1, n) for n in range(50_000))}
    run = put_run(remote, rows, 1, 1)
    size = run.size
    del rows
    runs = runs_of(remote, Manifest(runs=(run,)))
    tracemalloc.start()
    try:
        assert sum(1 for _ in runs.scan(b"", b"\xff")) == 50_000
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
    assert size > 4 << 20
    assert len(remote.calls) <= size / (256 << 10) + 8


def test_what_is_read_ahead_waits_compressed(remote: Counting) -> None:
    rows = {key: value + bytes(500) for key, value in (segment_row(f"{n:07d}", 1, n) for n in range(30_000))}
    runs = runs_of(remote, Manifest(runs=(put_run(remote, rows, 1, 1),)))
    del rows
    tracemalloc.start()
    try:
        assert sum(1 for _ in runs.scan(b"", b"\xff")) == 30_000
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_the_first_rows_of_a_scan_cost_little(remote: Counting) -> None:
    rows = dict(segment_row(f"{n:07d}", 1, n) for n in range(50_000))
    run = put_run(remote, rows, 1, 1)
    before = remote.requests.get("bytes_read", 0)
    next(runs_of(remote, Manifest(runs=(run,))).scan(b"", b"\xff"))
    assert len(remote.calls) == 2
    assert remote.requests["bytes_read"] - before - run.files[0].tail <= 80 << 10


def test_the_cache_is_bounded(backend: Backend) -> None:
    rows = dict(segment_row(f"{n:07d}", 1, n) for n in range(50_000))
    run = put_run(backend, rows, 1, 1, files=8)
    keys = sorted(rows)
    tracemalloc.start()
    try:
        cache = BlockCache(blocks_bytes=1 << 20, tails_bytes=100 << 10)
        runs = runs_of(backend, Manifest(runs=(run,)), cache)
        for at in range(0, 50_000, 50):
            assert runs.get([keys[at]]) == [rows[keys[at]]]
        assert 900 << 10 < cache.size <= 1124 << 10
        assert tracemalloc.get_traced_memory()[0] < 1.3 * cache.size
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


def test_what_is_in_use_stays_in_the_cache(remote: Counting) -> None:
    rows = dict(segment_row(f"{n:07d}", 1, n) for n in range(50_000))
    run = put_run(remote, rows, 1, 1)
    keys = sorted(rows)
    runs = runs_of(remote, Manifest(runs=(run,)), BlockCache(blocks_bytes=400 << 10))
    runs.get([keys[0]])
    asked = 0
    for at in range(0, 50_000, 100):
        runs.get([keys[at]])
        remote.calls.clear()
        assert runs.get([keys[0]]) == [rows[keys[0]]]
        asked += len(remote.calls)
    assert asked <= 1


def test_many_lookups_at_once_are_in_bounded_memory(remote: Counting) -> None:
    chance = random.Random(4)
    rows = {key: value + chance.randbytes(400) for key, value in (segment_row(str(n), 1, n) for n in range(40_000))}
    run = put_run(remote, rows, 1, 1, files=3)
    keys = sorted(rows)
    for key in keys:
        rows[key] = rows[key][:1]
    runs = runs_of(remote, Manifest(runs=(run,)), BlockCache(blocks_bytes=1 << 20))
    some = keys[::19]
    tracemalloc.start()
    try:
        found = runs.get(some)
        assert [value[:1] for value in found if value is not None] == [rows[key] for key in some]
        assert tracemalloc.get_traced_memory()[1] < 13 << 20
    finally:
        tracemalloc.stop()


def test_a_run_that_is_gone_is_told(backend: Backend) -> None:
    manifest, truth = filled(backend)
    known = runs_of(backend, manifest)
    known.get(list(truth))
    reader = runs_of(backend, manifest).scan(b"", b"\xff")
    next(reader)
    gone = run_key(manifest.runs[2].files[0].id)
    backend.delete(PARTITION, [gone])
    with pytest.raises(RunGone) as raised:
        runs_of(backend, manifest).get(sorted(truth))
    assert raised.value.key == gone
    with pytest.raises(RunGone):
        list(runs_of(backend, manifest).scan(b"", b"\xff"))
    with pytest.raises(RunGone):
        list(runs_of(backend, manifest).scan(*data_range("segment-1", 1), b"segment-1"))
    assert known.get(sorted(truth)) == [truth[key] for key in sorted(truth)]


def test_a_run_that_is_cut_short_or_exchanged_is_damage_and_named(backend: Backend) -> None:
    rows = dict(segment_row(str(n), 1, n) for n in range(2000))
    keys = sorted(rows)
    data, file = build_section(new_id(), SEED, keys, [rows[key] for key in keys])
    other, _ = build_section(new_id(), SEED, keys, [rows[key] for key in keys])
    file = put_file(backend, data, file)
    key = run_key(file.id)
    manifest = Manifest(runs=(Run(1, 1, 0, (file,)),))
    for harmed in (data[:-1], data[: len(data) // 2], b"", other, data[1:] + b"x"):
        etag = backend.put(PARTITION, key, harmed)
        again = Manifest(runs=(Run(1, 1, 0, (file.stored(etag),)),))
        with pytest.raises(CorruptData, match=r"RUN") as raised:
            runs_of(backend, again).get([keys[0]])
        assert repr(key) in str(raised.value)
    etag = backend.put(PARTITION, key, data)
    manifest = Manifest(runs=(Run(1, 1, 0, (file.stored(etag),)),))
    with pytest.raises(CorruptData):
        Runs(backend, PARTITION, SEED + 1, manifest, BlockCache()).get([keys[0]])
    assert runs_of(backend, manifest).get([keys[0]]) == [rows[keys[0]]]


def test_no_flipped_bit_gives_another_row(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_format, "BLOCK_BYTES", 500)
    rows = dict(segment_row(str(n), 1, n) for n in range(40))
    keys = sorted(rows)
    data, file = build_section(new_id(), SEED, keys, [rows[key] for key in keys])
    for at in range(len(data)):
        harmed = bytearray(data)
        harmed[at] ^= 1 << at % 8
        etag = backend.put(PARTITION, run_key(file.id), bytes(harmed))
        runs = runs_of(backend, Manifest(runs=(Run(1, 1, 0, (file.stored(etag),)),)))
        if at < 8:
            assert list(runs.scan(b"", b"\xff")) == sorted(rows.items())  # nothing there that a reader needs
            continue
        with pytest.raises(CorruptData, match=r"RUN"):
            list(runs.scan(b"", b"\xff"))
        for key in keys:
            try:
                (value,) = runs.get([key])
            except CorruptData:
                continue
            assert value == rows[key]


def test_a_section_may_begin_anywhere_in_its_row(backend: Backend) -> None:
    rows = dict([segment_row("a", 1, 1), data_row("a", 1, 1), key_row(b"k" * 16, 1)])
    keys = sorted(rows)
    data, file = build_section(new_id(), SEED, keys, [rows[key] for key in keys])
    etag = backend.put(PARTITION, run_key(file.id), b"packed" * 9 + data + b"more")
    runs = runs_of(backend, Manifest(runs=(Run(1, 1, 0, (file.stored(etag, 54),)),)))
    assert list(runs.scan(b"", b"\xff")) == sorted(rows.items())
    assert runs.get(keys) == [rows[key] for key in keys]
