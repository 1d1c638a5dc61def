"""Nothing is left of a process that was killed while it published a view, cleaned one or fetched one."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import LeaseNotAcquired, Record, Store
from streamkit.compression import load_zstd
from streamkit.views import Index, publish

_PUBLISHING = """
import os, sys
from pathlib import Path
import streamkit
from streamkit.views import Index, build, publish

url, id, folder, place = sys.argv[1:]

def killed(*_):
    os.kill(os.getpid(), 9)

if place == "copy":
    publish._compressed = killed
elif place == "write":
    compressed = publish._compressed
    def some(file):
        yield next(compressed(file))
        killed()
    publish._compressed = some
elif place == "confirm":
    def last(chunks, confirm):
        yield from chunks
        killed()
    publish._confirmed = last
elif place == "clean":
    build.write_clean = killed
with streamkit.connect(url) as client:
    store = client.store(id)
    view = store.view("index", Index(lambda entry: entry.payload.decode()), ["log"], Path(folder))
    if place == "clean":
        view.catch_up()
        store.erase("log", "s", last=1)
        view.catch_up()
    view.publish()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with streamkit.connect(f"file://{tmp_path}/stores") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"secretword%02d" % at) for at in range(50)])
        yield store


def index() -> Index:
    return Index(lambda entry: entry.payload.decode())


def files(tmp_path: Path) -> dict[str, int]:
    """The sizes of all files with data of a view."""
    found = [*tmp_path.glob("v.builds/*"), *tmp_path.glob("stores/archive/*/_published/*/*")]
    kept = [path for path in found if path.is_file() and not path.name.endswith(("-wal", "-shm"))]
    return {path.name: path.stat().st_size for path in kept if not path.is_symlink()}


def kill_while_publishing(tmp_path: Path, store: Store, place: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PUBLISHING, f"file://{tmp_path}/stores", str(store.id), str(tmp_path / "v"), place],
        check=False,
    )
    assert done.returncode == -9


@pytest.mark.parametrize("place", ["copy", "write", "confirm"])
def test_a_publish_that_was_killed_leaves_no_copy(tmp_path: Path, store: Store, place: str) -> None:
    with store.view("index", index(), ["log"], tmp_path / "v") as view:
        view.catch_up()
    before = set(files(tmp_path))
    kill_while_publishing(tmp_path, store, place)
    assert not list(tmp_path.glob("v.builds/*.published")), "the copy has no name"
    (tmp_path / "stores" / "archive").mkdir(exist_ok=True)
    publish._Files(str(tmp_path / "stores" / "archive" / str(store.id) / "_published")).sweep()
    assert set(files(tmp_path)) - before == set()


