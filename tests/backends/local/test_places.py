"""Directories that cannot hold a store: each is a clear error, and work goes on when the cause has gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_local import Append, Delete, LocalStore, Op, P, Put, in_child, write

import streamkit
from streamkit import Record
from streamkit.backend import Backend
from streamkit.errors import AccessDenied, CorruptData, PermanentError, StreamkitError, Unavailable
from streamkit_local import place


def refused(local: LocalStore, kind: type[StreamkitError], *, reading: bool = True) -> None:
    """Every first use of the store fails with this error, which names the place."""
    ops: list[Op] = [Append(b"k", b"v"), Put(b"k", b"v")]
    for op in ops:
        local.open()
        with pytest.raises(kind) as caught:
            write(local.backend, P, [op])
        assert str(local.root) in str(caught.value)
    if reading:
        with pytest.raises(kind):
            local.open().get(P, [b"k"])


def test_a_root_that_is_a_file_is_refused(local: LocalStore) -> None:
    local.root.write_text("mine")
    refused(local, PermanentError)
    with pytest.raises(PermanentError):
        local.driver.stores()
    assert local.root.read_text() == "mine"


def test_a_store_that_is_a_file_is_refused(local: LocalStore) -> None:
    local.root.mkdir()
    local.path.write_text("mine")
    refused(local, PermanentError)
    assert local.path.read_text() == "mine"


def test_a_directory_that_is_no_store_is_refused(local: LocalStore) -> None:
    local.path.mkdir(parents=True)
    (local.path / "photo.jpg").write_bytes(b"mine")
    refused(local, CorruptData)
    assert [path.name for path in local.path.iterdir()] == ["photo.jpg"]


def test_an_empty_directory_becomes_a_store(local: LocalStore) -> None:
    local.path.mkdir(parents=True)
    write(local.backend, P, [Append(b"k", b"v")])
    assert local.rows_anew() == {b"k": b"v"}


def test_a_network_file_system_is_refused(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [("/", "ext4"), (str(local.root.parent), "nfs4"), (str(local.root.parent / "other"), "ext4")]
    monkeypatch.setattr("streamkit_local.place._mounts", lambda: mounts)
    refused(local, PermanentError, reading=False)
    assert list(local.driver.stores()) == []
    mounts.append((str(local.root), "ext4"))
    write(local.open(), P, [Append(b"k", b"v")])
    mounts.append((str(local.root), "fuse.sshfs"))
    refused(local, PermanentError)


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.geteuid() != 0, reason="needs to become another user")
def test_a_place_without_permission_is_refused(local: LocalStore) -> None:
    write(local.backend, P, [Append(b"k", b"v")])
    local.close()
    for directory in (local.root, *local.root.parents):
        if directory.stat().st_uid == 0 and directory.parent != directory and "pytest" in str(directory):
            directory.chmod(0o755)

    def as_nobody(work: str) -> int:
        def run() -> None:
            os.setgid(65534)
            os.setuid(65534)
            refused(local, AccessDenied, reading=work == "read")

        return in_child(run)

    assert as_nobody("read") == 0
    local.id = uuid4()
    assert as_nobody("write") == 0
    assert local.rows_anew() == {}


def test_a_read_only_file_system_is_read_and_not_written(small_disk: Path) -> None:
    local = LocalStore(small_disk / "stores")
    write(local.backend, P, [Append(b"k", b"v")])
    local.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    refused(local, AccessDenied, reading=False)
    assert local.rows_anew() == {b"k": b"v"}
    local.close()
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert local.rows_anew() == {b"k": b"v"}
    local.close()


# Disks without room


def write_until_full(backend: Backend, op: type[Append | Put], size: int, *, durable: bool) -> dict[bytes, bytes]:
    rows: dict[bytes, bytes] = {}
    for number in range(100_000):
        key = b"%06d" % number
        rows[key] = key * (size // 6)
        try:
            write(backend, P, [op(key, rows[key])], durable=durable)
        except Unavailable as error:
            reason = str(error)
            del rows[key]
            break
    assert "free some space" in reason
    return rows


@pytest.mark.parametrize("op", [Append, Put])
@pytest.mark.parametrize("size", [600, 60_000])
@pytest.mark.parametrize("durable", [True, False])
def test_a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room(
    small_disk: Path, op: type[Append | Put], size: int, durable: bool
) -> None:
    local = LocalStore(small_disk / "stores")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    rows = write_until_full(local.backend, op, size, durable=durable)
    assert len(rows) > 10
    assert local.rows() == rows
    for _ in range(3):
        with pytest.raises(Unavailable):
            write(local.backend, P, [op(b"9", bytes(200_000))], durable=durable)
    assert local.rows() == rows
    assert in_child(lambda: local.rows_anew() == rows or os._exit(1)) == 0
    ballast.unlink()
    write(local.backend, P, [op(b"9", bytes(200_000))], durable=durable)
    write(local.backend, P, [Put(b"row", b"x")])
    assert local.rows_anew() == rows | {b"9": bytes(200_000), b"row": b"x"}
    local.close()


def test_a_store_cannot_be_made_on_a_full_disk(small_disk: Path) -> None:
    local = LocalStore(small_disk / "stores")
    ballast = small_disk / "ballast"
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(fd, bytes(4096))
    os.close(fd)
    refused(local, Unavailable, reading=False)
    ballast.unlink()
    assert local.rows_anew() == {}
    write(local.backend, P, [Append(b"k", b"v")])
    assert local.rows_anew() == {b"k": b"v"}
    local.close()


def test_deleting_rows_makes_room_on_a_full_disk(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit_local.log.ROLL", 1 << 20)
    local = LocalStore(small_disk / "stores")
    write(local.backend, P, [Put(b"row %d" % number, bytes(1000)) for number in range(200)])
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(64 << 10))
    rows = write_until_full(local.backend, Append, 60_000, durable=False)
    ballast.unlink()  # the index is not written in place: to delete needs a little room too
    gone = list(rows)[: len(rows) // 2]
    write(local.backend, P, [Delete(b"row %d" % number) for number in range(200)])
    write(local.backend, P, [Delete(key) for key in gone])
    write(local.backend, P, [Append(b"9", bytes(1 << 20))])
    assert local.rows_anew() == {key: rows[key] for key in rows if key not in gone} | {b"9": bytes(1 << 20)}
    local.close()


def test_too_many_open_files_is_a_clear_error(local: LocalStore) -> None:
    resource = pytest.importorskip("resource")
    write(local.backend, P, [Append(b"k", b"v")])
    local.close()

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        held = []
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for spare in range(12):
            with pytest.raises(Unavailable, match="ulimit -n") if spare < 2 else contextlib.suppress(Unavailable):
                local.open().get(P, [b"k"])
            os.close(held.pop())
        assert local.rows_anew() == {b"k": b"v"}

    assert in_child(work) == 0


def test_a_store_that_is_made_while_it_is_looked_for_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, listdir = uuid4(), os.listdir

    def made_meanwhile(path: str) -> list[str]:
        monkeypatch.undo()
        place.create_place(str(tmp_path), store)
        return listdir(path)

    monkeypatch.setattr(place.os, "listdir", made_meanwhile)
    assert place.StoreDirectory(str(tmp_path), store).path.endswith(str(store))


@pytest.mark.parametrize("seen", ["rename", "rmtree"])
def test_two_processes_may_delete_a_store_at_the_same_time(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    """The other one is faster, after this one has looked, or while it removes the files."""
    write(local.backend, P, [Append(b"1", b"x"), Put(b"row", bytes(100_000))])
    local.close()
    other = local.connect()
    first, module = local.connect(), os if seen == "rename" else shutil
    call, calls = getattr(module, seen), 0

    def late(path: str, *args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            other.delete(local.id)
        if seen == "rmtree" and os.path.exists(path):
            call(path)
        return call(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, seen, late)
        first.delete(local.id)
    assert calls > 1
    assert list(first.stores()) == []
    assert os.listdir(local.root) == []


@pytest.mark.parametrize("what", ["store", "partition"])
def test_a_store_is_made_though_another_process_takes_what_is_made_for_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Another process deletes the store, or has a clock that is an hour ahead."""
    rename, removed = os.rename, 0

    def late(source: str, target: str) -> None:
        nonlocal removed
        if not removed and Path(source).parent == (tmp_path if what == "store" else tmp_path / str(id)):
            removed += 1
            shutil.rmtree(source)
        rename(source, target)

    id = uuid4()
    monkeypatch.setattr(os, "rename", late)
    with streamkit.connect(f"file://{tmp_path}") as client:
        assert client.store(id).produce("a", "s", [Record(b"x")]).last_sequence == 1
    assert removed == 1


