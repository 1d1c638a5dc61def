"""The text of a failure may quote the entry: it goes with the entry when that is erased, wherever it was kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

import streamkit
from harness.deep_search import files_below, found_in, rows_in_memory
from harness.doomed import killed_at
from streamkit import Client, Record, Store
from streamkit.errors import CorruptData, StoreClosed, Unavailable
from streamkit.groups import Consumer, Delivery, Group, Settlement
from streamkit.groups.core import Core
from streamkit.log.keys import HEAD, partition_key
from streamkit.names import internal_name
from streamkit.routes import Route
from streamkit.routes.state import Register
from streamkit.store import inner
from streamkit.testing import Crash, Fault, FaultyDriver, ManualClock, Plan
from streamkit_memory import MemoryDriver

SECRET = b"secret-of-ann"
Stored = Callable[[], Iterable[tuple[str, bytes]]]
"""Returns all stored bytes: (where they are, the bytes)."""


def number(delivery: Delivery) -> None:
    int(delivery.entry.payload)


def numbers(store: Store) -> Route:
    """A route that fails at an entry that is no number."""
    return store.route("numbers", "jobs", "numbers", lambda entry: b"%d" % int(entry.payload))


def quotes(store: Store) -> None:
    """Groups that have failed at the entry: it is dead, it waits, it was done later, it died and was redriven."""
    dead = store.group("jobs", "dead", max_deliveries=1)
    dead.run(number, drain=True)
    store.group("jobs", "waits", max_deliveries=9, retry_delay=3600.0).run(number, drain=True)
    done = store.group("jobs", "done", max_deliveries=9, retry_delay=0.0)
    done.run(lambda delivery: number(delivery) if delivery.attempt == 1 else None, drain=True)
    again = store.group("jobs", "redriven", max_deliveries=1)
    again.run(number, drain=True)
    again.redrive()
    again.run(lambda delivery: None, drain=True)
    gone = store.group("jobs", "deleted", max_deliveries=1)
    gone.run(number, drain=True)
    gone.delete()
    rejected = store.group("jobs", "rejected", mode="key_shared")
    with rejected.consumer() as consumer:
        for delivery in consumer.receive():
            consumer.reject(delivery, f"no number: {delivery.entry.payload.decode()}")
    together = store.group("jobs", "together", retry_delay=3600.0, lanes=1)
    with suppress(ValueError), together.consumer() as consumer:
        for delivery in consumer.receive():
            number(delivery)
    route = numbers(store)
    route.catch_up()
    assert "secret" in str(route.status().error)


@pytest.fixture(params=["memory", "remote", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Stored]:
    if request.param == "file":
        return f"file://{tmp_path}", lambda: files_below(tmp_path)
    url = f"memory://{uuid4().hex}{'?remote=1' if request.param == 'remote' else ''}"
    return url, lambda: rows_in_memory(url)


@pytest.fixture
def opened(place: tuple[str, Stored]) -> Iterator[tuple[Store, Stored]]:
    """A store, and its stored bytes."""
    url, stored = place
    with streamkit.connect(url) as client:
        yield client.store(uuid4()), stored


def test_no_text_of_a_failure_quotes_an_erased_entry(opened: tuple[Store, Stored]) -> None:
    store, stored = opened
    store.produce("jobs", "ann", [Record(SECRET)])
    store.produce("jobs", "bob", [Record(b"nobody's"), Record(b"3")])
    quotes(store)
    assert len(found_in(stored(), SECRET)) > 2
    assert store.erase("jobs", "ann").unreached == ()
    assert found_in(stored(), SECRET) == []
    letters = store.group("jobs", "dead").dead_letters()
    assert [(letter.entry.segment, "nobody's" in letter.reason) for letter in letters] == [("bob", True)]
    assert store.group("jobs", "waits").status().delayed == 1
    assert store.group("jobs", "together").status().delayed == 2
    (route,) = store.get_routes()
    assert route.error is None


SETTLES: dict[str, Callable[[Group, Consumer, Delivery], object]] = {
    "nack": lambda group, consumer, delivery: consumer.nack(delivery, error=delivery.entry.payload.decode()),
    "reject": lambda group, consumer, delivery: consumer.reject(delivery, delivery.entry.payload.decode()),
    "settle": lambda group, consumer, delivery: group.settle(
        [Settlement(receipt=delivery.receipt, action="reject", reason=delivery.entry.payload.decode())]
    ),
}


@pytest.mark.parametrize("earlier", [False, True], ids=["", "by an earlier release"])
def test_a_deleted_route_keeps_no_text(opened: tuple[Store, Stored], earlier: bool) -> None:
    """Earlier releases left the text in the last record of a deleted route."""
    store, stored = opened
    store.produce("jobs", "ann", [Record(SECRET)])
    route = numbers(store)
    route.catch_up()
    if earlier:
        register = Register(store, "numbers")
        state = register.read()
        assert state is not None
        assert register.write(replace(state, deleted=True))
    else:
        route.delete()
    assert store.get_routes() == []
    assert found_in(stored(), SECRET)
    assert store.erase("jobs", "ann").unreached == ()
    assert found_in(stored(), SECRET) == []
    assert store.get_routes() == []
    store.produce("jobs", "bob", [Record(b"3")])
    store.route("numbers", source="jobs", target="numbers").catch_up()
    assert [entry.payload for entry in store.consume_space("numbers")] == [b"3"]


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
@pytest.mark.parametrize("how", [*SETTLES, "raise", "route"])
def test_no_text_of_a_failure_quotes_an_entry_that_another_process_erased_while_it_was_handled(
    place: tuple[str, Stored],
    how: str,
    killed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process may be killed when it has written the text: then the same erasure again removes it."""
    url, stored = place
    if killed:
        for module in ("groups.core", "routes.route"):
            monkeypatch.setattr(f"streamkit.{module}.forget_late_failures", lambda *_: None)
    with streamkit.connect(url) as client, streamkit.connect(url) as second:
        store = client.store(uuid4())
        other = second.store(store.id)
        store.produce("jobs", "ann", [Record(SECRET), Record(SECRET)])
        store.produce("jobs", "bob", [Record(b"nobody's")])

        def fail(payload: bytes) -> bool:
            if payload == SECRET:
                assert other.erase("jobs", "ann").unreached == ()
            raise ValueError(payload.decode())

        group = store.group("jobs", "some", max_deliveries=9, retry_delay=3600.0)
        if how == "route":
            store.route("copies", "jobs", "copies", lambda entry: fail(entry.payload)).catch_up()
        elif how == "raise":
            group.run(lambda delivery: fail(delivery.entry.payload), drain=True)
        else:
            with group.consumer() as consumer:
                deliveries = consumer.receive(limit=3)
                assert other.erase("jobs", "ann").unreached == ()
                for delivery in deliveries:
                    SETTLES[how](group, consumer, delivery)
        if killed:
            assert found_in(stored(), SECRET), "there is nothing to be erased"
            assert other.erase("jobs", "ann").unreached == ()
        assert found_in(stored(), SECRET) == []
        if how == "route":
            store.route("copies", "jobs", "copies", lambda entry: True).catch_up()
            assert store.get_routes()[0].copied == 1
        else:
            status = group.status()
            assert (status.delayed + status.dead, status.pending, status.ready) == (1, 0, 0), "bob's"


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made-again"])
def test_a_deletion_that_was_stopped_anywhere_leaves_no_text_behind_the_next_erasure(again: bool) -> None:
    """The process is killed before each of the writes of `delete`."""
    for at in range(100):
        root, id = uuid4().hex, uuid4()
        url = f"memory://{root}"
        with streamkit.connect(url) as client:
            store = client.store(id)
            store.produce("jobs", "ann", [Record(SECRET)])
            store.group("jobs", "dead", max_deliveries=1, lanes=2).run(number, drain=True)
        killed = FaultyDriver(MemoryDriver(root), Plan.at(at, Fault.CRASH_BEFORE, kind="put"))
        with suppress(Crash):
            Client(url, killed, 30.0, None, 64 << 20, ManualClock(time())).store(id).group("jobs", "dead").delete()
        with streamkit.connect(url) as client:
            store = client.store(id)
            if again:
                store.group("jobs", "dead", max_deliveries=1, lanes=2, start="end")
            assert store.erase("jobs", "ann").unreached == ()
            assert found_in(rows_in_memory(url), SECRET) == [], at
        if not killed.faults.crashed:
            assert at > 3
            return
    raise AssertionError("it never ended")


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made-again"])
def test_upkeep_completes_a_deletion_that_was_stopped(again: bool) -> None:
    root, id = uuid4().hex, uuid4()
    url = f"memory://{root}"
    with streamkit.connect(url) as client:
        client.store(id).produce("jobs", "ann", [Record(SECRET)])
        client.store(id).group("jobs", "dead", max_deliveries=1, lanes=2).run(number, drain=True)
    killed = FaultyDriver(MemoryDriver(root), Plan.at(1, Fault.CRASH_BEFORE, kind="put"))
    with suppress(Crash):
        Client(url, killed, 30.0, None, 64 << 20, ManualClock(time())).store(id).group("jobs", "dead").delete()
    with streamkit.connect(url) as client:
        store = client.store(id)
        if again:
            store.group("jobs", "dead", max_deliveries=1, lanes=2).run(lambda delivery: None, drain=True)
        internal = internal_name("group", "jobs", "dead")
        assert any(SECRET in entry.payload for entry in store.consume_space(internal, gaps="skip"))
        store.maintain()
        assert not any(SECRET in entry.payload for entry in store.consume_space(internal, gaps="skip"))
        assert store.get_groups("jobs") == ["dead"] * again
        if again:
            assert store.group("jobs", "dead").status().acked == 1