def test_the_next_publish_removes_what_a_killed_one_has_begun_to_write(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_while_publishing(tmp_path, store, "confirm")
    assert [name for name in files(tmp_path) if name.endswith(".part")]
    monkeypatch.setattr(streamkit.Store, "lease", lambda *args, **options: SimpleContext())  # that one's has to end
    with store.view("index", index(), ["log"], tmp_path / "v") as view:
        view.publish()
    assert not [name for name in files(tmp_path) if name.endswith(".part")]


class SimpleContext:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def test_upkeep_removes_what_a_killed_publish_has_begun_to_write(tmp_path: Path, store: Store) -> None:
    kill_while_publishing(tmp_path, store, "confirm")
    assert [name for name in files(tmp_path) if name.endswith(".part")]
    store.maintain()
    assert not [name for name in files(tmp_path) if name.endswith(".part")]


def test_an_erasure_that_was_killed_before_the_file_was_clean_is_completed(tmp_path: Path, store: Store) -> None:
    kill_while_publishing(tmp_path, store, "clean")
    with store.view("index", index(), ["log"], tmp_path / "v") as view:
        assert view.catch_up().state == "current"
        for path in (tmp_path / "v.builds").iterdir():
            assert path.is_symlink() or b"secretword00" not in path.read_bytes()
        assert len([name for name in files(tmp_path) if name.endswith(".sqlite")]) == 1
        assert view.view.count("secretword01") == 1


def test_opening_removes_what_earlier_releases_have_left(tmp_path: Path, store: Store) -> None:
    with store.view("index", index(), ["log"], tmp_path / "v") as view:
        view.catch_up()
        current = view._files.current()
    assert current is not None
    for left in (f"{current}.0a1b2c3d.published", f"{current}.part", current.replace(".sqlite", "0.sqlite.part")):
        Path(left).write_bytes(b"secretword00")
    with store.view("index", index(), ["log"], tmp_path / "v") as view:
        view.catch_up()
    assert sorted(name for name in files(tmp_path) if ".sqlite" in name) == [os.path.basename(current)]


def test_what_another_process_publishes_right_now_stays(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed = publish._compressed
    published = tmp_path / "stores" / "archive" / str(store.id) / "_published"

    def while_it_writes(file: Any) -> Iterator[bytes]:
        for chunk in compressed(file):
            yield chunk
            assert list(published.rglob("*.part"))
            with store.view("index", index(), ["log"], tmp_path / "v") as other:
                Path(f"{other._files.current()}.0a1b2c3d.published").touch()
                other.catch_up()
                with pytest.raises(LeaseNotAcquired), store.lease(other._publish_lease):
                    pass
                assert list(tmp_path.glob("v.builds/*.published")), "it may be in use"
            store.maintain()
            publish._Files(str(published)).sweep()
            assert list(published.rglob("*.part"))

    with store.view("index", index(), ["log"], tmp_path / "v") as view:
        view.catch_up()
        monkeypatch.setattr(publish, "_compressed", while_it_writes)
        view.publish()
    assert len(list(published.rglob("*.zst"))) == 1


@pytest.mark.parametrize("place", ["_copy", "_compressed", "_confirmed"])
def test_what_is_erased_while_a_view_is_published_is_not_published(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    call: Callable[..., Any] = getattr(publish, place)
    left = [1]

    def erase() -> Iterator[bytes]:
        if left:
            left.pop()
            store.erase("log", "s", last=1)
        yield from ()

    def erasing(*args: Any) -> Any:
        result = call(*args)
        if place == "_confirmed":  # it has made sure that nothing was erased, and has not yet shown the file
            return chain(result, erase())
        list(erase())
        return result

    def show(source: str, target: str, replace: Any = os.replace) -> None:
        if os.path.exists(source) and target.endswith(".zst"):
            assert b"secretword00" not in load_zstd().decompress(Path(source).read_bytes()), "nobody sees it, ever"
        replace(source, target)

    monkeypatch.setattr(os, "replace", show)
    monkeypatch.setattr(publish, place, erasing)
    with store.view("index", index(), ["log"], tmp_path / "v") as view:
        view.catch_up()
        view.publish()
        (found,) = (tmp_path / "stores" / "archive").rglob("*.zst")
        assert b"secretword00" not in load_zstd().decompress(found.read_bytes())
    assert not list((tmp_path / "stores" / "archive").rglob("*.part"))


def test_an_error_that_quotes_an_entry_goes_with_the_entry(tmp_path: Path, store: Store) -> None:
    def picky(entry: streamkit.Entry) -> str:
        if entry.payload in (b"secretword03", b"secretword07"):
            raise ValueError(f"cannot take {entry.payload!r}")
        return entry.payload.decode()

    with store.view("index", Index(picky), ["log"], tmp_path / "v", on_error="skip") as skipping:
        assert skipping.catch_up().skipped == 2
    with store.view("index", Index(picky), ["log"], tmp_path / "w") as pausing:
        assert pausing.catch_up().state == "paused"
        store.erase("log", "s", first=4, last=4)
        assert pausing.catch_up().error.sequence == 8, "it goes on behind an entry that is gone"  # type: ignore[union-attr]
    with store.view("index", Index(picky), ["log"], tmp_path / "v", on_error="skip") as skipping:
        skipping.catch_up()
        errors = [error for (error,) in skipping.db.execute("select error from streamkit_skipped order by sequence")]
        assert errors[0] == "the entry was erased"
        assert "secretword07" in errors[1]
    for path in tmp_path.glob("*.builds/*.sqlite*"):
        assert b"secretword03" not in path.read_bytes()


def test_a_view_that_fails_to_erase_is_built_anew(tmp_path: Path, store: Store) -> None:
    class Failing(Index):
        def erase(self, db: sqlite3.Connection, gap: Any) -> None:
            raise KeyError("a fault of its own")

    failing = Failing(lambda entry: entry.payload.decode())
    with store.view("index", failing, ["log"], tmp_path / "v") as view:
        view.catch_up()
        store.erase("log", "s", last=1)
        assert view.catch_up().state == "current"
        assert failing.count("secretword00") == 0
        view.erase(SimpleNamespace(space="log", segment="s", first_sequence=2, last_sequence=2, reason="erased"))
    for path in tmp_path.glob("v.builds/*.sqlite*"):
        assert b"secretword00" not in path.read_bytes()


def test_a_link_that_a_killed_process_did_not_move_is_moved_later(tmp_path: Path, store: Store) -> None:
    """The process had moved the link of its version, and not yet the one that SQLite's tools open."""
    with store.view("index", index(), ["log"], tmp_path / "v") as view:
        view.catch_up()
        current = view._files.current()
    assert current is not None
    old = Path(current.replace(".sqlite", "0.sqlite"))
    old.write_bytes(b"secretword00")
    (tmp_path / "v").unlink()
    (tmp_path / "v").symlink_to(f"v.builds/{old.name}")
    with store.view("index", index(), ["log"], tmp_path / "v") as view:
        view.catch_up()
        assert os.path.realpath(tmp_path / "v") == os.path.realpath(current)
        assert not old.exists()


def test_a_published_view_that_an_erasure_reads_has_no_named_copy(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The erasure asks each published view if it is of the deleted space. A killed one leaves no copy behind."""
    with store.view("index", index(), ["log"], tmp_path / "v") as view:
        view.publish()
    store.delete_space("log")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    read_state, seen = publish.read_state, list[list[Path]]()

    def looking(db: sqlite3.Connection, path: str) -> Any:
        seen.append([path for path in temporary.iterdir() if path.stat().st_size])
        return read_state(db, path)

    monkeypatch.setattr(publish, "read_state", looking)
    assert store.erase("log", "s").views == 1
    assert seen == [[]]
    assert not list(temporary.iterdir())
