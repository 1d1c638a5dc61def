"""Archived spaces: their tables come back with the store, on every backend that keeps archives."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from harness.working_store import figures
from streamkit import Client, PermanentError, Record, Store
from streamkit.backup import restore
from streamkit.testing import FaultyDriver, Plan
from streamkit_memory import MemoryDriver

pytest.importorskip("deltalake")

SPACE = "a space/ü"


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "wait_for_tokens", lambda clock, point: None)


@pytest.fixture(
    params=[
        "local",
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("azure", marks=pytest.mark.azure),
    ]
)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty root."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_bucket").url("some/prefix"))
    if request.param == "azure":
        return str(request.getfixturevalue("azurite").url("back" + uuid4().hex[:12]))
    return f"file://{tmp_path}/root"


def write(store: Store, first: int, last: int) -> None:
    for at in range(first, last):
        store.produce(SPACE, f"s{at % 5}", [Record(b"%d" % at, {"k": "v"} if at % 2 else None)] * 2)


def test_an_archive_comes_back_and_goes_on(root: str, tmp_path: Path) -> None:
    id = uuid4()
    with streamkit.connect(root) as client:
        store = client.store(id)
        store.create_space(SPACE, 2)
        write(store, 0, 24)
        store.archive(SPACE, target_file_bytes=50)
        store.trim(SPACE, "s1", before=3)
        write(store, 24, 30)
        first = store.backup(tmp_path / "backups")
        offset = store.end_offset(SPACE)
        write(store, 30, 33)
        store.archive(SPACE, target_file_bytes=50)
        store.compact(SPACE, retention_hours=0.0)
        second = store.backup(tmp_path / "backups")
        write(store, 33, 36)
        assert second.bytes < 2 * first.bytes
    for at, (place, new) in enumerate([(f"file://{tmp_path}/other", id), (root, uuid4()), (root, uuid4())]):
        with streamkit.connect(place) as client, streamkit.connect(root) as before:
            source, restored = before.store(id), client.store(new)
            point = second.point if at < 2 else first.point
            restored.restore_backup(tmp_path / "backups", point=point.number, backup_of=id)
            there = [entry for entry in source.consume_space(SPACE) if entry.timestamp <= point.timestamp]
            assert list(restored.consume_space(SPACE)) == there
            assert list(restored.consume_space(SPACE, offset=offset)) == ([] if at == 2 else there[-6:])
            tiers = [entry.tier for entry in restored.consume_space(SPACE)]
            assert tiers.count("hot") == (12 if at == 2 else 0)
            assert restored.verify().ok
            expected = figures(restored)[SPACE]["segments"]
            restored.archive(SPACE)
            restored.maintain()
            assert figures(restored)[SPACE]["segments"] == expected
            write(restored, 40, 42)
            restored.archive(SPACE)
            assert restored.verify().ok
            assert {entry.tier for entry in restored.consume_space(SPACE)} == {"cold"}
            restored.erase(SPACE, "s2")
            assert restored.verify().ok


def test_a_place_for_the_archive_is_asked_for_before_anything_is_written(tmp_path: Path) -> None:
    id, url = uuid4(), f"file://{tmp_path}/root"
    with streamkit.connect(url) as client:
        store = client.store(id)
        write(store, 0, 3)
        store.archive(SPACE)
        store.backup(tmp_path / "backups")
        size = store.size()
    driver = FaultyDriver(MemoryDriver(uuid4().hex), Plan())  # a driver that has no place for archives
    with Client("memory://", driver, 30.0, None, 64 << 20, streamkit.clock.SYSTEM_CLOCK) as client:
        with pytest.raises(PermanentError, match="connect with archive=URL"):
            client.store(id).restore_backup(tmp_path / "backups")
        assert list(client.stores()) == []
    with streamkit.connect(f"memory://{uuid4().hex}", archive=f"file://{tmp_path}/archive") as client:
        client.store(id).restore_backup(tmp_path / "backups")
        restored = client.store(id).size()
        # In memory the log takes fewer bytes than in files.
        wanted = size.entries, size.segments, size.payload_bytes, size.tiers[2]
        assert (restored.entries, restored.segments, restored.payload_bytes, restored.tiers[2]) == wanted
        with pytest.raises(PermanentError, match="is not empty"):
            client.store(id).restore_backup(tmp_path / "backups")
    with (
        streamkit.connect(f"memory://{uuid4().hex}", archive=f"file://{tmp_path}/archive") as client,
        pytest.raises(PermanentError, match="is not empty"),  # of its archive something is there
    ):
        client.store(id).restore_backup(tmp_path / "backups")