@pytest.mark.parametrize("used", [False, True])
def test_an_erasure_reaches_the_texts_of_a_group_that_another_process_has_made_again(
    place: tuple[str, Stored], used: bool
) -> None:
    url, stored = place
    with streamkit.connect(url) as client, streamkit.connect(url) as there:
        store = client.store(uuid4())
        store.produce("jobs", "ann", [Record(SECRET)])
        group = store.group("jobs", "dead", max_deliveries=1)
        if used:
            group.run(number, drain=True)
        another = there.store(store.id)
        another.group("jobs", "dead", max_deliveries=1).delete()
        another.group("jobs", "dead", max_deliveries=1).run(number, drain=True)
        assert found_in(stored(), SECRET)
        assert store.erase("jobs", "ann").unreached == ()
        assert found_in(stored(), SECRET) == []


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made-again"])
def test_an_erasure_and_a_deletion_succeed_if_another_process_has_deleted_the_group_and_erased(
    place: tuple[str, Stored], again: bool
) -> None:
    """The other erasure has removed the lanes of the deleted group."""
    url, stored = place
    with streamkit.connect(url) as client, streamkit.connect(url) as there:
        store = client.store(uuid4())
        store.produce("jobs", "ann", [Record(SECRET)])
        store.produce("jobs", "bob", [Record(b"nobody's")])
        group = store.group("jobs", "dead", max_deliveries=1)
        another = there.store(store.id)
        deleted = another.group("jobs", "dead", max_deliveries=1)
        deleted.run(number, drain=True)
        deleted.delete()
        if again:
            another.group("jobs", "dead", max_deliveries=1)
        another.erase("jobs", "bob")
        group.delete()
        assert another.get_groups("jobs") == ["dead"] * again
        assert store.erase("jobs", "ann").entries == 1
        assert found_in(stored(), SECRET) == []


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made-again"])
def test_an_erasure_in_a_deleted_space_reaches_the_texts_of_its_groups(
    opened: tuple[Store, Stored], again: bool
) -> None:
    store, stored = opened
    store.produce("jobs", "ann", [Record(SECRET)])
    store.produce("other", "ann", [Record(b"nobody's")])
    store.group("other", "dead", max_deliveries=1).run(number, drain=True)
    quotes(store)
    store.delete_space("jobs")
    assert found_in(stored(), SECRET), "there is nothing to be erased"
    if again:
        store.produce("jobs", "ann", [Record(b"4")])
        store.group("jobs", "dead", max_deliveries=1).run(number, drain=True)
    assert store.erase("jobs", "ann", dry_run=True).entries == again
    assert store.erase("jobs", "ann").unreached == ()
    assert found_in(stored(), SECRET) == []
    assert [letter.reason for letter in store.group("other", "dead").dead_letters()] != []
    store.maintain()
    if again:
        store.produce("jobs", "bob", [Record(b"5")])
        group = store.group("jobs", "dead")
        group.run(number, drain=True)
        assert (group.status().lag, group.status().dead) == (0, 0)


