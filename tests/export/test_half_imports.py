"""An erasure names imports and restores that were not completed. If one is removed, all of its bytes go."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from harness.deep_search import found_in
from harness.worlds import World, directory, memory
from streamkit import Client, CorruptData, Record, Store
from streamkit.backup import restore
from streamkit.export import export_store, import_store, target
from streamkit.testing import Crash

SECRET = os.urandom(24)


@pytest.fixture(params=["memory", "remote", "local"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "local":
        return directory(tmp_path / "target")
    return memory(f"memory://{uuid4()}" + ("?remote=1" if request.param == "remote" else ""), tmp_path / "target")


def crash(*_: object) -> None:
    raise Crash("killed")


def exported(path: Path, partitions: int = 2) -> Path:
    with memory(f"memory://{uuid4()}", path).client() as client:
        store = client.store(uuid4())
        store.create_space("a", partitions)
        for at in range(6):
            store.produce("a", f"user-{at}", [Record(SECRET + b"%d" % at)])
        export_store(store, path / f"{partitions}.ndjson")
    return path / f"{partitions}.ndjson"


def stopped(client: Client, path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in which an import was killed just before its space appeared."""
    store = client.store(uuid4())
    store.produce("b", "user-1", [Record(b"other")])
    with monkeypatch.context() as patch, suppress(Crash):
        patch.setattr(target._Importer, "_publish", crash)
        import_store(store, path)
    assert list(store.get_spaces()) == ["b"]
    return store


def test_an_erasure_names_an_import_that_was_not_completed(
    root: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = exported(tmp_path)
    with root.client() as client:
        store = stopped(client, path, monkeypatch)
        (text,) = store.erase("a", "user-*").unreached
        assert "import of space 'a'" in text
        assert "delete_space" in text
        assert store.erase("b", "user-*").unreached == ()
        import_store(store, path)
        assert store.erase("a", "user-*").unreached == ()
        assert found_in(root.stored(), SECRET) == []


REMOVALS: dict[str, Callable[[Store, Path], object]] = {
    "the space is deleted": lambda store, path: store.delete_space("a"),
    "another file is imported": lambda store, path: import_store(store, exported(path, 1), restart=True),
}


@pytest.mark.parametrize("how", REMOVALS)
def test_nothing_is_left_of_an_import_that_was_not_completed(
    root: World, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = exported(tmp_path)
    with root.client() as client:
        store = stopped(client, path, monkeypatch)
        assert found_in(root.stored(), SECRET)
        REMOVALS[how](store, tmp_path)
        store.erase("a", "user-*")
        assert found_in(root.stored(), SECRET) == []
        assert list(store.get_spaces()) == ["a", "b"] if "another" in how else ["b"]
        if "deleted" in how:
            assert import_store(store, path).entries == 6
        assert store.verify().ok


def test_nothing_is_left_of_an_import_that_failed(root: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = exported(tmp_path)

    def fail(*_: object) -> None:
        raise CorruptData("damaged")

    with root.client() as client:
        store = client.store(uuid4())
        monkeypatch.setattr(target._Importer, "_publish", fail)
        with pytest.raises(CorruptData):
            import_store(store, path)
        assert store.erase("a", "user-*").unreached == ()
        assert found_in(root.stored(), SECRET) == []


def test_an_erasure_names_a_restore_that_was_not_completed(
    root: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, source = uuid4(), directory(tmp_path / "source")
    with source.client() as client:
        store = client.store(id)
        store.produce("a", "user-1", [Record(SECRET)])
        store.backup(tmp_path / "backup")
    monkeypatch.setattr(restore, "wait_for_tokens", lambda clock, point: None)
    with root.client() as client:
        store = client.store(id)
        with monkeypatch.context() as patch, suppress(Crash):
            patch.setattr(restore, "_head_row", crash)
            store.restore_backup(tmp_path / "backup")
        (text,) = store.erase("a", "user-1").unreached
        assert "restore of a backup" in text
        store.restore_backup(tmp_path / "backup")
        assert store.erase("a", "user-1").unreached == ()
        assert found_in(root.stored(), SECRET) == []
        assert store.erase("other", "user-1").unreached == ()
