"""Tables that were changed or damaged from outside: a reader never leaves its own table."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record, Store
from streamkit.archive.compact import compact_space
from streamkit.errors import CorruptData

pytest.importorskip("deltalake")

SPACE = "space"


def directory(store: Store) -> Path:
    return Path(unquote(store._archive(SPACE).table.url.removeprefix("file://")))


def commits(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


def change(commit: Path, kind: str, **fields: Any) -> None:
    """Set fields of the actions of a kind in a commit."""
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        line.get(kind, {}).update(fields)
    commit.write_text("\n".join(map(json.dumps, lines)))


class Two:
    """A tenant, and another one whose archive has a file of the same shape."""

    def __init__(self, root: Path) -> None:
        self.url = root.as_uri()
        with streamkit.connect(self.url) as client:
            ids = [uuid4(), uuid4()]
            for id, payload in zip(ids, (b"mine", b"else"), strict=True):
                client.store(id).produce(SPACE, "segment", [Record(payload)] * 3)
                client.store(id).archive(SPACE)
            self.id, self.other = ids
            self.table, other = (directory(client.store(id)) for id in ids)
        (self.file,), (self.foreign,) = self.table.glob("*.parquet"), other.glob("*.parquet")

    def point_to(self, path: str) -> None:
        """The table's log says that its file is at `path`."""
        change(commits(self.table)[-1], "add", path=path, size=self.foreign.stat().st_size)

    def refused(self, what: str) -> None:
        """Every way to read raises the error, in a fresh client."""
        with streamkit.connect(self.url) as client:
            store = client.store(self.id)
            for read in (
                lambda: list(store.consume_space(SPACE)),
                lambda: list(store.consume_segment(SPACE, "segment")),
                lambda: store.peek(SPACE, "segment"),
                lambda: compact_space(store._archive(SPACE), 1 << 20, 0),
            ):
                with pytest.raises(CorruptData, match=re.escape(what)):
                    read()


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


@pytest.mark.parametrize(
    "form",
    [
        lambda path: path,
        lambda path: path.replace("..", "%2e%2E"),
        lambda path: path.replace("..", "%252e%252e"),
        lambda path: path.replace("/", "%2F"),
        lambda path: path.replace("/", "\\"),
        lambda path: f"x/../{path}",
        lambda path: f"./{path}",
    ],
)
def test_a_path_that_leads_out_of_the_table_is_refused(two: Two, form: Callable[[str], str]) -> None:
    two.point_to(form(os.path.relpath(two.foreign, two.table)))
    two.refused("not below the table")


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "file:{path}", "/{path}"])
def test_an_absolute_path_is_refused(two: Two, form: str) -> None:
    two.point_to(form.format(path=two.foreign))
    two.refused(str(two.foreign))


@pytest.mark.parametrize("below", [False, True])
def test_a_link_that_leads_out_of_the_table_is_refused(two: Two, below: bool) -> None:
    if below:
        (two.table / "x").symlink_to(two.foreign.parent)
        two.point_to(f"x/{two.foreign.name}")
    else:
        (two.table / "x.parquet").symlink_to(two.foreign)
        two.point_to("x.parquet")
    two.refused("leads out of the table")


def test_a_table_that_is_a_link_itself_is_read(two: Two, tmp_path: Path) -> None:
    two.table.rename(tmp_path / "moved")
    two.table.symlink_to(tmp_path / "moved")
    with streamkit.connect(two.url) as client:
        assert [entry.payload for entry in client.store(two.id).consume_space(SPACE)] == [b"mine"] * 3


def test_vacuum_deletes_nothing_out_of_the_table(two: Two) -> None:
    removed = {"path": os.path.relpath(two.foreign, two.table), "deletionTimestamp": 1, "dataChange": False}
    last = commits(two.table)[-1]
    last.with_name(f"{int(last.stem) + 1:020}.json").write_text(json.dumps({"remove": removed}))
    with streamkit.connect(two.url) as client, contextlib.suppress(CorruptData):
        compact_space(client.store(two.id)._archive(SPACE), 1 << 20, 0)
    assert two.foreign.exists()


# -- damage, while the log still holds what is archived ---------------------------------------------------------------


class Damaged:
    """A space of two archiver's runs, whose log still holds all, and a tail."""

    def __init__(self, root: Path) -> None:
        self.url, self.id = root.as_uri(), uuid4()
        with streamkit.connect(self.url) as client:
            store = client.store(self.id)
            self.write(store, 0)
            store.archive(SPACE)
            self.write(store, 100)
            store.archive(SPACE)
            self.write(store, 200)
            self.before = self.look(store)
            self.table = directory(store)

    def write(self, store: Store, begin: int) -> None:
        for at in range(begin, begin + 12):
            with store.transaction(SPACE) as trx:
                trx.produce(f"s{at % 3}", [Record(b"%d" % at)] * 2)
                trx.produce("all", [Record(b"all %d" % at)])

    def look(self, store: Store) -> Any:
        entries = list(store.consume_space(SPACE))
        late = entries[len(entries) // 2].timestamp
        return (
            entries,
            [entry.space_offset for entry in entries],
            [list(store.consume_space(SPACE, offset=entry.space_offset))[:2] for entry in entries[::7]],
            list(store.consume_space(SPACE, min_timestamp=late)),
            {name: list(store.consume_segment(SPACE, name)) for name in store.get_segments(SPACE)},
            {name: list(store.consume_segment(SPACE, name, min_sequence=5)) for name in store.get_segments(SPACE)},
            {name: store.peek(SPACE, name) for name in store.get_segments(SPACE)},
        )

    def again(self) -> Any:
        with streamkit.connect(self.url) as client:
            return self.look(client.store(self.id))


def data_files(table: Path) -> list[Path]:
    return sorted(table.glob("*.parquet"), key=lambda path: int(path.name.split("-")[2]))


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "an empty file": lambda table: data_files(table)[-1].write_bytes(b""),
    "a missing file": lambda table: data_files(table)[-1].unlink(),
    "a short file": lambda table: os.truncate(data_files(table)[-1], 900),
    "an empty commit": lambda table: commits(table)[-1].write_bytes(b""),
    "a torn commit": lambda table: os.truncate(commits(table)[-1], 600),
    "a missing commit": lambda table: commits(table)[-1].unlink(),
}
WHOLE = {
    "no table": shutil.rmtree,
    "all files empty": lambda table: [path.write_bytes(b"") for path in data_files(table)],
    "all commits empty": lambda table: [path.write_bytes(b"") for path in commits(table)],
}


@pytest.mark.parametrize("damage", [*DAMAGES, *WHOLE])
def test_readers_use_the_log_where_the_archive_is_damaged(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = Damaged(tmp_path)
    {**DAMAGES, **WHOLE}[damage](world.table)
    assert world.again() == world.before
    assert len([record for record in caplog.records if "the archive is damaged" in record.getMessage()]) == 1
