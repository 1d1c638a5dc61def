"""A committed save never raises: not for the cached copy, not for a snapshot, not for a cache that is behind."""

from __future__ import annotations

import threading

import pytest
from fix_stores import Subject

from streamkit import SequenceMismatch
from streamkit.eventsourcing import Aggregate, MsgpackCodec, Repository, event


class Basket(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.items: list[str] = []

    @event
    def add(self, item: str) -> None:
        self.items.append(item)


class Power(Aggregate):
    def __init__(self) -> None:
        super().__init__()
        self.much = 1

    @event
    def grow(self, by: int) -> None:
        self.much *= by


def test_what_cannot_be_snapshotted_is_saved_all_the_same(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    repository = Repository(subject.store, "x", Power, codec=MsgpackCodec(), snapshot_every=1)
    for _ in range(3):
        repository.execute("1", lambda power: power.grow(1 << 40))
    assert repository.load("1").much == 1 << 120
    assert len([note for note in caplog.messages if "no snapshot of Power '1'" in note]) == 1


def test_what_cannot_be_copied_is_loaded_each_time(subject: Subject) -> None:
    class Locked(Aggregate):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()
            self.count = 0

        @event
        def add(self) -> int:
            self.count += 1
            return self.count

    repository = Repository(subject.store, "x", Locked)
    for id in ("1", "2", "1", "2"):
        repository.execute(id, lambda locked: locked.add())
    assert [repository.load(id).count for id in ("1", "2")] == [2, 2]


def test_a_cache_that_is_behind_is_no_defeat(subject: Subject) -> None:
    one, two = Repository(subject.store, "baskets", Basket), Repository(subject.stranger(), "baskets", Basket)
    two.execute("0", lambda basket: basket.add("a"))
    one.execute("1", lambda basket: basket.add("a"))
    two.execute("1", lambda basket: basket.add("b"))
    one.execute("1", lambda basket: basket.add("c"), retries=0)
    assert two.load("1").items == ["a", "b", "c"]
    with pytest.raises(SequenceMismatch):
        one.execute("1", lambda basket: (two.execute("1", lambda b: b.add("d")), basket.add("e")), retries=0)
    assert two.load("1").items == ["a", "b", "c", "d", "d"], "once it was decided by the cache, and once by the log"