def test_an_erasure_in_a_space_that_was_made_again_reaches_the_texts_of_the_deleted_one(
    opened: tuple[Store, Stored],
) -> None:
    """The new space has no entry of the segment, so there is nothing to be erased in it."""
    store, stored = opened
    store.produce("jobs", "ann", [Record(SECRET)])
    quotes(store)
    store.delete_space("jobs")
    store.produce("jobs", "bob", [Record(b"nobody's")])
    store.group("jobs", "dead", max_deliveries=1).run(number, drain=True)
    assert store.erase("jobs", "ann", dry_run=True).entries == 0
    assert found_in(stored(), SECRET), "there is nothing to be erased"
    assert store.erase("jobs", "ann").unreached == ()
    assert found_in(stored(), SECRET) == []
    assert ["nobody" in letter.reason for letter in store.group("jobs", "dead").dead_letters()] == [True]
    route = numbers(store)
    route.catch_up()
    assert store.erase("jobs", "ann").unreached == ()
    assert "nobody" in str(route.status().error)


def test_an_erasure_by_metadata_reaches_the_texts_of_entries_that_are_not_stored_any_more(
    opened: tuple[Store, Stored],
) -> None:
    """The owner of a removed entry is unknown, so the texts of all removed entries go."""
    store, stored = opened
    store.create_space("jobs", archive_grace=0.01)
    store.produce("jobs", "ann", [Record(SECRET, {"subject": "ann"})])
    store.produce("jobs", "bob", [Record(b"nobody's"), Record(b"3")])
    quotes(store)
    store.trim("jobs", "ann", before=2)
    for _ in range(3):
        store.maintain()
    assert found_in(stored(), SECRET), "there is nothing to be erased"
    assert store.erase("jobs", metadata={"subject": "ann"}).unreached == ()
    assert found_in(stored(), SECRET) == []
    letters = store.group("jobs", "dead").dead_letters()
    assert [(letter.entry.segment, "nobody" in letter.reason) for letter in letters] == [("bob", True)]
    route = numbers(store)
    route.catch_up()
    assert store.erase("jobs", metadata={"subject": "ann"}).unreached == ()
    assert "nobody" in str(route.status().error)


