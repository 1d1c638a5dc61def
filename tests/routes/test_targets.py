"""Targets that refuse, are full, or are made again: the route loses nothing and doubles nothing."""

from __future__ import annotations

import threading
from uuid import UUID, uuid4

import pytest
from fix_stores import Subject

from harness.drivers import MEMORY
from harness.sweep import StillClock
from streamkit import InvalidName, Record, Retention, Store, Unavailable
from streamkit.client import Client
from streamkit.names import internal_name
from streamkit.testing import Fault, FaultyDriver, Plan


def read(store: Store, space: str) -> list[str]:
    return [entry.payload.decode() for entry in store.consume_space(space)]


def test_a_target_that_is_full_pauses_the_route_and_loses_nothing(subject: Subject) -> None:
    store = subject.store
    store.set_retention("b", Retention(max_entries=4, per="space", when_full="reject"))
    route = store.route("copy", "a", "b")
    for at in range(3):
        store.produce("a", "s", [Record(b"%d" % (2 * at)), Record(b"%d" % (2 * at + 1))])
        status = route.catch_up()
    assert status.error is not None
    assert (status.state, status.error.sequence, "SpaceFull" in status.error.error) == ("paused", 0, True)
    assert read(store, "b") == ["0", "1", "2", "3"]
    route.resume()
    assert route.catch_up().state == "paused", "nothing has changed"
    assert read(store, "b") == ["0", "1", "2", "3"]
    store.trim("b", keep_entries=2)
    store.produce("a", "s", [Record(b"6")])
    route.resume(skip=True)
    status = route.catch_up()
    assert (status.error is not None, status.skipped) == (True, 0), "of a target that refuses no entry is left out"
    store.set_retention("b", Retention())
    other = subject.stranger().route("copy", "a", "b")
    other.resume()
    assert (other.catch_up().state, other.status().copied) == ("current", 7)
    assert read(store, "b") == ["2", "3", "4", "5", "6"]


def test_a_record_that_is_too_large_for_the_target_is_named_and_can_be_left_out(subject: Subject) -> None:
    """A copy has more metadata than its original, and its target may have lower limits."""
    store = subject.store
    target = Client("small://", MEMORY["memory"](StillClock()), 5.0, None, 1000, StillClock()).store(uuid4())
    store.produce("a", "s", [Record(b"1"), Record(b"2", {"k": "v" * 65_535}), Record(b"3" * 2000), Record(b"4" * 900)])
    store.produce("a", "s", [Record(b"5" * 900)])
    route = store.route("copy", "a", "b", target_store=target)
    for sequence, error in (2, "metadata"), (3, "a record of 2000 bytes"):
        failure = route.catch_up().error
        assert failure is not None
        assert (failure.segment, failure.sequence, error in failure.error) == ("s", sequence, True)
        route.resume(skip=True)
    assert (route.catch_up().state, route.status().skipped) == ("current", 2)
    assert [payload[:1] for payload in read(target, "b")] == ["1", "4", "5"]


def test_a_disk_that_is_full_is_waited_for(subject: Subject) -> None:
    """Refuse each write to the target, which has its own store, for a while."""
    clock = StillClock()
    target_id = UUID(int=15)
    faulty = FaultyDriver(MEMORY["memory"](clock), Plan.at(0, Fault.UNAVAILABLE, kind="put", times=60))
    target = Client("full://", faulty, 5.0, None, 64 << 20, clock).store(target_id)
    store = subject.store
    status = store.produce("a", "s", [Record(b"%d" % at) for at in range(5)])
    route = store.route("copy", "a", "b", target_store=target)
    refused = 0
    for _ in range(1000):
        try:
            if route.catch_up().state == "current":
                break
        except Unavailable:
            refused += 1
    assert refused > 0
    assert route.status().error is None, "what passes pauses nothing"
    assert route.wait_for(status.space_offset).copied == 5
    assert read(target, "b") == ["0", "1", "2", "3", "4"]
    faulty.delete(target_id)


