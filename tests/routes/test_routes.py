"""Routes: the target is the filtered, mapped prefix of the source, each entry once, in order; loops end."""

from __future__ import annotations

import logging
import threading
from uuid import UUID

import pytest
from fix_stores import Subject

import streamkit
from streamkit import Entry, InvalidOffset, PermanentError, Record, Store, StoreClosed
from streamkit.names import internal_name
from streamkit.routes import Route, state


def write(store: Store, space: str, *payloads: str, segment: str = "s") -> streamkit.SegmentStatus:
    return store.produce(space, segment, [Record(payload.encode()) for payload in payloads])


def read(store: Store, space: str) -> list[str]:
    return [entry.payload.decode() for entry in store.consume_space(space)]


def test_a_route_copies_each_entry_once_and_goes_on_from_there(subject: Subject) -> None:
    store = subject.store
    write(store, "a", "1", "2", segment="x")
    write(store, "a", "3", segment="y")
    with store.route("copy", source="a", target="b") as route:
        status = route.catch_up()
        assert (status.state, status.entries, status.copied) == ("current", 3, 3)
        assert route.catch_up().copied == 3
    write(store, "a", "4", segment="x")
    other = subject.stranger()
    with other.route("copy", source="a", target="b") as route:
        assert route.status().state == "behind"
        route.catch_up()
    assert [(e.segment, e.sequence, e.payload) for e in other.consume_space("b")] == [
        ("x", 1, b"1"), ("x", 2, b"2"), ("y", 1, b"3"), ("x", 3, b"4"),
    ]  # fmt: skip


def test_a_route_filters_maps_and_transforms(subject: Subject) -> None:
    store = subject.store
    for at in range(10):
        store.produce("a", f"s{at % 2}", [Record(b"%d" % at, {"n": str(at)})])

    def transform(entry: Entry) -> Record | bytes | None:
        if entry.payload == b"3":
            return None
        return Record(b"five", {"other": "1"}) if entry.payload == b"5" else entry.payload * 2

    route = store.route(
        "copy", source="a", target="b", where=lambda e: e.segment == "s1", segment=lambda e: "to-" + e.segment,
        transform=transform,
    )  # fmt: skip
    route.catch_up()
    found = list(store.consume_space("b"))
    assert [(e.segment, e.payload) for e in found] == [
        ("to-s1", b"11"), ("to-s1", b"five"), ("to-s1", b"77"), ("to-s1", b"99"),
    ]  # fmt: skip
    assert found[0].metadata["n"] == "1"
    assert found[0].metadata["streamkit.via"] == f"{subject.id}/a"
    assert found[0].metadata["streamkit.from"].startswith(f"{subject.id}/a/s1/1?")
    assert {name for name in found[1].metadata if not name.startswith("streamkit.")} == {"other"}


def settle(*routes: Route) -> None:
    """Copy until nothing is left."""
    for _ in range(20):
        before = [route.status().entries for route in routes]
        for route in routes:
            route.catch_up()
        if [route.status().entries for route in routes] == before:
            return
    raise AssertionError("the routes go round and round")


def test_there_and_back_makes_two_entries_of_one(subject: Subject) -> None:
    store = subject.store
    routes = [store.route("there", "a", "b"), store.route("back", "b", "a")]
    write(store, "a", "from a")
    write(store, "b", "from b")
    settle(*routes)
    assert (sorted(read(store, "a")), sorted(read(store, "b"))) == (["from a", "from b"],) * 2


def test_a_ring_and_all_to_all_end_with_one_entry_in_each_place(subject: Subject) -> None:
    store = subject.store
    ring = [store.route(f"ring {a}{b}", a, b) for a, b in ("ab", "bc", "ca")]
    write(store, "a", "x")
    settle(*ring)
    assert [read(store, space) for space in "abc"] == [["x"]] * 3
    mesh = [store.route(f"mesh {a}{b}", a, b) for a in "def" for b in "def" if a != b]
    write(store, "d", "y")
    settle(*mesh)
    assert read(store, "d") == ["y"]
    assert [len(read(store, space)) for space in "ef"] == [2, 2], "by each way there once"


