"""A store's directory that is moved while it is open: nothing is acknowledged into where nobody looks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fix_local import LocalStore, P

from streamkit.backend import Append, Backend, Put
from streamkit.errors import StoreClosed
from streamkit_local import backend, log

WRITES: dict[str, Callable[[Backend], object]] = {
    "append": lambda store: store.write(P, [Append(b"2", b"two")]),
    "buffered append": lambda store: store.write(P, [Append(b"2", b"two")], durable=False),
    "row": lambda store: store.write(P, [Put(b"row", b"two")]),
    "another partition": lambda store: store.write(b"another", [Append(b"2", b"two")]),
    "lease": lambda store: store.acquire("leader", 30),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("copied", [False, True], ids=["moved", "replaced by a copy"])
def test_a_write_to_a_store_that_was_moved_is_refused_and_writes_nothing(
    local: LocalStore, tmp_path: Path, write: Callable[[Backend], object], copied: bool
) -> None:
    local.backend.write(P, [Append(b"1", b"one"), Put(b"row", b"one")])
    away = tmp_path / "away"
    os.rename(local.path, away)
    if copied:
        shutil.copytree(away, local.path)
    with pytest.raises(StoreClosed, match="was moved"):
        write(local.backend)
    assert local.path.exists() == copied
    local.close()
    shutil.rmtree(local.path, ignore_errors=True)
    os.rename(away, local.path)
    assert local.rows_anew() == {b"1": b"one", b"row": b"one"}
    write(local.backend)


def test_a_file_of_the_log_is_not_begun_in_another_store(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.backend.write(P, [Append(b"1", b"one")])
    monkeypatch.setattr(log, "ROLL", 1)
    sync = log.sync_directory

    def move_then_sync(path: str) -> None:
        os.rename(local.path, tmp_path / "away")
        sync(str(tmp_path))

    monkeypatch.setattr(log, "sync_directory", move_then_sync)
    with pytest.raises(StoreClosed, match="was moved"):
        local.backend.write(P, [Append(b"2", b"two")])
    monkeypatch.undo()
    local.close()
    os.rename(tmp_path / "away", local.path)
    assert local.rows_anew() == {b"1": b"one"}


def test_a_reader_notices_that_its_store_was_replaced(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_LOOK", 0.0)
    local.backend.write(P, [Append(b"1", b"one")])
    os.rename(local.path, tmp_path / "away")
    for read in (lambda: local.backend.get(P, [b"1"]), lambda: list(local.backend.scan(P, b"", b"\xff"))):
        with pytest.raises(StoreClosed, match="was moved"):
            read()
    assert local.rows_anew() == {}
