"""Heads that belong to another moment than their logs, though their file and the start of the machine are the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from fix_local import Append, Delete, LocalStore, P, Put, in_child, write

from streamkit.errors import CorruptData
from streamkit_local import head, log
from streamkit_local.head import DIRTY, HEAD_WORDS, SYNCED, unseal


def word(page: bytes, number: int) -> int:
    return int.from_bytes(page[HEAD_WORDS + number * 8 :][:8], sys.byteorder)


def put_back(local: LocalStore, page: bytes) -> None:
    """The head as the disk had it, in the same file; the log is not closed, so it claims nothing."""
    with open(local.head(), "r+b") as file:
        file.write(page)


def same_file(local: LocalStore) -> dict[bytes, bytes]:
    rows = {b"%d" % number: b"x" * 10 for number in range(5, 9)}
    write(local.backend, P, [Append(*row) for row in rows.items()])
    return rows


def next_file(local: LocalStore) -> dict[bytes, bytes]:
    log.ROLL = 10  # type: ignore[misc]
    write(local.backend, P, [Append(b"9", b"x")])
    return {b"9": b"x"}


def several_files(local: LocalStore) -> dict[bytes, bytes]:
    log.ROLL = 10  # type: ignore[misc]
    return same_file(local)


def first_file_removed(local: LocalStore) -> dict[bytes, bytes]:
    rows = several_files(local)
    gone = [b"0", b"1", b"2", b"5"]
    write(local.backend, P, [Delete(key) for key in gone])
    assert min(int(path.name[:16], 16) for path in local.logs()) > 0
    return {key: value for key, value in rows.items() if key not in gone} | dict.fromkeys(gone, b"")


CHANGES: list[Callable[[LocalStore], dict[bytes, bytes]]] = [same_file, next_file, several_files, first_file_removed]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["appended", "put"])
@pytest.mark.parametrize("writing", [False, True], ids=["idle", "writing"])
def test_a_head_of_before_does_not_hide_what_was_synced_since(
    local: LocalStore,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[LocalStore], dict[bytes, bytes]],
    kind: str,
    writing: bool,
) -> None:
    monkeypatch.setattr(log, "ROLL", log.ROLL)
    rows = {b"%d" % number: b"y" for number in range(3)}
    if kind == "appended":
        write(local.backend, P, [Append(*row) for row in rows.items()])
    else:
        write(local.backend, P, [Put(*row) for row in rows.items()])
    page = bytearray(local.head().read_bytes())
    if writing:
        page[HEAD_WORDS + DIRTY * 8] = 1

    def go_on() -> None:
        local.open()
        local.rows()
        change(local)
        if writing:
            write(local.backend, P, [Append(b"91", b"x"), Append(b"92", b"x")])
        (local.root / "rows").write_text(repr(local.rows()))
        os._exit(7)

    local.close()
    assert in_child(go_on) == 7
    rows = eval((local.root / "rows").read_text())
    (local.root / "rows").unlink()
    put_back(local, bytes(page))
    assert local.rows_anew() == rows
    write(local.backend, P, [Append(b"99", b"next")])
    assert local.rows() == rows | {b"99": b"next"}
    local.cut_power()
    assert local.rows_anew() == rows | {b"99": b"next"}


@pytest.mark.parametrize("first", ["put", "read"])
def test_a_log_that_ends_before_its_head_says_is_damage(local: LocalStore, first: str) -> None:
    """The volume may have been rolled back to a state whose end was not synced. Only a restart proves it."""

    def work() -> None:
        write(local.backend, P, [Append(b"1", b"x"), Append(b"2", b"x")])
        write(local.backend, P, [Append(b"3", b"buffered")], durable=False)
        os._exit(7)

    write(local.backend, P, [Append(b"0", b"x")])
    local.close()
    assert in_child(lambda: (local.open(), work())) == 7
    synced = unseal(word(local.head().read_bytes(), SYNCED))
    os.truncate(local.logs()[0], synced + 1)
    local.open()
    with pytest.raises(CorruptData, match="damaged record"):
        write(local.backend, P, [Append(b"4", b"x")]) if first == "put" else local.rows()
    local.cut_power()
    assert list(local.rows_anew()) == [b"0", b"1", b"2"]
    os.truncate(local.logs()[0], synced - 1)
    local.cut_power()
    with pytest.raises(CorruptData, match="damaged record"):
        local.rows_anew()


def test_a_copy_whose_head_got_the_number_of_the_first_one_is_a_copy(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "_generation", lambda _: 5, raising=False)
    write(local.backend, P, [Append(b"1", b"x")])
    early = local.logs()[0].read_bytes()
    write(local.backend, P, [Append(b"2", b"x")])
    local.close()
    with open(local.logs()[0], "r+b") as file:  # it was copied first, and the head last
        file.write(early)
        file.truncate()
    monkeypatch.setattr(head, "_generation", lambda _: 6, raising=False)
    assert local.rows_anew() == {b"1": b"x"}


@pytest.mark.parametrize(("one", "other"), [(0, 6), (5, 0), (5, 5)])
def test_a_generation_that_is_not_told_makes_no_copy_of_a_head(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, one: int, other: int
) -> None:
    monkeypatch.setattr(head, "_generation", lambda _: one)
    write(local.backend, P, [Append(b"1", b"x")])
    local.close()
    monkeypatch.setattr(head, "_generation", lambda _: other)
    monkeypatch.setattr(log, "recover", lambda *_, **__: pytest.fail("it was taken for a copy"))
    assert local.rows_anew() == {b"1": b"x"}