def test_a_route_to_itself_is_refused_and_to_another_store_it_is_not(subject: Subject) -> None:
    store, other = subject.store, subject.client.store(UUID(int=9))
    with pytest.raises(ValueError, match="to itself"):
        store.route("self", source="a", target="a")
    write(store, "a", "1", "2")
    there = store.route("there", source="a", target="a", target_store=other)
    back = other.route("back", source="a", target="a", target_store=store)
    write(other, "a", "3")
    settle(there, back)
    assert read(other, "a") == ["3", "1", "2"]
    assert read(store, "a") == ["1", "2", "3"]
    assert [route.name for route in store.get_routes()] == ["there"]


def test_partitions_on_both_sides_keep_each_segment_in_order(subject: Subject) -> None:
    store = subject.store
    store.create_space("a", partitions=3)
    store.create_space("b", partitions=4)
    route = store.route("copy", "a", "b")
    for at in range(60):
        write(store, "a", str(at), segment=f"s{at % 7}")
        if at % 11 == 0:
            route.catch_up()
    route.catch_up()
    for segment in (f"s{at}" for at in range(7)):
        wanted = [e.payload for e in store.consume_segment("a", segment)]
        assert [e.payload for e in store.consume_segment("b", segment)] == wanted


def test_a_failure_with_half_a_character_pauses_the_route_too(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("streamkit"), "disabled", True)  # xdist passes no such text on

    def where(entry: Entry) -> bool:
        raise ValueError("no \udcff.txt")

    write(subject.store, "a", "a")
    status = subject.store.route("copy", "a", "b", where=where).catch_up()
    assert status.error is not None
    assert (status.state, status.error.error) == ("paused", r"ValueError: no \udcff.txt")


