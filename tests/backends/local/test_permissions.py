"""Permissions of the files of a local store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from fix_local import Append, P, Put, as_user, write

import streamkit_local
from streamkit.errors import AccessDenied
from streamkit_local import log

OWNER, OTHER, GROUP = 12345, 12346, 12345
STORE = uuid4()


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask 000", "umask 022", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def fill(url: str, first: int = 0) -> None:
    """Write until there is a file of every kind."""
    driver = streamkit_local.connect(url, timeout=5)
    store = driver.open(STORE)
    for number in range(first, first + 3):
        write(store, P, [Append(b"%d" % number, b"x")])
    write(store, P, [Put(b"row", b"x")])
    write(store, b"partition of %d" % first, [Append(b"1", b"x")])
    grant = store.acquire("leader", 30)
    assert grant is not None
    store.release(grant)
    driver.close()


def read(url: str) -> None:
    driver = streamkit_local.connect(url, timeout=5)
    assert [row.key for row in driver.open(STORE).scan(P, b"", b"\xff")] == [b"0", b"1", b"2", b"row"]
    driver.close()


def modes(root: Path) -> set[tuple[str, str]]:
    return {
        ("directory" if path.is_dir() else "file", f"{path.stat().st_mode & 0o7777:o}")
        for path in [root, *root.rglob("*")]
    }


@pytest.mark.usefixtures("umask")
def test_what_is_made_belongs_to_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL", 1)
    fill(f"file://{tmp_path}/stores")
    assert modes(tmp_path / "stores") == {("directory", "700"), ("file", "600")}
    assert (tmp_path / "stores" / "archive" / str(STORE)).is_dir(), "where the archive will be is closed beforehand"


@pytest.mark.usefixtures("umask")
def test_with_the_option_it_belongs_to_the_group_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL", 1)
    fill(f"file://{tmp_path}/stores?mode=group")
    assert modes(tmp_path / "stores") == {("directory", "2770"), ("file", "660")}


@pytest.mark.usefixtures("umask")
def test_what_is_added_has_the_permissions_of_the_store(tmp_path: Path) -> None:
    fill(f"file://{tmp_path}/stores?mode=group")
    fill(f"file://{tmp_path}/stores", 3)
    assert modes(tmp_path / "stores") == {("directory", "2770"), ("file", "660")}


def test_another_user_reads_and_writes_a_store_of_the_group_and_no_other(shared_directory: Path) -> None:
    shared_directory.chmod(0o777)
    group, private = (f"file://{shared_directory}/{name}" for name in ("group?mode=group", "private"))
    for url in (group, private):
        assert as_user(OWNER, GROUP, lambda url=url: fill(url)) == 0
    assert as_user(OTHER, GROUP, lambda: read(group)) == 0
    assert as_user(OTHER, GROUP, lambda: fill(group, 3)) == 0
    assert as_user(OWNER, GROUP, lambda: fill(group, 6)) == 0

    def refused() -> None:
        for attempt in (read, fill):
            with pytest.raises(AccessDenied, match="no permission"):
                attempt(private)

    assert as_user(OTHER, GROUP, refused) == 0


def test_another_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="private, group"):
        streamkit_local.connect("file:///tmp/x?mode=0777", timeout=1)
