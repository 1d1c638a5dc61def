"""Merging runs: nothing is lost, superseded rows go, by bounded steps that any process may take."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from uuid import uuid4

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
from harness.sections import build_files
from streamkit.backend import Backend
from streamkit.errors import CorruptData
from streamkit.index import merge as merging
from streamkit.index import run_format
from streamkit.index.block_cache import BlockCache
from streamkit.index.compaction import PIECES, ROW_BYTES, Expiry, Rules, compact
from streamkit.index.merge import (
    FANOUT,
    level_of,
    merge_inline,
    merge_step,
    next_merge,
    plan_merge,
)
from streamkit.index.run_format import SectionBuilder, decode_inline, decode_section, encode_inline
from streamkit.log.idempotency import digest_of
from streamkit.log.index_rows import decode_index_row, encode_index_row, join_data, piece_count
from streamkit.log.keys import DATA, data_key, data_range, idempotency_key, run_key, segment_key
from streamkit.log.manifest import Manifest, Merge, Run, RunFile, RunGone
from streamkit.log.rows import DataRow, Piece
from streamkit_memory.driver import MemoryDriver


@pytest.fixture
def backend() -> Backend:
    return MemoryDriver(remote=True).open(uuid4())


def pieces_of(rows: Rows | list[tuple[bytes, bytes]]) -> dict[bytes, object]:
    """The content of rows, with data rows split into pieces, so that differently joined rows are equal."""
    found: dict[bytes, object] = {}
    start, end = DATA.children()
    for key, value in rows.items() if isinstance(rows, dict) else rows:
        if start <= key < end:
            pieces = decode_index_row(DataRow, key, value).pieces
            said: dict[bytes, object]
            assert key[-8:] == pieces[-1].last_sequence.to_bytes(8)
            said = {key[:-8] + piece.last_sequence.to_bytes(8): piece for piece in pieces}
        else:
            said = {key: value}
        assert found.keys().isdisjoint(said)
        found.update(said)
    return found


def step(backend: Backend, manifest: Manifest, budget: int = 1, rules: Rules | None = None) -> Manifest:
    """One step by a process that knows nothing yet, and wins."""
    merge = next_merge(manifest)
    assert merge is not None
    made = merge_step(runs_of(backend, manifest), merge, budget, new_id(), SEED, rules)
    etag = ""
    if made.data is not None and made.file is not None:
        etag = put_file(backend, made.data, made.file).etag
    after = made.apply(manifest, etag)
    assert after is not None
    return after


def merged(backend: Backend, manifest: Manifest, budget: int = 1, rules: Rules | None = None) -> Manifest:
    while next_merge(manifest) is not None:
        manifest = step(backend, manifest, budget, rules)
    return manifest


def eight_runs(backend: Backend, each: int = 300) -> tuple[Manifest, Rows]:
    chance, sequences, truth = random.Random(1), dict[str, int](), Rows()
    runs: list[Run] = []
    for at in range(FANOUT):
        rows = many_rows(chance, 40, range(at * each + 1, (at + 1) * each + 1), sequences)
        truth.update(rows)
        runs.insert(0, put_run(backend, rows, at * each + 1, (at + 1) * each))
    return Manifest(runs=tuple(runs)), truth


# --- joining ---


def test_joining_encoded_rows_is_joining_their_pieces() -> None:
    pieces = [Piece(n, n, n, 1, 0, 10, b"f" * (n % 40) if n % 3 else None) for n in range(1, 301)]
    for sizes in ([1], [1, 1], [7, 8], [14, 1], [15, 1], [1, 15, 16, 200], [100, 100, 56]):
        parts, at = [], 0
        for size in sizes:
            parts.append(pieces[at : at + size])
            at += size
        joined = join_data([encode_index_row(DataRow(part)) for part in parts])
        assert joined == encode_index_row(DataRow(pieces[:at]))
        assert piece_count(joined) == at
    for damaged in (b"\x91\x01", b"\x91\xc0"):
        with pytest.raises(CorruptData):
            join_data([damaged, damaged])


@pytest.mark.parametrize("chunk", [1, 2, 7, 100_000])
@pytest.mark.parametrize("frame", [0, 300, 5000, 20_000])
def test_data_rows_are_joined_up_to_their_limits(chunk: int, frame: int) -> None:
    rows = dict(row for n in range(1, 700) for row in (data_row("a", n, n, frame=frame), data_row("b", n, n, frame=9)))
    rows.update([segment_row("a", 699, 699), data_row("c", 1, 1)])
    keys = sorted(rows)
    chunks = [
        (keys[at : at + chunk], [rows[key] for key in keys[at : at + chunk]]) for at in range(0, len(keys), chunk)
    ]
    after = [row for keys, values in compact(chunks, None, oldest=True) for row in zip(keys, values, strict=True)]
    assert [key for key, _ in after] == sorted(key for key, _ in after)
    assert pieces_of(after) == pieces_of(rows)
    start, end = data_range("a", 0)
    of_a = [value for key, value in after if start <= key < end]
    assert all(piece_count(value) == 1 or len(value) <= ROW_BYTES + 8 for value in of_a)
    assert all(piece_count(value) <= PIECES for value in of_a)
    assert len(of_a) <= max(-(-699 // PIECES), 699 // max(1, ROW_BYTES // (frame + 60))) + 1
    assert sum(1 for key, _ in after if key > end) >= 4


# --- what ends ---


def test_pieces_that_the_log_does_not_hold_any_more_go() -> None:
    key = data_key("a", 4)
    pieces = [Piece(n, n, n, 1, 0, 10, None) for n in (1, 2, 3, 4)]
    rows = dict([segment_row("a", 4, 4), (key, encode_index_row(DataRow(pieces))), data_row("b", 2, 1)])
    keys = sorted(rows)

    def left(removed: int) -> Rows:
        after = Expiry(removed=removed)(keys, [rows[key] for key in keys], False)
        return dict(zip(*after, strict=True))

    assert left(0) == rows
    assert left(1)[key] == encode_index_row(DataRow(pieces[1:]))
    assert sorted(left(2)) == sorted([key, segment_key("a")])
    assert left(3)[key] == encode_index_row(DataRow(pieces[3:]))
    assert list(left(4)) == [segment_key("a")]


def test_old_keys_go_where_no_older_use_can_come_to_light() -> None:
    rows = dict([segment_row("a", 1, 1), *(key_row(n.to_bytes(16), n) for n in range(10))])
    keys = sorted(rows)
    values = [rows[key] for key in keys]
    rules = Expiry(forgotten=4)
    assert rules(keys, values, False) == (keys, values)
    assert rules(keys, values, True)[0] == [*(key_row(n.to_bytes(16), n)[0] for n in range(5, 10)), segment_key("a")]


def test_keys_of_those_who_may_repeat_a_write_at_any_time_stay() -> None:
    lasting, other = digest_of("spark/query/1/b2/0"), digest_of("order-17")
    rows = dict([key_row(lasting, 1), key_row(other, 2)])
    keys = sorted(rows)
    after, _ = Expiry(forgotten=9)(keys, [rows[key] for key in keys], True)
    assert after == [idempotency_key(lasting)]


def test_a_merge_tells_its_rules_whether_older_runs_remain(backend: Backend) -> None:
    manifest, _ = eight_runs(backend)
    told: set[bool] = set()

    def rules(keys: list[bytes], values: list[bytes], oldest: bool) -> tuple[list[bytes], list[bytes]]:
        told.add(oldest)
        return keys, values

    merged(backend, manifest, rules=rules)
    assert told == {True}
    told.clear()
    old = put_run(backend, {b"x" * 300: random.Random(1).randbytes(3 << 20)}, 0, 0)
    merged(backend, msgspec.structs.replace(manifest, runs=(*manifest.runs, old)), rules=rules)
    assert told == {False}


def test_a_merge_whose_rows_all_end_leaves_no_run(backend: Backend) -> None:
    rows = [put_run(backend, dict([data_row("a", n, n)]), n, n) for n in range(FANOUT, 0, -1)]
    after = merged(backend, Manifest(runs=tuple(rows)), rules=Expiry(removed=FANOUT))
    assert after == Manifest()


def test_a_step_that_drops_nearly_all_ends_all_the_same(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_LEAST_AHEAD", 1 << 10)
    runs = [
        put_run(backend, dict(data_row("a", n, n, frame=500) for n in range(at * 400 + 1, at * 400 + 401)), at, at)
        for at in range(FANOUT - 1, -1, -1)
    ]
    manifest, steps = Manifest(runs=tuple(runs)), 0
    while next_merge(manifest) is not None:
        manifest = step(backend, manifest, 10_000, Expiry(removed=FANOUT * 400 - 1))
        steps += 1
    assert steps > 5
    assert [run.files[0].rows for run in manifest.runs] == [1]


# --- which ---


def run(first: int, size: int) -> Run:
    return Run(first, first, 0, (RunFile(new_id(), "e", 0, size, 10, b"a", b"b", 1),))


def of_sizes(*sizes: int) -> Manifest:
    """Newest first."""
    return Manifest(runs=tuple(run(len(sizes) - at, size) for at, size in enumerate(sizes)))


def test_eight_neighbours_of_a_level_are_merged() -> None:
    small, large = 100 << 10, 1 << 20
    assert plan_merge(of_sizes(*[small] * 7)) is None
    assert plan_merge(of_sizes(*[small] * 8)) == Merge(1, 8)
    assert plan_merge(of_sizes(*[small] * 8, large)) == Merge(2, 9)
    assert plan_merge(of_sizes(*[small] * 6, large, *[small] * 6)) == Merge(1, 13)
    assert plan_merge(of_sizes(*[small] * 7, large)) is None
    assert plan_merge(of_sizes(*[small] * 4, *[large] * 8)) == Merge(1, 12)
    assert plan_merge(of_sizes(*[small] * 8, *[large] * 8)) == Merge(9, 16)
    assert plan_merge(of_sizes(*[small] * 4, 100 << 20, *[small] * 4)) is None
    assert [level_of(size) for size in (0, 256 << 10, (256 << 10) + 1, 2 << 20, 3 << 20)] == [0, 0, 1, 1, 2]


def test_what_is_being_merged_is_no_input_of_another_merge() -> None:
    small = 100 << 10
    manifest = of_sizes(*[small] * 12)
    manifest = msgspec.structs.replace(manifest, merges=(Merge(1, 8, (), b"x"),))
    assert plan_merge(manifest) is None
    assert next_merge(manifest) == Merge(1, 8, (), b"x")
    manifest = of_sizes(*[small] * 8, *[1 << 20] * 8)
    manifest = msgspec.structs.replace(manifest, merges=(Merge(1, 8, (), b"x"),))
    assert plan_merge(manifest) == Merge(9, 16)
    assert next_merge(manifest) == Merge(9, 16)


def test_there_are_never_many_runs() -> None:
    # Small runs, fewer than a level takes, between large ones that each outweigh all that is newer.
    sizes = [size for power in range(7) for size in (*[1 << 10] * 7, 9**power << 20)]
    assert plan_merge(of_sizes(*sizes[:48])) is None
    manifest = of_sizes(*sizes)
    merge = plan_merge(manifest)
    assert merge is not None
    assert sum(run.size for run in manifest.inputs(merge)) < 2 << 20


@pytest.mark.parametrize("size", [60 << 10, 400 << 10, 5 << 20])
def test_runs_stay_few_and_are_written_anew_only_a_few_times(size: int) -> None:
    chance, manifest, written, most = random.Random(size), Manifest(), 0, 0
    for number in range(1, 3001):
        fresh = run(number, chance.randrange(size // 2, size * 3 // 2))
        manifest = manifest.with_run(fresh)
        while (merge := plan_merge(manifest)) is not None:
            inputs = manifest.inputs(merge)
            total = sum(part.size for part in inputs)
            written += total
            whole = Run(inputs[-1].first, inputs[0].last, 0, (RunFile(new_id(), "e", 0, total, 10, b"a", b"b", 1),))
            runs = [whole if part == inputs[0] else part for part in manifest.runs if part not in inputs[1:]]
            manifest = msgspec.structs.replace(manifest, runs=tuple(runs))
        most = max(most, len(manifest.runs))
    assert most <= 32
    assert written <= 5 * sum(part.size for part in manifest.runs)


# --- how ---


@pytest.mark.parametrize("budget", [1, 5000, 1 << 30])
def test_a_merge_holds_what_its_inputs_held(backend: Backend, budget: int) -> None:
    manifest, truth = eight_runs(backend)
    after = merged(backend, manifest, budget)
    assert len(after.runs) == 1
    assert (after.runs[0].first, after.runs[0].last) == (1, FANOUT * 300)
    assert after.merges == ()
    rows = list(runs_of(backend, after).scan(b"", b"\xff"))
    assert pieces_of(rows) == pieces_of(truth)
    assert len(rows) < len(truth) / 2
    ordered = [key for file in after.runs[0].files for key in (file.first_key, file.last_key)]
    assert ordered == sorted(ordered)


def test_steps_go_on_where_another_process_stopped_and_reads_are_right_meanwhile(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_SLICE", 10)
    manifest, truth = eight_runs(backend)
    seen = 0
    while next_merge(manifest) is not None:
        manifest = step(backend, manifest, 4000)
        assert pieces_of(list(runs_of(backend, manifest).scan(b"", b"\xff"))) == pieces_of(truth)
        seen += bool(manifest.merges)
    assert seen > 3


def test_a_segment_is_read_from_the_files_that_a_merge_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_SLICE", 10)
    backend = MemoryDriver().open(uuid4())
    manifest, truth = eight_runs(backend)
    begin, end = DATA.children()
    names = sorted({key[len(begin) : -9].decode() for key in truth if begin <= key < end})
    blocks: list[int] = []
    while next_merge(manifest) is not None:
        manifest = step(backend, manifest, 4000)
        index = runs_of(backend, manifest)
        blocks.append(0)
        for name in names:
            start, end = data_range(name, 1)
            wanted = pieces_of({key: value for key, value in truth.items() if start <= key < end})
            assert pieces_of(list(index.scan(start, end, name.encode()))) == wanted
            last = index.last(name, start, end)
            if last is not None:
                assert decode_index_row(DataRow, b"", last).pieces[-1] == wanted[max(wanted)]
            some = index.blocks_of(name, start, end)
            assert some is not None
            blocks[-1] += len(some[0])
    assert blocks == sorted(blocks, reverse=True)
    assert blocks[0] > 4 * blocks[-1]


def test_two_processes_that_take_the_same_step_make_the_same_rows(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_SLICE", 10)
    manifest, truth = eight_runs(backend)
    merge = next_merge(manifest)
    assert merge is not None
    for _ in range(3):
        one, other = (merge_step(runs_of(backend, manifest), merge, 4000, new_id(), SEED) for _ in range(2))
        assert one.file is not None
        assert other.file is not None
        assert (one.resume, one.file.rows, one.file.first_key) == (other.resume, other.file.rows, other.file.first_key)
        assert one.data is not None
        after = one.apply(manifest, put_file(backend, one.data, one.file).etag)
        assert after is not None
        assert other.apply(after, "e") is None
        manifest, merge = after, after.merges[0]
    manifest = merged(backend, manifest)
    assert other.apply(manifest, "e") is None
    assert pieces_of(list(runs_of(backend, manifest).scan(b"", b"\xff"))) == pieces_of(truth)


def test_of_two_processes_that_merge_all_at_once_the_first_wins(backend: Backend) -> None:
    manifest, truth = eight_runs(backend)
    merge = next_merge(manifest)
    assert merge is not None
    one, other = (merge_step(runs_of(backend, manifest), merge, 1 << 30, new_id(), SEED) for _ in range(2))
    assert one.data is not None
    assert one.file is not None
    after = one.apply(manifest, put_file(backend, one.data, one.file).etag)
    assert after is not None
    assert other.apply(after, "e") is None
    assert pieces_of(list(runs_of(backend, after).scan(b"", b"\xff"))) == pieces_of(truth)


def test_a_step_that_was_made_for_an_older_manifest_fits_a_newer_one(backend: Backend) -> None:
    manifest, truth = eight_runs(backend)
    merge = next_merge(manifest)
    assert merge is not None
    made = merge_step(runs_of(backend, manifest), merge, 1 << 30, new_id(), SEED)
    assert made.finished
    newer = dict([segment_row("segment-1", 9999, 9999)])
    manifest = manifest.with_run(put_run(backend, newer, 9999, 9999))
    assert made.data is not None
    assert made.file is not None
    after = made.apply(manifest, put_file(backend, made.data, made.file).etag)
    assert after is not None
    assert [part.last for part in after.runs] == [9999, FANOUT * 300]
    assert pieces_of(list(runs_of(backend, after).scan(b"", b"\xff"))) == pieces_of(truth | newer)


def test_files_of_an_unfinished_merge_are_referred_to(backend: Backend) -> None:
    manifest, _ = eight_runs(backend)
    after = step(backend, manifest, 4000)
    assert {file.id for file in after.files()} > {file.id for file in manifest.files()}
    stored = {row.key for row in backend.scan(PARTITION, b"", b"\xff")}
    assert stored == {run_key(file.id) for file in after.files()}


def test_a_step_takes_few_requests_and_little_memory() -> None:
    backend = MemoryDriver(remote=True).open(uuid4())
    chance = random.Random(5)
    runs = []
    for at in range(FANOUT):
        rows = {
            key: value + chance.randbytes(100)
            for key, value in (segment_row(f"{chance.randrange(1 << 30):010d}", at, at) for _ in range(20_000))
        }
        runs.insert(0, put_run(backend, rows, at, at))
    manifest = Manifest(runs=tuple(runs))
    total = sum(part.size for part in manifest.runs)
    index = runs_of(backend, manifest, BlockCache())
    merge = next_merge(manifest)
    assert merge is not None
    assert total > 16 << 20
    asked = backend.requests.get("read", 0)
    tracemalloc.start()
    try:
        made = merge_step(index, merge, 1 << 20, new_id(), SEED)
        assert tracemalloc.get_traced_memory()[1] < 14 << 20
    finally:
        tracemalloc.stop()
    assert made.data is not None
    assert 1 << 20 <= len(made.data) < 1.3 * (1 << 20)
    # Its tail and two or three ranges of each input.
    assert backend.requests["read"] - asked <= FANOUT * 4


def test_rows_of_many_files_are_built_one_after_the_other() -> None:
    rows = dict(segment_row(f"{n:06d}", 1, n) for n in range(20_000))
    keys = sorted(rows)
    built = list(build_files(keys, [rows[key] for key in keys], new_id, SEED, 5_000))
    assert len(built) > 5
    assert sum(file.rows for _, file in built) == 20_000
    assert all(len(data) < 60_000 for data, _ in built)
    assert all(one.last_key < other.first_key for (_, one), (_, other) in pairwise(built))
    assert list(build_files([], [], new_id, SEED)) == []


# --- blocks that are taken over ---


def hot_runs(backend: Backend, chance: random.Random, runs: int) -> tuple[Manifest, Rows]:
    """Runs in which some segments fill many blocks, some have a few rows, and some rows are in several runs."""
    sequences: dict[str, int] = {}
    manifest, truth = Manifest(), Rows()
    for number in range(1, runs + 1):
        rows = Rows()
        for segment in ("a", "b", "hot", "hot-2", "z"):
            first = sequences.get(segment, 1)
            many = segment.startswith("hot") and chance.random() < 0.8
            for sequence in range(first, first + (chance.randrange(60) if many else chance.randrange(3))):
                rows.update([data_row(segment, number, sequence, frame=chance.choice((300, 5000)))])
                sequences[segment] = sequence + 1
            rows.update([segment_row(segment, number, sequences.get(segment, 1))])
        older = [key for key in truth if key.startswith(DATA.children()[0])]
        for key in chance.sample(older, min(len(older), chance.choice((0, 0, 3)))):
            rows[key] = truth[key]  # of another run, too
        manifest = manifest.with_run(put_run(backend, rows, number, number, files=chance.choice((1, 1, 3))))
        truth.update(rows)
    return manifest, truth


@pytest.mark.parametrize("budget", [1, 100_000, 1 << 30])
@pytest.mark.parametrize("seed", range(6))
def test_full_blocks_of_a_segment_are_taken_over_as_they_are(
    backend: Backend, seed: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    add_stored = SectionBuilder.add_stored
    monkeypatch.setattr(
        SectionBuilder,
        "add_stored",
        lambda self, stored: taken.append(len(stored.blocks)) or add_stored(self, stored),  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr(merging, "_LEAST_AHEAD", (1 << 10, 64 << 10)[seed % 2])
    manifest, truth = hot_runs(backend, random.Random(seed), FANOUT + seed)
    while next_merge(manifest) is not None:
        manifest = step(backend, manifest, budget)
        index = runs_of(backend, manifest)
        assert pieces_of(list(index.scan(b"", b"\xff"))) == pieces_of(truth)
        for segment in ("a", "hot", "hot-2"):
            start, end = data_range(segment, 1)
            wanted = {key: value for key, value in truth.items() if start <= key < end}
            assert pieces_of(list(index.scan(start, end, segment.encode()))) == pieces_of(wanted)
    assert sum(taken) > 20
    for merged_run in manifest.runs:
        for file in merged_run.files:
            value = backend.get(PARTITION, [run_key(file.id)])[0]
            assert value is not None
            keys, _ = decode_section(value.data, file, SEED)
            assert keys[-1] == file.last_key


def test_a_damaged_block_is_not_taken_over(backend: Backend) -> None:
    rows = dict(data_row("hot", 1, sequence, frame=5000) for sequence in range(1, 20))
    runs = [put_run(backend, dict([data_row("other", n, n)]), n, n) for n in range(FANOUT, 1, -1)]
    manifest = Manifest(runs=(*runs, put_run(backend, rows, 1, 1)))
    file = manifest.runs[-1].files[0]
    value = backend.get(PARTITION, [run_key(file.id)])[0]
    assert value is not None
    data = bytearray(value.data)
    data[40] ^= 1
    backend.put(PARTITION, run_key(file.id), bytes(data))
    with pytest.raises(CorruptData, match="damaged"):
        merge_step(runs_of(backend, manifest), Merge(1, FANOUT), 1 << 30, new_id(), SEED)


# --- any sequence ---


class IndexMachine(RuleBasedStateMachine):
    """Transactions are indexed, inline first; runs are flushed, merged and swept, by several processes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(merging, "FANOUT", 3)
        self.patch.setattr(merging, "_LEVEL_BYTES", 1 << 10)
        self.patch.setattr(merging, "_MOST_RUNS", 6)
        self.patch.setattr(merging, "_LEAST_AHEAD", 1)
        self.patch.setattr(merging, "_MOST_AHEAD", 1)
        self.patch.setattr(merging, "_SLICE", 3)
        self.patch.setattr(run_format, "BLOCK_BYTES", 200)
        self.backend: Backend = MemoryDriver(remote=True).open(uuid4())
        self.cache = BlockCache(4 << 10, 4 << 10)
        self.manifest = Manifest()
        self.truth: Rows = {}
        self.number = 0
        self.sequences: dict[str, int] = {}
        self.old: list[tuple[Manifest, Rows, Iterator[tuple[bytes, bytes]]]] = []
        self.pending: list[merging.MergeStep] = []

    def teardown(self) -> None:
        self.patch.undo()

    @rule(seed=st.integers(0, 1 << 20), count=st.integers(1, 30), segments=st.sampled_from([1, 3, 40]))
    def index(self, seed: int, count: int, segments: int) -> None:
        numbers = range(self.number + 1, self.number + count + 1)
        rows = many_rows(random.Random(seed), segments, numbers, self.sequences)
        self.number += count
        self.truth = self.truth | rows
        inline = decode_inline(self.manifest.inline, SEED) if self.manifest.inline else None
        first = self.manifest.inline_first if inline else numbers[0]
        keys, values = merge_inline(inline, rows)
        if len(keys) < 40:
            self.manifest = self.manifest.with_inline(encode_inline(keys, values, SEED), first, self.number)
            return
        files = tuple(put_file(self.backend, *built) for built in build_files(keys, values, new_id, SEED, 600))
        self.manifest = self.manifest.with_run(Run(first, self.number, 0, files))

    @precondition(lambda self: next_merge(self.manifest) is not None)
    @rule(budget=st.sampled_from([1, 700, 5000]))
    def merge(self, budget: int) -> None:
        """Another process makes a step for the present manifest, and will be heard of later."""
        merge = next_merge(self.manifest)
        assert merge is not None
        runs = runs_of(self.backend, self.manifest, self.cache)
        self.pending.append(merge_step(runs, merge, budget, new_id(), SEED))

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 10))
    def finish(self, which: int) -> None:
        made = self.pending.pop(which % len(self.pending))
        etag = ""
        if made.data is not None and made.file is not None:
            etag = put_file(self.backend, made.data, made.file).etag
        self.manifest = made.apply(self.manifest, etag) or self.manifest

    @rule()
    def sweep(self) -> None:
        named = {run_key(file.id) for file in self.manifest.files()}
        gone = [row.key for row in self.backend.scan(PARTITION, b"", b"\xff") if row.key not in named]
        self.backend.delete(PARTITION, gone)

    @rule()
    def begin_to_read(self) -> None:
        scan = runs_of(self.backend, self.manifest, self.cache).scan(b"", b"\xff")
        self.old.append((self.manifest, self.truth, scan))

    @precondition(lambda self: self.old)
    @rule(which=st.integers(0, 10))
    def read_on(self, which: int) -> None:
        """A reader that holds an old manifest reads what was then, or is told that it is gone."""
        manifest, truth, scan = self.old.pop(which % len(self.old))
        gone: bytes | None = None
        rows: list[tuple[bytes, bytes]] = []
        try:
            rows = list(scan)
        except RunGone as error:
            gone = error.key
        if gone is None:
            assert pieces_of(rows) == pieces_of(truth)
        else:
            assert gone in {run_key(file.id) for file in manifest.files()}
            assert gone not in {run_key(file.id) for file in self.manifest.files()}

    @rule(seed=st.integers(0, 1 << 20))
    def look_up(self, seed: int) -> None:
        runs = runs_of(self.backend, self.manifest, self.cache)
        chance = random.Random(seed)
        start, end = DATA.children()
        keys = [key for key in self.truth if not start <= key < end]
        keys = [*chance.sample(keys, min(5, len(keys))), segment_key("segment-x"), b"z"]
        assert runs.get(keys) == [self.truth.get(key) for key in keys]
        name = f"segment-{chance.randrange(4)}"
        first = chance.randrange(1, 12)
        assert runs.get([segment_key(name)]) == [self.truth.get(segment_key(name))]
        rows = runs.scan(*data_range(name, first), name.encode())
        pieces = [piece for key, row in rows for piece in decode_index_row(DataRow, key, row).pieces]
        last = self.sequences.get(name, 1) - 1
        assert [piece.first_sequence for piece in pieces if piece.first_sequence >= first] == [*range(first, last + 1)]

    @invariant()
    def whole(self) -> None:
        rows = list(runs_of(self.backend, self.manifest, BlockCache()).scan(b"", b"\xff"))
        assert pieces_of(rows) == pieces_of(self.truth)


TestAnySequence = IndexMachine.TestCase
TestAnySequence.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
