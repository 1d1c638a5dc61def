"""The log of an archive's table stays short, and every version that a reader may have pinned can be read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from harness import foreign_engines
from streamkit import Record, Store

pytest.importorskip("deltalake")

from deltalake import DeltaTable

from streamkit.archive import table as tables

SPACE = "orders"
DAY = 86_400.0


def archived(store: Store, runs: int) -> Path:
    for at in range(runs):
        store.produce(SPACE, "s", [Record(b"%d" % at)])
        store.archive(SPACE)
    return Path(store._archive(SPACE).table.directory or "")


def age(table: Path, days: float) -> None:
    """Make every file of the log older by `days`."""
    for path in (table / "_delta_log").iterdir():
        then = path.stat().st_mtime - days * DAY
        os.utime(path, (then, then))


def versions(table: Path) -> list[int]:
    return sorted(int(path.name[:20]) for path in (table / "_delta_log").glob("*.json") if path.name[:20].isdecimal())


def payloads(store: Store) -> list[bytes]:
    return [entry.payload for entry in store.consume_space(SPACE)]


def test_old_versions_leave_the_log_when_it_is_compacted(tmp_path: Path) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        table = archived(store, 33)
        age(table, 8)
        archived(store, 4)
        before = {version: DeltaTable(table, version=version).to_pyarrow_table() for version in versions(table)[-5:]}
        store.compact(SPACE)
        # Versions of the last week are kept, and the checkpoint that the first of them is read from.
        assert versions(table)[0] == 29
        for version, rows in before.items():
            assert DeltaTable(table, version=version).to_pyarrow_table().equals(rows)
        assert len(payloads(store)) == 37
    with streamkit.connect(tmp_path.as_uri()) as client:
        fresh = client.store(store.id)
        assert payloads(fresh) == [b"%d" % at for at in (*range(33), *range(4))]
        archived(fresh, 2)
        assert len(payloads(fresh)) == 39


def test_the_parts_of_a_checkpoint_leave_the_log_with_it(tmp_path: Path) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        table = archived(store, 3)
        foreign_engines.checkpoint_with_sidecar(table)
        parts = table / "_delta_log" / "_sidecars"
        archived(store, 12)
        store.compact(SPACE)
        assert len(list(parts.iterdir())) == 1
        age(table, 8)
        archived(store, 4)
        store.compact(SPACE)
        assert list(parts.iterdir()) == []
        assert len(payloads(store)) == 19


def test_nothing_younger_than_the_retention_leaves_the_log(tmp_path: Path) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        table = archived(store, 25)
        age(table, 6)
        before = set(os.listdir(table / "_delta_log"))
        store.compact(SPACE)
        assert before <= set(os.listdir(table / "_delta_log"))


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [("delta.logRetentionDuration", "interval 90 days", 0), ("delta.enableExpiredLogCleanup", "false", 0),
     ("delta.logRetentionDuration", "interval 1 week", 20), ("delta.logRetentionDuration", "a while", 0)],
)  # fmt: skip
def test_what_the_table_says_of_its_log_holds(tmp_path: Path, name: str, value: str, left: int) -> None:
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        table = archived(store, 25)
        created = table / "_delta_log" / f"{0:020}.json"
        for path in [created, *(table / "_delta_log").glob("*.checkpoint.parquet")]:
            if path == created:
                text = path.read_text()
                known = '"delta.logRetentionDuration":"interval 7 days"'
                assert known in text
                path.write_text(text.replace(known, f'"{name}":"{value}"'))
            else:
                path.unlink()
        (table / "_delta_log" / "_last_checkpoint").unlink()
        DeltaTable(table, version=20).create_checkpoint()
        age(table, 30)
        with streamkit.connect(tmp_path.as_uri()) as other:
            other.store(store.id).compact(SPACE)
        assert versions(table)[0] == left


def test_archiving_cleans_the_log_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_CLEANED", 10)
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(uuid4())
        table = archived(store, 25)
        age(table, 8)
        archived(store, 10)
        assert versions(table)[0] == 19
        assert len(payloads(store)) == 35


def test_an_archiver_that_slept_past_the_retention_goes_on_from_the_newest_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that follows on the one it knows was cleaned up, which must not look as if there were none."""
    with streamkit.connect(tmp_path.as_uri()) as client, streamkit.connect(tmp_path.as_uri()) as sleeper:
        store, asleep = client.store(uuid4()), None
        table = archived(store, 5)
        asleep = sleeper.store(store.id)
        asleep.produce(SPACE, "s", [Record(b"early")])
        asleep.archive(SPACE)
        archived(store, 30)
        age(table, 8)
        archived(store, 1)
        store.compact(SPACE)
        assert versions(table)[0] > 10
        now = time.time() + 8 * DAY
        monkeypatch.setattr(tables.time, "time", lambda: now)
        last = versions(table)[-1]
        state = asleep._archive(SPACE).table.state(following=True)
        assert state is not None
        assert state.version == last
        asleep.produce(SPACE, "s", [Record(b"late")])
        asleep.archive(SPACE)
        assert versions(table)[-1] == last + 1
        assert payloads(asleep)[-1] == b"late"
        assert len(payloads(asleep)) == 38
