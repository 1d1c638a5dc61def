"""Presence: the present members and their metadata. A member is gone when it leaves, and after its ttl."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

from streamkit import Lease, LeaseNotAcquired, Store, TransientError
from streamkit import members as presence
from streamkit.client import Client
from streamkit.members import Membership
from streamkit.names import internal_name
from streamkit.store import inner
from streamkit.testing import At, Fault, FaultyDriver, ManualClock, Plan
from streamkit_memory import MemoryDriver


@pytest.fixture(autouse=True)
def _renewals_stop() -> Iterator[None]:
    """Stop the renewals of leases that a test leaves behind: they would warn in the middle of another test."""
    enter, leases = Lease.__enter__, list[Lease]()

    def remember(lease: Lease) -> Lease:
        leases.append(lease)
        return enter(lease)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lease, "__enter__", remember)
        yield
    for lease in leases:
        lease._released.set()


def test_who_joins_is_there_until_it_leaves(subject: Subject) -> None:
    here, there = subject.store.members("workers"), subject.stranger().members("workers")
    assert here.list() == []
    with here.join("a", {"host": "one"}) as member, there.join("b"):
        for members in (here, there):
            assert [(one.name, one.metadata) for one in members.list()] == [("a", {"host": "one"}), ("b", {})]
        with pytest.raises(LeaseNotAcquired, match="a member 'a' of 'workers' exists"):
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
    """The name of the root in memory that the processes share."""
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


@pytest.mark.parametrize("fault", [Fault.THROTTLED, Fault.UNAVAILABLE], ids=str)
def test_a_member_is_not_gone_because_nobody_could_ask(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamkit.members._JOINS", 1 << 60)  # no join tidies up, which asks for the lease
    driver = FaultyDriver(MemoryDriver(uuid4().hex), Plan.at(1, fault, kind="is_held"))
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
    look = presence.is_held

    def between(backend: Any, key: str) -> bool:
        monkeypatch.undo()
        b.leave()
        assert [one.name for one in here.list()] == ["a"]  # as another thread does
        there.join("b", {"joined": "again"})
        assert [one.name for one in here.list()] == ["a", "b"]
        return look(backend, key)

    monkeypatch.setattr(presence, "is_held", between)
    assert [one.name for one in here.list()] == ["a", "b"]
    assert [one.metadata for one in here.list()] == [{}, {"joined": "again"}]


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
    """A join sleeps before it notes an ended member, and another process joins under that name."""
    here, there = subject.store, subject.stranger()
    here.members("workers").join("a", {"host": "one"})._lease.__exit__(None, None, None)  # its process was killed
    produce, joined = Store.produce, list[Membership]()

    def sleep(self: Store, *arguments: Any, **options: Any) -> Any:
        if "expected_sequence" in options:
            monkeypatch.setattr(Store, "produce", produce)
            monkeypatch.setattr(presence, "_JOINS", 1000)
            joined.append(there.members("workers").join("a", {"host": "two"}))
        return produce(self, *arguments, **options)

    monkeypatch.setattr(presence, "_JOINS", 1)  # each join notes who is gone
    monkeypatch.setattr(Store, "produce", sleep)
    with here.members("workers").join("b"):
        assert len(joined) == 1
        for members in (here.members("workers"), there.members("workers")):
            assert [(one.name, one.metadata) for one in members.list()] == [("a", {"host": "two"}), ("b", {})]
    joined[0].leave()
    assert here.members("workers").list() == []


def counted(store: Store) -> dict[str, int]:
    kinds = ("get", "read", "scan", "put", "delete", "lease")
    return {kind: inner(store).backend.requests.get(kind, 0) for kind in kinds}


def test_a_list_reads_the_log_and_one_lease_for_each_member_and_writes_nothing(subject: Subject) -> None:
    writer, reader = subject.store, subject.stranger()
    names = [f"worker-{at}" for at in range(5)]
    for name in names:
        writer.members("workers").join(name)
    members = reader.members("workers")
    end = writer.end_offset(internal_name("members"))
    for _ in range(2):
        before = counted(reader)
        assert [one.name for one in members.list()] == names
        after = counted(reader)
        assert after["lease"] - before["lease"] == 5
        assert (after["put"], after["delete"]) == (0, 0)
    assert writer.end_offset(internal_name("members")) == end


def test_a_list_takes_no_lease_of_a_member_that_is_gone() -> None:
    driver = FaultyDriver(MemoryDriver(uuid4().hex), Plan())
    with Client("memory://", driver, 30.0, None, 64 << 20, ManualClock()) as client:
        members = client.store(uuid4()).members("workers")
        members.join("a")._lease.__exit__(None, None, None)  # its process was killed
        calls = len(driver.faults.trace)
        assert members.list() == []
        assert {call.kind for call in driver.faults.trace[calls:]} <= {"get", "read", "scan", "is_held"}


def test_a_member_that_has_ended_is_asked_for_once(subject: Subject) -> None:
    subject.store.members("workers").join("a")._lease.__exit__(None, None, None)  # its process was killed
    reader = subject.stranger()
    members = reader.members("workers")
    assert members.list() == []
    before = counted(reader)["lease"]
    assert members.list() == []
    assert counted(reader)["lease"] == before


@pytest.mark.parametrize("again", [False, True])
def test_a_list_keeps_nobody_from_joining(subject: Subject, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    """Another process joins at each step of the list."""
    here, there = subject.store.members("workers"), subject.stranger()
    if again:
        here.join("a", {"host": "one"})._lease.__exit__(None, None, None)  # its process was killed
    here.join("b")
    look, joined = presence.is_held, list[Membership]()

    def between(backend: Any, key: str) -> bool:
        found = look(backend, key)
        if not joined:
            joined.append(there.members("workers").join("a", {"host": "two"}))
        return found

    monkeypatch.setattr(presence, "is_held", between)
    assert [one.name for one in here.list()] == ["b"]  # it began before
    monkeypatch.undo()
    for members in (here, there.members("workers")):
        assert [(one.name, one.metadata) for one in members.list()] == [("a", {"host": "two"}), ("b", {})]


def test_a_backend_that_cannot_show_a_lease_is_asked_for_it() -> None:
    class Plain:
        """A backend that has only what every backend must have."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            if name == "is_held":
                raise AttributeError(name)
            return getattr(self._inner, name)

    class PlainDriver(MemoryDriver):
        def open(self, store: Any) -> Any:
            return Plain(super().open(store))

    with Client("memory://", PlainDriver(uuid4().hex), 30.0, None, 64 << 20, ManualClock()) as client:
        members = client.store(uuid4()).members("workers")
        with members.join("a"):
            assert [one.name for one in members.list()] == ["a"]
        members.join("b")._lease.__exit__(None, None, None)  # its process was killed
        assert members.list() == []


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
    monkeypatch.setattr(presence, "_JOINS", 1)
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
            here.join("killed")._lease.__exit__(None, None, None)
        assert here.list() == there.list() == subject.stranger().members("workers").list() == []
    kept = subject.store.segment_status(internal_name("members"), "workers")
    assert (kept.last_sequence > 60, kept.last_sequence - kept.first_sequence < 25) == (True, True)