@pytest.mark.parametrize("how", ["group", "route"])
def test_a_process_that_was_killed_while_it_wrote_a_text_leaves_nothing_of_it_on_disk(tmp_path: Path, how: str) -> None:
    """A half-written record is behind the end of a log. No process reads it, so no entry is there to be erased."""
    at, wrote, is_killed = 1, 0, True
    while is_killed:
        id = uuid4()
        with streamkit.connect(f"file://{tmp_path}") as client:
            client.store(id).produce("jobs", "ann", [Record(SECRET)])

        def fail(id: UUID = id) -> None:
            with streamkit.connect(f"file://{tmp_path}") as client:
                if how == "route":
                    numbers = client.store(id).route("numbers", "jobs", "numbers", lambda entry: int(entry.payload) > 0)
                    numbers.catch_up()
                else:
                    group = client.store(id).group("jobs", "some", retry_delay=3600.0)
                    group.run(number, drain=True)

        is_killed = killed_at(at, fail)
        wrote += len(found_in(files_below(tmp_path), SECRET)) > 1
        with streamkit.connect(f"file://{tmp_path}") as client:
            assert client.store(id).erase("jobs", "ann").unreached == ()
            assert found_in(files_below(tmp_path), SECRET) == [], f"killed before call {at} of the operating system"
            client.delete_store(id)
        at += 1
    assert wrote > 1


def test_a_route_that_was_made_again_for_another_source_keeps_no_text(opened: tuple[Store, Stored]) -> None:
    store, stored = opened
    store.produce("jobs", "ann", [Record(SECRET)])
    store.produce("more", "bob", [Record(b"3")])
    store.produce("others", "bob", [Record(b"nobody's")])
    for source in ("jobs", "more", "others"):
        route = store.route("numbers", source, "numbers", lambda entry: int(entry.payload) > 0)
        route.catch_up()
        if source != "others":
            route.delete()
    assert len(found_in(stored(), SECRET)) > 1
    assert store.erase("jobs", "ann").unreached == ()
    assert found_in(stored(), SECRET) == []
    assert "nobody" in str(route.status().error)


