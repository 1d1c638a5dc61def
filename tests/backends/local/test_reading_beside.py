"""Reading while others write: a row that exists before and after a read is found, also if others are removed
meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fix_local import Append, Delete, LocalStore, P, Put, in_child, write

import streamkit_local
from streamkit.backend import NEXT, Backend, Limits, Range, TellsChanges
from streamkit.errors import StoreClosed
from streamkit_local import backend, log
from streamkit_local.reading import Reader
from streamkit_local.state import LogFile, State


@pytest.fixture
def filled(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalStore, list[bytes]]:
    """A log of several files, and its keys. The first file is removed when its rows are deleted."""
    monkeypatch.setattr(log, "ROLL", 4000)
    keys = [b"%06d" % number for number in range(120)]
    write(local.backend, P, [Append(key, key * 20) for key in keys], durable=False)
    assert len(local.logs()) > 3
    return local, keys


class Before:
    """Does `work` once, when a function is called for the `number`th time, and before it, or `after` it."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        owner: type,
        name: str,
        work: Callable[[], object],
        *,
        number: int = 1,
        after: bool = False,
    ) -> None:
        self.done = False
        real = getattr(owner, name)
        left = [number]

        def wrapped(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0]:
                return real(*args, **options)
            self.done = True
            if not after:
                work()
            found = real(*args, **options)
            if after:
                work()
            return found

        monkeypatch.setattr(owner, name, wrapped)


def rows_of_first_file(local: LocalStore, keys: list[bytes]) -> int:
    first = local.logs()[0].read_bytes()
    return sum(key * 20 in first for key in keys)


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("by", ["this process", "another process"])
def test_a_scan_leaves_out_nothing_while_an_older_file_is_removed(
    filled: tuple[LocalStore, list[bytes]], monkeypatch: pytest.MonkeyPatch, values: bool, by: str
) -> None:
    local, keys = filled
    old = rows_of_first_file(local, keys)

    def remove() -> None:
        if by == "this process":
            write(local.backend, P, [Delete(key) for key in keys[:old]])
        else:
            local.run(f"b.delete(P, {keys[:old]!r})")
            local.backend.get(P, [b"000000"])  # it reads the changes of the other one

    files = len(local.logs())
    local.rows()
    removed = Before(monkeypatch, Reader, "read", remove, number=2)
    found = [row.key for row in local.backend.scan(P, keys[old], b"\xff", values=values)]
    assert removed.done
    assert len(local.logs()) == files - 1
    assert found == keys[old:]


@pytest.mark.parametrize("part", [True, False])
def test_a_row_is_found_while_an_older_file_is_removed(
    filled: tuple[LocalStore, list[bytes]], monkeypatch: pytest.MonkeyPatch, part: bool
) -> None:
    local, keys = filled
    old = rows_of_first_file(local, keys)
    key = keys[old + 2]
    removed = Before(
        monkeypatch,
        Reader,
        "seek",
        lambda: write(local.backend, P, [Delete(key) for key in keys[:old]]),
        number=1,
        after=True,
    )
    if part:
        assert local.backend.read(P, [Range(key, 0, 6)]) == [key]
    else:
        assert [value and value.data for value in local.backend.get(P, [key])] == [key * 20]
    assert removed.done


