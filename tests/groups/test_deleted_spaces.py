"""A deleted space takes its groups along, with all that they keep: see `delete_groups`."""

from __future__ import annotations

import pickle
from contextlib import suppress
from time import time
from typing import Any
from uuid import uuid4

import pytest
from fix_stores import Subject

import streamkit
from harness.deep_search import found_in, rows_in_memory
from streamkit import Client, Record, Store
from streamkit.errors import PermanentError, StoreClosed
from streamkit.groups import Delivery
from streamkit.groups.core import feed_chain
from streamkit.groups.events import Created, Deleted
from streamkit.log import log_end
from streamkit.names import internal_name
from streamkit.store import inner
from streamkit.testing import Crash, Fault, FaultyDriver, ManualClock, Plan
from streamkit_memory import MemoryDriver

SECRET = b"secret-of-ann"
LONG = "g" * 200
"""The internal space of a group with this name is named by a digest."""


def number(delivery: Delivery) -> None:
    int(delivery.entry.payload)


def fail(store: Store, *names: str) -> None:
    """Groups of the space `jobs` that keep a text with the secret. They are made."""
    store.produce("jobs", "ann", [Record(SECRET)])
    for name in names:
        store.group("jobs", name, max_deliveries=1, lanes=2).run(number, drain=True)


def internal_spaces(subject: Subject) -> list[str]:
    return [str(name) for name in inner(subject.stranger()).internal_names("group")]


def test_a_deleted_space_leaves_nothing_of_its_groups(subject: Subject) -> None:
    fail(subject.store, "some", LONG)
    subject.store.group("jobs", "unused")
    subject.store.group("jobs", "deleted").delete()
    subject.store.group("jobs2", "another")
    subject.store.group("other", LONG)
    before = len(internal_spaces(subject))
    subject.store.delete_space("jobs")
    assert (before, len(internal_spaces(subject))) == (6, 2)
    assert subject.stranger().get_groups("jobs2") == ["another"]
    assert subject.stranger().get_groups("other") == [LONG]


@pytest.mark.parametrize("remote", ["", "?remote=1"])
def test_no_text_of_a_failure_outlives_the_space(remote: str) -> None:
    url = f"memory://{uuid4().hex}{remote}"
    with streamkit.connect(url) as client:
        store = client.store(uuid4())
        fail(store, "some", LONG)
        assert len(found_in(rows_in_memory(url), SECRET)) > 2
        store.delete_space("jobs")
        assert found_in(rows_in_memory(url), SECRET) == []


def test_a_group_that_was_made_before_its_space_goes_with_it(subject: Subject) -> None:
    subject.store.group("jobs", "early")
    subject.store.produce("jobs", "ann", [Record(b"1")])
    subject.store.delete_space("jobs")
    assert internal_spaces(subject) == []


def test_a_group_waits_for_its_space_until_that_is_deleted(subject: Subject) -> None:
    subject.store.group("jobs", "early")
    subject.store.maintain()
    assert subject.stranger().get_groups("jobs") == ["early"]
    subject.store.delete_space("jobs")
    assert internal_spaces(subject) == []


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("there", [False, True], ids=["by itself", "by another process"])
def test_a_process_that_has_the_group_open_makes_nothing_of_it_again(subject: Subject, there: bool, used: bool) -> None:
    subject.store.produce("jobs", "ann", [Record(b"%d" % at) for at in range(9)])
    group = subject.store.group("jobs", "some", lanes=2)
    with suppress(PermanentError, StoreClosed), group.consumer() as consumer:
        deliveries = consumer.receive(2) if used else []
        (subject.stranger() if there else subject.store).delete_space("jobs")
        for delivery in deliveries:
            consumer.ack(delivery)
        with pytest.raises((PermanentError, StoreClosed)):
            consumer.receive()
    for use in (group.status, group.delete, group.receive, lambda: group.configure(ack_timeout=9.0)):
        with pytest.raises((PermanentError, StoreClosed)) as raised:
            use()
        # It goes to another process, for example of a pool.
        assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert internal_spaces(subject) == []


