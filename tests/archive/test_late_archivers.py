"""Archivers and compactions that are stopped, or sleep, while others erase, or delete the space and make it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import randbytes
from typing import Any
from uuid import UUID, uuid4

import pytest

import streamkit
from streamkit import CorruptData, LeaseLost, Record, Store, StoreClosed
from streamkit.archive import archiver, compact, write
from streamkit.archive.table import Table
from streamkit.leases import Lease

pytest.importorskip("deltalake")

SPACE = "a"


class Stop(Exception):
    """The process ends here."""


class World:
    """Processes with one store on a local disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id: UUID = uuid4()
        self.clients: list[streamkit.Client] = []

    def process(self) -> Store:
        self.clients.append(streamkit.connect(self.path.as_uri()))
        return self.clients[-1].store(self.id)

    def files(self) -> list[Path]:
        return sorted(self.path.rglob("*.parquet"))

    def archived_payloads(self) -> set[bytes]:
        """Search every file, also those that no version of the table names."""
        import pyarrow.parquet as pq

        files = [path for path in self.files() if "_delta_log" not in path.parts]
        return {one for path in files for one in pq.read_table(path)["payload"].to_pylist() if one is not None}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    for client in found.clients:
        client.close()


def fill(store: Store, text: str, count: int, segment: str = "s") -> None:
    for at in range(count):
        store.produce(SPACE, segment, [Record(b"%s %d" % (text.encode(), at))])


def texts(store: Store) -> list[str]:
    return [entry.payload.decode() for entry in store.consume_space(SPACE, gaps="skip")]


