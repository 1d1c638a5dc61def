"""Upkeep keeps up: however large what is appended is, there are few runs and few packs."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from random import Random
from uuid import UUID, uuid4

import pytest

import streamkit
from streamkit import Client, Record, Retention, open_store
from streamkit.index import upkeep
from streamkit.index.block_cache import BlockCache
from streamkit.index.run_format import BLOCK_BYTES
from streamkit.index.thin import expire, thin
from streamkit.index.upkeep import bring_forward
from streamkit.log import policy
from streamkit.log.keys import transaction_prefix
from streamkit.log.partition import Partition
from streamkit.store import Store
from streamkit.testing import ManualClock
from streamkit_memory import MemoryDriver


def partition_of(store: Store) -> Partition:
    known = store._known("s")
    assert known is not None
    return known.partitions[0]


@pytest.mark.parametrize("url", ["memory://", "memory://?remote=1"])
@pytest.mark.parametrize("size", [10, 2500, 20_000])
def test_runs_and_packs_stay_few(url: str, size: int) -> None:
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        count = 4000 if size < 20_000 else 1200
        for at in range(count):
            store.produce("s", f"s{at % 300}", [Record(at.to_bytes(4, "big") * (size // 4))])
        head = partition_of(store).head
        assert len(head.manifest.runs) <= 16
        assert len(head.packs) <= 24
        assert len(list(store.consume_segment("s", "s7"))) == len(range(7, count, 300))
        assert store.verify().ok


def _written_in_many_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[UUID, list[str]]:
    """Return (store, segments): each of 300 segments has 32 entries, in at least 4 runs, and no block of them is
    cached."""
    monkeypatch.setattr(policy, "LOCAL", policy.LOCAL._replace(upkeep=64, inline=0, fanout=8))
    monkeypatch.setattr(open_store, "BlockCache", partial(BlockCache, blocks_bytes=0))
    id, names, dice = uuid4(), [f"s{at}" for at in range(300)], Random(1)
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(id)
        for turn in range(320):
            with store.transaction("s") as trx:
                for name in names[turn % 10 :: 10]:
                    trx.produce(name, [Record(dice.randbytes(500))])
        assert len(partition_of(store).head.manifest.runs) >= 4
    return id, names


def test_the_newest_run_that_has_a_segment_tells_its_latest_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older runs, which have the segment too, are not asked, nor is its status: a row alone is read."""
    id, names = _written_in_many_runs(tmp_path, monkeypatch)
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(id)
        assert store.peek("s", "s0").sequence == 32  # the ends of all runs are read
        before = store.statistics().requests
        for name in names[1:]:
            assert store.peek("s", name).sequence == 32
        after = store.statistics().requests
        assert after["read"] - before["read"] <= 1.05 * len(names)  # a filter errs seldom
        assert after["bytes_read"] - before["bytes_read"] <= 1.5 * BLOCK_BYTES * len(names)  # a block ends after a row


def test_an_entry_that_a_peek_has_kept_is_not_the_latest_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment's status is unknown, so it comes from the index and the tail."""
    monkeypatch.setattr(policy, "LOCAL", policy.LOCAL._replace(upkeep=8, inline=0))
    id = uuid4()
    with streamkit.connect(tmp_path.as_uri()) as client, streamkit.connect(tmp_path.as_uri()) as other:
        store, reader = client.store(id), other.store(id)

        def write(*segments: str) -> None:
            for segment in segments:
                store.produce("s", segment, [Record(b"")])
                assert not reader.peek("s", "nobody").sequence

        others = [f"s{at}" for at in range(20)]
        for segment in ("a", *others):
            store.produce("s", segment, [Record(b"")])
        for _ in range(2):
            assert reader.peek("s", "a").sequence == 1
        assert reader.statistics().cache_hits == 1
        write("a")  # it is in the tail
        assert reader.peek("s", "a").sequence == 2
        write("a", *others)  # the index has taken it over
        assert reader.peek("s", "a").sequence == 3