@pytest.mark.parametrize("first", ["", "archive"])
def test_a_store_is_not_made_where_the_archive_of_another_one_of_its_uuid_is(tmp_path: Path, first: str) -> None:
    id, second = uuid4(), "archive" if not first else ""
    with (
        streamkit.connect((tmp_path / first).as_uri()) as one,
        streamkit.connect((tmp_path / second).as_uri()) as other,
    ):
        one.store(id).produce("a", "s", [Record(b"1")])
        with pytest.raises(PermanentError, match="use another directory or another UUID"):
            other.store(id).produce("a", "s", [Record(b"2")])
        other.store(uuid4()).produce("a", "s", [Record(b"3")])
        assert [entry.payload for entry in one.store(id).consume_space("a")] == [b"1"]


@pytest.mark.parametrize("deleted", ["a", "a/archive"])
def test_a_deletion_does_not_remove_a_store_that_was_moved_to_where_the_archive_is(
    tmp_path: Path, deleted: str
) -> None:
    id = uuid4()
    for root in ("a", "b"):
        with streamkit.connect((tmp_path / root).as_uri()) as client:
            client.store(id).produce("a", "s", [Record(root.encode())])
    (tmp_path / "a" / "archive" / str(id)).rmdir()
    (tmp_path / "b" / str(id)).rename(tmp_path / "a" / "archive" / str(id))
    with (
        streamkit.connect((tmp_path / deleted).as_uri()) as client,
        pytest.raises(PermanentError, match="nothing was made or removed"),
    ):
        client.delete_store(id)
    for root, payload in (("a", b"a"), ("a/archive", b"b")):
        with streamkit.connect((tmp_path / root).as_uri()) as client:
            assert [entry.payload for entry in client.store(id).consume_space("a")] == [payload]


def test_a_store_is_not_made_in_another_one(tmp_path: Path) -> None:
    id = uuid4()
    with streamkit.connect(tmp_path.as_uri()) as client:
        client.store(id).produce("a", "s", [Record(b"1")])
    with (
        streamkit.connect((tmp_path / str(id)).as_uri()) as inside,
        pytest.raises(PermanentError, match="is the directory of a store"),
    ):
        inside.store(uuid4()).produce("a", "s", [Record(b"2")])