def test_a_snapshot_that_another_process_writes_during_an_erasure_keeps_no_text(
    place: tuple[str, Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, stored = place
    with streamkit.connect(url) as client, streamkit.connect(url) as second:
        store = client.store(uuid4())
        store.produce("jobs", "ann", [Record(SECRET)])
        store.group("jobs", "some", retry_delay=3600.0, lanes=1).run(number, drain=True)
        theirs = second.store(store.id).group("jobs", "some").core.lane(0).chain
        theirs.catch_up()
        write = Core.write

        def overtaken(core: Core, *rest: Any) -> Any:
            monkeypatch.setattr(Core, "write", write)
            theirs.shorten()
            return write(core, *rest)

        monkeypatch.setattr(Core, "write", overtaken)
        assert store.erase("jobs", "ann").unreached == ()
        assert Core.write is write
        assert found_in(stored(), SECRET) == []


def test_an_erasure_that_cannot_shorten_the_log_of_a_group_raises(
    place: tuple[str, Stored], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, stored = place
    produce = Store.produce

    def refused(store: Store, space: str, segment: str, *rest: Any, **options: Any) -> Any:
        if segment.endswith("/snapshots"):
            raise Unavailable("no answer")
        return produce(store, space, segment, *rest, **options)

    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        store.produce("jobs", "ann", [Record(SECRET)])
        store.group("jobs", "some", retry_delay=3600.0).run(number, drain=True)
        monkeypatch.setattr(Store, "produce", refused)
        with pytest.raises(Unavailable):
            store.erase("jobs", "ann")
        monkeypatch.setattr(Store, "produce", produce)
        assert store.erase("jobs", "ann").unreached == ()
        assert found_in(stored(), SECRET) == []


def test_upkeep_leaves_a_group_alone_that_was_made_after_its_space_was_deleted(
    place: tuple[str, Stored],
) -> None:
    """Also upkeep of a process that still has the deleted space open."""
    with streamkit.connect(place[0]) as client, streamkit.connect(place[0]) as late:
        store = client.store(uuid4())
        store.produce("jobs", "ann", [Record(b"1")])
        store.group("jobs", "some", max_deliveries=1).run(number, drain=True)
        other = late.store(store.id)
        assert [entry.payload for entry in other.consume_space("jobs")] == [b"1"]
        store.delete_space("jobs")
        store = client.store(store.id)
        store.produce("jobs", "ann", [Record(b"no number"), Record(b"2")])
        store.group("jobs", "some", max_deliveries=1).run(number, drain=True)
        for space in (internal_name("group", "jobs", "some"), None):
            with suppress(StoreClosed):
                other.maintain(space)
        late.store(store.id).maintain()
        store.maintain()
        assert [letter.entry.payload for letter in store.group("jobs", "some").dead_letters()] == [b"no number"]


@pytest.mark.parametrize("use", ["maintain", "erase", "open"])
def test_a_group_whose_space_has_lost_its_head_is_as_before_when_that_is_repaired(use: str) -> None:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("jobs", "ann", [Record(b"no number"), Record(b"2"), Record(b"3")])
        group = store.group("jobs", "some", max_deliveries=1)
        group.run(number, drain=True)
        assert (group.status().dead, group.status().acked) == (1, 2)
        inner(store).backend.delete(bytes(partition_key("jobs", 0)), [bytes(HEAD)])
        id = store.id
        store.close()
        store = client.store(id)
        if use == "maintain":
            store.maintain(internal_name("group", "jobs", "some"))
        elif use == "open":
            with pytest.raises(CorruptData, match="repair"):
                store.group("jobs", "some")
        else:
            assert "repair" in store.erase("jobs", "ann").unreached[0]
            assert store.erase("unknown", "ann").unreached == ()
        store.repair("jobs")
        store.close()
        store = client.store(id)
        group = store.group("jobs", "some")
        assert [letter.entry.payload for letter in group.dead_letters()] == [b"no number"]
        assert (group.status().dead, group.status().acked) == (1, 2)