def test_a_load_of_a_segment_reads_its_rows_and_no_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was ever removed, so the rows tell all: one block of each run, and no other."""
    id, names = _written_in_many_runs(tmp_path, monkeypatch)
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(id)

        def loaded() -> int:
            before = store.statistics().requests["read"]
            for name in names:
                assert [entry.sequence for entry in store.consume_segment("s", name)] == [*range(1, 33)]
            return store.statistics().requests["read"] - before

        loaded()  # the ends of all runs are read
        whole = loaded()
        store.trim("s", segment="s0", before=2)
        names = names[1:]
        assert loaded() > whole + 200  # where something was removed, a status each


def test_an_upkeep_takes_more_steps_of_a_merge_where_there_are_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    few = policy.LOCAL._replace(upkeep=16, inline=0, fanout=2, merge=4096)
    monkeypatch.setattr(policy, "LOCAL", few)
    counts = {}
    for more in (0, 3):
        monkeypatch.setattr(upkeep, "_MORE_STEPS", more)
        with streamkit.connect("memory://") as client:
            store, dice = client.store(uuid4()), Random(1)
            for at in range(1600):
                store.produce("s", f"s{at % 300}", [Record(dice.randbytes(100))])
                counts[more] = counts.get(more, 0) + len(partition_of(store).head.manifest.runs)
            assert store.verify().ok
    assert counts[3] < counts[0]


@pytest.mark.parametrize("url", ["memory://", "memory://?remote=1"])
def test_maintenance_leaves_nothing_to_do(url: str) -> None:
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        for at in range(3000):
            store.produce("s", f"s{at % 300}", [Record(b"x" * 300)])
        store.maintain()
        head = partition_of(store).head
        assert head.watermark == 3000
        assert head.manifest.merges == ()
        store.maintain()
        assert partition_of(store).head == head


def test_maintenance_makes_one_run_of_all_and_writes_a_large_one_not_anew_for_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "LOCAL", policy.LOCAL._replace(upkeep=64, inline=0, fanout=8))
    dice = Random(1)
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())

        def write(count: int) -> None:
            for at in range(count):
                store.produce("s", f"s{at % 50}", [Record(dice.randbytes(3900))])

        write(320)
        assert len(partition_of(store).head.manifest.runs) >= 4
        store.maintain()
        (whole,) = partition_of(store).head.manifest.runs
        write(70)
        store.maintain()
        runs = partition_of(store).head.manifest.runs
        assert len(runs) > 1
        assert runs[-1] == whole
        write(70)
        store.maintain()
        assert len(partition_of(store).head.manifest.runs) == 1
        assert store.verify().ok
        for at in range(50):
            sequences = [entry.sequence for entry in store.consume_segment("s", f"s{at}")]
            assert sequences == list(range(1, len(sequences) + 1))
            assert len(sequences) >= 320 // 50 + 2


@pytest.mark.parametrize("remote", [False, True])
def test_a_busy_log_is_cleared_when_the_grace_is_over(remote: bool) -> None:
    """Packed transactions leave the log soon after the grace, and not before it, also with frequent upkeeps."""
    clock, grace, step = ManualClock(), 60, 0.1
    driver = MemoryDriver(remote=remote, clock=clock, sleep=clock.sleep)
    client = Client("memory://", driver, 30.0, None, 1 << 20, clock)
    store = client.store(uuid4())
    store.create_space("s", archive_grace=grace)
    store.produce("s", "s0", [Record(b"x")])
    partition = partition_of(store)
    prefix = transaction_prefix(partition.settings.incarnation)
    for at in range(3000):
        store.produce("s", f"s{at % 3}", [Record(b"x")])
        clock.sleep(step)
        if at % 50 == 49:
            store.maintain()
            rows = sum(1 for _ in driver.open(store.id).scan(partition.key, prefix, prefix + b"\xff", values=False))
            assert rows >= min(at + 2, grace / step)
            assert rows <= grace / step * 1.2 + 100
    assert store.verify().ok


def test_a_log_is_cleared_after_a_clock_that_was_ahead_was_put_right() -> None:
    """All who use a store on one machine have its clock, which was a year ahead when the log was packed."""
    store_id, name, rows = uuid4(), uuid4().hex, []
    for start, turns in ((400 * 86_400.0, 2), (10 * 86_400.0, 20)):
        clock = ManualClock(start)
        driver = MemoryDriver(name, clock=clock, sleep=clock.sleep)
        store = Client("memory://", driver, 30.0, None, 1 << 20, clock).store(store_id)
        for _ in range(turns):
            for at in range(100):
                store.produce("s", f"s{at % 3}", [Record(b"x")])
            store.maintain()
            clock.sleep(10.0)
        partition = partition_of(store)
        prefix = transaction_prefix(partition.settings.incarnation)
        rows.append(sum(1 for _ in driver.open(store_id).scan(partition.key, prefix, prefix + b"\xff", values=False)))
    assert rows[0] == 200
    assert rows[1] <= 1000
    assert store.verify().ok


def test_runs_that_are_merged_while_a_client_sleeps_do_not_stop_its_upkeep() -> None:
    url = f"memory://{uuid4().hex}?remote=1"
    with streamkit.connect(url) as client, streamkit.connect(url) as other:
        store = client.store(uuid4())
        for at in range(70):
            store.produce("space", f"s{at % 8}", [Record(os.urandom(9000))])
        store.trim("space", "s3", keep_entries=1)
        partition = store._known("space").partitions[0]  # type: ignore[union-attr]
        assert bring_forward(partition)
        busy = other.store(store.id)
        for at in range(70):
            busy.produce("space", f"s{at % 8}", [Record(os.urandom(9000))])
        busy.maintain()
        thin(partition)
        assert store.segment_status("space", "s3").first_sequence == 9


def test_runs_that_are_merged_while_a_client_sleeps_do_not_stop_its_retention() -> None:
    url = f"memory://{uuid4().hex}?remote=1"
    with streamkit.connect(url) as client, streamkit.connect(url) as other:
        store = client.store(uuid4())
        store.set_retention("space", Retention(max_entries=2, per="segment"))
        for at in range(70):
            store.produce("space", f"s{at % 8}", [Record(os.urandom(9000))])
        known = store._known("space")
        assert known is not None
        assert bring_forward(known.partitions[0])
        busy = other.store(store.id)
        for at in range(70):
            busy.produce("space", f"s{at % 8}", [Record(os.urandom(9000))])
        busy.maintain()
        expire(known.committers[0], least=0)
        assert [entry.sequence for entry in store.consume_segment("space", "s3")] == [17, 18]


@pytest.mark.timeout(30)
def test_a_transaction_may_write_to_more_segments_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upkeep looped for ever here, because the statuses of all segments have to be known together."""
    monkeypatch.setattr("streamkit.log.partition._KNOWN", 100)
    with streamkit.connect("memory://") as client:
        store = client.store(uuid4())
        for count in (90, 1000, 250):
            with store.transaction("space") as trx:
                for at in range(count):
                    trx.produce(f"s{at}", [Record(b"")])
            store.maintain()
        assert [store.segment_status("space", f"s{at}").last_sequence for at in (0, 89, 249, 250, 999)] == [
            3,
            3,
            2,
            1,
            1,
        ]


