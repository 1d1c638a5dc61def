"""A view of a partition's log is a value: it does not change, and a walk over it takes no lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import CorruptData, Record, Store
from streamkit.index import upkeep
from streamkit.index.upkeep import bring_forward
from streamkit.log import segment_rows, segment_view
from streamkit.log.moved import Moved
from streamkit.log.partition import Partition
from streamkit.log.rows import Piece
from streamkit.log.segment_view import piece_groups, status_of
from streamkit.log.view import LogView

SPACE = "space"
PATIENCE = 30.0


@pytest.fixture(params=["memory://", "memory://?remote=1"])
def store(request: pytest.FixtureRequest) -> Store:
    scheme, _, options = str(request.param).partition("://")
    return streamkit.connect(f"{scheme}://{uuid4()}{options}").store(uuid4())


def partition_of(store: Store) -> Partition:
    known = store._known(SPACE)
    assert known is not None
    return known.partitions[0]


def contents(view: LogView) -> tuple[object, ...]:
    pieces = [list(piece_groups(view, name, 1, status_of(view, name).last_sequence)) for name in ("a", "b")]
    frames = [list(view.frames(group)) for groups in pieces for group in groups]
    return view.end, list(view.records(1, view.end)), list(view.records_backwards(1, view.end)), pieces, frames


def write(store: Store, count: int) -> None:
    for at in range(count):
        store.produce(SPACE, "ab"[at % 2], [Record(b"%d" % at)])


def test_a_view_stays_as_it_was(store: Store) -> None:
    write(store, 30)
    store.maintain(SPACE)
    write(store, 10)
    view = partition_of(store).view()
    before = contents(view)
    write(store, 10)
    store.trim(SPACE, "a", keep_entries=2)
    assert contents(view) == before
    store.maintain(SPACE)  # the tail goes into the index
    write(store, 10)
    assert view.end == 40
    assert contents(view)[0] == before[0]
    assert contents(view)[1] == before[1]


def test_a_walk_takes_no_lock(store: Store) -> None:
    write(store, 30)
    store.maintain(SPACE)
    write(store, 10)
    partition = partition_of(store)
    view = partition.view()
    before = contents(view)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with partition._lock:
            held.set()
            done.wait(PATIENCE)

    with ThreadPoolExecutor(2) as threads:
        threads.submit(hold)
        assert held.wait(PATIENCE)
        try:
            assert threads.submit(contents, view).result(PATIENCE) == before
        finally:
            done.set()


@pytest.mark.parametrize("removed", [None, "trim", "retention"])
def test_a_read_that_goes_on_with_a_later_view_has_nothing_of_what_was_committed_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, removed: str | None
) -> None:
    monkeypatch.setattr(segment_view, "_PIECES", 4)
    monkeypatch.setattr(segment_rows, "MOST", 4)
    write(store, 40)
    store.maintain(SPACE)
    partition = partition_of(store)
    read = store.consume_segment(SPACE, "a")
    found = [next(read).sequence]
    write(store, 20)
    bring_forward(partition)
    if removed == "trim":
        store.trim(SPACE, "b", keep_entries=1)
    elif removed == "retention":
        store.set_retention(SPACE, streamkit.Retention(max_entries=1000))
    write(store, 2)
    frames, moved = LogView.frames, [Moved("packed meanwhile"), Moved("packed meanwhile")]

    def once_moved(view: LogView, pieces: Sequence[Piece]) -> Iterator[Any]:
        if moved:
            write(store, 2)
            bring_forward(partition)
            raise moved.pop()
        return frames(view, pieces)

    monkeypatch.setattr(LogView, "frames", once_moved)
    found += [entry.sequence for entry in read]
    assert not moved
    assert found == [*range(1, 21)]
    assert len(list(store.consume_segment(SPACE, "a"))) == 33


def test_a_read_whose_last_row_is_lost_is_not_a_short_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer knows the segment's last entry."""
    write(store, 20)
    store.maintain(SPACE)
    partition = partition_of(store)
    bring_forward(partition)
    write(store, 20)
    monkeypatch.setattr(upkeep, "_data_rows", lambda segments, tail: ([], []))
    bring_forward(partition)
    assert not partition.tail.pieces
    with pytest.raises(CorruptData, match=r"'a'.* where sequence 11 is"):
        list(store.consume_segment(SPACE, "a"))