def stop_before_the_watermark(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Archive; the table has it then, and the head does not know."""

    def stop(*arguments: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(write, "move_watermark", stop)
        with pytest.raises(Stop):
            store.archive(SPACE)


def once_before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, first: Callable[[], None]) -> None:
    """`first()` happens when the function is called the first time, before it does anything."""
    inner = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, inner)
        first()
        return inner(*arguments, **options)

    monkeypatch.setattr(owner, name, call)


def test_a_space_made_again_has_nothing_of_an_archive_whose_archiver_was_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.process()
    fill(store, "old", 5)
    stop_before_the_watermark(store, monkeypatch)
    store.delete_space(SPACE)
    assert world.files() == []
    fill(store, "new", 7)
    store.archive(SPACE)
    assert texts(store) == texts(world.process()) == [f"new {at}" for at in range(7)]


def test_an_archiver_that_looked_before_another_archived_continues_from_the_table(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = world.process(), world.process()
    first.create_space(SPACE, partitions=2)
    for segment in ("s", "t", "u", "v"):
        fill(first, segment, 2, segment)
    first.archive(SPACE)

    def another() -> None:
        for segment in ("s", "t", "u", "v"):
            fill(other, f"later {segment}", 1, segment)
        assert other.archive(SPACE).entries == 4

    once_before(monkeypatch, archiver, "archive_space", another)
    assert first.archive(SPACE).entries == 0
    assert len(texts(first)) == 12


@pytest.mark.parametrize("indexed", [False, True], ids=["a tail", "all indexed"])
@pytest.mark.parametrize("archived", [False, True], ids=["nothing archived", "an archive"])
def test_what_is_erased_between_the_look_and_the_lease_is_not_archived(
    world: World, monkeypatch: pytest.MonkeyPatch, archived: bool, indexed: bool
) -> None:
    slow, fast = world.process(), world.process()
    fill(slow, "first", 2, "t")
    if archived:
        slow.archive(SPACE)
    fill(slow, "secret", 5)
    if indexed:
        slow.archive(SPACE, min_age=1e6)
    once_before(monkeypatch, archiver, "archive_space", lambda: fast.erase(SPACE, "s"))
    slow.archive(SPACE)
    assert world.archived_payloads() == {b"first 0", b"first 1"}
    assert texts(slow) == texts(world.process()) == ["first 0", "first 1"]


def test_a_deletion_that_was_stopped_is_completed_with_the_archive(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.process()
    fill(store, "old", 5)
    store.archive(SPACE)

    def stop(space: str) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(store._shared, "delete_archive", stop)
        with pytest.raises(Stop):
            store.delete_space(SPACE)
    other = world.process()
    other.delete_space(SPACE)
    assert world.files() == []
    fill(other, "new", 7)
    other.archive(SPACE)
    assert texts(world.process()) == [f"new {at}" for at in range(7)]


def test_what_is_erased_does_not_come_back_with_what_the_head_does_not_know(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.process()
    fill(store, "secret", 5)
    fill(store, "other", 2, "t")
    stop_before_the_watermark(store, monkeypatch)
    store.erase(SPACE, "s")
    assert world.archived_payloads() == {b"other 0", b"other 1"}
    store.archive(SPACE)
    assert texts(store) == texts(world.process()) == ["other 0", "other 1"]


@pytest.mark.parametrize("before", [False, True], ids=["an archive", "nothing archived"])
@pytest.mark.parametrize(("owner", "point"), [(write, "write_file"), (Table, "create"), (Table, "commit")])
def test_an_archiver_that_slept_through_an_erasure_leaves_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch, owner: Any, point: str, before: bool
) -> None:
    """An archiver reads entries, loses its lease, and continues after these entries were erased."""
    slow, fast = world.process(), world.process()
    if not before:
        fill(slow, "first", 3, "t")
        slow.archive(SPACE)
    fill(slow, "secret", 5)
    fill(slow, "other", 2, "t")
    expected = [text for text in texts(slow) if not text.startswith("secret")]
    leases: list[Lease] = []
    held = slow._archiver_lease

    def lease(name: str) -> Lease:
        leases.append(held(name))
        return leases[-1]

    def erase() -> None:
        leases[0].lost.set()
        monkeypatch.setattr(fast, "_eraser_lease", lambda name, wait: fast.lease(f"other {name}"))
        fast.erase(SPACE, "s")

    monkeypatch.setattr(slow, "_archiver_lease", lease)
    once_before(monkeypatch, owner, point, erase)
    with pytest.raises(LeaseLost):
        slow.archive(SPACE)
    assert not any(payload.startswith(b"secret") for payload in world.archived_payloads())
    monkeypatch.setattr(fast, "_archiver_lease", lambda name: fast.lease(f"other {name}"))
    fast.archive(SPACE)
    assert texts(fast) == texts(world.process()) == expected
    assert not fast.verify().findings


def test_a_compaction_that_slept_through_an_erasure_leaves_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = world.process(), world.process()
    for at in range(2):
        fill(store, f"secret {at}", 2)
        fill(store, f"other {at}", 2, "t")
        store.archive(SPACE)
    once_before(monkeypatch, compact, "write_file", lambda: other.erase(SPACE, "s") and None)
    store.compact(SPACE)
    assert not any(payload.startswith(b"secret") for payload in world.archived_payloads())
    assert len(texts(world.process())) == 4


@pytest.mark.parametrize("by", [{"segment": "s"}, {"segment": "[s]"}, {"metadata": {"no": "entry"}}], ids=str)
@pytest.mark.parametrize("work", ["archive", "compact"])
def test_the_same_erasure_again_removes_what_a_killed_process_has_written_after_it_slept(
    world: World, monkeypatch: pytest.MonkeyPatch, work: str, by: dict[str, Any]
) -> None:
    """No version of the table names its file, and no other archiver needs it."""
    slow, fast = world.process(), world.process()
    for at in range(2):
        fill(slow, f"secret {at}", 2)
        fill(slow, f"other {at}", 2, "t")
        slow.archive(SPACE)
    fill(slow, "secret 2", 2)
    expected = [text for text in texts(slow) if not text.startswith("secret")]
    monkeypatch.setattr(slow, "_archiver_lease", lambda name: slow.lease(f"lost {name}"))

    owner, write_file = (write, write.write_file) if work == "archive" else (compact, compact.write_file)

    def write_late(*arguments: Any) -> Any:
        fast.erase(SPACE, "s")
        write_file(*arguments)
        monkeypatch.setattr(Table, "discard", lambda *_: None)  # a killed process removes nothing
        raise Stop

    monkeypatch.setattr(owner, "write_file", write_late)
    with pytest.raises(Stop):
        getattr(slow, work)(SPACE)
    monkeypatch.undo()
    assert any(payload.startswith(b"secret") for payload in world.archived_payloads()), "there is nothing to be removed"
    assert fast.erase(SPACE, **by).unreached == ()
    assert not any(payload.startswith(b"secret") for payload in world.archived_payloads())
    fast.archive(SPACE)
    assert texts(fast) == texts(world.process()) == expected
    assert not fast.verify().findings


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_the_archive_of_an_archiver_that_slept_through_a_deletion_is_not_taken_for_that_of_the_next_space(
    world: World, monkeypatch: pytest.MonkeyPatch, again: bool, killed: bool
) -> None:
    slow, fast = world.process(), world.process()
    fill(slow, "old", 5)

    def sleep() -> None:
        fast.delete_space(SPACE)
        if again:
            fill(fast, "new", 7)
        if killed:
            monkeypatch.setattr(Table, "delete", lambda *_: None)

    with monkeypatch.context() as patch:
        once_before(patch, write, "write_file", sleep)
        with pytest.raises(StoreClosed, match="deleted"):
            slow.archive(SPACE)
    monkeypatch.undo()
    assert bool(world.files()) == killed
    if not again:
        fill(fast, "new", 7)
    if killed:
        with pytest.raises(CorruptData, match="which was deleted"):
            fast.archive(SPACE)
    else:
        assert fast.archive(SPACE).entries == 7
    assert texts(fast) == texts(world.process()) == [f"new {at}" for at in range(7)]


def test_a_trim_while_the_archiver_writes_is_no_damage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large records are rows of the log, and a trim removes them at once. The archiver goes on at the new floor."""
    store, other = world.process(), world.process()
    for _ in range(80):
        store.produce(SPACE, "s", [Record(randbytes(100_000))])
    add, trimmed = write.FileBuilder.add, list[int]()

    def add_and_trim(builder: Any, number: int, record: bytes, until: int) -> bool:
        if number == 10 and not trimmed:
            trimmed.append(other.trim(SPACE, keep_entries=3).entries)
            other.maintain(SPACE)
        return add(builder, number, record, until)

    monkeypatch.setattr(write.FileBuilder, "add", add_and_trim)
    report = store.archive(SPACE)
    assert trimmed == [77]
    assert report.transactions == report.archived[0]
    for reader in store, world.process():
        assert [(entry.sequence, entry.tier) for entry in reader.consume_space(SPACE)] == [
            (78, "cold"), (79, "cold"), (80, "cold"),
        ]  # fmt: skip
        assert reader.verify(SPACE).ok


@pytest.mark.parametrize("again", [False, True])
def test_an_erasure_names_the_archive_of_an_archiver_that_was_killed_after_a_deletion(
    world: World, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    slow, fast = world.process(), world.process()
    fill(slow, "old", 5)
    write_file = write.write_file

    def write_late(*arguments: Any) -> Any:
        fast.delete_space(SPACE)
        if again:
            fill(fast, "new", 2)
        write_file(*arguments)
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(write, "write_file", write_late)
        with pytest.raises(Stop):
            slow.archive(SPACE)
    assert world.archived_payloads(), "there is nothing to be removed"
    (text,) = world.process().erase(SPACE, "t").unreached
    assert ("emove that directory" if again else "delete_space('a') removes them") in text
    world.process().delete_space(SPACE)
    assert world.files() == []
    assert world.process().erase(SPACE, "t").unreached == ()