@pytest.mark.parametrize("there", [False, True], ids=["by itself", "by another process"])
def test_a_group_of_the_next_space_begins_anew(subject: Subject, there: bool) -> None:
    fail(subject.store, "some")
    before = subject.store.group("jobs", "some")
    another = subject.stranger() if there else subject.store
    another.delete_space("jobs")
    another.produce("jobs", "ann", [Record(b"no number"), Record(b"2")])
    group = another.group("jobs", "some", max_deliveries=1)
    with pytest.raises((PermanentError, StoreClosed)):
        before.consumer().receive()
    group.run(number, drain=True)
    assert (group.status().dead, group.status().acked) == (1, 1)
    assert subject.stranger().group("jobs", "some").status().dead == 1


def test_queues_are_listed_although_one_was_deleted_and_made_again(subject: Subject) -> None:
    """Their list opens the internal space of each."""
    another = subject.stranger()
    another.queue("mails")
    assert subject.store.get_queues() == ["mails"]
    another.delete_space("mails")
    assert subject.store.get_queues() == []
    another.queue("mails").put(b"1")
    another.queue("others")
    assert subject.store.get_queues() == ["mails", "others"]


@pytest.mark.parametrize("remote", ["", "?remote=1"])
@pytest.mark.parametrize("then", ["delete", "maintain", "erase"])
def test_a_deletion_that_was_killed_anywhere_is_completed(then: str, remote: str) -> None:
    """The process is killed before each of its calls. Before the first write the space is whole."""
    completed = 0
    for at in range(1000):
        root, id = uuid4().hex, uuid4()
        url = f"memory://{root}{remote}"
        with streamkit.connect(url) as client:
            fail(client.store(id), "some")
        driver = MemoryDriver(root, remote=bool(remote))
        killed = FaultyDriver(driver, Plan.at(at, Fault.CRASH_BEFORE))
        with suppress(Crash):
            Client(url, killed, 30.0, None, 64 << 20, ManualClock(time())).store(id).delete_space("jobs")
        with streamkit.connect(url) as client:
            store = client.store(id)
            if then == "delete":
                store.delete_space("jobs")
            elif then == "maintain":
                store.maintain()
            else:
                store.erase("jobs", "ann")
            if not list(store.get_spaces()):
                assert inner(store).internal_names("group") == [], at
                assert found_in(rows_in_memory(url), SECRET) == [], at
                completed += killed.faults.crashed
        if not killed.faults.crashed:
            assert completed > 20
            return
    raise AssertionError("it never ended")


def leave_group(subject: Subject) -> None:
    """A group of a space that was deleted, as releases up to 0.1.0 have left it."""
    subject.store.produce("jobs", "ann", [Record(SECRET)])
    core = subject.store.group("jobs", "some").core
    feed = feed_chain(subject.stranger(), core.internal)
    feed.catch_up()
    feed.commit(feed.now(), [Deleted(), Created(core.settings, [], feed.now(), b"\0", "jobs", "some")])


def test_upkeep_deletes_what_an_earlier_release_has_left(subject: Subject) -> None:
    leave_group(subject)
    subject.stranger().maintain()
    assert internal_spaces(subject) == []


def test_a_group_that_is_made_while_upkeep_deletes_the_earlier_one_stays(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made between the last look at the earlier group and the end of its log."""
    leave_group(subject)
    put_end, made = log_end._put_end, list[Any]()

    def make_first(*args: Any) -> None:
        if not made:
            made.append(subject.stranger().group("jobs", "some", max_deliveries=1))
        put_end(*args)

    monkeypatch.setattr(log_end, "_put_end", make_first)
    subject.stranger().maintain()
    assert made
    monkeypatch.undo()
    made[0].run(number, drain=True)
    assert subject.stranger().group("jobs", "some").status().dead == 1


def test_a_half_deleted_internal_space_is_in_nobodys_way(in_memory: Subject) -> None:
    """The upkeep that deleted it was killed. The space was made again meanwhile."""
    leave_group(in_memory)
    internal = internal_name("group", "jobs", "some")
    (first, *_) = inner(in_memory.stranger()).unread_partitions(internal)
    log_end.end_log(first)
    group = in_memory.stranger().group("jobs", "some")
    assert len(group.receive()) == 1
    assert in_memory.stranger().get_groups("jobs") == ["some"]
