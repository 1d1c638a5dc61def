"""A segment whose rows fill many blocks of the index is read row by row, by both codecs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from uuid import uuid4

import pytest

import streamkit
from harness.codecs import CODECS, using
from streamkit import CorruptData, Entry, Record, Store
from streamkit.index.runs import Runs
from streamkit.index.upkeep import bring_forward
from streamkit.log import read_segment
from streamkit.log.moved import Moved
from streamkit.log.partition import Partition

SPACE, SEGMENT = "space", "s"
MANY = 600
"""Entries. They are in 30 blocks, and a reader gets the first 256 together."""


@pytest.fixture
def store() -> Store:
    made = streamkit.connect(f"memory://{uuid4()}").store(uuid4())
    write(made, MANY)
    made.maintain(SPACE)
    return made


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Iterator[None]:
    with using(request.param):
        yield


def write(store: Store, count: int) -> None:
    dice = Random(count)
    for _ in range(count):
        store.produce(SPACE, SEGMENT, [Record(dice.randbytes(300))])


def partition_of(store: Store) -> Partition:
    known = store._known(SPACE)
    assert known is not None
    return known.partitions[0]


def entries(store: Store, **bounds: int) -> list[Entry]:
    return list(store.consume_segment(SPACE, SEGMENT, **bounds))


@pytest.mark.usefixtures("codec")
def test_it_has_the_entries_that_the_space_has(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store, 5)
    wanted = list(store.consume_space(SPACE))
    assert [entry.sequence for entry in wanted] == [*range(1, MANY + 6)]
    assert entries(store, min_sequence=20, max_sequence=MANY - 1) == wanted[19 : MANY - 1]
    assert entries(store, max_sequence=MANY) == wanted[:MANY]
    assert entries(store, min_sequence=MANY) == wanted[MANY - 1 :]
    # Piece by piece it is as slow as before, and nothing else tells.
    monkeypatch.delattr(read_segment, "_load_together")
    assert entries(store, max_sequence=MANY) == wanted[:MANY]


Rows = Iterator[tuple[bytes, bytes]]


def scanned(monkeypatch: pytest.MonkeyPatch, change: Callable[[Rows], Rows]) -> None:
    """Every scan of the index has the rows that `change` makes of them."""
    scan = Runs.scan
    monkeypatch.setattr(Runs, "scan", lambda *asked: change(scan(*asked)))


@pytest.mark.usefixtures("codec")
def test_a_read_has_nothing_that_was_committed_after_its_first_view(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = [Moved("merged meanwhile")]

    def move(rows: Rows) -> Rows:
        for at, row in enumerate(rows):
            if at == 20 and moved:
                write(store, 40)
                bring_forward(partition_of(store))
                raise moved.pop()
            yield row

    scanned(monkeypatch, move)
    assert [entry.sequence for entry in entries(store)] == [*range(1, MANY + 1)]
    assert not moved
    assert len(entries(store)) == MANY + 40


@pytest.mark.usefixtures("codec")
@pytest.mark.parametrize(("at", "before"), [(0, 0), (20, 257)])
def test_an_error_comes_after_what_is_before_the_damage(
    store: Store, monkeypatch: pytest.MonkeyPatch, at: int, before: int
) -> None:
    known: list[bytes] = []
    with monkeypatch.context() as patch:
        scanned(patch, lambda rows: (row for row in rows if known.append(row[0]) or True))
        entries(store)
    bad = sorted(set(known))[at]
    changed = lambda value: value[:200] + bytes([value[200] ^ 1]) + value[201:]  # noqa: E731
    for change in (changed, lambda value: None):  # of a payload; the whole row
        with monkeypatch.context() as patch:
            scanned(patch, lambda rows, change=change: altered(rows, bad, change))
            found: list[int] = []
            with pytest.raises(CorruptData, match="space 'space'"):
                found.extend(entry.sequence for entry in store.consume_segment(SPACE, SEGMENT))
        assert found == [*range(1, len(found) + 1)]
        assert before <= len(found) < MANY - 50


def altered(rows: Rows, bad: bytes, change: Callable[[bytes], bytes | None]) -> Rows:
    for key, value in rows:
        new = change(value) if key == bad else value
        if new is not None:
            yield key, new
