"""Presence: who is there, with what metadata; gone when it leaves, and after its ttl."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

from streamkit import Lease, LeaseNotAcquired, Store, TransientError
from streamkit import members as presence
from streamkit.client import Client
from streamkit.members import Membership
from streamkit.names import internal_name
from streamkit.testing import At, Fault, FaultyDriver, ManualClock, Plan
from streamkit_memory import MemoryDriver


def test_who_joins_is_there_until_it_leaves(subject: Subject) -> None:
    here, there = subject.store.members("workers"), subject.stranger().members("workers")
    assert here.list() == []
    with here.join("a", {"host": "one"}) as member, there.join("b"):
        for members in (here, there):
            assert [(one.name, one.metadata) for one in members.list()] == [("a", {"host": "one"}), ("b", {})]
        with pytest.raises(LeaseNotAcquired, match="a member 'a' of 'workers' is there"):
            there.join("a")
        assert isinstance(member, Membership)
        assert subject.store.members("others").list() == []
        member.leave()
        assert [one.name for one in there.list()] == ["b"]
        with there.join("a", {"host": "two"}):
            assert [one.metadata for one in here.list()] == [{"host": "two"}, {}]
    assert here.list() == []
    assert list(subject.store.get_spaces()) == []


def test_watching_tells_each_change_once(subject: Subject) -> None:
    members = subject.store.members("workers")
    seen = members.watch(timeout=5, every=0.01)
    assert next(seen) == []
    with members.join("a"):
        assert [one.name for one in next(seen)] == ["a"]
    assert next(seen) == []
    assert list(members.watch(timeout=0)) == [[]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def name() -> str:
    """Of what the processes share."""
    return uuid4().hex


@pytest.fixture
def stores(clock: ManualClock, name: str) -> list[Store]:
    """One store, as two processes have it open."""
    id = uuid4()
    drivers = [MemoryDriver(name, clock=clock, sleep=clock.sleep, remote=True) for _ in range(2)]
    return [Client("memory://", driver, 30.0, None, 64 << 20, clock).store(id) for driver in drivers]


def test_who_stops_is_gone_after_its_ttl(clock: ManualClock, stores: list[Store]) -> None:
    dying, other = stores
    member = dying.members("workers").join("a", ttl=15.0)
    member._lease._released.set()  # the process stops, and renews nothing any more
    assert [one.name for one in other.members("workers").list()] == ["a"]
    clock.sleep(14)
    assert [one.name for one in other.members("workers").list()] == ["a"]
    clock.sleep(2)
    assert other.members("workers").list() == []
    assert member.lost.is_set() or member._lease.remaining() == 0


@pytest.mark.parametrize("fault", [Fault.THROTTLED, Fault.UNAVAILABLE, Fault.LOST_REQUEST], ids=str)
def test_a_member_is_not_gone_because_nobody_could_ask(fault: Fault) -> None:
    driver = FaultyDriver(MemoryDriver(uuid4().hex), Plan.at(2, fault, kind="acquire"))  # after one join, one look
    clock = ManualClock()
    id = uuid4()
    with Client("memory://", driver, 30.0, None, 64 << 20, clock) as client:
        members = client.store(id).members("workers")
        with members.join("a"):
            assert [one.name for one in members.list()] == ["a"]
            with pytest.raises(TransientError):
                members.list()
            assert [one.name for one in members.list()] == ["a"]


def test_who_is_gone_is_not_there_where_it_is_not_known_whether_that_was_noted(
    clock: ManualClock, name: str, stores: list[Store]
) -> None:
    dying, other = stores
    dying.members("workers").join("a")._lease._released.set()
    clock.sleep(20)
    lost = At(0, Fault.LOST_REQUEST, "put", 1000), At(1, Fault.UNAVAILABLE, "read", 1000)
    driver = FaultyDriver(MemoryDriver(name, clock=clock, sleep=clock.sleep, remote=True), Plan(lost))
    with Client("memory://", driver, 30.0, None, 64 << 20, clock) as client:
        assert client.store(dying.id).members("workers").list() == []
    assert other.members("workers").list() == []


def test_two_threads_ask_one_group_who_is_there(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = subject.store.members("workers"), subject.stranger().members("workers")
    there.join("a")
    b = there.join("b")
    lease = Store.lease

    def between(self: Store, *arguments: Any, **options: Any) -> Lease:
        monkeypatch.undo()
        b.leave()
        assert [one.name for one in here.list()] == ["a"]  # as another thread does
        subject.store.lease(here._lease_name("b"), 15.0).__enter__()  # it joins again, and has not said so yet
        return lease(self, *arguments, **options)

    monkeypatch.setattr(Store, "lease", between)
    assert [one.name for one in here.list()] == ["a"]


def test_who_is_slow_in_leaving_does_not_take_the_next_one_of_its_name_along(
    clock: ManualClock, stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, other = stores
    member = slow.members("workers").join("a", {"host": "one"}, ttl=15.0)
    member._lease._released.set()
    produce = slow.produce

    def stopped(*arguments: Any, **options: Any) -> Any:
        clock.sleep(20)
        other.members("workers").join("a", {"host": "two"})
        return produce(*arguments, **options)

    monkeypatch.setattr(slow, "produce", stopped)
    member.leave()
    assert [one.metadata for one in other.members("workers").list()] == [{"host": "two"}]


def test_who_joins_is_not_missed_because_somebody_slept_who_had_found_the_one_before_gone(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = subject.store, subject.stranger()
    here.members("workers").join("a", {"host": "one"})._lease.__exit__(None, None, None)  # its process was killed
    produce, joined = Store.produce, list[Membership]()

    def sleep(self: Store, *arguments: Any, **options: Any) -> Any:
        """The process sleeps before it writes, and somebody joins."""
        monkeypatch.undo()
        joined.append(there.members("workers").join("a", {"host": "two"}))
        return produce(self, *arguments, **options)

    monkeypatch.setattr(Store, "produce", sleep)
    for members in (here.members("workers"), there.members("workers")):
        assert [(one.name, one.metadata) for one in members.list()] == [("a", {"host": "two"})]
    joined[0].leave()
    assert here.members("workers").list() == []


@pytest.mark.parametrize("others", [0, 1, 9])
def test_a_list_keeps_nobody_from_joining(subject: Subject, monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """Also if more join while it notes who is gone than it has patience for."""
    here, there = subject.store, subject.stranger()
    here.members("workers").join("a", {"host": "one"})._lease.__exit__(None, None, None)  # its process was killed
    produce, joined = Store.produce, list[Membership]()

    def meanwhile(self: Store, *arguments: Any, **options: Any) -> Any:
        if self is here and len(joined) < others + 1:
            number = len(joined)
            joined.append(there.members("workers").join("a" if number == others else f"b{number}"))
        return produce(self, *arguments, **options)

    monkeypatch.setattr(Store, "produce", meanwhile)
    names = [one.name for one in here.members("workers").list()]
    monkeypatch.undo()
    assert set(names) <= {one.name for one in joined}
    for members in (here.members("workers"), there.members("workers")):
        assert [one.name for one in members.list()] == sorted({one.name for one in joined})


@pytest.mark.parametrize(
    ("metadata", "error"), [(5, TypeError), ("ab", TypeError), ({"a": 1}, TypeError), ({"a": "\ud800"}, ValueError)]
)
def test_metadata_that_is_no_text_is_refused_before_anything_is_written(
    subject: Subject, metadata: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="a member's metadata"):
        subject.store.members("workers").join("a", metadata)
    with subject.store.members("workers").join("a"):
        pass


def test_what_is_remembered_of_who_has_gone_does_not_grow(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_KEPT", 10)
    here, there = subject.store.members("workers"), subject.stranger().members("workers")
    with there.join("early", {"n": "0"}):
        assert [one.name for one in there.list()] == ["early"]
    with here.join("stays", {"n": "1"}):
        for at in range(20):
            with here.join(f"passes {at}"):
                assert len(here.list()) == 2
        with here.join("late"):
            assert [one.name for one in here.list()] == ["late", "stays"]
            assert [(one.name, one.metadata) for one in there.list()] == [("late", {}), ("stays", {"n": "1"})]
    for _ in range(2):
        for _ in range(6):
            here.join("again").leave()
        assert here.list() == there.list() == subject.stranger().members("workers").list() == []
    kept = subject.store.segment_status(internal_name("members"), "workers")
    assert (kept.last_sequence > 60, kept.last_sequence - kept.first_sequence < 25) == (True, True)
