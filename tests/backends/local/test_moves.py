"""A store's directory that is moved while it is open: no write into the moved directory is acknowledged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from fix_local import Append, Delete, LocalStore, P, Put, write

from streamkit import Record, connect
from streamkit.backend import Backend, TellsChanges
from streamkit.errors import StoreClosed
from streamkit_local import backend, files, log, store

WRITES: dict[str, Callable[[Backend], object]] = {
    "append": lambda store: write(store, P, [Append(b"2", b"two")]),
    "buffered append": lambda store: write(store, P, [Append(b"2", b"two")], durable=False),
    "row": lambda store: write(store, P, [Put(b"row", b"two")]),
    "another partition": lambda store: write(store, b"another", [Append(b"2", b"two")]),
    "lease": lambda store: store.acquire("leader", 30),
}


@pytest.mark.parametrize("change", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("copied", [False, True], ids=["moved", "replaced by a copy"])
def test_a_write_to_a_store_that_was_moved_is_refused_and_writes_nothing(
    local: LocalStore, tmp_path: Path, change: Callable[[Backend], object], copied: bool
) -> None:
    write(local.backend, P, [Append(b"1", b"one"), Put(b"row", b"one")])
    away = tmp_path / "away"
    os.rename(local.path, away)
    if copied:
        shutil.copytree(away, local.path)
    with pytest.raises(StoreClosed, match="was moved"):
        change(local.backend)
    assert local.path.exists() == copied
    local.close()
    shutil.rmtree(local.path, ignore_errors=True)
    os.rename(away, local.path)
    assert local.rows_anew() == {b"1": b"one", b"row": b"one"}
    change(local.backend)


def test_a_file_of_the_log_is_not_begun_in_another_store(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(local.backend, P, [Append(b"1", b"one")])
    monkeypatch.setattr(log, "ROLL", 1)
    sync = log.sync_directory

    def move_then_sync(path: str) -> None:
        os.rename(local.path, tmp_path / "away")
        sync(str(tmp_path))

    monkeypatch.setattr(log, "sync_directory", move_then_sync)
    with pytest.raises(StoreClosed, match="was moved"):
        write(local.backend, P, [Append(b"2", b"two")])
    monkeypatch.undo()
    local.close()
    os.rename(tmp_path / "away", local.path)
    assert local.rows_anew() == {b"1": b"one"}


def test_a_reader_notices_that_its_store_was_replaced(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_LOOK", 0.0)
    write(local.backend, P, [Append(b"1", b"one")])
    os.rename(local.path, tmp_path / "away")
    told = local.backend
    assert isinstance(told, TellsChanges)
    for read in (
        lambda: local.backend.get(P, [b"1"]),
        lambda: list(local.backend.scan(P, b"", b"\xff")),
        lambda: told.change(P),
    ):
        with pytest.raises(StoreClosed, match="was moved"):
            read()
    assert local.rows_anew() == {}


def test_what_is_in_memory_is_not_read_of_a_store_that_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_LOOK", 0.0)
    with connect(f"file://{tmp_path}/stores") as client:
        store = client.store(uuid4())
        store.produce("orders", "order-1", [Record(b"one")])
        assert store.peek("orders", "order-1") is not None
        os.rename(tmp_path / "stores" / str(store.id), tmp_path / "away")
        for read in (
            lambda: store.peek("orders", "order-1"),
            lambda: list(store.consume_segment("orders", "order-1")),
        ):
            with pytest.raises(StoreClosed, match="was moved"):
                read()


@pytest.mark.parametrize("values", [True, False])
def test_a_store_that_is_made_again_is_not_read_from_the_files_of_the_old_one(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, values: bool
) -> None:
    monkeypatch.setattr(log, "ROLL", 2000)
    old = local.backend
    for turn in (b"old", b"new"):
        expected = {b"%03d" % number: turn * 30 for number in range(60)}
        made = local.driver.open(local.id)
        write(made, P, [Append(*row) for row in expected.items()], durable=False)
        for _ in range(2):
            found = {row.key: row.data for row in made.scan(P, b"", b"\xff", values=values)}
            assert found == (expected if values else dict.fromkeys(expected, b""))
        if turn == b"old":
            assert len(list(old.scan(P, b"", b"\xff"))) == 60  # it is open until the end
            local.driver.delete(local.id)
    old.close()


def test_a_removed_file_is_not_kept_open(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL", 2000)
    keys = [b"%03d" % number for number in range(60)]
    write(local.backend, P, [Append(key, bytes(100)) for key in keys], durable=False)
    assert len(local.rows()) == 60
    removed = {str(path) for path in local.logs()[:-1]}
    opened = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    assert removed & opened
    write(local.backend, P, [Delete(key) for key in keys])
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not [link for link in links if link.removesuffix(" (deleted)") in removed]


def test_closing_claims_nothing_for_a_copy_that_was_put_in_the_place_of_the_store(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_LOGS", 1)
    write(local.backend, P, [Append(b"1", b"x")], durable=False)
    early = local.logs()[0].read_bytes()
    write(local.backend, P, [Append(b"2", b"x")], durable=False)
    write(local.backend, b"another", [Append(b"1", b"x")], durable=False)  # the first partition is set aside
    copy = tmp_path / "copy"
    shutil.copytree(local.path, copy)
    (copy / local.log_path().name / local.logs()[0].name).write_bytes(early)  # it was copied first, and the head last
    os.rename(local.path, tmp_path / "away")
    os.rename(copy, local.path)
    assert local.rows_anew() == {b"1": b"x"}


@pytest.mark.parametrize("copied", [False, True], ids=["removed", "replaced by a copy"])
def test_a_write_to_a_file_of_the_log_that_is_not_there_any_more_is_refused(local: LocalStore, copied: bool) -> None:
    write(local.backend, P, [Append(b"1", b"x")])
    path = local.logs()[0]
    os.utime(path.parent, (1, 1))  # some systems date a directory to a few milliseconds only
    write(local.backend, P, [Append(b"2", b"x")])
    data = path.read_bytes()
    path.unlink()
    if copied:
        path.write_bytes(data)
    with pytest.raises(StoreClosed, match="was moved"):
        write(local.backend, P, [Append(b"3", b"x")])


def test_an_append_does_not_ask_the_file_that_it_writes_to(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux dates what follows on such a question exactly, and each sync then commits the file system's journal."""
    write(local.backend, P, [Append(b"1", b"x")])
    write(local.backend, P, [Append(b"2", b"x")])
    name, asked = str(local.logs()[0]), list[str]()
    real, real_of = os.stat, os.fstat

    def stat(path: str) -> os.stat_result:
        asked.append(path)
        return real(path)

    def fstat(fd: int) -> os.stat_result:
        asked.append(name)
        return real_of(fd)

    class Twin:
        def is_at(self, directory: str, *place: int) -> bool:
            asked.append(directory)
            return bool(twin.is_at(directory, *place))

    twin = files._twin
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        patch.setattr(os, "fstat", fstat)
        if twin is not None:
            patch.setattr(files, "_twin", Twin())
            patch.setattr(log, "_twin", None)  # several steps, which can be seen
        write(local.backend, P, [Append(b"3", b"x")])
    assert asked
    assert name not in asked