def test_statuses_that_are_forgotten_are_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.log.partition._KNOWN", 100)
    with streamkit.connect("memory://") as client:
        store = client.store(uuid4())
        for turn in range(1, 4):
            for at in range(300):
                assert store.produce("space", f"s{at}", [Record(b"")]).last_sequence == turn
        partition = store._known("space").partitions[0]  # type: ignore[union-attr]
        assert len(partition.cached) <= 100


def _write_frames(store: Store, name: str) -> None:
    """A quarter of the frames that make an upkeep due on a disk."""
    with store.transaction("s") as trx:
        for number in range(4096):
            trx.produce(f"{name} {number}", [Record(b"x")])


def test_one_of_two_processes_on_a_disk_makes_the_index_for_both(tmp_path: Path) -> None:
    """Two clients, which share nothing but the directory."""
    with streamkit.connect(tmp_path.as_uri()) as one, streamkit.connect(tmp_path.as_uri()) as other:
        stores = one.store(UUID(int=1)), other.store(UUID(int=1))
        stores[0].create_space("s", durability="buffered")
        before = stores[0].statistics().requests["put"]
        for turn in range(12):
            _write_frames(stores[turn % 2], str(turn))
        # An upkeep is due after every fourth: a file, and the head.
        puts = sum(store.statistics().requests["put"] for store in stores) - before
        assert (sum(store.statistics().upkeeps for store in stores), puts) == (3, 12 + 3 * 2)


def test_a_process_on_a_disk_does_the_upkeep_of_one_that_has_stopped(tmp_path: Path) -> None:
    with streamkit.connect(tmp_path.as_uri()) as one, streamkit.connect(tmp_path.as_uri()) as other:
        stopped, store = one.store(UUID(int=1)), other.store(UUID(int=1))
        stopped.create_space("s", durability="buffered")
        _write_frames(store, "first")
        stopped.produce("s", "s", [Record(b"x")])
        known = stopped._known("s")
        assert known is not None
        known.committers[0]._bring_forward = lambda _: False
        for turn in range(3):
            _write_frames(stopped, str(turn))
        for turn in range(4):
            assert store.statistics().upkeeps == 0
            _write_frames(store, f"last {turn}")
        assert store.statistics().upkeeps == 1