@pytest.mark.parametrize("how", ["get", "read", "scan"])
def test_a_small_row_is_read_while_it_is_copied_out_of_a_file_that_is_removed(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(log, "ROLL", 4000)
    write(local.backend, P, [Put(b"row", b"small"), Put(b"row 2", b"copied last")])
    keys = [b"%06d" % number for number in range(60)]
    write(local.backend, P, [Append(key, key * 20) for key in keys], durable=False)
    local.open()
    assert local.backend.get(P, [b"no"]) == [None]
    removed = Before(
        monkeypatch,
        Reader,
        "_inline" if how == "read" else "row",
        lambda: write(local.backend, P, [Delete(key) for key in keys]),
    )
    if how == "get":
        assert [value and value.data for value in local.backend.get(P, [b"row"])] == [b"small"]
    elif how == "read":
        assert local.backend.read(P, [Range(b"row", 1, 3)]) == [b"mal"]
    else:
        assert [row.data for row in local.backend.scan(P, b"row", b"row ")] == [b"small"]
    assert removed.done
    assert min(int(path.name[:16], 16) for path in local.logs()) > 0


def test_what_was_deleted_before_a_scan_does_not_come_back_when_its_file_is_removed(
    filled: tuple[LocalStore, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    local, keys = filled
    old = rows_of_first_file(local, keys)
    write(local.backend, P, [Delete(keys[3])])
    removed = Before(
        monkeypatch, Reader, "seek", lambda: write(local.backend, P, [Delete(key) for key in keys[:old]]), after=True
    )
    found = [row.key for row in local.backend.scan(P, b"", b"\xff", values=False)]
    assert removed.done
    assert keys[3] not in found
    assert set(found) >= set(keys[old:])


@pytest.mark.parametrize("values", [True, False])
def test_an_appended_row_that_is_replaced_meanwhile_is_not_left_out_of_a_scan(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, values: bool
) -> None:
    write(local.backend, P, [Append(b"%d" % number, b"x") for number in range(5)])
    Before(monkeypatch, State, "keys", lambda: write(local.backend, P, [Put(b"2", b"y")]), after=True)
    found = [row.key for row in local.backend.scan(P, b"", b"\xff", values=values)]
    assert found == [b"0", b"1", b"2", b"3", b"4"]


def test_an_appended_row_that_is_replaced_meanwhile_is_found(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(local.backend, P, [Append(b"%d" % number, b"x") for number in range(5)])
    for at, read in enumerate(
        (lambda key: local.backend.get(P, [key]), lambda key: local.backend.read(P, [Range(key, 0, 1)]))
    ):
        key = b"%d" % at
        with monkeypatch.context() as patched:
            replaced = Before(patched, Reader, "find", lambda key=key: write(local.backend, P, [Put(key, b"y")]))  # type: ignore[misc]
            assert read(key) != [None]
        assert replaced.done


@pytest.mark.parametrize("appended", [True, False])
def test_a_row_that_is_deleted_meanwhile_does_not_end_a_scan(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, appended: bool
) -> None:
    monkeypatch.setattr(backend, "_LIMITS", Limits(remote=False, page=5))
    keys = [b"%02d" % number for number in range(20)]
    write(local.backend, P, [Put(key, b"x") for key in keys], durable=False)
    if appended:
        write(local.backend, P, [Append(b"001", b"x"), Append(b"055", b"x")], durable=False)
        keys = sorted([*keys, b"001", b"055"])
    Before(monkeypatch, State, "keys", lambda: write(local.backend, P, [Delete(keys[2])]), after=True)
    assert [row.key for row in local.backend.scan(P, b"", b"\xff")] == [*keys[:2], *keys[3:]]


def test_samples_that_another_thread_forgets_meanwhile_are_used(filled: tuple[LocalStore, list[bytes]]) -> None:
    local, _ = filled

    class Forgotten(LogFile):
        @property
        def samples(self) -> list[tuple[bytes, int]]:
            return []

        @samples.setter
        def samples(self, value: list[tuple[bytes, int]]) -> None:
            pass

    opened = local.backend._shared.logs[P]  # type: ignore[attr-defined]
    file = opened.state.files[0]
    assert opened.reader.samples(Forgotten(file.base, file.end, file.first, file.index))


def test_a_change_is_told_after_each_write_of_another_process(tmp_path: Path) -> None:
    identity = uuid4()
    mine = streamkit_local.connect(f"file://{tmp_path}", timeout=5).open(identity)
    assert isinstance(mine, TellsChanges)
    assert mine.change(P) is None
    mine.put(P, b"key", b"1")
    told = [mine.change(P)]
    changes: list[Callable[[Backend], object]] = [
        lambda store: store.put(P, b"log 1", b"1", NEXT),
        lambda store: store.put(P, b"key", b"2", durable=False),
        lambda store: store.put(P, b"large", bytes(100_000)),
        lambda store: store.delete(P, [b"key"]),
        lambda store: store.delete(P, [b"log 1"]),
    ]
    for change in changes:
        assert mine.change(P) == told[-1]
        work = lambda change=change: change(streamkit_local.connect(f"file://{tmp_path}", timeout=5).open(identity))  # noqa: E731
        assert in_child(work) == 0
        told.append(mine.change(P))
    assert None not in told
    assert len(set(told)) == len(changes) + 1
    mine.close()
    with pytest.raises(StoreClosed):
        mine.change(P)