def test_a_function_that_raises_pauses_the_route_before_its_entry(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    store = subject.store
    write(store, "a", *"abcde")
    broken = [True]

    def where(entry: Entry) -> bool:
        if entry.payload == b"c" and broken:
            raise ValueError("not this one")
        return True

    route = store.route("copy", "a", "b", where=where)
    status = route.catch_up()
    assert status.error is not None
    assert (status.state, status.error.sequence, status.error.error) == ("paused", 3, "ValueError: not this one")
    route.catch_up()
    said = "the route 'copy' is paused at segment 's', sequence 3: ValueError: not this one. Correct it and resume()"
    assert [record.getMessage() for record in caplog.records].count(said) == 1
    assert read(store, "b") == ["a", "b"]
    with pytest.raises(PermanentError, match="paused"):
        route.wait_for(store.end_offset("a"))
    route.resume()
    assert route.catch_up().state == "paused"
    route.resume()
    route.resume(skip=True)
    assert (route.catch_up().skipped, read(store, "b")) == (1, ["a", "b", "d", "e"])


def test_pause_holds_in_every_process_and_resume_loses_nothing(subject: Subject) -> None:
    store = subject.store
    route = store.route("copy", "a", "b")
    route.pause()
    write(store, "a", "1")
    other = subject.stranger().route("copy", "a", "b")
    assert other.catch_up().state == "paused"
    assert read(store, "b") == []
    other.resume()
    route.catch_up()
    assert read(store, "b") == ["1"]


def test_where_a_route_begins(subject: Subject) -> None:
    store = subject.store
    first = write(store, "a", "1")
    write(store, "a", "2")
    store.route("end", "a", "e", start="end").catch_up()
    store.route("offset", "a", "o", start=first.space_offset).catch_up()
    write(store, "a", "3")
    store.route("end", "a", "e", start="end").catch_up()
    store.route("offset", "a", "o", start=first.space_offset).catch_up()
    assert (read(store, "e"), read(store, "o")) == (["3"], ["2", "3"])
    with pytest.raises(InvalidOffset):
        store.route("offset", "a", "o", start=write(store, "z", "1").space_offset)


def test_a_route_that_has_copied_nothing_is_behind_by_what_there_is(subject: Subject) -> None:
    store = subject.store
    route, last = store.route("copy", "a", "b"), store.route("last", "a", "c", start="end")
    assert (route.status().behind, last.status().behind) == (0, 0)
    write(store, "a", "1")
    assert 0 < route.status().behind < 3600, "not by the years since 1970"
    assert 0 < last.status().behind < 3600
    with pytest.raises(InvalidOffset, match='start is "beginning", "end", or an offset of \'a\''):
        store.route("now", "a", "d", start="now")


def test_the_register_knows_the_routes_and_refuses_another_of_the_name(subject: Subject) -> None:
    store = subject.store
    write(store, "a", "1")
    store.route("one", "a", "b").catch_up()
    store.route("two", "a", "c").catch_up()
    assert [(r.name, r.source, r.target, r.copied) for r in subject.stranger().get_routes()] == [
        ("one", "a", "b", 1),
        ("two", "a", "c", 1),
    ]
    with pytest.raises(PermanentError, match="exists"):
        store.route("one", "a", "d").catch_up()
    store.route("one", "a", "b").delete()
    assert [route.name for route in store.get_routes()] == ["two"]
    store.route("one", "a", "d").catch_up()
    assert read(store, "d") == ["1"]
    assert list(store.get_spaces()) == ["a", "b", "c", "d"]


def test_waiting_for_a_route_reads_ones_own_write_in_the_target(subject: Subject) -> None:
    store = subject.store
    route = store.route("copy", "a", "b")
    thread = threading.Thread(target=route.run)
    thread.start()
    for at in range(5):
        route.wait_for(write(store, "a", str(at)).space_offset, timeout=60)
        assert len(read(store, "b")) == at + 1
    route.close()
    thread.join(60)
    assert not thread.is_alive()


def test_waiting_ends_where_the_last_entries_were_erased(subject: Subject) -> None:
    store = subject.store
    route = store.route("copy", "a", "b")
    write(store, "a", "1")
    route.catch_up()
    status = write(store, "a", "2", "3")
    store.erase("a", "s", first=2)
    assert route.wait_for(status.space_offset, timeout=60).copied == 1
    assert route.wait_for(store.end_offset("a"), timeout=60).copied == 1
    assert (route.catch_up().state, route.status().behind) == ("current", 0), "there is nothing to be read"
    assert read(store, "b") == ["1"]


def test_several_that_run_one_route_copy_each_entry_once(subject: Subject) -> None:
    store = subject.store
    routes = [store.route("copy", "a", "b"), subject.stranger().route("copy", "a", "b")]
    threads = [threading.Thread(target=route.run) for route in routes]
    for thread in threads:
        thread.start()
    for at in range(30):
        status = write(store, "a", str(at))
    for route in routes:
        route.wait_for(status.space_offset, timeout=60)
        route.close()
    for thread in threads:
        thread.join(60)
    assert read(store, "b") == [str(at) for at in range(30)]


def test_a_source_that_was_made_again_is_copied_anew(subject: Subject) -> None:
    other = subject.client.store(UUID(int=9))
    write(other, "a", "1", "2")
    other.route("copy", "a", "b", target_store=subject.store).catch_up()
    subject.client.delete_store(other.id)
    other = subject.connect().store(UUID(int=9))
    write(other, "a", "3")
    other.route("copy", "a", "b", target_store=subject.store).catch_up()
    assert read(subject.store, "b") == ["1", "2", "3"]


def test_threads_that_meet_while_a_route_is_made_make_one(subject: Subject) -> None:
    store = subject.store
    status = write(store, "a", "1", "2")
    for turn in range(10):
        route = store.route(f"copy {turn}", "a", f"b{turn}")
        threads = [threading.Thread(target=route.run), *(threading.Thread(target=route.status) for _ in range(3))]
        for thread in threads:
            thread.start()
        route.wait_for(status.space_offset, timeout=60)
        assert read(store, f"b{turn}") == ["1", "2"]
        route.close()
        for thread in threads:
            thread.join(60)
        assert read(store, f"b{turn}") == ["1", "2"]


def test_a_thread_that_found_no_route_does_not_take_one_made_meanwhile_for_deleted(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = subject.store
    write(store, "a", "1")
    route = store.route("copy", "a", "b")
    read_state, found_none, made = state.Register.read, threading.Event(), threading.Event()

    def read_before_it_was_made(register: state.Register) -> state.RouteState | None:
        found = read_state(register)
        if threading.current_thread() is asking and found is None:
            found_none.set()
            made.wait(60)
        return found

    asking = threading.Thread(target=route.resume)
    monkeypatch.setattr(state.Register, "read", read_before_it_was_made)
    asking.start()
    found_none.wait(60)
    route.catch_up()
    made.set()
    asking.join(60)
    assert (route.catch_up().state, read(store, "b")) == ("current", ["1"])


def test_who_runs_a_route_does_not_make_it_again_when_somebody_deletes_it(subject: Subject) -> None:
    store = subject.store
    status = write(store, "a", "1", "2")
    running, idle = [subject.stranger(poll=(0.001, 0.01)).route("copy", "a", "b") for _ in range(2)]
    for route in (running, idle):
        assert route.wait_for(status.space_offset).state == route.catch_up().state == "current"
    thread = threading.Thread(target=running.run)
    thread.start()
    store.route("copy", "a", "b").delete()
    write(store, "a", "3")
    thread.join(60)
    assert not thread.is_alive()
    for ask in (idle.catch_up, idle.status, idle.pause):
        with pytest.raises(StoreClosed):
            ask()
    assert (read(store, "b"), store.get_routes()) == (["1", "2"], [])
    store.route("copy", "a", "b").catch_up()
    assert read(store, "b") == ["1", "2", "1", "2", "3"], "who asks for it makes it again"


def test_a_pause_does_not_wait_until_all_is_copied(subject: Subject) -> None:
    store = subject.store
    write(store, "a", "1", "2")
    reached, go = threading.Event(), threading.Event()

    def where(entry: Entry) -> bool:
        reached.set()
        return go.wait(60)

    route = store.route("copy", "a", "b", where=where)
    copying = threading.Thread(target=route.catch_up)
    copying.start()
    reached.wait(60)
    pausing = threading.Thread(target=route.pause)
    pausing.start()
    pausing.join(10)
    waits = pausing.is_alive()
    go.set()
    for thread in (copying, pausing):
        thread.join(60)
    assert (waits, read(store, "b"), route.status().state) == (False, [], "paused")
    route.resume()
    route.catch_up()
    assert read(store, "b") == ["1", "2"]


def test_waiting_ends_where_the_first_entries_were_trimmed(subject: Subject) -> None:
    store = subject.store
    first, last = write(store, "a", "1").space_offset, write(store, "a", "2").space_offset
    store.trim("a", before=last)
    assert store.route("copy", "a", "b").wait_for(first, timeout=60).copied == 0


def test_what_a_route_remembers_stays_short(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_KEPT", 10)
    store = subject.store
    for at in range(20):
        write(store, "a", str(at))
        (store if at % 2 else subject.stranger()).route("copy", "a", "b").catch_up()
    known = store.segment_status(internal_name("routes"), "copy")
    assert known.last_sequence - known.first_sequence < 10
    assert read(store, "b") == [str(at) for at in range(20)]
    assert [status.copied for status in subject.stranger().get_routes()] == [20]