def test_who_runs_a_route_outlives_a_target_that_is_away(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    store = subject.stranger(poll=(0.001, 0.01))
    store.produce("a", "s", [Record(b"1")])
    route, write, left, refused = store.route("copy", "a", "b"), Store.transaction, [3], threading.Event()

    def away(self: Store, space: str, *args: object, **options: object) -> object:
        if space == "b" and left[0]:
            left[0] -= 1
            refused.set()
            raise Unavailable("away")
        return write(self, space, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "transaction", away)
    thread = threading.Thread(target=route.run)
    thread.start()
    assert next(store.follow_space("b", timeout=60)).payload == b"1"
    assert (refused.is_set(), left) == (True, [0])
    route.close()
    thread.join(60)
    assert not thread.is_alive()
    assert read(store, "b") == ["1"]


def test_a_target_that_is_the_sources_group_is_refused(subject: Subject) -> None:
    """A group's own records are in an internal space with a name that no caller can give: no copy is taken for one."""
    store = subject.store
    store.produce("a", "s", [Record(b"1")])
    group = store.group("a", "workers")
    for internal in map(str, (internal_name("group", "a", "workers"), internal_name("routes"))):
        with pytest.raises(InvalidName):
            store.route("copy", "a", internal)
        with pytest.raises(InvalidName):
            store.route("copy", internal, "b")
    assert group.run(lambda delivery: None, drain=True).acked == 1


def test_the_space_of_a_group_is_copied_into_whatever_is_acknowledged(subject: Subject) -> None:
    """A -> B, and the group of B writes into A: each has been there, and the loop ends."""
    store = subject.store
    store.produce("a", "s", [Record(b"1")])
    there, back = store.route("there", "a", "b"), store.route("back", "b", "a")
    group = store.group("b", "workers")
    for _ in range(4):
        there.catch_up()
        back.catch_up()
        group.run(lambda delivery: None, drain=True)
    assert (read(store, "a"), read(store, "b"), group.status().acked) == (["1"], ["1"], 1)


def test_a_route_from_a_queue_to_a_queue_passes_on_its_jobs(subject: Subject) -> None:
    store = subject.store
    first, second = store.queue("first"), store.queue("second")
    first.put(b"one", priority=1, key="k")
    first.put(b"two")
    store.route("jobs", "first", "second").catch_up()
    done: list[bytes] = []
    assert second.run(lambda delivery: done.append(delivery.entry.payload), drain=True).acked == 2
    assert done == [b"one", b"two"], "with their priorities"
    assert first.status().lag == 2, "they are its jobs still"


def test_jobs_that_were_done_before_the_route_came_by_are_missing_and_said(subject: Subject) -> None:
    store = subject.store
    queue, route = store.queue("jobs"), store.route("jobs", "jobs", "archive")
    route.catch_up()
    for at in range(5):
        queue.put(b"%d" % at)
    queue.run(lambda delivery: None, drain=True)
    store.maintain()
    status = route.catch_up()
    queue.put(b"next")
    assert route.catch_up().state == "current"
    assert read(store, "archive")[-1] == "next"
    assert status.copied == 5 or status.missing or route.status().missing, "none is passed over in silence"


def test_a_target_that_was_made_again_gets_what_comes_after(subject: Subject) -> None:
    store = subject.store
    store.produce("a", "s", [Record(b"1")])
    route = store.route("copy", "a", "b")
    route.catch_up()
    store.delete_space("b")
    store.produce("a", "s", [Record(b"2")])
    assert store.route("copy", "a", "b").catch_up().state == "current"
    assert read(store, "b") == ["2"]
    again = subject.stranger().route("copy", "a", "b")
    store.produce("a", "s", [Record(b"3")])
    again.catch_up()
    assert read(subject.stranger(), "b") == ["2", "3"]


@pytest.mark.parametrize(("number", "after"), [(1, True), (2, False), (2, True)])
def test_what_is_erased_between_a_crash_and_its_completion_takes_nothing_else_with_it(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, number: int, after: bool
) -> None:
    """The copy is larger than one transaction, and the process ends in the middle of it."""
    from streamkit.routes import route as routes

    monkeypatch.setattr(routes, "_BYTES", 100)
    store = subject.store
    store.produce("a", "s", [Record(b"%d" % at * 40) for at in range(1, 6)])
    write, calls = routes.Route._write, [0]

    def stop(self: routes.Route, key: str, copies: object) -> None:
        calls[0] += 1
        if calls[0] == number and not after:
            raise Unavailable("the process ends here")
        write(self, key, copies)  # type: ignore[arg-type]
        if calls[0] == number:
            raise Unavailable("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(routes.Route, "_write", stop)
        with pytest.raises(Unavailable):
            store.route("copy", "a", "b").catch_up()
    other = subject.stranger()
    other.erase("a", "s", first=1, last=1)
    assert other.route("copy", "a", "b").catch_up().state == "current"
    assert [text[0] for text in read(other, "b")] == ["1", "2", "3", "4", "5"]
