"""Full disks: the view reports them, its data is whole, and it goes on when there is room."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_local import in_child

import streamkit
from streamkit import Entry, Record, Unavailable, View
from streamkit.views import OpenView


class Large(View):
    """Keeps payloads, in a database that may have no more than `pages` pages."""

    pages = 1 << 30

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def setup(self, db: sqlite3.Connection) -> None:
        db.execute("create table kept (at integer primary key, payload blob)")

    def load(self, db: sqlite3.Connection) -> None:
        db.execute(f"pragma max_page_count = {self.pages}").fetchall()

    def apply(self, db: sqlite3.Connection, entries: Sequence[Entry]) -> None:
        db.executemany("insert into kept (payload) values (?)", [(entry.payload,) for entry in entries])


def kept(view: OpenView) -> list[bytes]:
    return [payload for (payload,) in view.db.execute("select payload from kept order by at")]


PAYLOADS = [b"%d " % at * 2000 for at in range(100)]


def test_a_full_disk_stops_a_view_and_loses_nothing(tmp_path: Path) -> None:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(payload) for payload in PAYLOADS])
        definition = Large()
        definition.pages = 40
        view = store.view("large", definition, ["log"], tmp_path / "v", batch=10)
        for _ in range(2):
            with pytest.raises(Unavailable, match="cannot be read or written"):
                view.catch_up()
            status = view.status()
            assert (status.state, status.error) == ("behind", None), "it is no fault of an entry"
            assert 0 < status.entries < 100
            assert kept(view) == PAYLOADS[: status.entries]
        view.run(seconds=0)
        assert view.status().state == "behind", "who runs it is not stopped by it"
        definition.pages = 1 << 30
        assert view.catch_up().state == "current"
        assert kept(view) == PAYLOADS


def test_a_disk_that_is_full_while_another_version_is_built_leaves_the_old_one(tmp_path: Path) -> None:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(payload) for payload in PAYLOADS])
        with store.view("large", Large(), ["log"], tmp_path / "v", batch=10) as view:
            view.catch_up()
        cramped = Large(2)
        cramped.pages = 40
        with store.view("large", cramped, ["log"], tmp_path / "v", batch=10) as view:
            with pytest.raises(Unavailable):
                view.catch_up()
            assert kept(view) == PAYLOADS
            cramped.pages = 1 << 30
            assert (view.catch_up().version, kept(view)) == (2, PAYLOADS)


@pytest.mark.parametrize("name", ["makedirs", "open", "symlink", "replace"])
def test_every_file_of_a_view_may_find_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    refused = 0
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(payload) for payload in PAYLOADS[:3]])
        for skip in range(8):
            call: Callable[..., Any] = getattr(os, name)
            left = [skip]

            def once(*args: Any, call: Callable[..., Any] = call, left: list[int] = left, **options: Any) -> Any:
                left[0] -= 1
                if left[0] == -1:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return call(*args, **options)

            with monkeypatch.context() as patch:
                patch.setattr(os, name, once)
                for version in (1, 2):
                    try:
                        store.view("large", Large(version), ["log"], tmp_path / f"v{skip}").catch_up()
                    except Unavailable:
                        refused += 1
            with store.view("large", Large(2), ["log"], tmp_path / f"v{skip}") as view:
                assert (view.catch_up().state, kept(view)) == ("current", PAYLOADS[:3]), (name, skip)
    assert refused


def test_a_view_that_cannot_be_published_for_want_of_room_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamkit.connect(f"file://{tmp_path}/stores") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(payload) for payload in PAYLOADS[:3]])
        view = store.view("large", Large(), ["log"], tmp_path / "v")
        view.publish()

        def full(fd: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        store.produce("log", "s", [Record(b"more")])
        view.catch_up()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(Unavailable, match="free some space"):
                view.publish()
        assert kept(view) == [*PAYLOADS[:3], b"more"]
        archive = Path(tmp_path, "stores", "archive")
        assert [path.suffix for path in archive.rglob("_published/*/*")] == [".zst"], "and nothing half done is left"
        assert not list(Path(f"{tmp_path}/v.builds").glob("*.published"))
        with store.view("large", Large(), ["log"], tmp_path / "other") as other:
            assert other.catch_up().entries == 4


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_too_many_open_files_are_named_and_it_goes_on_when_there_are_fewer(tmp_path: Path) -> None:
    def work() -> None:
        store = streamkit.connect(f"file://{tmp_path}").store(uuid4())
        store.produce("orders", "a", [Record(b"1")])
        view = store.view("kept", Large(), ["orders"])
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(int(name) for name in os.listdir("/proc/self/fd"))
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(most)]  # no number below the limit is free
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, hard))
        with pytest.raises(Unavailable, match=r"too many open files at .*/kept\.sqlite.*: raise `ulimit -n`"):
            view.catch_up()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        view.catch_up()
        assert kept(view) == [b"1"]

    assert in_child(work) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("free", range(1, 9))
def test_whatever_file_is_one_too_many_the_view_says_so_and_goes_on(tmp_path: Path, free: int) -> None:
    def work() -> None:
        store = streamkit.connect(f"file://{tmp_path}").store(uuid4())
        store.produce("orders", "a", [Record(b"1")])
        store.with_lease("warm", lambda lease: None)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(int(name) for name in os.listdir("/proc/self/fd"))
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range(most + free)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, hard))
        for fd in held[-free:]:
            os.close(fd)
        view = store.view("kept", Large(), ["orders"])
        refused = []
        for call in (view.catch_up, view.rebuild, view.publish):
            try:
                call()
            except Unavailable as error:
                refused.append(str(error))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [error for error in refused if "ulimit -n" not in error] == []
        view.rebuild()
        view.publish()
        assert kept(view) == [b"1"]

    assert in_child(work) == 0
