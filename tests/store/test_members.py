"""Presence: who is there, with what metadata; gone when it leaves, and after its ttl."""

from __future__ import annotations

from uuid import uuid4

import pytest
from fix_stores import Subject

from streamkit import LeaseNotAcquired, TransientError
from streamkit.client import Client
from streamkit.members import Membership
from streamkit.testing import Fault, FaultyDriver, ManualClock, Plan
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


def test_who_stops_is_gone_after_its_ttl() -> None:
    clock = ManualClock()
    name = uuid4().hex

    def store():  # type: ignore[no-untyped-def]
        driver = MemoryDriver(name, clock=clock, sleep=clock.sleep, remote=True)
        return Client("memory://", driver, 30.0, None, 64 << 20, clock).store(stores)

    stores = uuid4()
    dying, other = store(), store()
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
